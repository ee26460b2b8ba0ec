"""Sealing a database anew: an old key can be dropped before its tasks end, and servers work meanwhile."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner
from starlette.requests import Request

from mrtr_server import ClientInfo, Context, KeyRing, Limits, MRTRServer, SetupError, SQLStore, StoreUnavailable, Task
from mrtr_server.cli import main
from mrtr_server.crypto.keys import REPORT
from mrtr_server.crypto.place_codec import PlaceCodec
from mrtr_server.flow.admission import Admission
from mrtr_server.live.answers import SentQuestion
from mrtr_server.live.events import Origin, StreamEvent
from mrtr_server.live.parts import LiveParts
from mrtr_server.live.session_states import SessionState
from mrtr_server.login import Oidc
from mrtr_server.login.families import Families
from mrtr_server.login.records import About, Upstream
from mrtr_server.login.upstream_tokens import UpstreamRows
from mrtr_server.protocol.callers import Principal
from mrtr_server.protocol.messages import Call, Complete, Outcome
from mrtr_server.protocol.sessions import Session
from mrtr_server.storage.quotas import Quotas
from mrtr_server.storage.rows import EventRow, Lease, Position, SubscriptionRow
from mrtr_server.storage.sealed_events import SealedEvents
from mrtr_server.storage.sql import administration as module
from mrtr_server.storage.sql import open_database
from mrtr_server.storage.sql.administration import TABLES, Resealed, reseal
from mrtr_server.storage.sql.database import Database
from mrtr_server.testing import AsyncClient, accept, short_lease, yes

from ..support.databases import event_row

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = (bytes([number]) * 32 for number in range(3))


class Bank:
    """A server whose tools leave sealed rows of every kind."""

    def __init__(self, url: str, *keys: bytes, run_tasks: bool = True) -> None:
        self.app = MRTRServer("bank", keys=keys, store=SQLStore(url), run_tasks=run_tasks, limits=short_lease(2))
        self.began, self.gate = asyncio.Event(), asyncio.Event()
        self.ran: list[str] = []

        @self.app.callback("paid")
        async def paid(request: Request) -> str:
            return "paid"

        @self.app.tool(task=Task("required", poll=0.05))
        async def approve(ctx: Context) -> str:
            await ctx.confirm("Go on?")
            return "approved"

        @self.app.tool(task=Task("required", poll=0.05))
        async def at_once() -> str:
            return "done"

        @self.app.tool(task=Task("required", poll=0.05))
        async def work(ctx: Context) -> str:
            first = await ctx.step(self._wait, key="first")
            return f"{first} and {await ctx.step(self._do, key='second')}"

        @self.app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return "paid"

        @self.app.tool
        async def pays(ctx: Context) -> str:
            return await ctx.elicit_url("Please pay", callback=paid)

    async def _wait(self) -> str:
        self.began.set()
        await self.gate.wait()
        return await self._do()

    async def _do(self) -> str:
        self.ran.append("did")
        return f"did {len(self.ran)}"

    async def start(self, tool: str) -> Any:
        flow = AsyncClient(self.app, tasks=True, log_level=None).flow(tool)
        await flow.start()
        return flow

    async def fill(self) -> tuple[Any, Any]:
        """Leave rows of every kind; return a task that waits, and one that has ended."""
        parked, ended = await self.start("approve"), await self.start("at_once")
        await parked.wait()
        assert (await ended.wait()).text == "done"
        paying, page = await self.start("pay"), await self.start("pays")
        assert (await paying.answer(confirm=yes)).text == "paid"
        link = urlsplit(page.last.asked["paid"].url)
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1")
        assert (await browser.get(f"{link.path}?{link.query}")).status_code == 200
        assert (await page.send({"paid": accept()})).text == "paid"
        return parked, ended

    async def close(self) -> None:
        await self.app._parts.worker.close()
        await self.app._parts.shared.store.close()


@asynccontextmanager
async def bank(url: str, *keys: bytes, run_tasks: bool = True) -> AsyncIterator[Bank]:
    made = Bank(url, *keys, run_tasks=run_tasks)
    try:
        yield made
    finally:
        made.gate.set()
        await made.close()


NO_EVENTS = {"mrtr_events": (0, 0), "mrtr_subscriptions": (0, 0)}


def counted(done: list[Resealed]) -> dict[str, tuple[int, int]]:
    return {each.table: (each.rows, each.sealed) for each in done}


@pytest.mark.parametrize("oldest", [5, 6])
async def test_a_row_stays_text_or_bytes(url: str, oldest: int) -> None:
    """A server of an older release, which reads text alone, may run meanwhile."""
    database = open_database(url)
    await database.check()
    await database.execute(f"UPDATE mrtr_schema SET compatible_from = '{oldest}'", {})  # noqa: S608
    async with bank(url, OLD) as old:
        await old.fill()
    assert all(each.is_done for each in await reseal(url, KeyRing([NEW, OLD])))
    rows = await database.execute("SELECT call, journal, questions, outcome FROM mrtr_tasks", {})
    await database.close()
    assert {value[0] for row in rows for value in row if value} == {1 if oldest == 6 else ord("A")}


async def test_every_sealed_row_is_sealed_under_the_first_key_and_the_others_can_be_dropped(url: str) -> None:
    async with bank(url, OLD) as old:
        parked, ended = await old.fill()
    done = await reseal(url, KeyRing([NEW, OLD]))
    assert counted(done) == NO_EVENTS | {"mrtr_redemptions": (1, 1), "mrtr_kept": (1, 1), "mrtr_tasks": (2, 2)}
    assert all(each.is_done for each in done)
    assert all(each.is_done for each in await reseal(url, KeyRing([NEW]))), "every column opens without the old one"
    async with bank(url, NEW) as new:
        for flow in (parked, ended):
            flow.move_to(new.app)
        assert (await ended.look()).text == "done"
        assert (await parked.answer(confirm=yes)).text == "approved"


async def test_what_open_calls_and_sessions_keep_is_sealed_anew_as_well(url: str) -> None:
    asked, long = SentQuestion("round", "key", time.time() + 600), "x" * 2_000
    event = StreamEvent(
        Origin("tools/call", {"name": long}, 1, Session("v", ClientInfo(), key="key")), expires=time.time() + 600
    )
    call = Call("tools/call", {}, state="state")

    def parts(store: SQLStore, *keys: bytes) -> LiveParts:
        ring, limits = KeyRing(keys), Limits()
        shared = (store, store.fanout(), Quotas(ring, limits), limits, Admission(limits), time.time)
        return LiveParts(ring, "bank", *shared, is_shared=True)

    async def runs(lease: Lease) -> Outcome:
        return Complete({"ran": "before"})

    async def never_runs(lease: Lease) -> Outcome:
        raise AssertionError("it has an outcome")

    store = SQLStore(url)
    try:
        old = parts(store, OLD)
        await old.answers.keep(asked, {"lacks": True}, None)
        sealed = old.events.seal(event, None)
        assert sealed.row, "so long an event is in the store"
        await old.events.keep(sealed)
        await old.states.change("key", None, lambda state: SessionState("debug"))
        await old.redeemer.once(call, time.time() + 600, runs)

        done = await reseal(url, KeyRing([NEW, OLD]))
        assert counted(done) == NO_EVENTS | {"mrtr_redemptions": (1, 1), "mrtr_kept": (3, 3), "mrtr_tasks": (0, 0)}
        assert all(each.is_done for each in await reseal(url, KeyRing([NEW])))

        new = parts(store, NEW)
        assert await new.answers.find(asked) == {"lacks": True}
        assert (await new.states.read("key")).level == "debug"
        assert await new.redeemer.once(call, time.time() + 600, never_runs) == Complete({"ran": "before"})
        # Its client has an id of the old key.
        found = await parts(store, NEW, OLD).events.unseal(sealed.after(0), None)
        assert found is not None
        assert found.origin.params == {"name": long}
    finally:
        await store.close()


async def test_events_and_subscriptions_are_sealed_anew_and_stay_where_they_are(url: str) -> None:
    old, new = (SealedEvents(KeyRing([key]), in_memory=False) for key in (OLD, NEW))
    store, now = SQLStore(url), time.time()
    events = [event_row(id=f"event {number}") for number in range(3)]
    for row in events:
        await store.add_event(row._replace(body=old.seal_event(row.name, row.id, row.id.encode())))
    body = old.seal_subscription("webhook", b"secret")
    await store.put_subscription(SubscriptionRow("webhook", "webhook", "n", "me", body, "{}", now, now, math.inf))

    async def read() -> Sequence[EventRow]:
        return (await store.read_events(["n"], Position(), most=9, most_bytes=10**6)).rows

    before = await read()
    done = await reseal(url, KeyRing([NEW, OLD]))
    assert counted(done)["mrtr_events"] == (3, 3)
    assert counted(done)["mrtr_subscriptions"] == (1, 1)
    found, webhook = await read(), await store.find_subscription("webhook")
    assert [(row.id, row.position) for row in found] == [(row.id, row.position) for row in before]
    assert [new.unseal_event(row.name, row.id, row.body) for row in found] == [row.id.encode() for row in events]
    assert webhook is not None
    assert new.unseal_subscription(webhook.id, webhook.body) == b"secret"
    with pytest.raises(StoreUnavailable, match="it belongs to another event"):
        new.unseal_event("n", "event 0", found[1].body)
    with pytest.raises(StoreUnavailable, match="it belongs to another subscription"):
        new.unseal_subscription("other", webhook.body)
    await store.close()


async def test_what_logins_keep_is_sealed_anew_and_marks_have_nothing_to_seal(url: str) -> None:
    store, who, provider = (
        SQLStore(url),
        Principal("ann", "https://issuer.example"),
        Oidc("https://issuer.example", client_id="a"),
    )

    about = About("family", time.time(), *who.person)

    def parts(*keys: bytes) -> tuple[Families, UpstreamRows]:
        ring = KeyRing(keys)
        quotas = Quotas(ring, Limits())
        families = Families(store, ring, quotas, 600)
        return families, UpstreamRows(store, ring, quotas, families, provider, 600)

    families, rows = parts(OLD)
    redeemed = await families.redeem("used", "client", "", keep=600, who=who)
    assert await families.record("used", redeemed, {"access_token": "next"})
    await families.advance("family", 3, who, 0.0)
    await families.end("ended", who)
    assert await families.once("proof", 600)
    await rows.put(Upstream("secret"), about)

    done = await reseal(url, KeyRing([NEW, OLD]))
    assert counted(done) == NO_EVENTS | {"mrtr_redemptions": (1, 1), "mrtr_kept": (2, 2), "mrtr_tasks": (0, 0)}
    assert all(each.is_done for each in await reseal(url, KeyRing([NEW])))
    families, rows = parts(NEW)
    again = await families.redeem("used", "client", "", keep=600, who=who)
    assert families.recorded("used", again).body == {"access_token": "next"}
    assert (await families.generation("family"), await rows.fresh("family", who)) == (3, Upstream("secret", scopes=[]))
    assert await families.is_ended("ended", time.time(), who)
    assert not await families.once("proof", 600)
    await store.close()


def test_every_sealed_column_of_the_tables_is_known() -> None:
    """A table with a column of bytes has sealed rows."""
    statements = [sql for version in open_database("sqlite:///none.db").migrations.values() for sql in version]
    found = set()
    for statement in statements:
        words = statement.split()
        if words[:2] == ["CREATE", "TABLE"]:
            found |= {(words[2], line.split()[0]) for line in statement.splitlines() if " BLOB" in line}
    assert found == {(table.name, column) for table in TABLES for column in table.columns}


async def test_a_second_run_has_nothing_to_do(url: str) -> None:
    async with bank(url, OLD) as old:
        await old.fill()
    await reseal(url, KeyRing([NEW, OLD]))
    assert {sealed for _, sealed in counted(await reseal(url, KeyRing([NEW, OLD]))).values()} == {0}


class Scripted:
    """A database beside which something happens just before a statement is run for the first time.

    Args:
        database: the database.
        statement: which one.
        happens: what happens.
    """

    def __init__(self, database: Database, statement: str, happens: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._statement = statement
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def rows(self, statement: str, **given: Any) -> Any:
        if statement == self._statement:
            self._statement = ""
            await self._happens()
        return await self._database.rows(statement, **given)


async def test_a_row_that_changes_meanwhile_is_not_overwritten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bank(url, OLD) as old:
        parked, _ = await old.fill()
    async with bank(url, NEW, OLD) as now:

        async def answer() -> None:
            parked.move_to(now.app)
            assert (await parked.answer(confirm=yes)).text == "approved"

        monkeypatch.setattr(module, "open_database", lambda url: Scripted(open_database(url), "reseal_task", answer))
        done = await reseal(url, KeyRing([NEW, OLD]))
    assert all(each.is_done for each in done)
    async with bank(url, NEW) as new:
        parked.move_to(new.app)
        assert (await parked.look()).text == "approved"


async def test_the_only_row_that_changes_meanwhile_is_looked_at_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bank(url, OLD) as old:
        parked = await old.start("approve")
        await parked.wait()

        async def change() -> None:
            row = await old.app._parts.shared.store.find_task(parked.task)
            assert row is not None
            assert await old.app._parts.shared.store.change_task(row, journal=row.call)

        monkeypatch.setattr(module, "open_database", lambda url: Scripted(open_database(url), "reseal_task", change))
        done = {each.table: each for each in await reseal(url, KeyRing([NEW, OLD]))}
    assert done["mrtr_tasks"] == Resealed("mrtr_tasks", rows=1, sealed=1)


class Values:
    """A database of values alone, to which servers write while it is sealed anew.

    Args:
        values: what is there.
        come: what a server writes just before each row that is changed.
    """

    name = "the database"

    def __init__(self, values: dict[str, bytes], come: Sequence[dict[str, bytes]] = ()) -> None:
        self.values = values
        self.come = list(come)
        self.passes = 0
        self.asked: list[int] = []
        self.version: str | None = "1"
        self.tasks: list[tuple[Any, ...]] = []

    async def found_version(self) -> str | None:
        return self.version

    async def close(self) -> None:
        pass

    async def rows(self, statement: str, **given: Any) -> list[tuple[Any, ...]]:
        match statement:
            case "sealed_values":
                self.passes += given["after"] == ""
                rows = sorted(item for item in self.values.items() if item[0] > given["after"])[: given["most"]]
                self.asked.append(len(rows))
                return list(rows)
            case "sealed_tasks":
                return [row for row in self.tasks if row[0] > given["after"]]
            case "reseal_value":
                self.values |= self.come.pop(0) if self.come else {}
                if self.values[given["key"]] != given["value_before"]:
                    return []
                self.values[given["key"]] = given["value"]
                return [(given["key"],)]
        return []


class TestRows:
    """What servers write meanwhile is sealed as well, and what does not open is left."""

    OLD_ROW = PlaceCodec(KeyRing([OLD]), REPORT).seal(b"place ", b"value").encode()

    async def done(self, values: Values, monkeypatch: pytest.MonkeyPatch) -> Resealed:
        """Seal the values anew; return what was done."""
        monkeypatch.setattr(module, "open_database", lambda url: values)
        (done,) = (each for each in await reseal("", KeyRing([NEW, OLD])) if each.table == "mrtr_kept")
        return done

    async def test_are_sealed_until_there_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = Values({"b": self.OLD_ROW}, [{"a": self.OLD_ROW}])
        assert await self.done(values, monkeypatch) == Resealed("mrtr_kept", rows=2, sealed=2)
        assert values.passes == 3, "the last one finds that nothing was left"
        codec = PlaceCodec(KeyRing([NEW]), REPORT)
        assert {codec.unseal(b"place ", value, "moved") for value in values.values.values()} == {b"value"}

    async def test_are_left_to_do_where_there_is_no_end_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = Values({"z": self.OLD_ROW}, [{f"{9 - number}": self.OLD_ROW} for number in range(9)])
        assert await self.done(values, monkeypatch) == Resealed("mrtr_kept", rows=5, sealed=5, left=1)
        assert values.passes == 5

    async def test_are_left_to_do_where_they_change_each_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        others = [PlaceCodec(KeyRing([OLD]), REPORT).seal(b"place ", b"%d" % number).encode() for number in range(9)]
        values = Values({"a": self.OLD_ROW}, [{"a": other} for other in others])
        assert await self.done(values, monkeypatch) == Resealed("mrtr_kept", rows=1, left=1)
        assert values.values == {"a": others[4]}

    async def test_that_do_not_open_are_counted_by_the_reason_and_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        strange = PlaceCodec(KeyRing([OTHER]), REPORT).seal(b"place ", b"value").encode()
        values = Values({"a": b"garbage!", "b": strange, "c": strange, "d": self.OLD_ROW})
        values.tasks = [("id", strange, b"", b"", None)]
        monkeypatch.setattr(module, "open_database", lambda url: values)
        unknown = "sealed under a key that is not in the ring. Give every replica all keys of the ring"
        _, kept, tasks, *_ = await reseal("", KeyRing([NEW, OLD]))
        assert kept == Resealed("mrtr_kept", rows=4, sealed=1, unopened=Counter({unknown: 2, "not Base64": 1}))
        assert tasks == Resealed("mrtr_tasks", rows=1, unopened=Counter({unknown: 1}))
        assert [values.values[key] for key in "abc"] == [b"garbage!", strange, strange]

    async def test_are_in_a_database_that_has_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = Values({})
        values.version = None
        with pytest.raises(SetupError, match=r"^the database: there are no tables, so nothing to seal"):
            await self.done(values, monkeypatch)

    async def test_are_read_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = Values({f"{number:03}": self.OLD_ROW for number in range(51)})
        assert await self.done(values, monkeypatch) == Resealed("mrtr_kept", rows=51, sealed=51)
        assert values.asked == [50, 1, 0] * 2


def test_a_row_that_does_not_open_is_left_to_do() -> None:
    assert Resealed("mrtr_tasks", rows=1).is_done
    assert not Resealed("mrtr_tasks", rows=1, unopened=Counter(["its key is not in the ring"])).is_done
    assert not Resealed("mrtr_tasks", rows=1, left=1).is_done


async def test_a_run_that_is_cut_off_goes_on_where_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    async with bank(url, OLD) as old:
        flows = [await old.start("approve") for _ in range(10)]
        for flow in flows:
            await flow.wait()
    left = [5]

    class CutOff(Scripted):
        async def rows(self, statement: str, **given: Any) -> Any:
            if statement == "reseal_task":
                if not left[0]:
                    raise StoreUnavailable("it is away")
                left[0] -= 1
            return await self._database.rows(statement, **given)

    async def nothing() -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(module, "open_database", lambda url: CutOff(open_database(url), "", nothing))
        with pytest.raises(StoreUnavailable):
            await reseal(url, KeyRing([NEW, OLD]))
    assert counted(await reseal(url, KeyRing([NEW, OLD])))["mrtr_tasks"] == (10, 5)
    async with bank(url, NEW) as new:
        for flow in flows:
            flow.move_to(new.app)
            assert (await flow.answer(confirm=yes)).text == "approved"


async def test_a_task_that_runs_goes_on_and_repeats_no_step(url: str) -> None:
    async with bank(url, OLD, NEW) as first:
        flow = await first.start("work")
        await first.began.wait()
        before = await first.app._parts.shared.store.find_task(flow.task)
        assert before is not None
        done = await reseal(url, KeyRing([NEW, OLD]))
        assert counted(done)["mrtr_tasks"] == (1, 1)
        # Somebody else changes the row as well, so its worker has to look whether others have recorded anything.
        row = await first.app._parts.shared.store.find_task(flow.task)
        assert row is not None
        assert row.journal != before.journal
        assert await first.app._parts.shared.store.change_task(row, message="changed")
        first.gate.set()
        assert (await flow.wait()).text == "did 1 and did 2"
        assert first.ran == ["did", "did"]


def command(url: str, keys: str | None) -> Any:
    environment = {"MRTR_DATABASE_URL": url, "MRTR_KEYS": keys}
    return CliRunner().invoke(main, ["db", "reseal"], env=environment, prog_name="mrtr-server")


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    without_keys = command(f"sqlite:///{tmp_path}/none.db", None)
    assert (without_keys.exit_code, "MRTR_KEYS is not set" in without_keys.output) == (1, True)
    without_tables = command(f"sqlite:///{tmp_path}/none.db", NEW.hex())
    assert (without_tables.exit_code, "there are no tables" in without_tables.output) == (1, True)
    assert list(tmp_path.iterdir()) == [], "a name that is mistyped makes no file"


async def test_the_command_keeps_the_old_keys_where_a_row_does_not_open(url: str) -> None:
    async with bank(url, OLD) as old:
        await old.fill()
    missing = await asyncio.to_thread(command, url, f"{NEW.hex()},{OTHER.hex()}")
    assert missing.exit_code == 1
    assert "mrtr_tasks: 2 rows, 0 resealed\n  2 of them do not open: sealed under a key" in missing.output
    assert "keep the other keys" in missing.output
    given = await asyncio.to_thread(command, url, f"{NEW.hex()},{OLD.hex()}")
    assert given.exit_code == 0, given.output
    assert given.output.splitlines() == [
        "mrtr_redemptions: 1 rows, 1 resealed",
        "mrtr_kept: 1 rows, 1 resealed",
        "mrtr_tasks: 2 rows, 2 resealed",
        "mrtr_events: 0 rows, 0 resealed",
        "mrtr_subscriptions: 0 rows, 0 resealed",
    ]


async def test_the_command_says_so_where_servers_still_seal_under_an_old_key(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bank(url, OLD) as old:
        await old.fill()

        class Busy(Scripted):
            async def rows(self, statement: str, **given: Any) -> Any:
                if statement == "sealed_tasks" and not given["after"]:
                    await (await old.start("approve")).wait()
                return await self._database.rows(statement, **given)

        async def nothing() -> None:
            pass

        monkeypatch.setattr(module, "open_database", lambda url: Busy(open_database(url), "", nothing))
        done = {each.table: each for each in await reseal(url, KeyRing([NEW, OLD]))}
        assert not done["mrtr_tasks"].is_done
        assert done["mrtr_tasks"].left > 0


async def test_it_leaves_no_thread_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    await SQLStore(url).check()

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "mrtr-sqlite"}

    before = threads()
    assert all(each.is_done for each in await reseal(url, KeyRing([NEW])))
    assert threads() <= before
