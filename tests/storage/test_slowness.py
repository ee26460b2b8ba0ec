"""A slow database is told once, and so is that it is quick again; a process that stood still is no slow database."""

import asyncio
import time

import pytest

from mrtr_server.concurrency import running
from mrtr_server.storage.health import CALM_SECONDS, SLOW_SECONDS, Slowness

from ..support.help import FAULTS


@pytest.fixture(autouse=True)
def nothing_is_slow() -> None:
    """Leave all as it is."""


async def told(slowness: Slowness, *takes: tuple[float, float]) -> None:
    """Note what took how long: each is when it began, and when it ended."""
    for began, ended in takes:
        slowness.took("redeem", began, ended)


def test_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    slow = SLOW_SECONDS + 0.5
    asyncio.run(told(Slowness("shop"), (0, 1), (1, 1 + slow), (2, 2 + slow), (6, 6.1), (6, 7 + slow)))
    (line,) = caplog.messages
    assert line.startswith("shop: the store is slow: it took 2.5 s for 'redeem'. ")
    caplog.clear()
    slowness = Slowness("shop")
    asyncio.run(told(slowness, (0, slow), (9, 9.1), (slow + CALM_SECONDS, slow + CALM_SECONDS + 0.1), (90, 90.1)))
    assert [line.partition(",")[0] for line in caplog.messages][1:] == ["shop: the store is quick again"]
    asyncio.run(told(slowness, (100, 100 + slow)))
    assert "the store is slow" in caplog.messages[-1], "it begins anew"


def test_time_in_which_the_process_stood_still_does_not_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "INTERVAL", 0.02)

    async def block() -> None:
        running.watch_loop()
        await asyncio.sleep(0.1)
        began = time.monotonic()
        time.sleep(SLOW_SECONDS + 0.2)  # noqa: ASYNC251  which is the fault
        await asyncio.sleep(0.1)
        Slowness("shop").took("redeem", began, time.monotonic())

    asyncio.run(block())
    assert [line for line in caplog.messages if "the store is" in line] == []


def notes(caplog: pytest.LogCaptureFixture, *takes: tuple[float, float]) -> list[str]:
    """Return the events that are logged of a store that took as long."""
    caplog.clear()
    asyncio.run(told(Slowness("shop"), *takes))
    return [record.__dict__["fields"]["event"] for record in caplog.records]


def test_what_takes_just_as_long_is_slow_and_what_is_calm_for_just_as_long_is_quick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert notes(caplog, (0, SLOW_SECONDS)) == ["store_slow"]
    (record,) = caplog.records
    assert record.__dict__["fields"] == {"event": "store_slow", "seconds": 2.0, "method": "redeem", "help": FAULTS}
    assert notes(caplog, (0, SLOW_SECONDS - 0.1)) == []
    over = SLOW_SECONDS + CALM_SECONDS
    assert notes(caplog, (0, SLOW_SECONDS), (over, over)) == ["store_slow", "store_quick"]
    assert notes(caplog, (0, SLOW_SECONDS), (over - 0.2, over - 0.1)) == ["store_slow"]
    assert notes(caplog, (0, SLOW_SECONDS), (20, 23), (33, 33)) == ["store_slow"], "it was slow once more"
    assert notes(caplog, (100, 100)) == [], "it has never been slow"


def test_its_end_says_how_long_it_was_slow(caplog: pytest.LogCaptureFixture) -> None:
    assert notes(caplog, (10, 14), (20, 23.4), (60, 60), (70, 70)) == ["store_slow", "store_quick"]
    assert caplog.messages[-1] == "shop: the store is quick again, after 13 s"
    assert caplog.records[-1].__dict__["fields"] == {"event": "store_quick"}
    assert notes(caplog, (10, 14.26)) == ["store_slow"]
    assert caplog.records[-1].__dict__["fields"]["seconds"] == 4.3
