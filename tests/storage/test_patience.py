"""How long one request waits for its store in all, and what else waits for it without counting."""

import asyncio
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from mrtr_server.storage import health
from mrtr_server.storage.health import (
    NOTICEABLE,
    begin_request,
    end_request,
    has_waited,
    note_wait,
    seconds_left,
    time_left,
)

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

DOCUMENTED = 10.0
"""What a request waits in all, in seconds (docs/database.md)."""
MOST = 60.0
"""What the store may take outside of a request, in seconds."""


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


@pytest.fixture(autouse=True)
def of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the patience of a server, and not that of the tests."""
    monkeypatch.setattr(health, "PATIENCE", DOCUMENTED)


async def wait(seconds: float) -> None:
    """Wait for the store."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    note_wait(began)


class TestARequest:
    async def test_has_as_much_less_time_as_it_has_waited(self) -> None:
        begin_request()
        assert time_left(MOST) == MOST, "a store that answers at once has no limit but its own"
        for waited, left in ((4, 6), (5, 1)):
            await wait(waited)
            assert time_left(MOST) == pytest.approx(left)
        assert time_left(0.5) == 0.5
        assert has_waited()

    async def test_is_refused_at_once_when_it_has_waited_for_too_long(self) -> None:
        begin_request()
        await wait(10)
        with pytest.raises(TimeoutError):
            time_left(MOST)
        assert seconds_left(MOST) <= 0

    async def test_gets_back_the_time_in_which_it_did_not_wait(self) -> None:
        begin_request()
        await wait(10)
        await asyncio.sleep(3)
        assert time_left(MOST) == pytest.approx(3)
        await asyncio.sleep(3600)
        assert time_left(MOST) == pytest.approx(10)

    async def test_waits_for_several_things_at_once_as_for_one(self) -> None:
        begin_request()
        await asyncio.gather(wait(3), wait(4), wait(4))
        assert time_left(MOST) == pytest.approx(6)

    async def test_counts_what_its_tasks_wait(self) -> None:
        begin_request()
        await asyncio.create_task(wait(4))
        assert time_left(MOST) == pytest.approx(6)

    async def test_that_waits_briefly_again_and_again_may_do_so_for_ever(self) -> None:
        begin_request()
        for _ in range(10_000):
            await wait(NOTICEABLE / 2)
        assert not has_waited()

    async def test_may_have_waited_before_it_begins(self) -> None:
        began = time.monotonic()
        await asyncio.sleep(7)
        begin_request(began)
        assert time_left(MOST) == pytest.approx(3)


@pytest.mark.parametrize("leave", [end_request, lambda: None], ids=["ended", "none"])
async def test_outside_of_requests_nothing_counts(leave: Callable[[], None]) -> None:
    async def work() -> None:
        leave()
        await wait(100)
        assert time_left(MOST) == MOST
        assert not has_waited()

    if leave is end_request:
        begin_request()
    await asyncio.create_task(work(), context=copy_context())
