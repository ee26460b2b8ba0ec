"""Calls of applications that have hooks (`app.around`, `app.on_error`), or a `lifespan=` to enter before."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, assert_never, cast

from ..concurrency.exception_groups import ending_in
from ..concurrency.threads import Threads
from ..errors import FlowError, RequestError
from ..flow.endings import Asking, Backgrounded, Yielded
from ..flow.handler import Handler
from ..flow.home import Home
from ..flow.hooks import CallHook, CallInfo, Ended, Failure
from ..flow.hooks import Outcome as Word
from ..flow.journal import Journal
from ..flow.lifespans import Lifespans
from ..logs.bare import take_locals
from ..logs.failures import Noted, noting
from ..protocol.call_facts import CallFacts
from ..protocol.messages import (
    ASKING_METHODS,
    Acknowledged,
    Call,
    Complete,
    Discovery,
    HandedOver,
    Listening,
    NeedsInput,
    Outcome,
    Outlet,
    TaskCreated,
    TaskPage,
    TaskResult,
    TaskStatusResult,
)
from ..protocol.users import request_of
from ..registration.registry import Registry
from ..registration.resources import Resource
from ..tasks.round_executor import TaskEnd
from .failures import ErrorReporter, request_failure, tool_failure
from .rate_limited import Method

logger = logging.getLogger("mrtr_server")

T = TypeVar("T", bound=Outcome | TaskEnd)

_NAME, _PARAMETER = b"mcp-name", b"mcp-param-"
"""Headers that mirror a request: what it is of, which may be a URI with arguments in it, and parameters of a tool."""


class HookedCalls:
    """Serves calls, and rounds of tasks, between the hooks of their applications.

    Args:
        registry: what is called.
        lifespans: entered before the first call, where nobody has done that.
        threads: runs plain functions.
        errors: logs what goes wrong in a hook.
    """

    def __init__(self, registry: Registry, lifespans: Lifespans, threads: Threads, errors: ErrorReporter) -> None:
        self._registry = registry
        self._lifespans = lifespans
        self._threads = threads
        self._errors = errors

    async def serve(self, method: Method, call: Call, outlet: Outlet) -> Outcome:
        """Serve a call. Raises as `method` does.

        Args:
            method: serves it.
            call: the request.
            outlet: takes its notes.
        """
        handler, name = self._find(call)
        served: _Served[Outcome] = _Served(self, call, name, handler, getattr(outlet, "scope", None))
        return await served.run(partial(method, call, outlet))

    async def serve_task(self, call: Call, journal: Journal, work: Callable[[], Awaitable[TaskEnd]]) -> TaskEnd:
        """Run a round of a task. Raises as `work` does.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            work: runs the round.
        """
        handler, name = self._find(call)
        served: _Served[TaskEnd] = _Served(self, call, name, handler, None, journal)
        return await served.run(work)

    def _find(self, call: Call) -> tuple[Handler | None, str]:
        """Return what a call is of, and its name or URI; of what there is not, what the client sent is not shown."""
        registry, target = self._registry, call.target
        if call.method == "resources/read":
            found = registry.find_resource(target)
            if found is None:
                return None, ""
            return found.resource.handler, _uri_of(found.resource)
        record = registry.find("tools" if call.method == "tools/call" else "prompts", target)
        return (None, "") if record is None else (record.handler, target)

    def resource_of(self, call: Call) -> tuple[str, str, Mapping[str, str] | None]:
        """Return the URI of the resource that a call reads, its template, and the values of that; nothing of others."""
        found = self._registry.find_resource(call.target) if call.method == "resources/read" else None
        if found is None:
            return "", "", None
        if found.resource.template is None:
            return found.uri, "", None
        return found.uri, _uri_of(found.resource), found.values

    def homes(self, handler: Handler | None) -> Sequence[Home]:
        """Return the applications whose hooks a call passes, the outermost first."""
        return (self._registry.home,) if handler is None else handler.homes

    async def start(self) -> None:
        """Enter what nobody has entered. Raises whatever a `lifespan=` raised."""
        if self._lifespans.known:
            await self._lifespans.start_here()

    def failed(self, call: Call, error: Exception) -> Any:
        """Return the result of a call that failed outside of its handler. Raises `RequestError` where there is none."""
        if call.method == "tools/call":
            failure = tool_failure(call, error, self._errors)
            if not isinstance(failure, RequestError):
                return failure
        else:
            failure = request_failure(call, error, self._errors)
        raise failure

    async def report(self, hook: CallHook, failure: Failure) -> None:
        """Call a hook with a failure. An error in the hook is logged."""
        try:
            if hook.is_async:
                await hook.function(failure)
            else:
                await self._threads(partial(hook.function, failure))
        except Exception as error:
            logger.error("The hook %s of app.on_error failed", hook.name, exc_info=error)


class _Served(Generic[T]):
    """A call on its way through hooks.

    Args:
        calls: serve it.
        call: the request.
        name: what it is of, as hooks are shown it.
        handler: serves it; None if there is none.
        scope: of its HTTP request; None if there is none.
        journal: of a round of a task; None of any other.
    """

    def __init__(
        self,
        calls: HookedCalls,
        call: Call,
        name: str,
        handler: Handler | None,
        scope: Any,
        journal: Journal | None = None,
    ) -> None:
        self._calls = calls
        self._call = call
        self._name = name
        self._uri, self._template, self._variables = calls.resource_of(call)
        self._scope = scope
        self._journal = journal
        homes = calls.homes(handler)
        is_call = call.method in ASKING_METHODS
        self._around: list[CallHook] = [hook for home in homes for hook in home.around] if is_call else []
        self._on_error: list[CallHook] = [hook for home in homes for hook in home.on_error]
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self._has_run = False

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run what serves the call, between the hooks."""
        if not (self._around or self._on_error):
            try:
                await self._start()
            except Exception as error:
                return cast(T, self._calls.failed(self._call, error))
            return await work()
        if self._call.facts is None:
            self._call.facts = CallFacts()
            if self._journal is not None:
                self._call.facts.resume(self._journal)
        failures: Noted = []
        try:
            with noting(failures):
                return await self._run(work)
        finally:
            for failed, reference in failures:
                await self._report(failed, reference)

    async def _start(self) -> None:
        if self._call.method in ASKING_METHODS:
            await self._calls.start()

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def innermost() -> Ended:
            if self._has_run:
                raise RuntimeError("call_next was awaited twice")
            self._has_run = True
            try:
                await self._start()
                self._outcome = await work()
            except BaseException as error:
                self._error = error
                if isinstance(error, Exception) and not self._shows_all:
                    take_locals(error)  # before a hook that is not to see what they hold
                raise
            return self._ended(self._outcome)

        try:
            await self._through(0, innermost)
        except Exception as error:
            counts = cast(Exception, ending_in(error, "app.around"))  # all errors in such a group are `Exception`s
            if counts is not self._error or not isinstance(counts, RequestError):
                return cast(T, self._calls.failed(self._call, counts))
        if self._error is not None:  # whatever a hook made of it
            raise self._error
        return cast(T, self._outcome)

    @property
    def _shows_all(self) -> bool:
        return all(hook.sees_arguments and hook.sees_answers for hook in self._around)

    async def _through(self, index: int, innermost: Callable[[], Awaitable[Ended]]) -> Ended:
        if index == len(self._around):
            return await innermost()
        hook, ended = self._around[index], None

        async def call_next(_: CallInfo) -> Ended:
            nonlocal ended
            ended = await self._through(index + 1, innermost)
            return ended

        await hook.function(self._info(hook), call_next)
        if ended is None:
            if self._error is not None:
                raise self._error
            raise FlowError(f"The hook {hook.name} of app.around returned without `await call_next(call)`")
        return ended

    def _info(self, hook: CallHook) -> CallInfo:
        call, sees_arguments = self._call, hook.sees_arguments
        template, variables = self._template, self._variables
        return CallInfo(
            call.method,
            self._name,
            call.caller,
            call.client,
            is_task=self._journal is not None,
            is_retry=call.state is not None or (self._journal is not None and self._journal.rounds > 0),
            request=None if self._scope is None else request_of(self._scope_for(hook)),
            template=template,
            uri=self._uri if sees_arguments or not template else "",
            variables=variables if sees_arguments else None,
            arguments=call.arguments if sees_arguments else None,
            answers=call.answers if hook.sees_answers else None,
        )

    def _scope_for(self, hook: CallHook) -> Any:
        """Return the scope of the HTTP request, without headers that mirror what the hook is not to see."""
        scope, name = self._scope, self._name.encode()
        if hook.sees_arguments:
            return scope
        headers = [
            header
            for header in scope["headers"]
            if not header[0].startswith(_PARAMETER) and (header[0] != _NAME or header[1] == name)
        ]
        return scope if len(headers) == len(scope["headers"]) else {**scope, "headers": headers}

    def _ended(self, outcome: T) -> Ended:
        facts = self._call.facts
        assert facts is not None  # noqa: S101  or nothing would lead here
        return Ended(_word(outcome, declined=facts.declined), facts.reference, facts.flow, facts.rounds + 1)

    async def _report(self, error: BaseException, reference: str) -> None:
        facts = self._call.facts
        flow = "" if facts is None else facts.flow
        sees_all = [hook for hook in self._on_error if hook.sees_arguments and hook.sees_answers]
        others = [hook for hook in self._on_error if hook not in sees_all]
        for hook in (*sees_all, *others):
            if hook in others:
                take_locals(error)
            await self._calls.report(hook, Failure(error, reference, self._info(hook), flow))


def _uri_of(resource: Resource) -> str:
    entry = resource.entry
    return str(entry.get("uri") or entry["uriTemplate"])


def _word(outcome: Outcome | TaskEnd, *, declined: bool) -> Word:
    match outcome:
        case NeedsInput() | Asking():
            return "asked"
        case HandedOver() | Yielded() | Backgrounded():
            return "handed_over"
        case TaskCreated():
            return "task"
        case RequestError():
            return "failed"
        case Complete(body) if body.get("isError"):
            return "declined" if declined else "failed"
        case Complete() | Discovery() | Listening() | TaskStatusResult() | TaskResult() | TaskPage() | Acknowledged():
            return "completed"
        case unknown:
            assert_never(unknown)
