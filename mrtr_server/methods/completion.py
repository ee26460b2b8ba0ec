"""`completion/complete`."""

from collections.abc import Callable, Mapping
from typing import Any

from ..concurrency.threads import Threads
from ..errors import InvalidParams, UnknownMethod, UnknownTarget
from ..flow.authorization import Authorizer
from ..limits import LONGEST_KEY, LONGEST_NAME, check_length
from ..protocol.messages import Call, Complete, Outcome, Outlet
from ..registration.registry import Record, Registry
from ..schema.results import completion_body
from .failures import ErrorReporter, request_failure


class Completions:
    """Suggests values for arguments of prompts and variables of templates.

    Args:
        registry: has the completions.
        threads: runs plain functions.
        errors: logs what goes wrong on our side.
        authorizer: knows who may use what.
        are_declared: returns whether completions were declared to clients.
    """

    def __init__(
        self,
        registry: Registry,
        threads: Threads,
        errors: ErrorReporter,
        authorizer: Authorizer,
        are_declared: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._threads = threads
        self._errors = errors
        self._authorizer = authorizer
        self._are_declared = are_declared

    async def complete(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `completion/complete` (Completion, Requesting Completions). Raises `RequestError`."""
        if not self._are_declared():
            raise UnknownMethod(call.method)
        kind, name, argument, value, known = _completion_params(call.params)
        record: Record | None
        if kind == "prompt":
            record = self._registry.find("prompts", name)
        else:
            record = self._registry.find("resourceTemplates", name) or self._registry.find("resources", name)
        if record is None:
            raise UnknownTarget(kind, name)
        if self._authorizer.guards(record.authorize):
            await self._authorizer.require(call.caller, call.method, kind, (record.authorize, name))
        completer = self._registry.find_completer(kind, name, argument)
        if completer is None:
            return Complete({"completion": {"values": [], "total": 0, "hasMore": False}})
        try:
            return Complete(completion_body(await completer.suggest(value, known, self._threads)))
        except Exception as error:
            raise request_failure(call, error, self._errors) from None


def _completion_params(params: Mapping[str, Any]) -> tuple[str, str, str, str, dict[str, str]]:
    reference, argument = params.get("ref"), params.get("argument")
    if not isinstance(reference, dict) or not isinstance(argument, dict):
        raise InvalidParams("completion/complete needs ref and argument")
    kind = {"ref/prompt": "prompt", "ref/resource": "resource"}.get(str(reference.get("type")))
    name = reference.get("name" if kind == "prompt" else "uri")
    argument_name, value = argument.get("name"), argument.get("value")
    if kind is None or not all(isinstance(text, str) for text in (name, argument_name, value)):
        raise InvalidParams("completion/complete needs a ref of a prompt or resource, and an argument's name and value")
    check_length(str(name), LONGEST_NAME, "ref")
    check_length(str(argument_name), LONGEST_KEY, "argument.name")
    context = params.get("context")
    known = context.get("arguments") if isinstance(context, dict) else None
    known = known if isinstance(known, dict) else {}
    return kind, str(name), str(argument_name), str(value), {k: v for k, v in known.items() if isinstance(v, str)}
