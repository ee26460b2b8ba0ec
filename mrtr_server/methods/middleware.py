"""Middleware: what stands around the methods, and around rounds of tasks. Hooks, rates and all who watch are some."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar, cast

from ..errors import Declined
from ..flow.endings import Asking, Backgrounded, Yielded
from ..flow.rate_limiter import RateLimiter
from ..protocol import messages
from ..protocol.messages import ASKING_METHODS, Call, Complete, Outcome, Outlet
from ..protocol.trace import End
from ..tasks.round_executor import TaskEnd

Method = Callable[[Call, Outlet], Awaitable[Outcome]]

# Serves a call; or runs a round of a task, whose outlet is its `TaskRun`.
Serve = Callable[[Call, Outlet], Awaitable[Outcome | TaskEnd]]

Middleware = Callable[[Serve], Serve]

everywhere: list[Middleware] = []  # outermost in every server of this process that starts from now on

_ENDS: Mapping[type, End] = {
    messages.NeedsInput: "asked",
    Asking: "asked",
    messages.HandedOver: "handed_over",
    Yielded: "handed_over",
    Backgrounded: "handed_over",
    messages.TaskCreated: "task",
    messages.Listening: "listening",
    messages.Discovery: "completed",
    messages.TaskStatusResult: "completed",
    messages.TaskResult: "completed",
    messages.TaskPage: "completed",
    messages.Acknowledged: "completed",
    asyncio.CancelledError: "cancelled",
    Declined: "declined",
}
_UNCOUNTED = frozenset({"ping", "tasks/cancel"})
"""The methods that are always served: the one costs nothing, and the other ends what costs something."""

T = TypeVar("T")
S = TypeVar("S", bound=Serve)


def compose(serve: S, around: Iterable[Middleware]) -> S:
    """Return what serves within middlewares, of which the first is the outermost; `serve` itself within none."""
    for middleware in reversed([*around]):
        serve = cast(S, middleware(serve))
    return serve


Came = Outcome | TaskEnd | BaseException  # what a call, or a round of a task, came to


def note_end(call: Call, came: Came) -> End:
    """Note in the trace of a round how it ended, as far as it has come by now: a hook may change that."""
    trace = call.trace
    if isinstance(came, Complete):
        failed: End = "declined" if trace.declined else "tool_error"
        trace.end = failed if came.body.get("isError") else "completed"
    else:
        trace.end = _ENDS.get(type(came), "error")
    return trace.end


def watch(begin: Callable[[Call, Outlet], T], end: Callable[[Call, Outlet, T, Came], object]) -> Middleware:
    """Return a middleware that watches, and changes nothing.

    `end` is called when the trace says how a call ended and after how long; with what `begin` returned, and what it
    came to.
    """

    def around(serve: Serve) -> Serve:
        async def watched(call: Call, outlet: Outlet) -> Outcome | TaskEnd:
            begun, began = begin(call, outlet), time.perf_counter()

            def finish(came: Came) -> None:
                call.trace.seconds = time.perf_counter() - began
                note_end(call, came)
                end(call, outlet, begun, came)

            try:
                came = await serve(call, outlet)
            except BaseException as error:
                finish(error)
                raise
            finish(came)
            return came

        return watched

    return around


def count(rates: RateLimiter) -> Middleware:
    """Return a middleware that counts requests for their rates before it serves them; rounds of tasks do not count."""
    calls, others = rates.counts_calls, rates.counts_others

    def around(serve: Serve) -> Serve:
        async def counted(call: Call, outlet: Outlet) -> Outcome | TaskEnd:
            if call.method in ASKING_METHODS and call.state is None:
                if calls:
                    await rates.admit_call(call)
            elif others and call.method not in _UNCOUNTED:
                await rates.admit_other(call)
            return await serve(call, outlet)

        return counted

    return around
