"""Dependencies with teardown: generators with one `yield`, entered for a round and left in reverse order at its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from types import TracebackType
from typing import Any

from ..concurrency.threads import Called, Callee, Threads, call_function
from ..errors import FlowError, MissingCapability
from .waiting_round import Stop, WaitingRound

logger = logging.getLogger("mrtr_server")


class Teardown:
    """What the dependencies of one round have entered.

    All of it is entered and left in the task that the handler runs in, so that context variables, timeouts and task
    groups work across the `yield`. A plain generator runs in threads, in one context of its own.

    Args:
        round_: the round.
        threads: runs plain functions.
    """

    def __init__(self, round_: WaitingRound, threads: Threads) -> None:
        self._round = round_
        self._threads = threads
        self._entered = AsyncExitStack()

    async def in_thread(self, function: Callable[..., Any]) -> Any:
        """Run a plain function in a thread, to its end even if it is cancelled: it may use what is left afterwards."""
        running = asyncio.ensure_future(self._threads(function))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                self._round.begin_teardown()
                await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()  # taken here, so that it is not reported as lost
            raise

    async def enter(self, dependency: Callee, keywords: Mapping[str, Any]) -> Any:
        """Call a function that yields, and return the value that it yields; or what else it has been wrapped to return.

        Args:
            dependency: the function.
            keywords: its arguments.

        Raises:
            FlowError: it yields nothing.
            Exception: whatever it raised before its `yield`.
        """
        make = partial(dependency.function, **keywords)
        entered = _Async(dependency.name, make) if dependency.is_async else _Plain(dependency.name, make)
        # First, since a cancellation may come when the generator has been entered, in its thread.
        self._entered.push_async_exit(partial(self._leave, entered))
        await call_function(Called(entered.enter, entered.name, dependency.is_async), {}, self.in_thread)
        return entered.value

    async def leave(self, error: BaseException | None) -> None:
        """Resume all that was entered, in reverse order.

        Args:
            error: what the round ended with, which is thrown in; None if it ended normally.

        Raises:
            Exception: the teardown failed. An error that a generator raises instead of the handler's takes its place; a
                no, a cancellation and a mistake of the author's stand.
        """
        traceback = None if error is None else error.__traceback__
        await self._entered.__aexit__(None if error is None else type(error), error, traceback)
        if error is not None:
            error.__traceback__ = traceback  # without the frames of all that it was thrown into

    async def _leave(
        self,
        entered: "_Plain | _Async",
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        leave = partial(entered.leave, error)
        try:
            await call_function(Called(leave, entered.name, isinstance(entered, _Async)), {}, self.in_thread)
        except BaseException as failure:
            if failure is error:  # which came back in a group, as from a task group around the `yield`
                return False
            if error is None or not isinstance(failure, Exception) or self._may_be_replaced(error):
                raise
            message = "The teardown of %s failed, after %r had ended with %s"
            logger.error(message, entered.name, self._round.name, type(error).__name__, exc_info=failure)
        return False  # what a generator swallows has still happened

    def _may_be_replaced(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):  # a timeout of a generator's is no cancellation of the round
            return self._round.stopped is not Stop.CANCELLED
        return isinstance(error, Exception) and not isinstance(error, FlowError | MissingCapability)


class _Plain:
    """A generator that runs in threads."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._make = make
        self._context = copy_context()  # one for all of it, or a token of a context variable could not be reset
        self._generator: Generator[Any, Any, Any] | None = None
        self.value: Any = None

    def enter(self) -> None:
        self._context.run(self._enter)

    def _enter(self) -> None:
        self.value = self._make()
        generator = _generator_of(self.value)
        if isgenerator(generator):
            try:
                self.value = next(generator)
            except StopIteration:
                raise _never_yields(self.name) from None
            self._generator = generator

    def leave(self, error: BaseException | None) -> None:
        if self._generator is not None:
            self._context.run(self._leave, self._generator, error)

    def _leave(self, generator: Generator[Any, Any, Any], error: BaseException | None) -> None:
        try:
            next(generator) if error is None else generator.throw(error)
        except StopIteration:
            return
        except BaseException as raised:
            if raised is error:
                return
            raise
        generator.close()
        raise _yields_again(self.name)


class _Async:
    """A generator that runs on the loop."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._make = make
        self._generator: AsyncGenerator[Any, Any] | None = None
        self.value: Any = None

    async def enter(self) -> None:
        made = self._make()
        self.value = await made if isawaitable(made) else made
        generator = _generator_of(self.value)
        if isasyncgen(generator):
            try:
                self.value = await anext(generator)
            except StopAsyncIteration:
                raise _never_yields(self.name) from None
            self._generator = generator

    async def leave(self, error: BaseException | None) -> None:
        generator = self._generator
        if generator is None:
            return
        try:
            await (anext(generator) if error is None else generator.athrow(error))
        except StopAsyncIteration:
            return
        except BaseException as raised:
            if raised is error:
                return
            raise
        await generator.aclose()
        raise _yields_again(self.name)


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
