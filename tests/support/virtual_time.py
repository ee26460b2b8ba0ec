"""An event loop whose time passes only when it would wait, or when the code says that it computes."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class VirtualTime:
    """Time that does not pass by itself.

    Args:
        patch: replaces `time.monotonic` for as long as the test lasts.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr(time, "monotonic", lambda: self.now)

    def compute(self, seconds: float) -> None:
        """Use the processor for so long: the event loop runs nothing meanwhile."""
        self.now += seconds

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on an event loop that does not wait."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(work)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._virtual = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is to come"
        self._virtual.now += max(0.0, timeout)
        return super().select(0)
