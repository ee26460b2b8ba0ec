"""What the `lifespan=` functions of a server have yielded, for each event loop that it serves on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

from ..concurrency.running import PerLoop, running_loop, running_task
from ..logs.formats import plain
from .home import Home

logger = logging.getLogger("mrtr_server")

Enter = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes the context manager of a `lifespan=`."""

_ABSENT = object()
_NOTHING: Mapping[Home, Any] = MappingProxyType({})


class Lifespans:
    """Enters and leaves what was given as `lifespan=`: the server's own, and those of applications that it includes.

    A server that nobody starts, as one that is mounted, starts them itself at its first call. They are then left when
    the event loop ends.
    """

    def __init__(self) -> None:
        self.known: dict[Home, Enter] = {}
        """What is entered, by the home of the handlers that may use it."""
        self._values = PerLoop[dict[Home, Any]]()
        self._late = PerLoop[set[_Late]]()

    def add(self, home: Home, enter: Enter) -> None:
        """Add that of an application. If the server runs already, it is entered before the next call."""
        self.known.setdefault(home, enter)

    @property
    def here(self) -> Mapping[Home, Any]:
        """What was yielded on this event loop, by the home of the handlers that may use it."""
        return self._values.get() or _NOTHING

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Enter all for as long as the block lasts: the server's own first, and left last."""
        async with self._entered(tuple(self.known)):
            yield

    @asynccontextmanager
    async def _entered(self, homes: Sequence[Home]) -> AsyncIterator[None]:
        """Enter those of some applications; what was there before is there again afterwards."""
        values = self._values.here(dict)
        async with AsyncExitStack() as stack:
            for home in homes:
                value = await stack.enter_async_context(self.known[home]())
                stack.callback(_put_back, values, home, values.get(home, _ABSENT), value)
                values[home] = value
            yield

    def forget(self, home: Home) -> None:
        """Restart that of an application, since a test has put another function into its place."""
        for values in self._values.values():
            values.pop(home, None)
        for late in [each for these in self._late.values() for each in tuple(these) if home in each.homes]:
            late.leave()

    async def start_here(self) -> None:
        """Enter what nobody has entered on this event loop, to be left when the loop ends.

        Raises:
            Exception: whatever a `lifespan=` raised; the next call tries again.
        """
        values = self.here
        if len(values) == len(self.known):
            return
        late = self._late.here(set)
        starting = next((each for each in late if not each.started.done()), None)
        if starting is None:
            starting = _Late([home for home in self.known if home not in values], self._entered)
            late.add(starting)
            starting.task.add_done_callback(lambda _: late.discard(starting))
        await asyncio.shield(starting.started)


def _put_back(values: dict[Home, Any], home: Home, before: Any, value: Any) -> None:
    if values.get(home, _ABSENT) is not value:  # a test has put another one there
        return
    if before is _ABSENT:
        del values[home]
    else:
        values[home] = before


def _retrieve(started: "asyncio.Future[None]") -> None:
    if not started.cancelled():
        started.exception()  # the calls that waited for it may have gone


_HELD: "set[asyncio.Task[None]]" = set()
"""What holds them until their event loops end, also where nobody has the server any more: loops do not."""


class _Late:
    """Enters what was not entered at a start, in a task that the end of the event loop cancels.

    Args:
        homes: whose.
        entered: enters them for as long as a block lasts.
    """

    def __init__(
        self, homes: Sequence[Home], entered: Callable[[Sequence[Home]], AbstractAsyncContextManager[None]]
    ) -> None:
        loop = running_loop()
        self.homes = homes
        self.started: asyncio.Future[None] = loop.create_future()
        self.started.add_done_callback(_retrieve)
        self.task = loop.create_task(self._hold(entered))
        _HELD.add(self.task)
        self.task.add_done_callback(_HELD.discard)

    def leave(self) -> None:
        """Leave them. May be called from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    async def _hold(self, entered: Callable[[Sequence[Home]], AbstractAsyncContextManager[None]]) -> None:
        try:
            async with entered(self.homes):
                self.started.set_result(None)
                try:
                    await running_loop().create_future()
                except asyncio.CancelledError:
                    running_task().uncancel()
        except Exception as error:
            if self.started.done():
                logger.error("%s", plain(f"lifespan= failed at shutdown: {error}"), exc_info=error)
            else:
                self.started.set_exception(error)
        finally:
            if not self.started.done():
                self.started.cancel()
