"""A store whose database is played, in simulated time: when it is asked, what wakes who waits, and what is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mrtr_server import Redemption, SQLStore, StoreUnavailable
from mrtr_server.errors import ClocksApart
from mrtr_server.storage.sql.tasks import POLL, QUIET
from mrtr_server.storage.sql.waking import WORK

from ..support.databases import task_row
from ..support.played import Played
from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


@pytest.fixture
def played(virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


class TestWhoWaitsForTasks:
    async def test_is_woken_by_a_notice_and_asks_nothing(self, played: Played) -> None:
        played.connect()
        waiting = asyncio.create_task(played.wait())
        await asyncio.sleep(1)
        assert played.starts, "who waits hears of others from now on"
        played.store.notices.dispatch(["another"])
        await asyncio.sleep(1)
        assert not waiting.done()
        played.store.notices.dispatch(["another", WORK])
        await waiting
        assert played.passed == 2
        assert played.asked == []

    async def test_asks_once_when_notices_may_have_been_missed(self, played: Played) -> None:
        played.connect()
        waiting = asyncio.create_task(played.wait())
        await asyncio.sleep(1)
        played.store.notices.report_gap()
        await asyncio.sleep(1)
        assert not waiting.done()
        played.store.notices.dispatch([WORK])
        await waiting
        assert played.passed == 2
        assert played.asked == [(1, "any_free_task")]

    @pytest.mark.parametrize(("connected", "every"), [(True, QUIET), (False, POLL)])
    async def test_asks_now_and_then_and_more_often_where_no_notices_arrive(
        self, played: Played, connected: bool, every: float
    ) -> None:
        if connected:
            played.connect()
        waiting = asyncio.create_task(played.wait())
        await asyncio.sleep(2.5 * every)
        played.returned["any_free_task"] = [(1,)]
        await waiting
        assert played.asked == [(number * every, "any_free_task") for number in (1, 2, 3)]

    async def test_asks_a_file_as_often_though_its_notices_arrive_which_speak_of_no_free_task(
        self, virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are read where somebody waits for a result, and not for a worker's sake."""
        file = Played(monkeypatch, "sqlite:///tasks.db")
        file.connect()
        await file.wait(2 * POLL)
        assert file.asked == [(POLL, "any_free_task"), (2 * POLL, "any_free_task")]
        assert file.starts == 0

    def test_without_notices_finds_a_task_within_a_quarter_of_a_second(self) -> None:
        assert (POLL, QUIET) == (0.25, 5.0)

    async def test_does_not_wait_where_a_claim_got_all_that_it_wanted(self, played: Played) -> None:
        played.connect()
        for claimed, most, waits in ((2, 2, False), (1, 2, True), (0, 0, True)):
            await played.claim(most, claimed)
            before = played.passed
            await played.wait(1)
            assert (played.passed - before == 1) is waits


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ({"status": "working"}, True),
        ({"lease": "", "leased_until": 0.0}, True),
        ({"status": "working", "lease": "mine", "seconds": 5.0}, False),
        ({"status": "completed"}, False),
        ({"message": "half of it"}, False),
    ],
)
async def test_a_change_that_leaves_a_task_to_be_claimed_tells_all_who_wait(
    played: Played, changes: dict[str, Any], tells: bool
) -> None:
    played.connect()
    waiting = asyncio.create_task(played.wait(1))
    await asyncio.sleep(0)
    played.store.notices.drain()  # that it waits
    assert await played.store.change_task(task_row(), **changes)
    assert played.store.notices.drain() == ([WORK] if tells else [])
    await waiting
    assert (played.passed == 0) is tells


@pytest.mark.parametrize("id", ["ä", "a\0b", "\ud800", "a\nb"])
async def test_what_is_no_id_is_asked_for_in_no_database(played: Played, id: str) -> None:
    """Some could not even compare it with one."""
    assert await played.store.find_task(id) is None
    assert played.asked == []
    assert await played.store.find_task("id") is None
    assert played.asked == [(0, "find_tasks")]


@pytest.mark.parametrize("lease", ["", "mine"])
@pytest.mark.parametrize(("url", "notifies"), [("postgresql://host/name", True), ("sqlite:///tasks.db", False)])
async def test_a_task_that_comes_tells_all_who_wait_unless_it_is_leased(
    virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch, lease: str, url: str, notifies: bool
) -> None:
    """Other processes of a file look by themselves."""
    played = Played(monkeypatch, url)
    played.returned = {"add_task": [(1,)]}
    waiting = asyncio.create_task(played.wait(1))
    await asyncio.sleep(0)
    played.store.notices.drain()  # that it waits
    assert await played.store.add_task(task_row(lease=lease), seconds=5)
    assert played.store.notices.drain() == ([WORK] if notifies and not lease else [])
    await waiting
    assert (played.passed == 0) is (not lease)


Storing = Callable[[SQLStore], Coroutine[Any, Any, object]]
"""Something that is stored."""


def put(store: SQLStore) -> Coroutine[Any, Any, bool]:
    return store.put("key", b"value", keep=60)


def replace(store: SQLStore) -> Coroutine[Any, Any, None]:
    return store.replace("key", b"value", keep=60)


def add(store: SQLStore) -> Coroutine[Any, Any, bool]:
    return store.add_task(task_row())


def redeem(store: SQLStore) -> Coroutine[Any, Any, Redemption]:
    return store.redeem("state", "answers", lease=5, keep=60)


@pytest.mark.parametrize("storing", [put, replace, add, redeem])
async def test_what_is_stored_has_what_expired_removed_first(played: Played, storing: Storing) -> None:
    played.returned = {name: [(1,)] for name in ("put_value", "replace_value", "add_task", "grant")}
    await storing(played.store)
    sweeps = {name for _, name in played.asked[:-1]}
    assert sweeps == {name for name in played.store.database.statements if name.startswith("sweep_")}


async def test_what_expired_is_removed_twice_a_minute_and_clocks_are_compared_as_often(played: Played) -> None:
    """A connection, whose clock is compared at its begin, may live for days."""
    played.returned = {"put_value": [(1,)]}
    for _ in range(4):
        await put(played.store)
        await asyncio.sleep(16)
    assert played.compared == [0, 32]
    (a_sweep, *_) = played.store._sweeps
    assert [at for at, name in played.asked if name == a_sweep] == [0, 32]


async def test_nothing_is_granted_while_clocks_are_apart(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    async def apart() -> None:
        raise ClocksApart("they are apart")

    monkeypatch.setattr(played.store.database, "check_clock", apart)
    with pytest.raises(ClocksApart):
        await redeem(played.store)
    assert "grant" not in [name for _, name in played.asked]


@pytest.mark.parametrize("storing", [put, replace, add])
async def test_what_finds_no_room_again_and_again_is_refused(played: Played, storing: Storing) -> None:
    with pytest.raises(StoreUnavailable, match="The store was full in 3 attempts, but had room when"):
        await storing(played.store)
