"""A store that is away: what needs it is refused with the time to try again, and the log has it once."""

import asyncio
import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_core import from_json

from mrtr_server import Context, InProcessStore, MRTRServer, Redemption, Shutdown, Store, StoreUnavailable, TaskRow
from mrtr_server.errors import ClocksApart, WrongVersion
from mrtr_server.storage import health
from mrtr_server.storage import watched as watched_store
from mrtr_server.storage.health import Outage, Slowness
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.storage.rows import EventPage, Position
from mrtr_server.storage.watched import WatchedStore
from mrtr_server.tally import DROPPED, TAKEOVERS, Tally
from mrtr_server.testing import AsyncClient, Reply, yes

from ..support.databases import PostgreSQL, task_row
from ..support.help import FAULTS
from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime
from ..support.wire import JSON

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(simulated: Any) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return simulated


LEASE, GRACE = 0.6, 0.3
"""In seconds."""

GONE = "the store can't be used (reference "
BACK = "the store is back (reference "


class Away:
    """A database that can be taken away, and brought back.

    Args:
        url: its URL.
        take, bring: what does that.
    """

    def __init__(self, url: str, take: Callable[[], object], bring: Callable[[], object]) -> None:
        self.url = url
        self._take = take
        self._bring = bring

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Take it away for as long as the block lasts."""
        self._take()
        try:
            yield
        finally:
            self._bring()


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> Away:
    """An empty database of either kind."""
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        return Away(server.url(await server.new_database()), server.stop, server.start)
    files = tmp_path / "here"
    files.mkdir()
    return Away(
        f"sqlite:///{files}/store.db",
        lambda: files.rename(tmp_path / "elsewhere"),
        lambda: (tmp_path / "elsewhere").rename(files),
    )


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_store, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(health, "QUIET", 0.1)


class Served:
    """A server of tools with and without need of the store, without a socket."""

    def __init__(self, **settings: Any) -> None:
        self.app = MRTRServer("outages", keys=[bytes(32)], **settings)
        self.app.tool(single_use=True)(self.pay)
        self.app.tool(task="optional")(self.work)
        self.app.tool(self.plain)
        self.paid: list[str] = []
        self.client = AsyncClient(self.app, tasks=True)
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    async def pay(self, ctx: Context) -> str:
        """Pay once."""
        await ctx.confirm("Sure?")
        self.paid.append("paid")
        return "paid"

    async def work(self, ctx: Context) -> str:
        """Work in the background."""
        await ctx.confirm("Sure?")
        return "worked"

    async def plain(self) -> str:
        """Need no store."""
        return "plain"

    async def call(self, tool: str, state: str | None = None, *, draft: bool = False) -> Reply:
        client = AsyncClient(self.app, era="sep-draft") if draft else self.client
        flow = client.flow(tool)
        flow.state = state
        return await flow.send({"confirm": yes} if state is not None else {})

    async def ready(self) -> tuple[int, JSON]:
        reply = await self._http.get("/ready")
        return reply.status_code, reply.json()

    async def ready_is(self, status: int, body: JSON) -> None:
        async with asyncio.timeout(TIMEOUT):
            while await self.ready() != (status, body):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        await self.app._parts.worker.close()
        await self.app._parts.shared.store.close()
        await self._http.aclose()


def assert_unavailable(reply: Reply) -> str:
    """Check that a reply says when to try again, in the protocol's own words; return its reference."""
    assert reply.status == 503, reply
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.error.code == -32603
    assert reply.message["id"] == from_json(reply.request.body)["id"]
    return str(reply.error.data["reference"])


@pytest.fixture
async def served(database: Away) -> AsyncIterator[Served]:
    made = Served(store=database.url, shutdown=Shutdown(lame_duck=0, seconds=1))
    yield made
    await made.close()


class TestADatabaseThatIsAway:
    async def test_refuses_what_needs_it_for_now_and_serves_the_rest(
        self, served: Served, database: Away, caplog: pytest.LogCaptureFixture
    ) -> None:
        state, draft_state = (await served.call("pay")).state, (await served.call("pay", draft=True)).state
        task = (await served.call("work")).task.id
        caplog.clear()
        with database.gone():
            references = set[str]()
            for _ in range(5):
                references.add(assert_unavailable(await served.call("pay", state)))
                references.add(assert_unavailable(await served.call("pay", draft_state, draft=True)))
                references.add(assert_unavailable(await served.call("work")))
                references.add(assert_unavailable(await served.client.request("tasks/get", {"taskId": task})))
                assert (await served.call("plain")).text == "plain"
            assert served.paid == []
            (line,) = (each for each in caplog.messages if GONE in each)
            assert [each in line for each in references] == [True], "all of them name the one line"
        await served.ready_is(200, {"status": "ok"})
        assert (await served.call("pay", state)).text == "paid"
        assert [each.split(GONE)[0] for each in caplog.messages if GONE in each] == ["outages: "]
        assert len([each for each in caplog.messages if BACK in each]) == 1
        # Changes have a connection of their own, and may say so once, too; and so may those of former tests' databases.
        others = [each for each in caplog.messages if "store" not in each]
        assert [each for each in others if not each.startswith("Changes")] == []
        name = database.url.rpartition("/")[2].partition("?")[0]
        assert len([each for each in others if "do not reach" in each and name in each]) <= 1

    async def test_readiness_names_it_and_stays(self, served: Served, database: Away) -> None:
        await served.ready_is(200, {"status": "ok"})
        with database.gone():
            await served.ready_is(200, {"status": "ok", "store": "away"})
        await served.ready_is(200, {"status": "ok"})

    async def test_readiness_turns_where_the_operator_says_so(self, database: Away) -> None:
        served = Served(store=database.url, shutdown=Shutdown(ready_needs_store=True, lame_duck=0, seconds=1))
        await served.ready_is(200, {"status": "ok"})
        with database.gone():
            await served.ready_is(503, {"status": "store away", "store": "away"})
            assert (await served._http.get("/health")).status_code == 200
        await served.ready_is(200, {"status": "ok"})
        await served.close()


class Hanging(InProcessStore):
    """A store that does not answer, as where a firewall drops all packets."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.asked = 0

    async def get(self, key: str) -> bytes | None:
        self.asked += 1
        await self.answers.wait()
        return await super().get(key)


class TestReadiness:
    async def test_does_not_wait_for_a_store_that_does_not_answer(self) -> None:
        store = Hanging()
        served = Served(store=store)
        async with asyncio.timeout(1.0):  # as long as Kubernetes waits for its probe
            replies = await asyncio.gather(*(served.ready() for _ in range(20)))
        assert replies == [(200, {"status": "ok", "store": "away"})] * 20
        assert store.asked == 1, "who asks at once looks once"
        store.answers.set()
        await served.ready_is(200, {"status": "ok"})
        await served.close()

    def test_looks_once_in_a_while_however_often_it_is_asked(
        self, virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watched_store, "POLL_INTERVAL", 1.0)

        async def asked() -> list[int]:
            store = Hanging()
            store.answers.set()
            watched, looks = WatchedStore(store, Outage("bank"), lease=30), []
            for _ in range(6):
                assert await watched.is_usable()
                looks.append(store.asked)
                await asyncio.sleep(0.5)
            return looks

        assert virtual_time.run(asked()) == [1, 1, 2, 2, 3, 3]

    async def test_waits_for_no_look_of_another_event_loop(self) -> None:
        watched = WatchedStore(Hanging(), Outage("bank"), lease=30)

        async def other() -> "asyncio.Task[None] | None":
            return watched._look_soon()

        loop = asyncio.new_event_loop()
        look, began = await asyncio.to_thread(loop.run_until_complete, other()), time.monotonic()
        assert look is not None
        try:
            assert await watched.is_usable()
            await watched.close()
            assert time.monotonic() == began
            assert not look.cancelling()
        finally:
            look.cancel()
            await asyncio.to_thread(loop.run_until_complete, asyncio.wait((look,)))
            loop.close()

    async def test_ends_with_the_store(self) -> None:
        watched = WatchedStore(Hanging(), Outage("bank"), lease=30)
        assert not await watched.is_usable()
        await watched.close()
        look = watched._looking.get()
        assert look is not None
        assert look.cancelled()

    async def test_says_what_a_store_of_the_author_s_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        class Slipping(InProcessStore):
            shared = True

            async def get(self, key: str) -> bytes | None:
                raise LookupError("a slip")

        watched = WatchedStore(Slipping(), Outage("bank"), lease=30)
        assert not await watched.is_usable()
        (line,) = caplog.messages
        assert line.startswith("bank: the store can't be used")
        assert "LookupError: a slip" in line

    async def test_does_not_look_at_a_store_of_this_process(self, caplog: pytest.LogCaptureFixture) -> None:
        served = Served(store=InProcessStore(most_records=1))
        assert await served.ready() == (200, {"status": "ok"})
        await served.close()


class Partly(InProcessStore):
    """A store of which some methods fail, as where the disk is full or the user may not write."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    async def get(self, key: str) -> bytes | None:
        if "get" in self.failing:
            raise StoreUnavailable("no get")
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
        if "put" in self.failing:
            raise StoreUnavailable("no put")
        return await super().put(key, value, keep=keep, **more)

    async def release(self, state: str, token: str) -> None:
        if "release" in self.failing:
            raise StoreUnavailable("no release")


class Noted(InProcessStore):
    """Notes what each method gets, and returns what it is told to."""

    def __init__(self, method: str, returned: object) -> None:
        super().__init__()
        self.got: list[dict[str, Any]] = []

        async def note(*args: Any, **keywords: Any) -> object:
            bound = inspect.signature(getattr(Store, method)).bind(self, *args, **keywords)
            self.got.append({name: given for name, given in bound.arguments.items() if name != "self"})
            return returned

        setattr(self, method, note)


class Seen:
    """An observer that notes the methods that it hears of."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.took_seconds: list[float] = []

    def took(self, method: str, seconds: float, error: Exception | None) -> None:
        self.methods.append(method if error is None else f"{method} failed")
        self.took_seconds.append(seconds)

    def added(self, row: TaskRow) -> None:
        self.methods.append(f"added {row.id}")

    def changed(self, row: TaskRow, to: TaskRow) -> None:
        self.methods.append(f"changed {row.id} to {to.id}")


CHANGED = task_row()
RETURNED: dict[str, object] = {
    "redeem": Redemption("running"),
    "renew": True,
    "record": True,
    "release": None,
    "put": True,
    "replace": None,
    "get": b"value",
    "add_task": True,
    "find_task": task_row(),
    "find_tasks": [task_row()],
    "list_owned_tasks": [task_row()],
    "change_task": CHANGED,
    "claim_tasks": [task_row()],
    "renew_tasks": {"id"},
    "holds_task": True,
    "overdue_tasks": [task_row()],
    "wait_for_tasks": None,
    "put_wait": None,
    "list_waits": [],
    "remove_wait": None,
    "add_event": True,
    "read_events": EventPage([], Position(0, 1)),
    "trim_events": None,
    "put_subscription": None,
    "find_subscription": None,
    "list_subscriptions": [],
    "remove_subscription": True,
    "advance_subscriptions": True,
    "take_lease": True,
}


WROTE: list[tuple[str, object, bool]] = [
    ("redeem", Redemption("granted"), True),
    ("redeem", Redemption("running"), False),
    ("renew", True, False),
    ("renew", False, False),
    ("record", True, True),
    ("record", False, False),
    ("put", True, True),
    ("put", False, False),
    ("replace", None, True),
    ("get", b"value", False),
    ("add_task", True, True),
    ("add_task", False, False),
    ("find_task", task_row(), False),
    ("change_task", task_row(), True),
    ("change_task", None, False),
    ("claim_tasks", [task_row()], True),
    ("claim_tasks", [], False),
    ("renew_tasks", {"id"}, False),
    ("renew_tasks", set(), False),
    ("holds_task", True, False),
    ("overdue_tasks", [task_row()], False),
    ("wait_for_tasks", None, False),
    ("put_wait", None, True),
    ("list_waits", [], False),
    ("remove_wait", None, True),
    ("add_event", True, True),
    ("add_event", False, False),
    ("read_events", EventPage([], Position(0, 1)), False),
    ("trim_events", None, False),
    ("put_subscription", None, True),
    ("find_subscription", None, False),
    ("list_subscriptions", [], False),
    ("remove_subscription", True, True),
    ("remove_subscription", False, False),
    ("advance_subscriptions", True, True),
    ("advance_subscriptions", False, False),
    ("take_lease", True, True),
    ("take_lease", False, False),
]
"""Methods, what they return, and whether that shows that others can write: heartbeats have a way of their own."""


class Failing(InProcessStore):
    """A store that can do nothing."""

    def __init__(self) -> None:
        super().__init__()

        async def fail(*args: Any, **keywords: Any) -> None:
            raise StoreUnavailable("away")

        for method in RETURNED:
            setattr(self, method, fail)


class Timed(Slowness):
    """Notes what is timed."""

    def __init__(self, timed: list[str]) -> None:
        super().__init__("it")
        self._timed = timed

    def took(self, method: str, began: float, ended: float) -> None:
        self._timed.append(f"{method} {ended - began:.1f}")


async def called(watched: WatchedStore, method: str) -> None:
    """Call a method with whatever it takes."""
    parameters = list(inspect.signature(getattr(Store, method)).parameters.values())[1:]
    needed = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    await getattr(watched, method)(**{each.name: task_row() if each.name == "row" else object() for each in needed})


class TestEachMethod:
    def test_is_listed_here(self) -> None:
        watched = {name for name, value in vars(WatchedStore).items() if inspect.iscoroutinefunction(value)}
        assert set(RETURNED) == watched.intersection(vars(Store)) - {"check", "close", "epoch", "forgotten", "measure"}

    def test_of_a_store_is_passed_on_by_a_method_of_its_own(self) -> None:
        public = {name for name, value in vars(Store).items() if inspect.isfunction(value) and name[0] != "_"}
        assert "find_tasks" in public, "also what a store need not implement"
        assert public - vars(WatchedStore).keys() == set()

    async def test_that_says_whether_the_store_fits_is_passed_on(self) -> None:
        class Unfit(InProcessStore):
            async def check(self) -> None:
                raise WrongVersion("made by another release")

        with pytest.raises(WrongVersion):
            await WatchedStore(Unfit(), Outage("it"), lease=LEASE).check()

    def test_that_carries_changes_is_passed_on(self) -> None:
        fanout = InProcessFanout()

        class Carrying(InProcessStore):
            def fanout(self) -> InProcessFanout:
                return fanout

        assert WatchedStore(Carrying(), Outage("it"), lease=LEASE).fanout() is fanout

    @pytest.mark.parametrize("lapsed", [True, False])
    @pytest.mark.parametrize("method", RETURNED)
    async def test_hands_on_what_it_gets_and_returns_and_is_observed(self, method: str, lapsed: bool) -> None:
        store, seen = Noted(method, RETURNED[method]), Seen()
        watched = WatchedStore(store, Outage("it"), lease=LEASE)
        watched.observe(seen)
        given: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(getattr(Store, method)).parameters.items())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                given[name] = {"message": "more"}
            else:
                given[name] = lapsed if name == "lapsed" else task_row() if name == "row" else object()
        more = given.pop("changes", {})
        assert await getattr(watched, method)(**given, **more) == RETURNED[method]
        (got,) = store.got
        assert got == {**given, **({"changes": more} if more else {})}
        methods: dict[str, list[str]] = {"wait_for_tasks": []}  # to wait takes as long as it takes
        if method == "add_task":
            methods[method] = [method, f"added {given['row'].id}"]
        elif method == "change_task":
            methods[method] = [method, f"changed {given['row'].id} to {CHANGED.id}"]
        assert seen.methods == methods.get(method, [method])

    @pytest.mark.parametrize(("method", "returned"), [("add_task", False), ("change_task", None)])
    async def test_that_adds_or_changes_no_task_tells_of_none(self, method: str, returned: object) -> None:
        seen = Seen()
        watched = WatchedStore(Noted(method, returned), Outage("it"), lease=LEASE)
        watched.observe(seen)
        assert await getattr(watched, method)(task_row()) is returned
        assert seen.methods == [method]

    async def test_works_as_before_where_nobody_observes(self) -> None:
        watched = WatchedStore(Noted("change_task", CHANGED), Outage("it"), lease=LEASE)
        assert await watched.change_task(task_row()) is CHANGED

    @pytest.mark.parametrize("method", RETURNED)
    async def test_that_fails_begins_an_outage(self, method: str) -> None:
        watched = WatchedStore(Failing(), Outage("it"), lease=LEASE)
        with pytest.raises(StoreUnavailable):
            await called(watched, method)
        assert watched.is_away

    @pytest.mark.parametrize(("method", "returned", "ends"), WROTE)
    async def test_that_has_written_ends_an_outage_of_others(self, method: str, returned: object, ends: bool) -> None:
        outage = Outage("it")
        watched = WatchedStore(Noted(method, returned), outage, lease=LEASE)
        outage.look = lambda: None
        outage.failed("release", StoreUnavailable("away"))
        await asyncio.sleep(2 * health.QUIET)
        await called(watched, method)
        assert watched.is_away is not ends

    @pytest.mark.parametrize(("granted", "counts"), [(Redemption("granted"), 0), (Redemption("granted", attempt=2), 1)])
    async def test_that_takes_a_round_over_is_counted(self, granted: Redemption, counts: int) -> None:
        tally = Tally()
        watched = WatchedStore(Noted("redeem", granted), Outage("it"), lease=LEASE, tally=tally)
        await called(watched, "redeem")
        assert tally.count_of(TAKEOVERS, "round").value == counts

    @pytest.mark.parametrize(("recorded", "counts"), [(True, 0), (False, 1)])
    async def test_that_records_nothing_is_counted_as_an_outcome_that_is_dropped(
        self, recorded: bool, counts: int
    ) -> None:
        tally = Tally()
        watched = WatchedStore(Noted("record", recorded), Outage("it"), lease=LEASE, tally=tally)
        await called(watched, "record")
        assert tally.count_of(DROPPED, "round").value == counts

    @pytest.mark.parametrize("said", [True, False])
    async def test_is_of_a_store_that_says_of_itself_what_the_watched_one_says(self, said: bool) -> None:
        class Saying(InProcessStore):
            shared = keeps_tasks = in_memory = one_machine = said

            async def close(self) -> None:
                self.is_closed = True

        store = Saying()
        watched = WatchedStore(store, Outage("it"), lease=LEASE)
        assert {watched.shared, watched.keeps_tasks, watched.in_memory, watched.one_machine} == {said}
        await watched.close()
        assert store.is_closed

    async def test_is_timed_where_it_works_and_is_not_there_to_wait(self) -> None:
        outage, timed, seen = Outage("it"), list[str](), Seen()
        outage.slowness, outage.observer = Timed(timed), seen
        began = time.monotonic()
        await asyncio.sleep(0.5)
        for method, error in (("get", None), ("put", StoreUnavailable("away")), ("wait_for_tasks", None)):
            outage.ended(method, began, error)
        assert timed == ["get 0.5"]
        assert seen.methods == ["get", "put failed"]
        assert seen.took_seconds == pytest.approx([0.5, 0.5])


class TestTheLog:
    @pytest.fixture
    def store(self) -> Partly:
        return Partly()

    @pytest.fixture
    def watched(self, store: Partly) -> WatchedStore:
        return WatchedStore(store, Outage("it"), lease=30)

    async def test_has_one_line_where_reads_work_and_writes_do_not(
        self, store: Partly, watched: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.failing = {"put"}
        for number in range(20):
            with pytest.raises(StoreUnavailable):
                await watched.put(f"key {number}", b"", keep=60)
            await watched.get("key")
            await asyncio.sleep(0.02)
        assert [each.split(" (")[0] for each in caplog.messages] == ["it: the store can't be used"]
        store.failing = set()
        await watched.put("key", b"", keep=60)
        assert len(caplog.messages) == 2
        failed = re.search(r"failed (\d+) times", caplog.messages[1])
        assert failed
        assert int(failed[1]) >= 20, "with the looks that were made meanwhile"

    async def test_says_that_it_is_back_though_what_failed_is_not_called_again(
        self, store: Partly, watched: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.failing = {"release"}
        with pytest.raises(StoreUnavailable):
            await watched.release("state", "token")
        async with asyncio.timeout(TIMEOUT):
            while BACK not in caplog.text:
                await watched.get("key")
                await asyncio.sleep(0.02)

    async def test_has_nothing_where_all_is_well(self, watched: WatchedStore, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        assert await watched.put("key", b"", keep=60)
        assert await watched.is_usable()
        assert caplog.messages == []


class TestAnOutage:
    """In simulated time."""

    outage: Outage
    looks: list[float]

    @pytest.fixture(autouse=True)
    def prepared(self, virtual_time: VirtualTime) -> None:
        self.outage, self.looks = Outage("bank"), []
        self.outage.look = lambda: self.looks.append(virtual_time.now)

    def fail(self, method: str) -> str:
        error = StoreUnavailable("no route")
        self.outage.failed(method, error)
        return error.reference

    def test_has_a_line_at_its_begin_and_one_at_its_end_under_one_reference(
        self, virtual_time: VirtualTime, caplog: pytest.LogCaptureFixture
    ) -> None:
        references = []
        for failures in (3, 1):
            caplog.clear()
            assert not self.outage.is_on
            given = set()
            for _ in range(failures):
                given.add(self.fail("put"))
                assert self.outage.is_on
                virtual_time.compute(2)
            self.outage.worked("put", wrote=True)
            assert not self.outage.is_on
            (reference,) = given
            references.append(reference)
            began, ended = caplog.records
            assert began.getMessage().startswith(f"bank: the store can't be used (reference {reference})")
            assert ended.getMessage() == (
                f"bank: the store is back (reference {reference}), after {2 * failures} s in which it failed "
                f"{failures} times"
            )
            assert began.__dict__["fields"] == {"event": "store_away", "reference": reference, "help": FAULTS}
            fields = {"event": "store_back", "reference": reference, "failures": failures}
            assert ended.__dict__["fields"] == fields
        assert len(set(references)) == 2
        assert self.looks == []

    @pytest.mark.parametrize(("wrote", "ends"), [(True, True), (False, False)])
    def test_of_claims_ends_with_one_that_has_claimed_something(self, wrote: bool, ends: bool) -> None:
        self.fail("claim_tasks")
        self.outage.worked("claim_tasks", wrote=wrote)
        assert self.outage.is_on is not ends
        assert len(self.looks) == (0 if ends else 1)

    def test_of_reads_ends_with_one_that_works(self) -> None:
        self.fail("get")
        self.outage.worked("get", wrote=False)
        assert not self.outage.is_on

    def test_lasts_while_only_other_methods_read(self, virtual_time: VirtualTime) -> None:
        self.fail("put")
        for _ in range(3):
            virtual_time.compute(60)
            self.outage.worked("get", wrote=False)
            assert self.outage.is_on
        assert len(self.looks) == 3

    def test_ends_when_others_write_and_what_failed_has_not_failed_for_a_while(self, virtual_time: VirtualTime) -> None:
        self.fail("put")
        virtual_time.compute(health.QUIET * 0.9)
        self.outage.worked("record", wrote=True)
        assert self.outage.is_on
        virtual_time.compute(health.QUIET * 0.1)
        self.outage.worked("record", wrote=True)
        assert not self.outage.is_on

    @pytest.mark.parametrize("error", [RuntimeError("a slip"), ClocksApart("apart")])
    def test_is_neither_another_error_nor_a_clock_that_is_apart(self, error: Exception) -> None:
        self.outage.ended("put", 0.0, error)
        assert not self.outage.is_on
        self.outage.ended("put", 0.0, StoreUnavailable("away"))
        assert self.outage.is_on


class Shared(InProcessStore):
    """A store that replicas share, which can be away, or full."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.away = self.full = False
        self.claims: list[bool] = []

    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        **more: Any,
    ) -> list[TaskRow]:
        self.claims.append(lapsed)
        if self.away or (self.full and lapsed):
            raise StoreUnavailable("no claims")
        return []

    async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
        if self.away or self.full:
            raise StoreUnavailable("no put")
        return await super().put(key, value, keep=keep, **more)


class TestTakingTasksOver:
    """Who holds a lease that has ended may have been cut off, as all were: it has a whole lease to come back."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watched_store, "GRACE_SECONDS", GRACE)

    @pytest.fixture
    def store(self) -> Shared:
        return Shared()

    @pytest.fixture
    def watched(self, store: Shared) -> WatchedStore:
        return WatchedStore(store, Outage("it"), lease=LEASE)

    async def claim(self, watched: WatchedStore) -> None:
        await watched.claim_tasks("lease", seconds=1, most=1, tools=["tool"])

    @pytest.mark.parametrize("method", ["add_task", "put", "replace"])
    async def test_one_that_has_stored_something_writes_nothing_more_to_find_out_whether_it_can(
        self, watched: WatchedStore, store: Shared, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        looks: list[str] = []
        put = store.put

        async def noted(key: str, value: bytes, **more: Any) -> bool:
            looks.append(key)
            return await put(key, value, **more)

        monkeypatch.setattr(store, "put", noted)
        given = (task_row(),) if method == "add_task" else ("key", b"value")
        await getattr(watched, method)(*given, **({} if method == "add_task" else {"keep": 60.0}))
        looks.clear()
        for _ in range(4):
            await self.claim(watched)
            await asyncio.sleep(watched_store.POLL_INTERVAL)
        assert looks == []

    async def waited(self, watched: WatchedStore, store: Shared) -> float:
        """Claim until tasks are taken over; return how long that took, in seconds."""
        began = time.monotonic()
        store.claims.clear()
        async with asyncio.timeout(TIMEOUT):
            while not any(store.claims):
                await self.claim(watched)
                await asyncio.sleep(0.01)
        return time.monotonic() - began

    async def test_a_process_that_has_just_started_waits_since_it_can_not_know(
        self, watched: WatchedStore, store: Shared
    ) -> None:
        assert await self.waited(watched, store) >= LEASE
        assert await self.waited(watched, store) < LEASE, "and does so once"

    async def test_one_that_waits_for_tasks_counts_those_that_it_may_take_over_from_then_on(
        self, watched: WatchedStore, store: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lapsed: list[bool] = []

        async def noted(seconds: float, **more: Any) -> None:
            lapsed.append(more["lapsed"])

        monkeypatch.setattr(store, "wait_for_tasks", noted)
        await watched.wait_for_tasks(1, tools=["tool"])
        await self.waited(watched, store)
        await watched.wait_for_tasks(1, tools=["tool"])
        await watched.wait_for_tasks(1, tools=["tool"], lapsed=False)
        assert lapsed == [False, True, False]

    async def test_one_that_saw_an_outage_waits_from_its_end_on(self, watched: WatchedStore, store: Shared) -> None:
        await self.waited(watched, store)
        store.away = True
        with pytest.raises(StoreUnavailable):
            await self.claim(watched)
        await asyncio.sleep(2 * LEASE)
        with pytest.raises(StoreUnavailable):
            await self.claim(watched)
        store.away = False
        assert await self.waited(watched, store) >= LEASE

    async def test_what_can_be_read_and_not_written_is_not_back(
        self, watched: WatchedStore, store: Shared, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As on a full disk, where a claim that finds nothing works."""
        await self.waited(watched, store)
        store.full = True
        with pytest.raises(StoreUnavailable):
            await self.claim(watched)
        store.claims.clear()
        until = time.monotonic() + 2 * LEASE
        while time.monotonic() < until:
            await self.claim(watched)
            await asyncio.sleep(0.01)
        assert not any(store.claims)
        assert [each.split(" (")[0] for each in caplog.messages] == ["it: the store can't be used"]
        store.full = False
        assert await self.waited(watched, store) >= LEASE

    async def test_one_that_was_suspended_waits_too(
        self, watched: WatchedStore, store: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await self.waited(watched, store)
        monkeypatch.setattr(health, "LONGEST_GAP", 0.1)
        await asyncio.sleep(0.2)
        assert await self.waited(watched, store) >= LEASE

    async def test_a_gap_as_long_as_a_short_lease_is_an_outage(self, store: Shared) -> None:
        watched = WatchedStore(store, Outage("it"), lease=0.1)
        await self.waited(watched, store)
        await asyncio.sleep(0.2)  # as of a database that is frozen, which refuses nothing
        assert await self.waited(watched, store) >= GRACE

    async def test_a_short_lease_leaves_time_to_connect_again(self, store: Shared) -> None:
        assert await self.waited(WatchedStore(store, Outage("it"), lease=0.1), store) >= GRACE

    @pytest.mark.parametrize("shared", [True, False])
    async def test_one_that_has_only_read_writes_something_short_lived_where_others_may_be_cut_off(
        self, watched: WatchedStore, store: Shared, monkeypatch: pytest.MonkeyPatch, shared: bool
    ) -> None:
        looks: list[tuple[bytes, float]] = []

        async def noted(key: str, value: bytes, *, keep: float, **more: Any) -> bool:
            looks.append((value, keep))
            return True

        monkeypatch.setattr(store, "put", noted)
        watched.shared = shared
        await self.claim(watched)
        await asyncio.sleep(0)
        assert looks == ([(b"", 1.0)] if shared else [])

    async def test_in_a_store_of_this_process_nobody_can_be_cut_off(self) -> None:
        store = Shared()
        store.shared = False
        assert await self.waited(WatchedStore(store, Outage("it"), lease=LEASE), store) < LEASE
