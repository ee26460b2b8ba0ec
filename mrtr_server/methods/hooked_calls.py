"""Calls of applications that have hooks (`app.around`, `app.on_error`), or a `lifespan=` to enter before."""

import logging
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, cast

from pydantic_core import from_json

from ..concurrency.threads import Threads, ending_in
from ..errors import FlowError, RequestError
from ..flow.handler import Handler
from ..flow.home import CallHook, CallInfo, Ended, Failure, Lifespans, Word
from ..logs.failures import Noted, noting, take_locals
from ..protocol.callers import request_of
from ..protocol.messages import ASKING_METHODS, JSON, Call, Complete, Outcome, Outlet
from ..protocol.trace import End
from ..registration.registry import Registry
from ..tasks.round_executor import TaskEnd
from ..tasks.task_run import TaskRun
from ..well_formed import write_json
from .failures import ErrorReporter, request_failure, tool_failure
from .middleware import Serve, note_end

logger = logging.getLogger("mrtr_server")

_WORDS: Mapping[End, Word] = {
    "completed": "completed",
    "listening": "completed",
    "asked": "asked",
    "handed_over": "handed_over",
    "task": "task",
    "declined": "declined",
    "tool_error": "failed",
    "error": "failed",
    "cancelled": "failed",
}

_CONTENTS = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}

_NAME, _PARAMETER = b"mcp-name", b"mcp-param-"
"""Headers that mirror a request: what it is of, which may be a URI with arguments in it, and parameters of a tool."""


class _About(NamedTuple):
    handler: Handler | None
    name: str  # a name, a URI, or the template of URIs
    uri: str = ""  # of the resource that it reads
    template: str = ""
    variables: Mapping[str, str] | None = None  # the values of the template's variables


_NOTHING = _About(None, "")


class HookedCalls:
    def __init__(self, registry: Registry, lifespans: Lifespans, threads: Threads, errors: ErrorReporter) -> None:
        self.registry = registry
        self.lifespans = lifespans
        self._threads = threads
        self._errors = errors

    def around(self, serve: Serve) -> Serve:
        async def hooked(call: Call, outlet: Outlet) -> Outcome | TaskEnd:
            return await _Served(self, serve, call, outlet).run()

        return hooked

    def find(self, call: Call) -> "_About":
        """Return what a call is of; of what there is not, what the client sent is not shown."""
        registry, target = self.registry, call.target
        if call.method != "resources/read":
            record = registry.find("tools" if call.method == "tools/call" else "prompts", target)
            return _NOTHING if record is None else _About(record.handler, target)
        found = registry.find_resource(target)
        if found is None:
            return _NOTHING
        handler, entry = found.resource.handler, found.resource.entry
        if found.resource.template is None:
            return _About(handler, entry["uri"], found.uri)
        return _About(handler, entry["uriTemplate"], found.uri, entry["uriTemplate"], found.values)

    def failed(self, call: Call, error: Exception) -> Complete:
        if call.method == "tools/call":
            failure = tool_failure(call, error, self._errors)
            if not isinstance(failure, RequestError):
                return failure
        else:
            failure = request_failure(call, error, self._errors)
        raise failure

    async def report(self, hook: CallHook, failure: Failure) -> None:
        try:
            if hook.is_async:
                await hook.function(failure)
            else:
                await self._threads(partial(hook.function, failure))
        except Exception as error:
            logger.error("The hook %s of app.on_error failed", hook.name, exc_info=error)


class _Served:
    """A call, or a round of a task, on its way through hooks."""

    def __init__(self, calls: HookedCalls, serve: Serve, call: Call, outlet: Outlet) -> None:
        self._calls = calls
        self._serve = serve
        self._call = call
        self._outlet = outlet
        self._scope: Any = getattr(outlet, "scope", None)
        self._about = calls.find(call)
        handler = self._about.handler
        homes = (calls.registry.home,) if handler is None else handler.homes
        is_call = call.method in ASKING_METHODS
        self._around: list[CallHook] = [hook for home in homes for hook in home.around] if is_call else []
        self._on_error: list[CallHook] = [hook for home in homes for hook in home.on_error]
        self._outcome: Outcome | TaskEnd | None = None
        self._error: BaseException | None = None
        self._has_run = False

    async def run(self) -> Outcome | TaskEnd:
        if not (self._around or self._on_error):
            try:
                await self._start()
            except Exception as error:
                return self._calls.failed(self._call, error)
            return await self._serve(self._call, self._outlet)
        if any(hook.sees_results for hook in self._around):
            self._call.trace.is_whole = True
        failures: Noted = []
        try:
            with noting(failures):
                return await self._run()
        finally:
            for failed, reference in failures:
                await self._report(failed, reference)

    async def _start(self) -> None:
        if self._call.method in ASKING_METHODS and self._calls.lifespans.known:
            await self._calls.lifespans.start_here()

    async def _run(self) -> Outcome | TaskEnd:
        try:
            await self._through(0)
        except Exception as error:
            counts = cast(Exception, ending_in(error, "app.around"))  # all errors in such a group are `Exception`s
            if counts is not self._error or not isinstance(counts, RequestError):
                return self._calls.failed(self._call, counts)
        if self._error is not None:  # whatever a hook made of it
            raise self._error
        return cast(Outcome | TaskEnd, self._outcome)

    async def _innermost(self) -> None:
        if self._has_run:
            raise RuntimeError("call_next was awaited twice")
        self._has_run = True
        try:
            await self._start()
            self._outcome = await self._serve(self._call, self._outlet)
        except BaseException as error:
            self._error = error
            if isinstance(error, Exception) and not self._shows_all:
                take_locals(error)  # before a hook that is not to see what they hold
            raise

    async def _through(self, index: int) -> None:
        if index == len(self._around):
            await self._innermost()
            return
        hook, ended = self._around[index], None

        async def call_next(_: CallInfo) -> Ended:
            nonlocal ended
            await self._through(index + 1)
            ended = self._ended(hook)
            return ended

        returned = await hook.function(self._info(hook), call_next)
        if ended is None:
            if self._error is not None:
                raise self._error
            raise FlowError(f"The hook {hook.name} of app.around returned without `await call_next(call)`")
        if isinstance(returned, Ended) and not (returned.result is None is ended.result):
            self._replace(hook, returned.result)

    def _ended(self, hook: CallHook) -> Ended:
        trace, outcome = self._call.trace, cast(Outcome | TaskEnd, self._outcome)
        word = _WORDS[note_end(self._call, outcome)]
        # A copy, so that a result changes only where the hook returns another one.
        result = deepcopy(outcome.body) if hook.sees_results and isinstance(outcome, Complete) else None
        answered = dict(trace.answered or {}) if hook.sees_answers else None
        return Ended(word, trace.reference, trace.flow, trace.rounds + 1, result, answered)

    def _replace(self, hook: CallHook, result: Mapping[str, Any] | None) -> None:
        """Put the result that a hook has returned into the place of the call's. Raises `FlowError` if that can't be."""
        before, who = self._outcome, f"The hook {hook.name} of app.around"
        if not hook.sees_results:
            raise FlowError(f"{who} returned a result; only one with sees_results=True may replace results")
        if not isinstance(before, Complete):
            raise FlowError(f"{who} returned a result for a round that has none; return what call_next returned")
        if result is None:  # or what the hook may have meant to hide would go out
            raise FlowError(f"{who} returned no result; raise ToolError to refuse it")
        if result == before.body:
            return
        try:
            body: JSON = from_json(write_json(result))
        except Exception as error:
            raise FlowError(f"{who} returned a result that is no JSON: {type(error).__name__}") from None
        if lacks := _lacks(self._call.method, before.body, body):
            raise FlowError(f"{who} returned a result without {lacks}; return dataclasses.replace(ended, result=...)")
        self._outcome = Complete(body, before.ttl)  # private: a shared cache does not know for whom it was changed

    @property
    def _shows_all(self) -> bool:
        return all(hook.sees_arguments and hook.sees_answers for hook in self._around)

    def _info(self, hook: CallHook) -> CallInfo:
        call, about, sees_arguments = self._call, self._about, hook.sees_arguments
        return CallInfo(
            call.method,
            about.name,
            call.caller,
            call.client,
            is_task=isinstance(self._outlet, TaskRun),
            is_retry=call.state is not None or call.trace.rounds > 0,
            request=None if self._scope is None else request_of(self._scope_for(hook)),
            template=about.template,
            uri=about.uri if sees_arguments or not about.template else "",
            variables=about.variables if sees_arguments else None,
            arguments=call.arguments if sees_arguments else None,
            answers=call.answers if hook.sees_answers else None,
        )

    def _scope_for(self, hook: CallHook) -> Any:
        """Return the scope of the HTTP request, without headers that mirror what the hook is not to see."""
        scope, name = self._scope, self._about.name.encode()
        if hook.sees_arguments:
            return scope
        headers = [
            header
            for header in scope["headers"]
            if not header[0].startswith(_PARAMETER) and (header[0] != _NAME or header[1] == name)
        ]
        return scope if len(headers) == len(scope["headers"]) else {**scope, "headers": headers}

    async def _report(self, error: BaseException, reference: str) -> None:
        sees_all = [hook for hook in self._on_error if hook.sees_arguments and hook.sees_answers]
        others = [hook for hook in self._on_error if hook not in sees_all]
        for hook in (*sees_all, *others):
            if hook in others:
                take_locals(error)
            await self._calls.report(hook, Failure(error, reference, self._info(hook), self._call.trace.flow))


def _lacks(method: str, before: JSON, body: Any) -> str:
    """Return what the result of a hook has to have and does not have; empty for nothing."""
    if not isinstance(body, dict):
        return "fields"
    contents = _CONTENTS[method]
    blocks = body.get(contents)
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return f"a list of objects, {contents!r}"
    is_structured = "structuredContent" in before and not body.get("isError")
    return (
        "'structuredContent', which the call's result has" if is_structured and "structuredContent" not in body else ""
    )
