"""Plain functions beside the event loop, and calls of the author's functions: an error of several counts.

The threads of `concurrent.futures` are joined when the interpreter exits, and those of a loop's default executor when
the loop ends, so a function that is still running then would keep the process alive for as long as it likes.
"""

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from inspect import isawaitable
from queue import SimpleQueue
from types import CoroutineType, MappingProxyType
from typing import Any, NamedTuple

from .. import errors
from ..logs.failures import calls_author, report_failure

logger = logging.getLogger("mrtr_server")

RunInThread = Callable[[Callable[..., Any]], Awaitable[Any]]

_RANKS: tuple[tuple[type[BaseException], ...], ...] = (
    (errors.Refusal,),
    (errors.FlowError,),
    (errors.MissingCapability,),
    (errors.RequestError, errors.ToolError),
    (errors.StoreUnavailable, errors.NotAnswered, errors.CallEnded),
)
"""What ends a call in a way of its own. Of several, those of the first row count: a person's no before all. The other
rows are in the order in which the events of a round count.
"""

_ENDED = (errors.CallEnded, errors.FlowContinues, asyncio.CancelledError)
"""What only says that something has ended."""


class _Job(NamedTuple):
    function: Callable[..., Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class Threads:
    """Runs plain functions in threads, so that they don't block the event loop.

    A caller that is cancelled stops waiting. Its function runs on, if it has begun, and keeps its thread, but not the
    process alive.
    """

    def __init__(self, limit: int) -> None:
        self._pool = _Pool(limit)

    @property
    def busy(self) -> int:
        return self._pool.busy

    async def __call__(self, function: Callable[..., Any]) -> Any:
        """Run a function in a thread, with the context variables of the caller."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._pool.put(_Job(function, copy_context(), loop, future))
        try:
            return await future
        finally:
            del future  # what it raises knows this frame, and so would hold itself

    def close(self) -> None:
        """End the threads as soon as they are idle. The next call starts new ones."""
        self._pool.close()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:  # a global may be gone by then
        # An interpreter that exits ends threads where they are: one that has the lock then never frees it.
        if not is_exiting():
            self.close()


class _Pool:
    """The threads. They know this object only, so that nothing of theirs keeps a server alive that nobody uses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._handed: SimpleQueue[_Job | None] = SimpleQueue()
        """For each item one of the threads, which is new or was idle."""
        self._idle = 0
        self._threads = 0
        self._closing = False

    @property
    def busy(self) -> int:
        return self._threads - self._idle

    def put(self, job: _Job) -> None:
        with self._guard:
            self._closing = False
            if self._idle:
                self._idle -= 1
                self._handed.put(job)
            elif self._threads < self._limit:
                threading.Thread(target=self._work, name="mrtr_server", daemon=True).start()
                self._threads += 1
                self._handed.put(job)
            else:
                self._waiting.append(job)

    def close(self) -> None:
        with self._guard:
            self._closing = True
            for _ in range(self._idle):
                self._handed.put(None)
            self._threads -= self._idle
            self._idle = 0

    def _work(self) -> None:
        going_on = _run(self._handed.get())  # not kept here: it may hold much, and the next one be long in coming
        while going_on:
            going_on = _run(self._next())

    def _next(self) -> _Job | None:
        with self._guard:
            if self._waiting:
                return self._waiting.popleft()
            if self._closing:
                self._threads -= 1
                return None
            self._idle += 1
        return self._handed.get()


async def in_own_thread(function: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    job = _Job(function, copy_context(), loop, future)
    threading.Thread(target=_run, args=(job,), name="mrtr-once", daemon=True).start()
    return await future


@calls_author
def _run(job: _Job | None) -> bool:
    """Run a job; return False if there is none, which is the end of the thread."""
    if job is None:
        return False
    function, context, loop, future = job
    del job
    if future.cancelled():  # nobody waits for it any more
        return True
    result: Any = None
    error: BaseException | None = None
    try:
        result = context.run(function)
    except StopIteration as stop:  # a future can't hold one, and whoever waits for it would wait for ever
        error = RuntimeError("the function raised StopIteration")
        error.__cause__ = stop
    except BaseException as raised:
        error = raised
    del function, context
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(_resolve, future, result, error)
    del future, result, error  # the error knows this frame, and so would hold itself
    return True


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _is_cancelled() -> bool:
    """Return whether somebody has cancelled what runs now. A task in a variable of a frame would hold that frame."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@calls_author
async def call_function(
    function: Callable[..., Any],
    name: str,
    threads: RunInThread,
    *,
    is_async: bool,
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Call a function of the author's, a plain one in a thread. An awaitable that it returns is awaited."""
    raised: BaseException | None = None
    try:
        try:
            result = function(**keywords) if is_async else await threads(partial(function, **keywords))
            # That a coroutine can be awaited, as nearly always, is known faster by its type than by the question.
            return await result if type(result) is CoroutineType or isawaitable(result) else result
        except BaseException as error:
            raised = failure_of(error, name)
            if raised is error:
                raise
        raise raised
    finally:
        raised = None  # it knows this frame, and so would hold itself


def failure_of(error: BaseException, name: str) -> BaseException:
    """Return what counts of an error of a function of the author's: none that would end more than the call."""
    if isinstance(error, asyncio.CancelledError):
        return error if _is_cancelled() else _failure(f"{name!r} raised CancelledError, but was not cancelled", error)
    if isinstance(error, SystemExit) and not isinstance(error, errors.CallEnded):  # would end the whole server
        return _failure(f"{name!r} called sys.exit()", error)
    if isinstance(error, BaseExceptionGroup):
        counts = ending_in(error, name)
        if counts is error and error.subgroup(SystemExit) is not None:
            return _failure(f"{name!r} called sys.exit()", error)
        if counts is not error:
            error.__traceback__ = None  # a frame of asyncio's task group has the group, and so would hold itself
        return counts
    return error


def _failure(message: str, cause: BaseException) -> RuntimeError:
    failure = RuntimeError(message)
    failure.__cause__ = cause
    return failure


def ending_in(error: BaseException, where: str) -> BaseException:
    """Return the error that counts: of a group with errors that end a call in a way of their own, the first of these.

    What else is in the group is logged, unless it only says that the call has ended: a failure under a reference.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    counts = min(_leaves(error), key=_rank)  # of equals the first
    if _rank(counts) == len(_RANKS):
        return error
    _, others = error.split(lambda each: each is counts or isinstance(each, _ENDED))
    if others is not None:
        messages, failures = others.split(lambda each: isinstance(each, errors.ToolError | errors.RequestError))
        if messages is not None:
            said = "; ".join(map(str, _leaves(messages)))
            logger.warning("%r ended with one error of several. Nobody is told of the others: %s", where, said)
        if failures is not None:
            kind = type(counts).__name__
            report_failure("%r raised more than the %s that it ended with", where, kind, error=failures)
    return counts


def _leaves(group: BaseException) -> Iterator[BaseException]:
    left = [group]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))
        else:
            yield each


def _rank(error: BaseException) -> int:
    return next((rank for rank, kinds in enumerate(_RANKS) if isinstance(error, kinds)), len(_RANKS))
