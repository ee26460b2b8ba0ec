"""How often the store is asked: upper bounds, so that nobody asks it more than they have to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from mrtr_server import Context, Elicit, InputRequired, Inputs, MRTRServer, SQLStore
from mrtr_server.storage.sql import notify
from mrtr_server.storage.sql.database import Database
from mrtr_server.storage.sql.tasks import POLL
from mrtr_server.testing import AsyncClient, yes

from ..support.models import Login

pytestmark = pytest.mark.anyio

IDLE = {"claim_tasks", "any_free_task", "renew_tasks", "overdue_tasks", "measure"}
"""What a worker asks now and then, whatever else happens; and every process, every ten seconds (`measure`)."""
LOOKS = {"find_task", "find_tasks"}
NOTICES = {"sweep_notices", "write_notices", "read_notices", "last_notice_before"}
"""What carries changes through a SQLite file."""
START = {"put_value"}
"""What a worker that has just begun writes, to see that it can."""
SPAN = 2.0
"""How long an idle worker is watched, in seconds."""
_COUNTED: ContextVar[bool] = ContextVar("counted", default=False)


class Counted:
    """The statements that a store runs, in their order.

    Args:
        database: of the store.
        monkeypatch: puts back what is replaced.
    """

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        self._names = {sql: name for name, sql in database.statements.items()}
        rows, find, execute = database.rows, database.find, database.execute

        async def counted_rows(statement: str, **given: Any) -> Sequence[Any]:
            with _Once(self.statements, statement):
                return await rows(statement, **given)

        async def counted_find(statement: str, **given: Any) -> Sequence[Any]:
            with _Once(self.statements, statement):
                return await find(statement, **given)

        async def counted_execute(sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
            with _Once(self.statements, self._names.get(sql, "change_task")):
                return await execute(sql, given)

        monkeypatch.setattr(database, "rows", counted_rows)
        monkeypatch.setattr(database, "find", counted_find)
        monkeypatch.setattr(database, "execute", counted_execute)

    def take(self) -> list[str]:
        """Return what was run since the last time, without what idle workers ask."""
        taken = [name for name in self.statements if name not in IDLE]
        self.statements.clear()
        return taken


class _Once:
    """Counts a statement where nobody around has counted it."""

    def __init__(self, statements: list[str], name: str) -> None:
        self._is_first = not _COUNTED.get()
        if self._is_first:
            statements.append(name)

    def __enter__(self) -> None:
        self._token = _COUNTED.set(True)

    def __exit__(self, *_: object) -> None:
        _COUNTED.reset(self._token)


@pytest.fixture
async def store(url: str) -> AsyncIterator[SQLStore]:
    store = SQLStore(url)
    await store.put("any", b"", keep=60)  # what comes first makes the tables, and sweeps
    yield store
    await store.close()


@pytest.fixture
def counted(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(store.database, monkeypatch)


@pytest.fixture
async def app(store: SQLStore) -> AsyncIterator[MRTRServer]:
    app = MRTRServer("counted", keys=[bytes(32)], store=store)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool
    async def greet(inputs: Inputs) -> str | InputRequired:
        login = inputs.get("login", Login)
        return InputRequired(login=Elicit("Who?", Login)) if login is None else login.name

    @app.tool
    async def confirmed(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return "done"

    @app.tool(single_use=True)
    async def once(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return await ctx.step(lambda: "done", key="step")

    @app.tool(task="required")
    async def work(ctx: Context) -> str:
        return "done"

    @app.tool(task="required")
    async def steps(ctx: Context) -> str:
        for number in range(5):
            await ctx.step(lambda: "done", key=f"{number}")
        return "done"

    @app.tool(task="required")
    async def pauses(ctx: Context) -> str:
        for number in range(5):
            await ctx.step(lambda: "done", key=f"{number}")
            await asyncio.sleep(0)
        return "done"

    @app.tool(task="required")
    async def at_once(ctx: Context) -> str:
        await asyncio.gather(*(ctx.step(lambda: "done", key=f"{number}") for number in range(5)))
        return "done"

    yield app
    await app._parts.worker.close()


async def test_a_plain_call_and_a_flow_without_a_confirmation_never_ask_it(app: MRTRServer, counted: Counted) -> None:
    client = AsyncClient(app, log_level=None)
    assert (await client.call("add", a=1, b=2)).text == "3"
    assert (await client.call("greet", answers={"login": {"name": "ann"}})).text == "ann"
    assert counted.statements == []


@pytest.mark.parametrize("tool", ["confirmed", "once"])
async def test_a_round_that_is_redeemed_asks_twice_and_so_does_a_duplicate(
    app: MRTRServer, counted: Counted, tool: str
) -> None:
    flow = AsyncClient(app, log_level=None).flow(tool)
    await flow.start()
    assert counted.take() == []
    assert (await flow.answer(confirm=yes)).text == "done"
    assert counted.take() == ["grant", "record_outcome"]
    assert (await flow.replay()).text == "done"
    assert counted.take() == ["grant", "find_redemption"]


@pytest.mark.parametrize(
    ("tool", "changes", "checks"), [("work", 1, 0), ("steps", 6, 1), ("pauses", 6, 5), ("at_once", 6, 1)]
)
async def test_a_task_is_written_once_for_each_step_and_once_at_each_end(
    app: MRTRServer, counted: Counted, url: str, tool: str, changes: int, checks: int
) -> None:
    """Before a step it is read, unless nothing was awaited since the last one was written."""
    flow = AsyncClient(app, tasks=True, log_level=None).flow(tool)
    await flow.start()
    assert (await flow.wait()).text == "done"
    asked = Counter(counted.take())
    assert (asked["add_task"], asked["change_task"]) == (1, changes)
    check = "holds_task" if url.startswith("sqlite") else "find_leases"
    assert asked[check] == checks
    known = {"add_task", "change_task", check}
    assert asked.keys() - LOOKS - NOTICES - START == (known if checks else known - {check})
    await asyncio.gather(*(flow.look() for _ in range(3)))
    assert LOOKS & Counter(counted.take()).keys()
    assert (await flow.look()).text == "done"
    look = "find_task" if url.startswith("sqlite") else "find_tasks"
    assert [name for name in counted.take() if name not in NOTICES] == [look]


async def test_an_idle_worker_asks_a_few_times_a_second_at_most(
    app: MRTRServer, store: SQLStore, counted: Counted
) -> None:
    flow = AsyncClient(app, tasks=True, log_level=None).flow("work")
    await flow.start()
    await flow.wait()
    counted.statements.clear()
    await asyncio.sleep(SPAN)
    asked = Counter(counted.statements)
    assert asked["overdue_tasks"] >= 1, "it works"
    looks = 2 if store.database.notifies else SPAN / POLL + 2
    for name, most in (
        ("claim_tasks", SPAN + 2),
        ("overdue_tasks", SPAN + 2),
        ("any_free_task", looks + SPAN),
        ("measure", 1),
    ):
        assert asked.pop(name, 0) <= most, name
    assert asked.pop("read_notices", 0) <= (0 if store.database.notifies else SPAN / notify.POLL + 2)
    assert asked.keys() <= NOTICES
