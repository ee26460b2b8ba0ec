"""Changes on one replica, heard on another: within a second, in whatever thread, and whether the database is there."""

import asyncio
import logging
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from mrtr_server import InProcessStore, MRTRServer, SQLStore
from mrtr_server.protocol.messages import Change, Subscription
from mrtr_server.storage.pubsub import LONG_URI, InProcessFanout, topic_of
from mrtr_server.storage.sql import notify as module
from mrtr_server.storage.sql.notify import SQLFanout

from ..support.databases import PostgreSQL
from ..support.serving import KEYS, ROOT, TIMEOUT, in_process, until
from ..support.stores import carrying
from ..support.wire import Wire
from ..transport.test_subscriptions import listening

pytestmark = pytest.mark.anyio

TOOLS, PROMPTS = Change("tools"), Change("prompts")
STRANGE = [
    Change("resource", uri) for uri in ("a\0b", "\ud800", "Größe ½", "'; DROP TABLE mrtr_tasks; --", "x" * 50_000)
]


@pytest.fixture
async def stores(url: str) -> AsyncIterator[list[SQLStore]]:
    """As two replicas have them."""
    made = [SQLStore(url), SQLStore(url)]
    yield made
    for store in made:
        await store.close()


@pytest.fixture
def here(stores: list[SQLStore]) -> SQLFanout:
    return stores[0].fanout()


@pytest.fixture
def there(stores: list[SQLStore]) -> SQLFanout:
    return stores[1].fanout()


async def told(subscription: Subscription, *expected: Change, within: float = TIMEOUT) -> None:
    """Wait until a listener was told of changes, and of no others."""
    heard: set[Change] = set()
    async with asyncio.timeout(within):
        while not heard >= set(expected):
            heard |= set(await subscription.next())
    assert heard == set(expected)


async def connected(*fanouts: SQLFanout) -> None:
    """Wait until replicas hear each other."""
    async with asyncio.timeout(TIMEOUT):
        while not all(fanout._notices.connected for fanout in fanouts):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def listener(fanout: SQLFanout, *wanted: Change) -> Subscription:
    """Listen, on a replica that hears the others. What it was told when it began is past."""
    subscription: Any = fanout.subscribe(frozenset(wanted))
    await connected(fanout)
    await asyncio.sleep(0)  # what may have been missed was told before
    if subscription._changes:
        await subscription.next()
    return cast(Subscription, subscription)


class TestReplicas:
    async def test_a_listener_on_another_one_hears_of_a_change(self, here: SQLFanout, there: SQLFanout) -> None:
        subscription = await listener(there, TOOLS)
        for _ in range(3):
            here.publish(TOOLS)
            await told(subscription, TOOLS)

    @pytest.mark.alone
    async def test_it_does_within_a_second(self, here: SQLFanout, there: SQLFanout) -> None:
        subscription = await listener(there, TOOLS)
        here.publish(TOOLS)
        await told(subscription, TOOLS, within=1.0)

    def test_a_file_is_read_as_often_as_the_page_promises(self) -> None:
        page = (ROOT / "docs" / "database.md").read_text()
        (promised,) = re.findall(r"^\| another replica learns of a change .*?\| within (.+?), by", page, re.MULTILINE)
        assert {"a quarter of a second": 0.25}[promised] == module.POLL + module.GATHER

    async def test_one_on_the_same_one_hears_at_once_and_once(self, here: SQLFanout) -> None:
        subscription = await listener(here, TOOLS)
        hears = asyncio.ensure_future(subscription.next())
        here.publish(TOOLS)
        for _ in range(10):  # turns of the loop, and no time
            await asyncio.sleep(0)
        assert hears.done()
        assert await hears == [TOOLS]
        with pytest.raises(TimeoutError):
            await told(subscription, TOOLS, within=0.6)

    async def test_a_listener_hears_only_what_it_wants(self, here: SQLFanout, there: SQLFanout) -> None:
        a, b = Change("resource", "doc://a"), Change("resource", "doc://b")
        subscription = await listener(there, TOOLS, a)
        for change in (PROMPTS, b, a, PROMPTS, TOOLS):
            here.publish(change)
        await told(subscription, a, TOOLS)

    async def test_whatever_the_uri(self, here: SQLFanout, there: SQLFanout) -> None:
        subscription = await listener(there, *STRANGE)
        for change in STRANGE:
            here.publish(change)
            await told(subscription, change)

    @pytest.mark.parametrize("size", [1, LONG_URI, 3_000], ids=["short", "long", "too long for a notice"])
    async def test_a_resource_is_known_by_each_equivalent_uri(
        self, here: SQLFanout, there: SQLFanout, size: int
    ) -> None:
        """And each listener hears of it by the one that it has named."""
        plain = Change("resource", "data://na\u00efve/" + "\u00ef" * size)
        encoded = Change("resource", "data://na%c3%afve/" + "%C3%AF" * size)
        subscription, other = await listener(there, encoded), await listener(here, plain)
        here.publish(plain)
        await told(subscription, encoded)
        await told(other, plain)
        there.publish(encoded)
        await told(other, plain)

    async def test_a_long_uri_is_told_from_another_long_one(self, here: SQLFanout, there: SQLFanout) -> None:
        a, b = Change("resource", "a" * 10_000), Change("resource", "b" * 10_000)
        subscription = await listener(there, b)
        here.publish(a)
        with pytest.raises(TimeoutError):
            await told(subscription, a, within=0.5)
        here.publish(b)
        await told(subscription, b)

    async def test_what_a_change_carries_arrives_with_it(self, here: SQLFanout, there: SQLFanout) -> None:
        for id, note, arrives in (("a", "sealed", "sealed"), ("b", "x" * 8_000, "")):  # too long, so it is looked up
            subscription = await listener(there, Change("answer", id))
            here.publish(Change("answer", id, note=note))
            async with asyncio.timeout(TIMEOUT):
                assert [change.note for change in await subscription.next()] == [arrives]
            subscription.close()

    async def test_a_file_is_polled_more_often_while_a_person_is_waited_for(self, here: SQLFanout) -> None:
        first, second = (here.subscribe(frozenset({Change("answer", id)})) for id in ("a", "b"))
        other = here.subscribe(frozenset({Change("tools")}))
        assert here._notices.hurried == 2
        other.close()
        assert here._notices.hurried == 2
        first.close()
        first.close()
        assert here._notices.hurried == 1
        second.close()
        assert here._notices.hurried == 0

    async def test_a_kind_that_is_new_is_carried_as_it_is(self, here: SQLFanout, there: SQLFanout) -> None:
        new: Any = Change("task", "id")  # type: ignore[arg-type,unused-ignore]
        subscription = await listener(there, new)
        here.publish(new)
        await told(subscription, new)

    async def test_who_has_stopped_listening_hears_nothing(self, here: SQLFanout, there: SQLFanout) -> None:
        subscription, other = await listener(there, TOOLS), await listener(there, TOOLS)
        subscription.close()
        here.publish(TOOLS)
        await told(other, TOOLS)
        assert await subscription.next() == []

    async def test_a_storm_of_changes_arrives_whole(self, here: SQLFanout, there: SQLFanout) -> None:
        changes = [Change("resource", f"doc://{number}") for number in range(3_000)]
        subscription = await listener(there, *changes)
        for change in changes:
            here.publish(change)
        await told(subscription, *changes)

    async def test_any_thread_may_publish_with_no_event_loop_near(self, here: SQLFanout, there: SQLFanout) -> None:
        changes = [Change("resource", f"doc://{number}") for number in range(40)]
        subscription = await listener(there, *changes)

        def publish(part: list[Change]) -> None:
            for change in part:
                here.publish(change)

        threads = [threading.Thread(target=publish, args=(changes[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        await told(subscription, *changes)
        for thread in threads:
            thread.join()

    async def test_nothing_is_missed_from_the_first_subscription_on(self, here: SQLFanout, there: SQLFanout) -> None:
        subscription = there.subscribe(frozenset({TOOLS}))
        here.publish(TOOLS)  # before either is connected
        await told(subscription, TOOLS)

    async def test_it_begins_again_after_it_was_closed(
        self, stores: list[SQLStore], here: SQLFanout, there: SQLFanout
    ) -> None:
        subscription = await listener(there, TOOLS)
        here.publish(TOOLS)
        await stores[0].close()  # what was published is out by then
        await told(subscription, TOOLS)
        here.publish(TOOLS)
        await told(subscription, TOOLS)
        threads = [thread.name for thread in threading.enumerate()]
        for store in stores:
            await store.close()
            await store.close()
        left = [thread.name for thread in threading.enumerate()]
        assert threads.count("mrtr-notices") - left.count("mrtr-notices") == 2

    async def test_a_process_that_never_closes_it_ends_quietly(self, url: str) -> None:
        code = f"""
import asyncio
from mrtr_server import SQLStore
from mrtr_server.protocol.messages import Change

async def main():
    fanout = SQLStore("{url}").fanout()
    fanout.subscribe(frozenset({{Change("tools")}}))
    while not fanout._notices.connected:
        await asyncio.sleep(0.01)
    fanout.publish(Change("tools"))

asyncio.run(main())
"""
        command = [sys.executable, "-W", "error", "-c", code]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=TIMEOUT)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestWhatIsGivenToTheNotices:
    """Without a database."""

    @pytest.fixture
    def given(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
        """What is published, and whether somebody waits for it."""
        given: list[tuple[str, bool]] = []
        monkeypatch.setattr(
            module.Notices, "publish", lambda _, notice, *, urgent=False: given.append((notice, urgent))
        )
        return given

    @pytest.fixture
    def starts(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Notes each start of the thread."""
        starts: list[str] = []
        monkeypatch.setattr(module.Notices, "start", lambda _: starts.append("started"))
        return starts

    def test_is_urgent_where_a_call_that_is_open_waits_for_it(
        self, tmp_path: Path, given: list[tuple[str, bool]]
    ) -> None:
        fanout = SQLStore(f"sqlite:///{tmp_path}/changes.db").fanout()
        for change in (Change("answer", "id"), Change("cancelled", "id"), Change("piece", "id"), TOOLS):
            fanout.publish(change)
        assert given == [
            ('changed ["answer", "id", ""]', True),
            ('changed ["cancelled", "id", ""]', True),
            ('changed ["piece", "id", ""]', False),
            ('changed ["tools", "", ""]', False),
        ]

    @pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
    def test_is_as_long_as_a_notice_may_be_and_no_longer(
        self, tmp_path: Path, given: list[tuple[str, bool]], more: int, fits: bool
    ) -> None:
        fanout = SQLStore(f"sqlite:///{tmp_path}/changes.db").fanout()
        note = "x" * (module.LONGEST - len('carried ["answer", "id", ""]') + more)
        fanout.publish(Change("answer", "id", note=note))
        uri = "x" * (module.LONGEST - len('["resource", "", ""]') + more)
        fanout.publish(Change("resource", uri))
        whole = [f'carried ["answer", "id", "{note}"]', f'changed ["resource", "{uri}", ""]']
        assert [notice == each for (notice, _), each in zip(given, whole, strict=True)] == [fits, fits]
        assert given[0][0] == (whole[0] if fits else 'changed ["answer", "id", ""]')
        assert len(given[1][0]) < (9_000 if fits else 100)

    async def test_that_may_be_missing_are_taken_to_have_come(self, tmp_path: Path, starts: list[str]) -> None:
        fanout = SQLStore(f"sqlite:///{tmp_path}/changes.db").fanout()
        first, second = (fanout.subscribe(frozenset(wanted)) for wanted in ({TOOLS, PROMPTS}, {TOOLS}))
        fanout._notices.report_gap()
        assert set(await first.next()) == {TOOLS, PROMPTS}
        assert await second.next() == [TOOLS]

    async def test_starts_with_the_first_listener_that_wants_anything(self, tmp_path: Path, starts: list[str]) -> None:
        fanout = SQLStore(f"sqlite:///{tmp_path}/changes.db").fanout()
        fanout.subscribe(frozenset())
        assert starts == []
        fanout.subscribe(frozenset({TOOLS}))
        assert starts == ["started"]


class TestSQLite:
    @pytest.fixture
    async def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/changes.db"

    @pytest.mark.alone
    async def test_a_file_that_can_not_be_used_yet_is_waited_for(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "RETRY", 0.1)
        url = f"sqlite:///{tmp_path}/missing/changes.db"
        here, there = SQLStore(url), SQLStore(url)
        subscription = there.fanout().subscribe(frozenset({TOOLS}))
        start = time.monotonic()
        here.fanout().publish(TOOLS)
        assert time.monotonic() - start < 1  # where it waited, it would for five
        await asyncio.sleep(0.5)
        (tmp_path / "missing").mkdir()
        await told(subscription, TOOLS)
        for store in (here, there):
            await store.close()
        lost = [each for each in caplog.messages if "Changes do not reach other replicas for now" in each]
        assert len(lost) == 2
        assert "its folder must exist" in lost[0]
        assert caplog.messages.count("Changes reach other replicas again") == 2

    async def test_what_everybody_has_heard_is_removed(
        self, here: SQLFanout, there: SQLFanout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
        subscription = await listener(there, TOOLS, PROMPTS)

        def rows() -> int:
            connection = sqlite3.connect(tmp_path / "changes.db")
            (count,) = connection.execute("SELECT count(*) FROM mrtr_changes").fetchone()
            connection.close()
            return int(count)

        for _ in range(5):
            here.publish(TOOLS)
            await asyncio.sleep(0.02)
        await told(subscription, TOOLS)
        assert rows() > 0
        with closing(sqlite3.connect(tmp_path / "changes.db", timeout=TIMEOUT)) as later:
            later.execute("UPDATE mrtr_changes SET expires = 1")
            later.commit()
        here.publish(PROMPTS)
        async with asyncio.timeout(TIMEOUT):
            while rows() != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def test_a_process_looks_some_times_a_second_and_rests_meanwhile(
        self, here: SQLFanout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[float] = []
        look = module._Carrier._look

        async def noted(carrier: Any) -> bool:
            if carrier._notices is here._notices:  # and not of a store that another test has left open
                looks.append(time.monotonic())
            return await look(carrier)

        monkeypatch.setattr(module._Carrier, "_look", noted)
        here.subscribe(frozenset({TOOLS}))
        await connected(here)
        began = time.monotonic()
        looks.clear()
        await until(lambda: len(looks) > 3, "it to look")
        await asyncio.sleep(0.5)
        assert len(looks) <= 2 + (time.monotonic() - began) / module.POLL

    async def test_it_is_removed_as_fast_as_it_comes_and_when_nobody_tells_anything(
        self, stores: list[SQLStore], tmp_path: Path
    ) -> None:
        here, there = stores
        await here.check()
        with closing(sqlite3.connect(tmp_path / "changes.db")) as connection:

            def rows() -> int:
                (count,) = connection.execute("SELECT count(*) FROM mrtr_changes").fetchone()
                return int(count)

            old = [("somebody", 1.0, 2.0, "changed x")] * 5_500
            connection.executemany("INSERT INTO mrtr_changes (writer, written, expires, said) VALUES (?, ?, ?, ?)", old)
            connection.commit()
            subscription = there.fanout().subscribe(frozenset({TOOLS}))  # who only hears
            async with asyncio.timeout(TIMEOUT):
                while rows():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            subscription.close()
            connection.executemany("INSERT INTO mrtr_changes (writer, written, expires, said) VALUES (?, ?, ?, ?)", old)
            connection.commit()
            for store in (here, there):
                await store.close()
            user = SQLStore(f"sqlite:///{tmp_path}/changes.db")  # neither tells nor hears
            for number in range(6):
                await user.put(f"key {number}", b"", keep=60)
            assert rows() == 0
            await user.close()


class TestPostgreSQL:
    @pytest.fixture
    async def url(self, postgresql: PostgreSQL) -> str:
        return postgresql.url(await postgresql.new_database())

    async def test_a_server_that_was_away_takes_nothing_with_it(
        self, url: str, stores: list[SQLStore], postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
    ) -> None:
        publishing, fanout = (store.fanout() for store in stores)
        subscription = await listener(fanout, TOOLS, PROMPTS)
        publishing.publish(TOOLS)
        await told(subscription, TOOLS)
        await asyncio.to_thread(postgresql.stop)
        await until(lambda: not publishing._notices.connected, "it to notice")
        start = time.monotonic()
        for number in range(2_000):
            publishing.publish(Change("resource", f"doc://{number}"))
        publishing.publish(TOOLS)
        assert time.monotonic() - start < 3
        assert not publishing._notices.connected
        await asyncio.to_thread(postgresql.start)
        await told(subscription, TOOLS, PROMPTS)  # what it wants, since others may have been missed
        await connected(publishing, fanout)
        await asyncio.sleep(0.3)
        publishing.publish(PROMPTS)
        async with asyncio.timeout(TIMEOUT):
            while PROMPTS not in await subscription.next():
                pass
        for store in stores:
            await store.close()
        own = [record for record in caplog.records if f"{urlsplit(url).path} " in record.getMessage()]
        assert len(own) == 2
        assert all("Changes do not reach other replicas" in record.getMessage() for record in own)
        assert {record.levelno for record in caplog.records} == {logging.WARNING}

    async def test_a_process_has_one_connection_for_it(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        store = SQLStore(postgresql.url(name))
        fanouts = [store.fanout() for _ in range(3)]
        for fanout in fanouts:
            await listener(fanout, TOOLS)
            fanout.publish(TOOLS)
        count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
        assert await postgresql.fetch(count) == 1
        await store.close()
        async with asyncio.timeout(TIMEOUT):
            while await postgresql.fetch(count):  # noqa: ASYNC110  its server ends a little later
                await asyncio.sleep(0.01)

    async def test_one_that_was_cut_off_is_made_anew(self, postgresql: PostgreSQL) -> None:
        name = await postgresql.new_database()
        here, there = SQLStore(postgresql.url(name)), SQLStore(postgresql.url(name))
        fanout = there.fanout()
        subscription = await listener(fanout, TOOLS)
        end = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
        assert await postgresql.fetch(end) == 1
        here.fanout().publish(TOOLS)
        await told(subscription, TOOLS)
        for store in (here, there):
            await store.close()


class TestServers:
    """Real processes, over HTTP."""

    @pytest.fixture
    def wires(self, url: str, tmp_path: Path) -> Iterator[list[Wire]]:
        environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": url}
        with ExitStack() as stack:
            made = []
            for number in range(2):
                log = tmp_path / f"{number}.log"
                server = stack.enter_context(
                    in_process("tests.support.changing_app:app", log=log, environment=environment)
                )
                assert server.port, server.text
                made.append(Wire(f"http://127.0.0.1:{server.port}/mcp"))
                stack.callback(made[-1].close)
            yield made

    async def test_a_change_in_one_is_heard_by_a_client_of_the_other(self, wires: list[Wire]) -> None:
        await asyncio.to_thread(self.scene, *wires)

    def scene(self, one: Wire, other: Wire) -> None:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["doc://a"]}
        with listening(one, wanted) as there, listening(other, wanted, "sub-2") as here:
            for each in (there, here):
                assert each.next()["method"] == "notifications/subscriptions/acknowledged"
            time.sleep(0.5)
            other.call("update", {"uri": "doc://a", "times": 50})
            for each in (here, there):
                while (message := each.next())["method"] != "notifications/resources/updated":
                    pass
                assert message["params"]["uri"] == "doc://a"
            other.call("change")
            for each in (here, there):
                while each.next()["method"] != "notifications/tools/list_changed":
                    pass


class TestAListenerInAnotherThread:
    """Its event loop is told by whoever publishes, or closes it."""

    async def test_is_woken_by_a_change_and_by_its_end(self) -> None:
        fanout = InProcessFanout()
        subscription = fanout.subscribe(frozenset({TOOLS}))
        for end, expected in ((lambda: fanout.publish(TOOLS), [TOOLS]), (subscription.close, [])):
            waiting = asyncio.ensure_future(subscription.next())
            await asyncio.sleep(0)
            await asyncio.to_thread(end)
            async with asyncio.timeout(TIMEOUT):
                assert await waiting == expected

    async def test_on_the_same_one_is_woken_as_well(self) -> None:
        fanout = InProcessFanout()
        subscription = fanout.subscribe(frozenset({TOOLS}))
        waiting = asyncio.ensure_future(subscription.next())
        await asyncio.sleep(0)
        fanout.publish(TOOLS)
        assert await waiting == [TOOLS]
        waiting = asyncio.ensure_future(subscription.next())
        await asyncio.sleep(0)
        subscription.close()
        async with asyncio.timeout(TIMEOUT):
            assert await waiting == []

    def test_whose_event_loop_has_ended_is_forgotten_with_the_next_change(self) -> None:
        fanout = InProcessFanout()

        async def leave() -> None:
            fanout.subscribe(frozenset({TOOLS}))

        asyncio.run(leave())
        assert len(fanout._listeners) == 1
        fanout.publish(TOOLS)
        assert (fanout._listeners, fanout._listeners_to) == (set(), {})


class TestWhichOne:
    async def test_a_database_carries_changes_and_a_process_its_own(self, tmp_path: Path) -> None:
        assert type(InProcessStore().fanout()) is InProcessFanout
        assert type(SQLStore(f"sqlite:///{tmp_path}/changes.db").fanout()) is SQLFanout

    async def test_a_server_takes_that_of_its_store(self, tmp_path: Path) -> None:
        given, url = InProcessFanout(), f"sqlite:///{tmp_path}/changes.db"
        assert type(MRTRServer("x", keys=[bytes(32)], store=url)._parts.fanout) is SQLFanout
        assert MRTRServer("x", keys=[bytes(32)], store=carrying(given))._parts.fanout is given
        assert type(MRTRServer("x", keys=[bytes(32)])._parts.fanout) is InProcessFanout


@pytest.mark.parametrize("length", [LONG_URI, LONG_URI + 1])
def test_a_uri_that_is_no_text_is_one_of_its_own(length: int) -> None:
    """JSON may have half of a surrogate pair, which has no UTF-8."""
    one, other = (topic_of(Change("resource", letter * length)) for letter in ("\ud800", "\ud801"))
    assert one != other
    assert len(one[1]) <= LONG_URI
