"""What operators want to know of a store: how full it is, what waits in it, and how well a process reaches it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..concurrency.running import PerLoop
from ..errors import StoreUnavailable
from ..limits import STORED, Limits
from ..logs.refusals import RefusalLog
from ..protocol.messages import JSON
from .quotas import ENDLESS, Usage

logger = logging.getLogger("mrtr_server")

INTERVAL = 10.0
"""How long a look at a store is good enough, in seconds."""
LOOK_WITHIN = 0.7
"""How long those wait for a look who want to know, in seconds. Kubernetes waits a second for its probe."""
NEARLY_FULL = 0.8
"""Which part of a total is used when the log says so."""
WARN_AGAIN = 60.0
"""How often it says so of the same total, in seconds."""
MOST_NAMED = 50
"""How many tools `/ready` names, those first whose tasks have waited longest."""
MOST_COUNTED = 10_000
"""How many waiting tasks of a tool are counted: a look must cost little, however many there are."""


class Waiting(NamedTuple):
    """The tasks of a tool that wait for a worker.

    Args:
        tasks: how many, up to `MOST_COUNTED`.
        seconds: how long the one has waited that has waited longest, of those that were counted.
    """

    tasks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a look at a store has found.

    Args:
        usage: what is stored, of all callers.
        room: how much the store itself holds.
        waiting: the tasks that wait, by tool.
        connection_wait: how long something waited for a free connection since the last look, at most, in seconds.
        notices_away: whether notices of other processes do not arrive.
        clock_difference: how far its clock is from this machine's, in seconds.
    """

    usage: Usage = field(default_factory=Usage)
    room: Usage = field(default_factory=lambda: ENDLESS)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    connection_wait: float = 0.0
    notices_away: bool = False
    clock_difference: float = 0.0


def written(waiting: Mapping[str, Waiting], is_public: Callable[[str], bool]) -> JSON:
    """Return how many tasks wait, for anybody: without tools that not everybody may see.

    Args:
        waiting: the tasks that wait, by tool.
        is_public: returns whether everybody may see a tool.
    """
    found = [(tool, each) for tool, each in waiting.items() if each.tasks]
    public = sorted(((tool, each) for tool, each in found if is_public(tool)), key=lambda named: -named[1].seconds)
    in_all = Waiting(sum(each.tasks for _, each in found), max((each.seconds for _, each in found), default=0.0))
    return {**_written(in_all), "by_tool": {tool: _written(each) for tool, each in public[:MOST_NAMED]}}


def _written(waiting: Waiting) -> JSON:
    return {"waiting": waiting.tasks, "oldest_seconds": round(waiting.seconds, 1)}


class Measured(Protocol):
    """A store, as far as it can be looked at."""

    async def measure(self, tools: Sequence[str]) -> Vitals:
        """Return what operators want to know of it; see `Store.measure`."""
        ...


class VitalsWatch:
    """Looks at a store now and then, and logs when one of its totals is nearly used up.

    Whatever uses the store starts a look, so there is no timer, and none who waits for it.

    Args:
        name: the server's, for the log.
        store: the store.
        limits: how much may be stored.
        tools: returns the tools whose tasks are of interest.
    """

    def __init__(self, name: str, store: Measured, limits: Limits, tools: Callable[[], Sequence[str]]) -> None:
        self._name = name
        self._store = store
        self._limits = limits
        self._tools = tools
        self._due = -math.inf
        self._looking = PerLoop[asyncio.Task[None]]()
        self._faults = RefusalLog()
        self._warned = dict.fromkeys(STORED, -math.inf)
        self.latest = Vitals()
        """What the last look has found."""

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return how much is stored and how much may be, by the name of the limit."""
        usage, room = self.latest.usage, self.latest.room
        stored = (usage.tasks, room.tasks), (usage.states, room.states), (usage.bytes, room.bytes)
        return {
            name: (used, min(getattr(self._limits, name), most))
            for name, (used, most) in zip(STORED, stored, strict=True)
        }

    def look_soon(self, now: float) -> None:
        """Start a look on this event loop, unless one is under way or the last one is good enough.

        Args:
            now: the time by the monotonic clock.
        """
        if now < self._due:
            return
        self._due = now + INTERVAL
        # What a request has waited is no reason to look for less long.
        looking = self._looking.put(asyncio.create_task(self._look(), context=Context()))
        looking.add_done_callback(lambda _: self._looking.pop())  # or its event loop would be held

    async def look(self) -> Vitals:
        """Return what a look finds, or what the last one has found if that is good enough, or can't be had in time."""
        self.look_soon(time.monotonic())
        if (looking := self._looking.get()) is not None:
            await asyncio.wait((looking,), timeout=LOOK_WITHIN)
        return self.latest

    async def close(self) -> None:
        """End the look that is under way on this event loop."""
        if (looking := self._looking.get()) is not None:
            looking.cancel()
            await asyncio.wait((looking,))

    async def _look(self) -> None:
        try:
            self.latest = await self._store.measure(self._tools())
        except StoreUnavailable:  # which those notice who need it
            return
        except Exception as error:  # of a store of the author's
            self._faults.note("%s: measure() of the store failed: %s", self._name, type(error).__name__)
            return
        now = time.monotonic()
        for name, (used, most) in self.totals().items():
            if used >= NEARLY_FULL * most and now >= self._warned[name] + WARN_AGAIN:
                self._warned[name] = now
                logger.warning(
                    "%s: %d of %d are used of %s. When all are used, new ones are refused with a 503 until others "
                    "expire. Raise Limits(%s=...)%s",
                    self._name,
                    used,
                    most,
                    name,
                    name,
                    "" if most == getattr(self._limits, name) else ", and give the server a database or a larger store",
                    extra={"fields": {"event": "nearly_full", "limit": name}},
                )
