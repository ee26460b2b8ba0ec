"""From a call to its outcome, by its method."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from .asks import Refusal
from .errors import (
    Declined,
    InvalidParams,
    MissingCapability,
    NotFound,
    OverBudget,
    ProtocolError,
    RequestError,
    StateRefused,
    StoreUnavailable,
    ToolError,
    UnknownMethod,
    UnknownTarget,
)
from .fanout import Fanout
from .faults import Faults, problems, refused
from .flows import Flows
from .handlers import Handler
from .limits import LONGEST_KEY, LONGEST_NAME, check_length
from .messages import (
    JSON,
    NEEDS_TASKS,
    TASKS,
    Call,
    Change,
    Complete,
    Discovery,
    Listening,
    NeedsInput,
    Outcome,
    Outlet,
)
from .registry import Registry
from .results import completion_body, prompt_body, resource_body
from .schema import Arguments, ArgumentsMisfit
from .signing import Cursors
from .task_changes import with_tasks
from .tasks import Tasks
from .threads import Threads
from .tool_calls import Tools

logger = logging.getLogger("mrtr_server")

Scope = Literal["public", "private"]

_LISTENED: dict[str, Literal["tools", "prompts", "resources"]] = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
_LISTENED_EACH: dict[str, Literal["resource", "task"]] = {"resourceSubscriptions": "resource", "taskIds": "task"}
_MOST_EACH = 1000
"""How many resources, and how many tasks, one listener may name."""


class Dispatcher:
    """Answers calls. It knows no version of the protocol and no transport.

    Parameters:
        registry: what can be called.
        tools: calls tools, and answers for their tasks.
        flows: runs the rounds of what may ask.
        tasks: knows the tasks that somebody listens to.
        faults: notes what goes wrong on our side.
        cursors: signs positions in lists.
        fanout: carries change notifications.
        threads: runs plain functions.
        instructions: how a model should use the server.
        page_size: entries of a page of a list.
        list_ttl: how long a client may keep a list, in seconds.
        list_scope: who may share a kept list.
    """

    def __init__(
        self,
        registry: Registry,
        tools: Tools,
        flows: Flows,
        tasks: Tasks,
        faults: Faults,
        cursors: Cursors,
        fanout: Fanout,
        threads: Threads,
        *,
        instructions: str,
        page_size: int,
        list_ttl: float,
        list_scope: Scope,
    ) -> None:
        self._registry = registry
        self._flows = flows
        self._tools = tools
        self._tasks = tasks
        self._faults = faults
        self._cursors = cursors
        self._fanout = fanout
        self._threads = threads
        self._instructions = instructions
        self._page_size = page_size
        self._list_ttl = list_ttl
        self._list_scope: Scope = list_scope
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

        Parameters:
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
        return method(call, outlet)

    # Requests that may ask

    async def _get_prompt(self, call: Call, outlet: Outlet) -> Outcome:
        prompt = self._registry.prompts.get(call.target)
        if prompt is None:
            raise UnknownTarget("prompt", call.target)
        result = await self._run_or_raise(prompt.handler, prompt.arguments, call.arguments, call, outlet)
        if isinstance(result, NeedsInput):
            return result
        return Complete(self._write(call, lambda: prompt_body(result, prompt.description)))

    async def _read_resource(self, call: Call, outlet: Outlet) -> Outcome:
        found = self._registry.find_resource(call.target)
        if found is None:
            raise UnknownTarget("resource", call.target)
        resource, values = found
        result = await self._run_or_raise(resource.handler, resource.arguments, values, call, outlet)
        if isinstance(result, NeedsInput):
            return result
        body = self._write(call, lambda: resource_body(result, call.target, resource.mime_type))
        if call.state is not None or call.answers:
            return Complete(body, 0.0, "private")  # what depends on answers is not in a cache's key
        return Complete(body, resource.ttl, resource.scope)

    async def _run_or_raise(self, handler: Handler, reader: Arguments, raw: JSON, call: Call, outlet: Outlet) -> Any:
        """Run a handler whose failures are JSON-RPC errors, since its result has no way to say so."""
        try:
            arguments = reader.read(raw)
        except ArgumentsMisfit as misfit:
            raise InvalidParams(problems(call.target, misfit), _named(call)) from None
        try:
            return await self._flows.run(handler, arguments, call, outlet)
        except NotFound:
            raise UnknownTarget("resource" if call.method == "resources/read" else "prompt", call.target) from None
        except ToolError as error:
            raise ProtocolError(str(error) or "The request failed.") from None
        except Refusal as refusal:
            raise Declined(refused(refusal), {"action": refusal.action}) from None
        except RequestError:
            raise
        except Exception as error:
            raise self._faults.of(call, error) from None

    def _write(self, call: Call, write: Callable[[], JSON]) -> JSON:
        try:
            return write()
        except Exception as error:
            raise self._faults.of(call, error) from None

    # Lists and the rest

    def _list(self, listing: str) -> Callable[[Call, Outlet], Awaitable[Outcome]]:
        async def list_entries(call: Call, outlet: Outlet) -> Outcome:
            start = 0
            cursor = call.params.get("cursor")
            if cursor is not None:
                if isinstance(cursor, str):
                    check_length(cursor, LONGEST_NAME, "cursor")
                offset = self._cursors.read(listing, cursor)
                if offset is None:
                    raise InvalidParams("The cursor is not one of this list; start again without it")
                start = offset
            entries = list(self._registry.entries(listing))
            end = start + self._page_size
            body: JSON = {listing: entries[start:end]}
            if end < len(entries):
                body["nextCursor"] = self._cursors.make(listing, end)
            return Complete(body, self._list_ttl, self._list_scope)

        return list_entries

    async def _complete(self, call: Call, outlet: Outlet) -> Outcome:
        kind, name, argument, value, known = _completion_params(call.params)
        if kind == "prompt" and name not in self._registry.prompts:
            raise UnknownTarget("prompt", name)
        if kind == "resource" and name not in self._registry.templates and name not in self._registry.resources:
            raise UnknownTarget("resource", name)
        completer = self._registry.completers.get((kind, name, argument))
        if completer is None:
            return Complete({"completion": {"values": [], "total": 0, "hasMore": False}})
        try:
            return Complete(completion_body(await completer.suggest(value, known, self._threads)))
        except ToolError as error:
            raise ProtocolError(str(error) or "The request failed.") from None
        except Exception as error:
            raise self._faults.of(call, error) from None

    async def _discover(self, call: Call, outlet: Outlet) -> Outcome:
        capabilities: JSON = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "logging": {},
        }
        if self._registry.completers:
            capabilities["completions"] = {}
        if self._registry.tasks:
            capabilities["extensions"] = {TASKS: {}}
        return Discovery(capabilities, self._instructions, self._list_ttl, self._list_scope)

    async def _listen(self, call: Call, outlet: Outlet) -> Outcome:
        wanted = _wanted(call.params)
        if not any(change.kind == "task" for change in wanted):
            return Listening(self._fanout.subscribe(wanted))
        if call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        changes, principal = self._fanout.subscribe(wanted), call.principal
        try:
            return Listening(await with_tasks(changes, lambda id: self._tasks.peek(id, principal)))
        except BaseException as error:
            changes.close()
            if isinstance(error, StoreUnavailable | StateRefused):
                raise self._tools.task_fault(call, error) from None
            raise


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
        raise InvalidParams("subscriptions/listen needs notifications, an object that says what to listen to")
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
