"""What the client of a tool is told of how a round has ended."""

from typing import assert_never

from ..errors import RequestError, ToolError, Unavailable
from ..flow.endings import Completed, Failed, Refused
from ..protocol.messages import Call, Complete
from ..registration.registry import Tool
from ..schema.results import failed
from .failures import ErrorReporter, refused


def tool_result(
    tool: Tool, call: Call, end: Completed | Refused | Failed, errors: ErrorReporter
) -> Complete | RequestError:
    """Return the result of a tool, or the error where no result can say what went wrong.

    Args:
        tool: the tool.
        call: the request.
        end: how its round ended.
        errors: notes what goes wrong on our side.
    """
    match end:
        case Completed(result):
            try:
                return Complete(tool.write(result))
            except Exception as error:
                return tool_failure(call, error, errors)
        case Failed(error):
            return tool_failure(call, error, errors)
        case Refused(refusal):
            return Complete(failed(refused(refusal)))
        case unknown:
            assert_never(unknown)


def tool_failure(call: Call, error: Exception, errors: ErrorReporter) -> Complete | RequestError:
    """Return the result of a tool that has failed, or the error where no result can say that."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ToolError):
        return Complete(failed(str(error) or "The tool failed."))
    fault = errors.report(call, error)
    if isinstance(fault, Unavailable):  # to try again may help, and that is the client's to know
        return fault
    return Complete(failed(fault.message))
