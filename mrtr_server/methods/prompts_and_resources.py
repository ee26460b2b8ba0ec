"""`prompts/get`, `resources/read` and `completion/complete`."""

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from ..concurrency.threads import Threads
from ..errors import (
    ArgumentsMisfit,
    Busy,
    Declined,
    FlowError,
    InvalidParams,
    NotFound,
    RequestError,
    UnknownMethod,
    UnknownTarget,
)
from ..flow.authorization import Authorizer
from ..flow.endings import Backgrounded, Completed, Failed, Refused
from ..flow.handler import Handler
from ..flow.round_service import RoundService
from ..flow.states import RoundContext
from ..limits import LONGEST_KEY, LONGEST_NAME, check_length
from ..protocol.messages import JSON, Call, Complete, HandedOver, NeedsInput, Outcome, Outlet
from ..registration.registry import Record, Registry
from ..schema.arguments import ArgumentNames, Arguments, validate_arguments
from ..schema.results import completion_body, prompt_body, resource_body
from .failures import ErrorReporter, problems, refused, request_failure


class PromptsAndResources:
    """Serves prompts and resources, in rounds."""

    def __init__(self, registry: Registry, rounds: RoundService, errors: ErrorReporter, authorizer: Authorizer) -> None:
        self._registry = registry
        self._rounds = rounds
        self._errors = errors
        self._authorizer = authorizer

    async def get(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `prompts/get` (Prompts, Getting a Prompt). Raises `RequestError`."""
        prompt = self._registry.find("prompts", call.target)
        if prompt is None:
            raise UnknownTarget("prompt", call.target, has_begun=call.state is not None)
        if self._authorizer.guards(prompt.authorize):
            await self._authorizer.require(
                call.caller, call.method, "prompt", (prompt.authorize, call.target), has_begun=call.state is not None
            )

        def complete(result: Any) -> Complete:
            body = prompt_body(result, prompt.description)
            return Complete(prompt.handler.addresses.body(body) if prompt.handler.addresses.ways else body)

        names = prompt.names if call.state is None else None
        return await self._run(prompt.handler, prompt.arguments, call.arguments, call, outlet, complete, names)

    async def read(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/read` (Resources, Reading Resources). Raises `RequestError`."""
        found = self._registry.find_resource(call.target)
        if found is None:
            raise UnknownTarget("resource", call.target, has_begun=call.state is not None)
        resource, values, uri = found
        if self._authorizer.guards(resource.authorize):
            await self._authorizer.require(
                call.caller, call.method, "resource", (resource.authorize, uri), has_begun=call.state is not None
            )

        def complete(result: Any) -> Complete:
            addresses = resource.handler.addresses
            if resource.page is not None:
                body = resource.page.body(result, call.target, addresses.prefix)
            else:
                if resource.skill is not None:
                    result = resource.skill.written(result, self._registry.asking_section)
                body = resource_body(result, call.target, resource.mime_type)
                body = addresses.body(body) if addresses.ways else body
            if call.state is not None or call.answers:
                return Complete(body, 0.0, "private")  # what depends on answers is not in a cache's key
            # A resource that is not for everybody may only be in the caller's own cache.
            shared = not self._authorizer.guards(resource.authorize)
            return Complete(body, resource.ttl, resource.scope if shared else "private")

        return await self._run(resource.handler, resource.arguments, values, call, outlet, complete)

    async def _run(
        self,
        handler: Handler,
        reader: Arguments,
        raw: JSON,
        call: Call,
        outlet: Outlet,
        complete: Callable[[Any], Complete],
        names: ArgumentNames | None = None,
    ) -> Outcome:
        """Run one round of a handler. `names` are the arguments that there may be; None where that is not checked."""
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
                        return await self._end_failed(round_, error)
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

    async def _end_failed(self, round_: RoundContext, error: Exception) -> Outcome:
        """Return what a client gets of a round that has failed. Raises `RequestError`."""
        refusal = self._refusal(round_.call, error)
        done = await self._rounds.hand_over_done(round_) if isinstance(refusal, Busy) else None
        if done is None:
            raise refusal
        return done  # the client comes again, and carries what was done

    def _refusal(self, call: Call, error: Exception) -> RequestError:
        if isinstance(error, NotFound):
            return UnknownTarget("resource" if call.method == "resources/read" else "prompt", call.target)
        return request_failure(call, error, self._errors)


def _named(call: Call) -> JSON:
    return {"uri" if call.method == "resources/read" else "name": call.target}


class Completions:
    def __init__(self, registry: Registry, threads: Threads, errors: ErrorReporter, authorizer: Authorizer) -> None:
        self._registry = registry
        self._threads = threads
        self._errors = errors
        self._authorizer = authorizer

    async def complete(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `completion/complete` (Completion, Requesting Completions). Raises `RequestError`."""
        if not self._registry.has_completions:
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
