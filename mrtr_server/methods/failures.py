"""What goes wrong while a handler runs, in words for its reader: the model, the client or the operator."""

from dataclasses import replace

from ..errors import (
    ArgumentsMisfit,
    InternalFault,
    InvalidRequestState,
    ProtocolError,
    Refusal,
    RequestError,
    StoreUnavailable,
    ToolError,
    Unavailable,
)
from ..hints import for_error
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call, Complete
from ..schema.results import failed

_REFUSED = {
    "decline": "The user declined to answer, so the request was not carried out.",
    "cancel": "The user dismissed the question without an answer, so the request was not carried out.",
}
_NOT_CONFIRMED = {
    "decline": (
        "The user was asked to confirm and declined, so the request was not carried out. Do not send it again unless "
        "the user asks for it."
    ),
    "cancel": (
        "The user dismissed the confirmation without a choice, so the request was not carried out. Ask the user "
        "before you send it again."
    ),
}


class ErrorReporter:
    """Notes mistakes on our side in the log. `debug`: whether clients see what went wrong inside."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self._refusals = RefusalLog()

    def note_changed(self, name: str) -> None:
        """Log that a flow which has begun has arguments that no longer fit, as after a deploy that changed a tool."""
        self._refusals.note(
            "%r: the arguments of a flow that has begun do not fit it any more, so the flow ends with an error. If a "
            "deploy changed what it takes, let it take the former arguments, too, until those flows have ended",
            name,
        )

    def note_gone(self, name: str) -> None:
        """Log that a flow which has begun is of a tool that is not here, as after a deploy that dropped it."""
        self._refusals.note(
            "A flow that has begun is of the tool %r, which this server does not have, so the flow ends with an error. "
            "Deploy the same version everywhere, and drop a tool only when its flows have ended",
            name,
        )

    def report(self, call: Call, error: Exception) -> RequestError:
        """Log what went wrong under a reference, unless it is in the log already. Return what the client sees of it."""
        fault = self._report(call, error)
        call.trace.reference = str((fault.data or {}).get("reference", ""))
        return fault

    def _report(self, call: Call, error: Exception) -> RequestError:
        if isinstance(error, StoreUnavailable) and error.reference:
            return Unavailable(error.reference)
        what = "%s %.200r failed", call.method, call.target
        if isinstance(error, StoreUnavailable):  # whose message says it all; what led to it may hold values
            reference = report_failure(*what, why=str(error), noted=StoreUnavailable(str(error)))
        else:
            reference = report_failure(*what, why=for_error(error), error=error)
        return InternalFault(reference, f"{type(error).__name__}: {error}" if self._debug else "")

    def report_task(self, call: Call, error: StoreUnavailable | InvalidRequestState) -> RequestError:
        """Log why a task can't be read, without its id, which may be all that protects it. See `report`."""
        if isinstance(error, InvalidRequestState):
            error = StoreUnavailable(f"A task does not open: {error.reason}")
        return self.report(replace(call, target=""), error)


def problems(target: str, misfit: ArgumentsMisfit) -> str:
    lines = [f"- {where}: {what}" if where else f"- {what}" for where, what in misfit.problems]
    return "\n".join([f"The arguments of {target} do not fit:", *lines])


def refused(refusal: Refusal) -> str:
    return (_NOT_CONFIRMED if refusal.confirming else _REFUSED)[refusal.action]


def request_failure(call: Call, error: Exception, errors: ErrorReporter) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ToolError):
        return ProtocolError(str(error) or "The request failed.")
    return errors.report(call, error)


def tool_failure(call: Call, error: Exception, errors: ErrorReporter) -> Complete | RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ToolError):
        return Complete(failed(str(error) or "The tool failed."))
    fault = errors.report(call, error)
    if isinstance(fault, Unavailable):  # to try again may help, and that is the client's to know
        return fault
    return Complete(failed(fault.message))
