"""An event loop whose time passes only when it would wait, or when the code says that it computes.

A test that is about leases, heartbeats or deadlines runs on it, and so no busy machine can end one of them. Time stands
still for everything that a thread does on the way. What waits for a socket or another process has no place here.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from mrtr_server.concurrency import threads
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
        self.now = self._monotonic()
        self._ahead = wall() - self.now
        self.in_threads: set[asyncio.Future[Any]] = set()
        """What threads are at, of which the event loop is told."""
        patch.setattr(time, "monotonic", lambda: self.now if threading.get_ident() == thread else self._monotonic())
        patch.setattr(time, "time", lambda: self.time() if threading.get_ident() == thread else wall())
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


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, *work: Any) -> Any:
        return self._clock.note(super().run_in_executor(*work))


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._virtual = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            if self._virtual.in_threads:
                ready = super().select(TIMEOUT)
                assert ready, "a thread waits for time that does not pass"
                return ready
            if ready := super().select(0):  # what a thread has said just now
                return ready
            assert timeout is not None, "nothing is to come"
            self._virtual.now += timeout
        return super().select(0)
