"""`mrtr-server forget`: what is stored of a person goes, and what the person began before counts no more."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mrtr_server import BearerTokens, Context, KeyRing, MRTRServer, Principal, Redemption, SQLStore, Task, Webhooks
from mrtr_server.cli import main
from mrtr_server.errors import FORGOTTEN, InvalidRequestState
from mrtr_server.flow import states as known
from mrtr_server.protocol.sessions import owner_of
from mrtr_server.storage.quotas import Callers
from mrtr_server.storage.rows import SubscriptionRow
from mrtr_server.storage.sql import administration
from mrtr_server.storage.sql.database import read_migrations
from mrtr_server.testing import AsyncClient, webhook_receiver, yes

from ..support.databases import event_row
from ..support.effects import EFFECTS, effect
from ..support.models import Login

pytestmark = pytest.mark.anyio

SCRIPTS = ";".join(step for steps in read_migrations("sqlite").values() for step in steps)
KEY, OLD_KEY = bytes(32), bytes([1]) * 32

Open = Callable[..., MRTRServer]


@pytest.fixture(autouse=True)
def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one clock, so what is begun after a person was forgotten counts at once."""
    monkeypatch.setattr(administration, "MOST_SECONDS", 0.0)


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Open]:
    """Make replicas, each with connections of its own, until the test is over."""
    first = SQLStore(url)
    await first.check()
    await first.close()
    apps: list[MRTRServer] = []

    def open_server(*keys: bytes, **options: Any) -> MRTRServer:
        apps.append(server(SQLStore(url), KeyRing(keys or [KEY]), **options))
        return apps[-1]

    yield open_server
    for app in apps:
        await app._parts.worker.close()
        await app._parts.shared.store.close()


def server(store: SQLStore, keys: KeyRing, **options: Any) -> MRTRServer:
    tokens = BearerTokens({"ann": "ann", "max": "max"})
    app = MRTRServer("shop", keys=keys, store=store, auth=tokens, **options)

    @app.tool
    async def greet(ctx: Context) -> str:
        return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"

    @app.tool(single_use=True)
    async def book(ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        return await ctx.step(effect, f"booked for {login.name}")

    @app.tool(task=Task("optional", rounds_first=True, poll=0.05))
    async def ship(ctx: Context) -> str:
        await ctx.elicit("Who are you?", Login)
        await ctx.background()
        return await ctx.step(effect, "shipped")

    @app.tool(task=Task("required", poll=0.05))
    async def approve(ctx: Context) -> str:
        await ctx.confirm("Go on?")
        return await ctx.step(effect, "done")

    return app


Forget = Callable[..., Awaitable[Result]]


@pytest.fixture
def forget(url: str) -> Forget:
    def run(*arguments: str, keys: bytes = KEY, typed: str = "") -> Awaitable[Result]:
        runner = CliRunner(env={"MRTR_DATABASE_URL": url, "MRTR_KEYS": keys.hex()})
        return asyncio.to_thread(runner.invoke, main, ["forget", *arguments], input=typed)

    return run


def counted(tasks: int, kept: int, redemptions: int) -> str:
    rows = {"tasks": tasks, "kept": kept, "redemptions": redemptions, "waits": 0, "events": 0, "subscriptions": 0}
    return "".join(f"mrtr_{table}: {count} rows\n" for table, count in rows.items())


async def started(app: MRTRServer, tool: str, *, who: str = "ann", **options: Any) -> Any:
    flow = AsyncClient(app, token=who, tasks=True, **options).flow(tool)
    await flow.start()
    return flow


LOGIN = {"login": {"name": "ann"}}


class TestAState:
    async def test_that_is_redeemed_once_is_never_run_after_that_even_by_a_server_that_has_not_heard_of_it(
        self, opened: Open, forget: Forget, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = opened()
        flow, theirs = await started(app, "book"), await started(app, "book", who="max")
        greeting = await started(app, "greet")
        await greeting.answer(LOGIN)  # so that the server has just asked whom the store has forgotten
        assert (await forget("ann")).exit_code == 0
        assert (await flow.answer(LOGIN)).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == []
        assert f"'book': refused a requestState: {FORGOTTEN}" in caplog.text
        assert (await theirs.answer(LOGIN)).text == "booked for ann", "of somebody else"

    async def test_that_was_redeemed_is_refused_and_its_outcome_is_gone(self, opened: Open, forget: Forget) -> None:
        app = opened()
        flow = await started(app, "book")
        first = await flow.answer(LOGIN)
        assert (await flow.replay(first)).text == "booked for ann"
        assert (await forget("ann")).stdout == counted(0, 0, 1)
        for replica in (app, opened()):
            flow.move_to(replica)
            assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == ["booked for ann"]

    async def test_of_which_nobody_knows_when_it_began_is_redeemed_once(self, opened: Open, forget: Forget) -> None:
        app = opened()
        store, quota = app._parts.shared.store, app._parts.redeemer.quotas.of(Principal("ann"))
        redeem = partial(store.redeem, "state", "answers", lease=60, keep=600, quota=quota)
        granted = await redeem()
        await store.record("state", granted.token, b"outcome")
        assert (await forget("ann")).stdout == counted(0, 0, 1)
        assert await redeem() == Redemption("forgotten")
        assert await store.redeem("other", "answers", lease=60, keep=600) != Redemption("forgotten")

    async def test_that_is_plain_is_refused_when_a_server_asks_the_store_again(
        self, opened: Open, forget: Forget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = opened()
        flow = await started(app, "greet")
        first = await flow.answer(LOGIN)
        await forget("ann")
        assert (await flow.replay(first)).text == "Hello, ann", "as far as it knows"
        flow.move_to(opened())
        assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE, "where nothing was known"
        monkeypatch.setattr(known, "ASKED_AGAIN_AFTER", 0.0)  # as if half a minute had passed
        flow = await started(app := opened(), "greet")
        first = await flow.answer(LOGIN)
        await forget("ann")
        assert (await flow.replay(first)).error.message == InvalidRequestState.MESSAGE

    async def test_of_an_open_call_is_refused(self, opened: Open, forget: Forget) -> None:
        app = opened()
        flow = await started(app, "greet", era="2025-11-25")
        assert (await forget("ann")).exit_code == 0
        assert (await flow.answer(LOGIN)).error.message == InvalidRequestState.MESSAGE

    async def test_that_is_sealed_afterwards_counts(self, opened: Open, forget: Forget) -> None:
        app = opened()
        assert (await forget("ann")).exit_code == 0
        for tool, said in (("greet", "Hello, ann"), ("book", "booked for ann")):
            assert (await (await started(app, tool)).answer(LOGIN)).text == said

    async def test_counts_no_more_where_the_keys_have_changed_since(self, opened: Open, forget: Forget) -> None:
        app = opened(OLD_KEY)
        flow = await started(app, "greet")
        assert (await forget("ann", keys=OLD_KEY)).exit_code == 0
        flow.move_to(opened(KEY, OLD_KEY))
        assert (await flow.answer(LOGIN)).error.message == InvalidRequestState.MESSAGE


class TestATask:
    async def test_is_unknown_and_begins_no_further_step(self, opened: Open, forget: Forget) -> None:
        app, begun, gate = opened(), asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            begun.set()
            await gate.wait()
            return effect("first")

        @app.tool(task="required")
        async def work(ctx: Context) -> str:
            await ctx.step(slow)
            return await ctx.step(effect, "second")

        running, parked = await started(app, "work"), await started(app, "approve")
        theirs = await started(app, "approve", who="max")
        await begun.wait()
        assert (await forget("ann")).stdout == counted(2, 0, 0)
        gate.set()
        for flow in (running, parked):
            assert (await flow.look()).error.message == f"Unknown task: {flow.task}"
        await theirs.wait()
        assert (await theirs.answer(confirm=yes)).text == "done"
        await app._parts.worker.close()
        assert EFFECTS == ["first", "done"]

    async def test_is_not_begun_by_a_flow_of_before(
        self, opened: Open, forget: Forget, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = opened(run_tasks=False)
        await (await started(app, "greet")).answer(LOGIN)  # as above
        flow = await started(app, "ship")
        await forget("ann")
        assert (await flow.answer(LOGIN)).error.message == InvalidRequestState.MESSAGE
        assert f"'ship': no task was begun: {FORGOTTEN}" in caplog.text
        assert (await forget("ann")).stdout == counted(0, 0, 0)

    async def test_under_a_key_that_was_removed_is_found_by_its_application(self, opened: Open, forget: Forget) -> None:
        await started(opened(OLD_KEY), "approve")
        store: Any = opened()._parts.shared.store
        assert (await forget("ann")).stdout == counted(1, 0, 0), "of no application that is known"
        await started(opened(OLD_KEY), "approve")
        owner = owner_of(Principal("ann", client_id="app"))
        await store.database.execute("UPDATE mrtr_tasks SET owner = :owner", {"owner": owner})
        assert (await forget("ann")).stdout == counted(0, 0, 0)
        assert (await forget("ann", "--client", "app")).stdout == counted(1, 0, 0)


def test_every_table_with_rows_of_callers_is_looked_through() -> None:
    tables = re.findall(
        r"ALTER TABLE (\w+) ADD COLUMN caller|CREATE TABLE (\w+) \([^;]*\b(?:caller|audience) TEXT", SCRIPTS
    )
    named = {added or made for added, made in tables}
    assert named - {"mrtr_usage", "mrtr_forgotten"} == {table.name for table in administration.OWNED}


async def test_events_for_a_person_alone_and_the_subscriptions_of_one_are_removed(url: str, forget: Forget) -> None:
    store, now = SQLStore(url), time.time()
    ann, max_ = (Callers(KeyRing([KEY])).of(Principal(name).person) for name in ("ann", "max"))
    begin = (await store.read_events(["n"], None, most=1, most_bytes=1)).reached
    for who in (ann, max_, ""):
        row = SubscriptionRow(f"of {who}", "webhook", "n", who, b"", "{}", now, now, now + 900)
        await store.put_subscription(row)
        for number in range(2):
            await store.add_event(event_row(id=f"{number} {who}", audience=who))
    removed = await forget("ann")
    assert removed.stdout.endswith("mrtr_events: 2 rows\nmrtr_subscriptions: 1 rows\n")
    page = await store.read_events(["n"], begin, most=9, most_bytes=10**6)
    assert [row.audience for row in page.rows] == [max_, max_, "", ""]
    assert [row.caller for row in await store.list_subscriptions(most=9)] == sorted([max_, ""])
    await store.close()


async def test_a_webhook_and_a_stream_of_the_person_get_nothing_more_at_once(opened: Open, forget: Forget) -> None:
    async with webhook_receiver() as hook:
        app = opened(webhooks=Webhooks(allow=[hook.origin]))
        orders = app.event("order.shipped", payload=Login)
        async with AsyncClient(app, token="ann") as client, app.running():
            delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
            asked = await client.request("events/subscribe", {"name": orders.name, "delivery": delivery})
            assert asked.result["id"]
            stream = client.follow(orders.name)
            await stream.open()
            await app.emit(orders, Login(name="before"))
            await hook.wait(1)
            await stream.next()
            await forget("ann")
            await asyncio.sleep(1)  # a file is looked at for notices four times a second
            await app.emit(orders, Login(name="after"))
            (ended,) = (await stream.next()).received
            assert ended["method"] == "notifications/events/terminated"
            await hook.wait_for("terminated")
            assert [event["data"] for event in hook.events] == [{"name": "before"}]
            await stream.close()


class TestTheCommand:
    async def test_leaves_nothing_that_names_the_person_and_may_be_run_again(
        self, opened: Open, forget: Forget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(administration, "LOOKED_AT", 2)
        monkeypatch.setattr(administration, "BATCH", 1)
        app = opened()
        for who in ("ann", "max"):
            for _ in range(3):
                await (await started(app, "book", who=who)).answer(LOGIN)
        store: Any = app._parts.shared.store
        assert (await forget("ann")).stdout == counted(0, 0, 3)
        again = await forget("ann")
        assert again.stdout == counted(0, 0, 0)
        assert "name it with --issuer" in again.stderr
        left = await store.database.execute("SELECT caller FROM mrtr_redemptions WHERE caller <> ''", {})
        names = {caller for (caller,) in left}
        assert len(left) == 3
        used = await store.database.execute("SELECT DISTINCT caller FROM mrtr_usage WHERE caller <> '*'", {})
        assert {caller for (caller,) in used} == names, "of the other person alone"

    async def test_takes_a_person_of_one_issuer_from_its_standard_input(self, opened: Open, forget: Forget) -> None:
        app = opened()
        store, quotas = app._parts.shared.store, app._parts.tasks._records.quotas
        for issuer in ("https://one", "https://two"):
            await store.put(issuer, b"value", keep=60, quota=quotas.of(Principal("ann", issuer, "any")))
        result = await forget("-", "--issuer", "https://one", typed="ann\n")
        assert result.stdout == counted(0, 1, 0)
        assert (await store.get("https://one"), await store.get("https://two")) == (None, b"value")

    async def test_is_forgotten_itself_after_its_days(self, opened: Open, forget: Forget) -> None:
        app = opened()
        flow = await started(app, "book")
        await (await started(app, "book", who="max")).answer(LOGIN)  # which has removed what had expired by then
        await forget("ann", "--days", "0.000001")
        await asyncio.sleep(0.1)
        assert (await flow.answer(LOGIN)).text == "booked for ann"
        store: Any = app._parts.shared.store
        assert len(await store.database.rows("sweep_forgotten", most=5)) == 1

    @pytest.mark.parametrize("arguments", [[""], ["ann", "--days", "0"]])
    async def test_refuses_what_means_nobody(self, forget: Forget, arguments: list[str]) -> None:
        assert (await forget(*arguments)).exit_code == 2

    async def test_finds_nobody_where_there_are_no_tables(self, forget: Forget) -> None:
        result = await forget("ann")
        assert (result.exit_code, "there are no tables" in result.output) == (1, True)
