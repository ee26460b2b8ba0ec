"""From a call to its outcome, by its method."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from ..concurrency.threads import Threads
from ..crypto.cursors import Cursors
from ..errors import (
    Declined,
    InvalidParams,
    InvalidRequestState,
    MissingCapability,
    NotFound,
    OverBudget,
    ProtocolError,
    RequestError,
    StoreUnavailable,
    ToolError,
    UnknownMethod,
    UnknownTarget,
)
from ..flow.asks import Refusal
from ..flow.authorization import Authorizer
from ..flow.handler import Handler
from ..flow.service import Opened, RoundService
from ..flow.single_use import Lease
from ..limits import LONGEST_KEY, LONGEST_NAME, check_length
from ..protocol.messages import (
    JSON,
    NEEDS_TASKS,
    STATE_METHODS,
    TASKS,
    Call,
    Change,
    Complete,
    Discovery,
    Listening,
    NeedsInput,
    Outcome,
    Outlet,
    Subscription,
)
from ..registration.registry import Record, Registry
from ..schema.arguments import Arguments, ArgumentsMisfit
from ..schema.results import completion_body, prompt_body, resource_body
from ..schema.unknown_arguments import ArgumentNames, read_arguments
from ..storage.pubsub import Fanout
from ..tasks.notifications import with_tasks
from ..tasks.service import Tasks
from .authorized_changes import AuthorizedChanges
from .failures import ErrorReporter, problems, refused
from .tools import Tools

logger = logging.getLogger("mrtr_server")

Scope = Literal["public", "private"]

Registered = Literal["tools", "prompts", "resources", "completions", "tasks"]
"""What a server can have, each with a capability of its own (Discovery, Server Capabilities)."""

_LISTENED: dict[str, Literal["tools", "prompts", "resources"]] = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
_LISTENED_EACH: dict[str, Literal["resource", "task"]] = {"resourceSubscriptions": "resource", "taskIds": "task"}
_READ = ("resources", "resourceTemplates")
"""The lists of what has URIs that can be listened to."""
_MOST_EACH = 1000
"""How many resources, and how many tasks, one listener may name."""


class Dispatcher:
    """Answers calls. It knows no version of the protocol and no transport.

    Args:
        registry: what can be called.
        tools: calls tools, and answers for their tasks.
        flows: runs the rounds of what may ask.
        tasks: knows the tasks that somebody listens to.
        errors: notes what goes wrong on our side.
        authorizer: knows who may use what.
        cursors: seals positions in lists.
        fanout: carries change notifications.
        threads: runs plain functions.
        instructions: how a model should use the server.
        page_size: entries of a page of a list.
        list_ttl: how long a client may keep a list, in seconds.
        list_scope: who may share a kept list.
        registers_later: what the server may have while it runs, though there is none yet.
    """

    def __init__(
        self,
        registry: Registry,
        tools: Tools,
        flows: RoundService,
        tasks: Tasks,
        errors: ErrorReporter,
        authorizer: Authorizer,
        cursors: Cursors,
        fanout: Fanout,
        threads: Threads,
        *,
        instructions: str,
        page_size: int,
        list_ttl: float,
        list_scope: Scope,
        registers_later: Collection[Registered],
    ) -> None:
        self._registry = registry
        self._flows = flows
        self._tools = tools
        self._tasks = tasks
        self._errors = errors
        self._authorizer = authorizer
        self._cursors = cursors
        self._fanout = fanout
        self._threads = threads
        self._instructions = instructions
        self._page_size = page_size
        self._list_ttl = list_ttl
        self._list_scope: Scope = list_scope
        self._registers_later = registers_later
        self._methods: Mapping[str, Callable[[Call, Outlet], Awaitable[Outcome]]] = {
            "tools/call": tools.call,
            "prompts/get": self._get_prompt,
            "resources/read": self._read_resource,
            "tools/list": self._list("tools"),
            "prompts/list": self._list("prompts"),
            "resources/list": self._list("resources"),
            "resources/templates/list": self._list("resourceTemplates"),
            "completion/complete": self._complete,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            "tasks/get": tools.about_task,
            "tasks/result": tools.about_task,
            "tasks/update": tools.about_task,
            "tasks/answer": tools.about_task,
            "tasks/respond": tools.about_task,
            "tasks/cancel": tools.about_task,
        }

    def dispatch(self, call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        """Answer a call.

        Args:
            call: the request, read and checked by its dialect.
            outlet: takes the notes that the handler sends on its way.

        Returns:
            The outcome.

        Raises:
            RequestError: why there is none, for the client. Whatever else went wrong is in the log by then.
        """
        method = self._methods.get(call.method)
        if method is None:
            raise UnknownMethod(call.method)
        if call.state is not None and call.method not in STATE_METHODS:
            logger.warning("%s: refused a requestState: this method issues none", call.method)
            raise InvalidRequestState("this method issues none")
        return method(call, outlet)

    # Requests that may ask

    async def _get_prompt(self, call: Call, outlet: Outlet) -> Outcome:
        prompt = self._registry.prompts.get(call.target)
        if prompt is None:
            raise UnknownTarget("prompt", call.target)
        await self._require(call, "prompt", prompt, call.target)

        def complete(result: Any) -> Complete:
            return Complete(prompt_body(result, prompt.description))

        names = prompt.names if call.state is None else None
        return await self._run_or_raise(prompt.handler, prompt.arguments, call.arguments, call, outlet, complete, names)

    async def _read_resource(self, call: Call, outlet: Outlet) -> Outcome:
        found = self._registry.find_resource(call.target)
        if found is None:
            raise UnknownTarget("resource", call.target)
        resource, values = found
        await self._require(call, "resource", resource, call.target)

        def complete(result: Any) -> Complete:
            body = resource_body(result, call.target, resource.mime_type)
            if call.state is not None or call.answers:
                return Complete(body, 0.0, "private")  # what depends on answers is not in a cache's key
            # What is not for everybody is not in anybody's cache but the caller's own.
            shared = not self._authorizer.guards(resource.authorize)
            return Complete(body, resource.ttl, resource.scope if shared else "private")

        return await self._run_or_raise(resource.handler, resource.arguments, values, call, outlet, complete)

    async def _run_or_raise(
        self,
        handler: Handler,
        reader: Arguments,
        raw: JSON,
        call: Call,
        outlet: Outlet,
        complete: Callable[[Any], Complete],
        names: ArgumentNames | None = None,
    ) -> Outcome:
        """Run a handler whose failures are JSON-RPC errors, since its result has no way to say so."""
        try:
            arguments = read_arguments(reader, names, raw)
        except ArgumentsMisfit as misfit:
            raise InvalidParams(problems(call.target, misfit), _named(call)) from None

        async def run(opened: Opened | None, lease: Lease | None) -> Outcome:
            try:
                result = await self._flows.run(handler, arguments, call, outlet, opened, lease)
                return result if isinstance(result, NeedsInput) else complete(result)
            except Exception as error:
                raise self._refusal(call, error) from None
            except Refusal as refusal:
                raise Declined(refused(refusal), {"action": refusal.action}) from None

        try:
            return await self._flows.deliver(handler, call, run)
        except Exception as error:
            raise self._refusal(call, error) from None

    def _refusal(self, call: Call, error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, NotFound):
            return UnknownTarget("resource" if call.method == "resources/read" else "prompt", call.target)
        if isinstance(error, ToolError):
            return ProtocolError(str(error) or "The request failed.")
        return self._errors.report(call, error)

    # Lists and the rest

    def _list(self, listing: str) -> Callable[[Call, Outlet], Awaitable[Outcome]]:
        async def list_entries(call: Call, outlet: Outlet) -> Outcome:
            start = 0
            cursor = call.params.get("cursor")
            if cursor is not None:
                if isinstance(cursor, str):
                    check_length(cursor, LONGEST_NAME, "cursor")
                offset = self._cursors.unseal(listing, cursor)
                if offset is None:
                    raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
                start = offset
            records = self._registry.records(listing)
            if shared := not self._authorizer.guards(None) and listing not in self._registry.guarded:
                end: int | None = start + self._page_size
                entries = [record.entry for record in islice(records.values(), start, end)]
                end = end if start + self._page_size < len(records) else None
            else:
                entries, end = await self._allowed_page(call, records, start)
            body: JSON = {listing: entries}
            if end is not None:
                body["nextCursor"] = self._cursors.seal(listing, end)
            return Complete(body, self._list_ttl, self._list_scope if shared else "private")

        return list_entries

    async def _allowed_page(
        self, call: Call, records: Mapping[str, Record], start: int
    ) -> tuple[list[JSON], int | None]:
        """Return a page of what the caller may see, and where the next one begins; None if there is none."""
        names, caller, size = list(records), call.caller, self._page_size
        found: list[int] = []
        while start < len(names) and len(found) <= size:
            some = names[start : start + size + 1]
            allowed = await self._authorizer.allowed(
                caller, call.method, [(records[name].authorize, name) for name in some]
            )
            found += [start + index for index, may in enumerate(allowed) if may]
            start += len(some)
        return [records[names[index]].entry for index in found[:size]], found[size] if len(found) > size else None

    async def _complete(self, call: Call, outlet: Outlet) -> Outcome:
        kind, name, argument, value, known = _completion_params(call.params)
        record: Record | None
        if kind == "prompt":
            record = self._registry.prompts.get(name)
        else:
            record = self._registry.templates.get(name) or self._registry.resources.get(name)
        if record is None:
            raise UnknownTarget(kind, name)
        await self._require(call, kind, record, name)
        completer = self._registry.completers.get((kind, name, argument))
        if completer is None:
            return Complete({"completion": {"values": [], "total": 0, "hasMore": False}})
        try:
            return Complete(completion_body(await completer.suggest(value, known, self._threads)))
        except ToolError as error:
            raise ProtocolError(str(error) or "The request failed.") from None
        except Exception as error:
            raise self._errors.report(call, error) from None

    async def _discover(self, call: Call, outlet: Outlet) -> Outcome:
        registry, later = self._registry, self._registers_later
        capabilities: JSON = {}
        if registry.tools or "tools" in later:
            capabilities["tools"] = {"listChanged": True}
        if registry.prompts or "prompts" in later:
            capabilities["prompts"] = {"listChanged": True}
        if registry.resources or registry.templates or "resources" in later:
            capabilities["resources"] = {"listChanged": True, "subscribe": True}
        if capabilities:
            capabilities["logging"] = {}
        if registry.completers or "completions" in later:
            capabilities["completions"] = {}
        if registry.tasks or "tasks" in later:
            capabilities["extensions"] = {TASKS: {}}
        return Discovery(capabilities, self._instructions, self._list_ttl, self._list_scope)

    async def _listen(self, call: Call, outlet: Outlet) -> Outcome:
        wanted = _wanted(call.params)
        has_tasks = any(change.kind == "task" for change in wanted)
        if has_tasks and call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        changes = await self._subscribe(call, wanted)
        if not has_tasks:
            return Listening(changes)
        principal = call.principal
        try:
            return Listening(await with_tasks(changes, lambda id: self._tasks.peek(id, principal)))
        except BaseException as error:
            changes.close()
            if isinstance(error, StoreUnavailable | InvalidRequestState):
                raise self._tools.task_fault(call, error) from None
            raise

    # Who may

    async def _require(self, call: Call, kind: str, record: Record, name: str) -> None:
        if self._authorizer.guards(record.authorize):
            await self._authorizer.require(call.caller, call.method, kind, (record.authorize, name))

    async def _subscribe(self, call: Call, wanted: frozenset[Change]) -> Subscription:
        """Start to listen to what the caller may hear of."""
        guarded = self._authorizer.guards(None) or not self._registry.guarded.isdisjoint(_READ)
        if not guarded or not any(change.kind == "resource" for change in wanted):
            return self._fanout.subscribe(wanted)
        caller, method = call.caller, call.method

        async def select(changes: Iterable[Change]) -> list[Change]:
            kept, asked = [], []
            for change in changes:
                if change.kind != "resource":
                    kept.append(change)
                elif found := self._registry.find_resource(change.uri):  # one that is refused is as good as unknown
                    asked.append((change, (found[0].authorize, change.uri)))
            allowed = await self._authorizer.allowed(caller, method, [each for _, each in asked])
            return kept + [change for (change, _), may in zip(asked, allowed, strict=True) if may]

        agreed = frozenset(await select(wanted))
        return AuthorizedChanges(self._fanout.subscribe(agreed), select)


def _named(call: Call) -> JSON:
    return {"uri" if call.method == "resources/read" else "name": call.target}


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


def _wanted(params: Mapping[str, Any]) -> frozenset[Change]:
    asked = params.get("notifications")
    if not isinstance(asked, dict):
        raise InvalidParams("subscriptions/listen needs notifications, an object with what to listen to")
    wanted: set[Change] = set()
    for field, kind in _LISTENED.items():
        if not isinstance(asked.get(field, False), bool):
            raise InvalidParams(f"notifications.{field} must be true or false")
        if asked.get(field):
            wanted.add(Change(kind))
    for field, kind_of_each in _LISTENED_EACH.items():
        named = asked.get(field, [])
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise InvalidParams(f"notifications.{field} must be a list of strings")
        if len(named) > _MOST_EACH or sum(map(len, named)) > _MOST_EACH * 100:
            raise OverBudget(f"More than {_MOST_EACH} {field}", field, _MOST_EACH)
        for name in named:
            check_length(name, LONGEST_NAME, field)
        wanted |= {Change(kind_of_each, name) for name in named}
    return frozenset(wanted)
