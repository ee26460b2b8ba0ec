"""Batched lookups: what is asked for at the same time is looked up together, in one round trip."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .running import PerLoop, running_loop

K = TypeVar("K")
V = TypeVar("V")

BATCH_SIZE = 64


@dataclass(slots=True, eq=False)
class _Asked(Generic[K, V]):
    waiting: list[tuple[K, "asyncio.Future[V | None]", float]] = field(default_factory=list)
    """Each with the time when it was asked for, by the monotonic clock."""
    is_busy: bool = False
    task: "asyncio.Task[None] | None" = None

    def take(self) -> list[tuple[K, "asyncio.Future[V | None]", float]]:
        """Return the next batch, of those for which somebody still waits."""
        taken: list[tuple[K, asyncio.Future[V | None], float]] = []
        while self.waiting and not taken:
            taken = [each for each in self.waiting[:BATCH_SIZE] if not each[1].done()]
            self.waiting = self.waiting[BATCH_SIZE:]
        return taken


class BatchLoader(Generic[K, V]):
    """Looks up the first key at once, and the keys that arrive meanwhile in one batch as soon as that lookup has ended.

    Every lookup begins after it was asked for, so it finds everything that was written before. A batch has a context of
    its own, not that of a caller; `begin` is called before, with the time since when somebody waits for it.
    """

    def __init__(
        self, look_up: Callable[[list[K]], Awaitable[Mapping[K, V]]], begin: Callable[[float], object] = lambda _: None
    ) -> None:
        self._look_up = look_up
        self._begin = begin
        self._asked = PerLoop[_Asked[K, V]]()

    async def get(self, key: K) -> V | None:
        asked, loop = self._asked.here(_Asked), running_loop()
        if asked.is_busy:
            future: asyncio.Future[V | None] = loop.create_future()
            asked.waiting.append((key, future, time.monotonic()))
            return await future
        asked.is_busy = True
        try:
            return (await self._look_up([key])).get(key)
        finally:
            asked.waiting = [each for each in asked.waiting if not each[1].done()]  # all are, where the loop ends
            if asked.waiting:
                asked.task = loop.create_task(self._go_on(asked), context=Context())
            else:
                asked.is_busy = False

    async def _go_on(self, asked: _Asked[K, V]) -> None:
        try:
            while now := asked.take():
                self._begin(now[0][2])
                try:
                    found = await self._look_up(list({key for key, _, _ in now}))
                except BaseException as error:
                    for _, future, _ in now:
                        if not future.done():
                            future.set_exception(error) if isinstance(error, Exception) else future.cancel()
                    if not isinstance(error, Exception):
                        raise
                else:
                    for key, future, _ in now:
                        if not future.done():
                            future.set_result(found.get(key))
        finally:
            asked.is_busy = False
            asked.task = None
            for _, future, _ in asked.waiting:  # the event loop ends
                future.cancel()
            asked.waiting = []
