"""Wake those who wait on any event loop, from any thread."""

import asyncio
from contextlib import suppress


class Wakes:
    """Wakes those who wait on any event loop, from any thread. A wake before somebody waits is not lost."""

    def __init__(self) -> None:
        self._events: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    def clear(self) -> None:
        """Forget what has come, as far as this event loop is concerned: somebody is about to look."""
        self._event().clear()

    def set(self) -> None:
        """Wake all who wait, and the next one on each event loop who does."""
        for loop, event in list(self._events.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # it has ended
                self._events.pop(loop, None)

    async def wait(self, seconds: float) -> bool:
        """Wait for a call to wake.

        Args:
            seconds: for how long, at most.

        Returns:
            Whether there was one.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._event().wait()
        return False

    def _event(self) -> asyncio.Event:
        return self._events.setdefault(asyncio.get_running_loop(), asyncio.Event())
