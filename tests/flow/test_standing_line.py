"""Who waits where more calls come than can run for a while, in time that is simulated."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from mrtr_server import Limits
from mrtr_server.errors import Busy
from mrtr_server.flow.admission import Admission

from ..support.virtual_time import VirtualTime

QUEUE_SECONDS = 0.5


@dataclass
class Told:
    """How long calls waited until they began, and until they were refused, in seconds."""

    begun: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return len(self.begun) / (len(self.begun) + len(self.refused))


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] if seconds else 0.0


class Slowed:
    """How long calls compute on a machine that others use: for a while one takes up to three times as long."""

    RATE = (1 + 1 + 1 / 1.5 + 1 / 3) / 4 / 0.02
    """How many calls a second it can take on average."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._factor, self._until = 1.0, 0.0

    def lasts(self, now: float) -> float:
        if now >= self._until:
            self._factor, self._until = self._draw.choice((1, 1, 1.5, 3)), now + self._draw.uniform(0.2, 1.0)
        return 0.02 * self._factor


async def come(clock: VirtualTime, limits: Limits, rate: float, seconds: float, *, computes: bool) -> Told:
    """Let calls come at a rate, each of which computes or waits."""
    admission, told, draw = Admission(limits), Told(), random.Random(7)
    loop, slowed = asyncio.get_running_loop(), Slowed(draw)
    calls: set[asyncio.Task[None]] = set()

    async def call(came: float) -> None:
        try:
            await admission.enter(lambda: False)
        except Busy:
            told.refused.append(clock.now - came)
            return
        told.begun.append(clock.now - came)
        if computes:
            clock.compute(slowed.lasts(clock.now))
        else:
            await asyncio.sleep(0.5)
        admission.leave()

    began = at = loop.time()
    while at < began + seconds:
        at += draw.expovariate(rate)
        if at > loop.time():
            await asyncio.sleep(at - loop.time())
        calls.add(asyncio.create_task(call(at)))
    await asyncio.gather(*calls)
    return told


@pytest.mark.parametrize("load", [1.2, 1.5])
def test_where_calls_compute_nearly_all_that_wait_are_in_time_and_the_others_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    clock = VirtualTime(monkeypatch)
    limits = Limits(max_concurrency=1, max_queue=10, queue_seconds=QUEUE_SECONDS)
    told = clock.run(come(clock, limits, load * Slowed.RATE, 60, computes=True))
    assert p99(told.begun) <= QUEUE_SECONDS
    assert p99(told.refused) <= 0.1
    assert told.share * load >= 0.9, "as many run as could"


def test_where_calls_wait_as_many_run_as_could(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime(monkeypatch)
    limits = Limits(max_concurrency=4, max_queue=4, queue_seconds=QUEUE_SECONDS)
    told = clock.run(come(clock, limits, 5 * 4 / 0.5, 60, computes=False))
    assert p99(told.begun) <= QUEUE_SECONDS
    assert p99(told.refused) <= 0.01
    assert told.share * 5 >= 0.95


def test_a_burst_waits_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime(monkeypatch)
    limits = Limits(max_concurrency=4, max_queue=40, queue_seconds=5)
    told = clock.run(come(clock, limits, 0.5 * 4 / 0.5, 60, computes=False))
    assert not told.refused
