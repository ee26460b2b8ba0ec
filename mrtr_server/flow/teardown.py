"""Dependencies with teardown: generators with one `yield`, entered for a round and left in reverse order at its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from types import TracebackType
from typing import Any

from ..concurrency.running import retrieve
from ..concurrency.threads import Threads, call_function
from ..errors import CallEnded, FlowContinues, FlowError, MissingCapability
from ..logs.failures import calls_author
from .steps import current_dependency
from .waiting_round import Stop, WaitingRound

logger = logging.getLogger("mrtr_server")


class Teardown:
    """What the dependencies of one round have entered.

    All of it is entered and left in the task that the handler runs in, so that context variables, timeouts and task
    groups work across the `yield`. A plain generator runs in threads, in one context of its own.
    """

    def __init__(self, round_: WaitingRound, threads: Threads) -> None:
        self._round = round_
        self._threads = threads
        self._entered = AsyncExitStack()

    async def in_thread(self, function: Callable[..., Any]) -> Any:
        """Run a plain function in a thread, to its end even if it is cancelled: it may use what is left afterwards."""
        running = asyncio.ensure_future(_ended(self._threads(function)))
        try:
            result, exited = await asyncio.shield(running)
            if exited is not None:
                raise exited
            return result
        except asyncio.CancelledError:
            if not running.done():
                self._round.begin_teardown()
                await asyncio.wait((running,))
            retrieve(running)
            raise

    async def enter(self, make: Callable[[], Any], name: str, *, is_async: bool, commits: bool) -> Any:
        """Return the value that a function yields, or what it returns. `commits`: it is spared `FlowContinues`."""
        entered = _Async(name, make) if is_async else _Plain(name, make)
        # First, since a cancellation may come when the generator has been entered, in its thread.
        self._entered.push_async_exit(partial(self._leave, entered, commits))
        await call_function(entered.enter, name, self.in_thread, is_async=is_async)
        return entered.value

    async def leave(self, error: BaseException | None) -> None:
        """Resume all that was entered, in reverse order; throw in the error that the round ended with.

        Raises what a teardown failed with. An error that a generator raises instead of the handler's takes its place; a
        no, a question, a cancellation and a mistake of the author's stand.
        """
        traceback = None if error is None else error.__traceback__
        await self._entered.__aexit__(None if error is None else type(error), error, traceback)
        if error is not None:
            error.__traceback__ = traceback  # without the frames of all that it was thrown into

    async def _leave(
        self,
        entered: "_Plain | _Async",
        commits: bool,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        continues = isinstance(error, FlowContinues)
        if continues and commits:
            error = None
        elif continues and entered.generator is not None:
            self._round.call.trace.note("rolled_back", entered.name)
        leave = partial(entered.leave, error)
        try:
            await call_function(leave, entered.name, self.in_thread, is_async=isinstance(entered, _Async))
        except (Exception, CallEnded, BaseExceptionGroup) as failure:
            if error is None or self._may_be_replaced(error):
                raise
            message = "The teardown of %s failed, after %r had ended with %s"
            logger.error(message, entered.name, self._round.name, type(error).__name__, exc_info=failure)
        return False  # what a generator swallows has still happened

    def _may_be_replaced(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):  # a timeout of a generator's is no cancellation of the round
            return self._round.stopped is not Stop.CANCELLED
        return isinstance(error, Exception) and not isinstance(error, FlowError | MissingCapability)


async def _ended(work: Awaitable[Any]) -> tuple[Any, SystemExit | None]:
    """Return what work returns, or its `SystemExit`: raised in a task of asyncio, that would end the event loop."""
    try:
        return await work, None
    except SystemExit as error:
        return None, error


class _Plain:
    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._make = make
        self._context = copy_context()  # one for all of it, or a token of a context variable could not be reset
        self.generator: Generator[Any, Any, Any] | None = None
        self.value: Any = None

    def enter(self) -> None:
        self._context.run(self._enter)

    @calls_author
    def _enter(self) -> None:
        self.value = self._make()
        generator = _generator_of(self.value)
        if isgenerator(generator):
            try:
                self.value = next(generator)
            except StopIteration:
                raise _never_yields(self.name) from None
            self.generator = generator

    def leave(self, error: BaseException | None) -> None:
        if self.generator is not None:
            self._context.run(self._leave, self.generator, error)

    @calls_author
    def _leave(self, generator: Generator[Any, Any, Any], error: BaseException | None) -> None:
        current_dependency.set("")  # as it is for those on the loop
        try:
            next(generator) if error is None else generator.throw(error)
        except StopIteration:
            return
        except BaseException as raised:
            _raise_rest(raised, error)
            return
        generator.close()
        raise _yields_again(self.name)


class _Async:
    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._make = make
        self.generator: AsyncGenerator[Any, Any] | None = None
        self.value: Any = None

    @calls_author
    async def enter(self) -> None:
        made = self._make()
        self.value = await made if isawaitable(made) else made
        generator = _generator_of(self.value)
        if isasyncgen(generator):
            try:
                self.value = await anext(generator)
            except StopAsyncIteration:
                raise _never_yields(self.name) from None
            self.generator = generator

    @calls_author
    async def leave(self, error: BaseException | None) -> None:
        generator = self.generator
        if generator is None:
            return
        try:
            await (anext(generator) if error is None else generator.athrow(error))
        except StopAsyncIteration:
            return
        except BaseException as raised:
            _raise_rest(raised, error)
            return
        await generator.aclose()
        raise _yields_again(self.name)


def _raise_rest(raised: BaseException, error: BaseException | None) -> None:
    """Raise what a generator raised besides the error that was thrown in, which a task group puts into a group."""
    rest: BaseException | None = raised
    if isinstance(raised, BaseExceptionGroup):
        _, rest = raised.split(lambda each: each is error)
    if rest is not None and rest is not error:
        raise rest


def _generator_of(made: Any) -> Any:
    """Return the generator in what contextlib's decorators make; anything else as it is."""
    if isinstance(made, AbstractContextManager | AbstractAsyncContextManager):
        return getattr(made, "gen", made)
    return made


def _never_yields(name: str) -> FlowError:
    return FlowError(f"The dependency {name} ended without a yield, so there is no value; yield one, or raise an error")


def _yields_again(name: str) -> FlowError:
    return FlowError(
        f"The dependency {name} yielded twice; the code after its only yield runs at the end of the round. To pass "
        "several values, yield a list"
    )
