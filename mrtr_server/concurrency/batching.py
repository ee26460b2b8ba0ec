"""Batched lookups: what is asked for at the same time is looked up together, in one round trip."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

BATCH_SIZE = 64
"""How many keys are looked up at once."""


@dataclass(slots=True, eq=False)
class _Asked(Generic[K, V]):
    """What an event loop waits for."""

    waiting: list[tuple[K, "asyncio.Future[V | None]"]] = field(default_factory=list)
    is_busy: bool = False
    task: "asyncio.Task[None] | None" = None


class BatchLoader(Generic[K, V]):
    """Looks up the first key at once, and the keys that arrive meanwhile in one batch as soon as that lookup has ended.

    Every lookup begins after it was asked for, so it finds everything that was written before.

    Args:
        look_up: returns the values of some keys, without those that have none.
    """

    def __init__(self, look_up: Callable[[list[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._look_up = look_up
        self._asked: dict[asyncio.AbstractEventLoop, _Asked[K, V]] = {}

    async def get(self, key: K) -> V | None:
        """Return the value of a key.

        Args:
            key: what to look up.

        Returns:
            The value; None if there is none.

        Raises:
            Exception: whatever `look_up` raised.
        """
        loop = asyncio.get_running_loop()
        asked = self._asked.get(loop) or self._first(loop)
        if asked.is_busy:
            future: asyncio.Future[V | None] = loop.create_future()
            asked.waiting.append((key, future))
            return await future
        asked.is_busy = True
        try:
            return (await self._look_up([key])).get(key)
        finally:
            asked.waiting = [each for each in asked.waiting if not each[1].done()]  # all are, where the loop ends
            if asked.waiting:
                asked.task = loop.create_task(self._go_on(asked))
            else:
                asked.is_busy = False

    def _first(self, loop: asyncio.AbstractEventLoop) -> _Asked[K, V]:
        for each in [each for each in list(self._asked) if each.is_closed()]:
            self._asked.pop(each, None)
        return self._asked.setdefault(loop, _Asked())

    async def _go_on(self, asked: _Asked[K, V]) -> None:
        try:
            while asked.waiting:
                now, asked.waiting = asked.waiting[:BATCH_SIZE], asked.waiting[BATCH_SIZE:]
                now = [(key, future) for key, future in now if not future.done()]  # or nobody waits any more
                try:
                    found = await self._look_up(list({key for key, _ in now}))
                except BaseException as error:
                    for _, future in now:
                        if not future.done():
                            future.set_exception(error) if isinstance(error, Exception) else future.cancel()
                    if not isinstance(error, Exception):
                        raise
                else:
                    for key, future in now:
                        if not future.done():
                            future.set_result(found.get(key))
        finally:
            asked.is_busy = False
            asked.task = None
            for _, future in asked.waiting:  # the event loop ends
                future.cancel()
            asked.waiting = []
