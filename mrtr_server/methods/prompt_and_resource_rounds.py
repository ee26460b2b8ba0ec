"""Rounds of prompts and resources, whose failures are JSON-RPC errors, since their results can't say so."""

from collections.abc import Callable
from typing import Any, assert_never

from ..errors import (
    ArgumentsMisfit,
    Declined,
    FlowError,
    InvalidParams,
    NotFound,
    RequestError,
    UnknownTarget,
)
from ..flow.endings import Backgrounded, Completed, Failed, Refused
from ..flow.handler import Handler
from ..flow.round_context import RoundContext
from ..flow.round_service import RoundService
from ..protocol.messages import JSON, Call, Complete, HandedOver, NeedsInput, Outcome, Outlet
from ..schema.arguments import ArgumentNames, Arguments, validate_arguments
from .failures import ErrorReporter, problems, refused, request_failure


class Rounds:
    """Runs rounds, and turns whatever fails into the error that the client gets.

    Args:
        rounds: runs them.
        errors: logs what goes wrong on our side.
    """

    def __init__(self, rounds: RoundService, errors: ErrorReporter) -> None:
        self._rounds = rounds
        self._errors = errors

    async def run(
        self,
        handler: Handler,
        reader: Arguments,
        raw: JSON,
        call: Call,
        outlet: Outlet,
        complete: Callable[[Any], Complete],
        names: ArgumentNames | None = None,
    ) -> Outcome:
        """Run one round of a handler.

        Args:
            handler: what to run.
            reader: validates its arguments.
            raw: the arguments as they came.
            call: the request.
            outlet: takes the notes that the handler sends on its way.
            complete: makes the result of what the handler returned.
            names: the arguments that there may be; None where that is not checked.

        Returns:
            The result, or the need for input.

        Raises:
            RequestError: why there is none.
        """
        try:
            arguments = validate_arguments(reader, names, raw)
        except ArgumentsMisfit as misfit:
            raise InvalidParams(problems(call.target, misfit), _named(call)) from None

        async def run_once(round_: RoundContext) -> Outcome:
            try:
                end = await self._rounds.run(round_)
                match end:
                    case Completed(result):
                        return complete(result)
                    case NeedsInput() | HandedOver():
                        return end
                    case Refused(refusal):
                        raise Declined(refused(refusal), {"action": refusal.action})
                    case Failed(error):
                        raise self._refusal(call, error)
                    case Backgrounded():
                        raise FlowError(f"{handler.name!r} can't become a task; only tools can")
                    case unknown:
                        assert_never(unknown)
            except Exception as error:
                raise self._refusal(call, error) from None

        try:
            return await self._rounds.deliver(RoundContext(handler, call, outlet, arguments), run_once)
        except Exception as error:
            raise self._refusal(call, error) from None

    def _refusal(self, call: Call, error: Exception) -> RequestError:
        if isinstance(error, NotFound):
            return UnknownTarget("resource" if call.method == "resources/read" else "prompt", call.target)
        return request_failure(call, error, self._errors)


def _named(call: Call) -> JSON:
    return {"uri" if call.method == "resources/read" else "name": call.target}
