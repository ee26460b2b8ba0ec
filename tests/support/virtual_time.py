"""An event loop whose time passes only when it would wait, or when the code says that it computes.

A test that is about leases, heartbeats or deadlines runs on it, and so no busy machine can end one of them. Time stands
still for everything that a thread does on the way. What waits for a socket or another process has no place here.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from mrtr_server import InProcessStore, MRTRServer, SQLStore
from mrtr_server.concurrency import threads
from mrtr_server.deployment.settings import Settings
from mrtr_server.storage.sql import sqlite_file

from .serving import TIMEOUT

T = TypeVar("T")


class VirtualTime:
    """Time that does not pass by itself, for the thread that makes it.

    Args:
        patch: replaces `time.monotonic` and `time.time` for as long as the test lasts.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        thread, self._monotonic, wall = threading.get_ident(), time.monotonic, time.time
        self.now = 1.0  # by the clock of a machine that has just started
        self._ahead = wall() - self.now
        self.in_threads: set[asyncio.Future[Any]] = set()
        """What threads are at, of which the event loop is told."""
        self.passes_anyway = False
        patch.setattr(time, "monotonic", lambda: self.now if threading.get_ident() == thread else self._monotonic())
        patch.setattr(time, "time", lambda: self.time() if threading.get_ident() == thread else wall())
        for made in (InProcessStore, SQLStore, MRTRServer, Settings):  # whose clock is that of the machine by default
            _replace_defaults(patch, made.__init__, wall, time.time)
        for module in (threads, sqlite_file):
            patch.setattr(module, "_Job", self._noting(module._Job))

    def time(self) -> float:
        """Return the time in seconds since the epoch: the `clock` of what takes one."""
        return self.now + self._ahead

    def compute(self, seconds: float) -> None:
        """Use the processor for so long: the event loop runs nothing meanwhile."""
        self.now += seconds

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on an event loop that does not wait."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(work)

    @property
    def backend(self) -> tuple[str, dict[str, Any]]:
        """What `anyio_backend` returns where the asynchronous tests run on such an event loop."""
        return "asyncio", {"loop_factory": self.new_loop}

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop that does not wait."""
        return _Loop(self)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let time pass for as long as the block lasts, whatever threads are at: they wait for the test."""
        self.passes_anyway = True
        try:
            yield
        finally:
            self.passes_anyway = False

    def note(self, future: "asyncio.Future[T]") -> "asyncio.Future[T]":
        """Let no time pass until a thread has done something."""
        self.in_threads.add(future)
        future.add_done_callback(self.in_threads.discard)
        return future

    def _noting(self, job: Callable[..., T]) -> Callable[..., T]:
        def make(*parts: Any) -> T:
            loop, future = parts[-2:]
            if isinstance(loop, _Loop):
                self.note(future)
            return job(*parts)

        return make


def _replace_defaults(patch: pytest.MonkeyPatch, function: Any, old: object, new: object) -> None:
    """Replace a default of a function's parameters."""
    if old in (given := function.__defaults__ or ()):
        patch.setattr(function, "__defaults__", tuple(new if each is old else each for each in given))
    for name, each in (function.__kwdefaults__ or {}).items():
        if each is old:
            patch.setitem(function.__kwdefaults__, name, new)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        return self._clock.note(super().run_in_executor(executor, func, *args))

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  that of the base class
        await super().shutdown_default_executor()  # no deadline: it would pass at once


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._virtual = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        virtual = self._virtual
        if timeout is None or (timeout > 0 and virtual.in_threads and not virtual.passes_anyway):
            ready = super().select(TIMEOUT)
            assert ready, "nothing is to come, or a thread waits for time that does not pass"
            return ready
        ready = super().select(0)
        if timeout > 0 and not ready:
            virtual.now += timeout
        return ready
