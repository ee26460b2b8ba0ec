"""A session that commits after its yield: each flow leaves what its last round did, and a no leaves nothing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from mrtr_server import (
    Confirm,
    Context,
    Depends,
    Elicit,
    FlowContinues,
    InputRequired,
    Inputs,
    MRTRServer,
    State,
    ToolError,
)
from mrtr_server.testing import Answerable, AsyncClient, SharedStore, accept, decline, no, yes

from ..support.models import Login
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

INSERT = "INSERT INTO orders VALUES (:item)"


class Shop:
    """A database with a table of orders, as raw connections and as sessions of SQLAlchemy.

    Args:
        file: the database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.engine: Engine = create_engine(f"sqlite:///{file}")
        with self._connect() as db, db:
            db.execute("CREATE TABLE orders (item)")

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, check_same_thread=False)) as db:
            yield db

    @property
    def rows(self) -> list[str]:
        with self._connect() as db:
            return [item for (item,) in db.execute("SELECT item FROM orders")]

    # As in FastAPI

    def orm(self) -> Generator[Session]:
        with Session(self.engine) as db, db.begin():
            yield db

    def plain(self) -> Iterator[sqlite3.Connection]:
        with self._connect() as db, db:
            yield db

    async def on_loop(self) -> AsyncIterator[sqlite3.Connection]:
        with self._connect() as db, db:
            yield db

    @contextmanager
    def decorated(self) -> Iterator[sqlite3.Connection]:
        with self._connect() as db:
            yield db
            db.commit()  # not in a round that asks: no exception comes to here

    @asynccontextmanager
    async def decorated_async(self) -> AsyncIterator[sqlite3.Connection]:
        with self._connect() as db:
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            else:
                db.commit()

    async def counting(self) -> AsyncIterator[sqlite3.Connection]:
        """Roll back what has failed alone, and keep what a round did before it asked."""
        with self._connect() as db:
            try:
                yield db
            except FlowContinues:
                db.commit()
                raise
            db.commit()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path / "shop.db")
    yield opened
    opened.engine.dispose()


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("shop", keys=[bytes(32)])


WAYS = ("orm", "plain", "on_loop", "decorated", "decorated_async")


def insert(db: Any, item: str) -> None:
    db.execute(text(INSERT) if isinstance(db, Session) else INSERT, {"item": item})


def add_tools(app: MRTRServer, session: Callable[..., Any], **options: Any) -> None:
    """Add an order in each style; the inline one writes before it asks."""

    @app.tool(**options)
    async def inline(item: str, db: Annotated[Any, Depends(session)], ctx: Context) -> str:
        insert(db, item)
        login = await ctx.elicit("who?", Login)
        await ctx.confirm(f"Order {item} for {login.name}?")
        return "ordered"

    @app.tool(**options)
    def declared(
        item: str,
        db: Annotated[Any, Depends(session)],
        written: Annotated[None, Depends(insert)],
        login: Annotated[Login, Elicit("who?")],
        sure: Annotated[bool, Confirm(lambda item, login: f"Order {item} for {login.name}?", key="confirm")],
    ) -> str:
        return "ordered"

    @app.tool(**options)
    def pure(item: str, db: Annotated[Any, Depends(session)], inputs: Inputs, state: State[int]) -> str | InputRequired:
        insert(db, item)
        if state.value is None:
            return InputRequired(state=1)
        login = inputs.get("login", Login)
        if login is None:
            return InputRequired(login=Elicit("who?", Login))
        sure = Confirm(f"Order {item} for {login.name}?")
        return "ordered" if inputs.get("confirm", sure) else InputRequired(confirm=sure)

    @app.tool(**options)
    async def pieces(item: str, db: Annotated[Any, Depends(session)], ctx: Context) -> AsyncIterator[str]:
        insert(db, item)
        yield "asking "
        await ctx.elicit("who?", Login)
        await ctx.confirm(f"Order {item}?")
        yield "ordered"


STYLES = ("inline", "declared", "pure", "pieces")
ANN: dict[str, Answerable] = {"login": accept(name="ann")}


class TestOneOrder:
    @pytest.mark.parametrize("way", WAYS)
    async def test_that_is_confirmed_leaves_one_row_and_one_that_is_declined_none(
        self, app: MRTRServer, shop: Shop, way: str
    ) -> None:
        add_tools(app, getattr(shop, way))
        client = AsyncClient(app)
        for style in STYLES:
            done = await client.call(style, item=style, answers={**ANN, "confirm": yes})
            assert done.text.endswith("ordered")
            assert done.rolled_back == [f"Depends({way})"] * (done.rounds - 1)
            for refusal in (no, decline):
                await client.call(style, item="never", answers={**ANN, "confirm": refusal})
        assert shop.rows == [*STYLES]

    @pytest.mark.parametrize("era", ["2025-11-25", "sep-draft"])
    async def test_in_every_era(self, app: MRTRServer, shop: Shop, era: str) -> None:
        add_tools(app, shop.orm)
        client = AsyncClient(app, era=era)
        for style in STYLES:
            assert (await client.call(style, item=style, answers={**ANN, "confirm": yes})).text.endswith("ordered")
            assert "declined" in (await client.call(style, item="never", answers={**ANN, "confirm": decline})).failure
        assert shop.rows == [*STYLES]

    async def test_in_a_task(self, app: MRTRServer, shop: Shop) -> None:
        add_tools(app, shop.on_loop, task="required")
        client = AsyncClient(app, tasks=True)
        for style in STYLES:
            assert (await client.call(style, item=style, answers={**ANN, "confirm": yes})).text.endswith("ordered")
            assert "declined" in (await client.call(style, item="never", answers={**ANN, "confirm": decline})).failure
        assert shop.rows == [*STYLES]
        await app._parts.worker.close()

    async def test_of_an_included_server_and_with_an_override(self, app: MRTRServer, shop: Shop) -> None:
        def nothing() -> Any:
            raise AssertionError("never called")

        part = MRTRServer("part")
        add_tools(part, nothing)
        app.include(part, prefix="part")
        with part.override(nothing, shop.plain):
            for style in STYLES:
                done = await AsyncClient(app).call(f"part_{style}", item=style, answers={**ANN, "confirm": yes})
                assert done.rolled_back
        assert shop.rows == [*STYLES]

    async def test_of_a_prompt_and_a_resource(self, app: MRTRServer, shop: Shop) -> None:
        async def order(db: Annotated[Any, Depends(shop.orm)], ctx: Context) -> str:
            insert(db, "asked")
            return (await ctx.elicit("who?", Login)).name

        app.prompt(order)
        app.resource("orders://new")(order)
        for flow in (AsyncClient(app).prompt_flow("order"), AsyncClient(app).resource_flow("orders://new")):
            assert (await flow.start()).rolled_back == ["Depends(orm)"]
            assert (await flow.answer(login=accept(name="ann"))).text == "ann"
        assert shop.rows == ["asked"] * 2

    async def test_that_fails_leaves_nothing(self, app: MRTRServer, shop: Shop) -> None:
        @app.tool
        def order(db: Annotated[Any, Depends(shop.orm)], error: str) -> str:
            insert(db, "never")
            raise ToolError(error) if error else LookupError

        for error in ("sold out", ""):
            assert (await AsyncClient(app).flow("order", error=error).start()).failure
        assert shop.rows == []


class TestOnAsk:
    async def test_commit_keeps_what_each_round_did(self, app: MRTRServer, shop: Shop) -> None:
        @app.tool
        async def order(db: Annotated[Any, Depends(shop.orm, on_ask="commit")], ctx: Context) -> str:
            insert(db, f"round {ctx.round}")
            await ctx.confirm("sure?")
            return "ordered"

        done = await AsyncClient(app).call("order", answers={"confirm": yes})
        assert shop.rows == ["round 1", "round 2"]
        assert done.rolled_back == []

    async def test_a_dependency_may_tell_a_question_from_a_failure_itself(self, app: MRTRServer, shop: Shop) -> None:
        @app.tool
        async def order(db: Annotated[Any, Depends(shop.counting)], ctx: Context) -> str:
            insert(db, f"round {ctx.round}")
            await ctx.confirm("sure?")
            raise ToolError("sold out")

        assert (await AsyncClient(app).call("order", answers={"confirm": yes})).failure == "sold out"
        assert shop.rows == ["round 1"]

    async def test_a_question_of_a_task_that_returns_in_its_round_leaves_the_session_open(
        self, app: MRTRServer, shop: Shop
    ) -> None:
        gate = asyncio.Event()
        entered = 0

        async def session() -> AsyncIterator[sqlite3.Connection]:
            nonlocal entered
            entered += 1
            with contextmanager(shop.plain)() as db:
                yield db

        async def work() -> str:
            await gate.wait()
            return "worked"

        @app.tool(task="required")
        async def order(db: Annotated[sqlite3.Connection, Depends(session)], ctx: Context) -> str:
            insert(db, "asked once")
            login, worked = await asyncio.gather(ctx.elicit("who?", Login), ctx.step(work))
            return f"{login.name} {worked}"

        flow = AsyncClient(app, tasks=True).flow("order")
        await flow.start()
        async with asyncio.timeout(TIMEOUT):
            assert (await flow.wait()).questions == {"login": "who?"}
            await flow.send({"login": accept(name="ann")}, wait=False)
            gate.set()
            assert (await flow.wait()).text == "ann worked"
        assert (entered, shop.rows) == (1, ["asked once"])
        await app._parts.worker.close()


async def test_a_dependency_may_be_tried_by_itself(shop: Shop) -> None:
    """A unit test of its function alone, without a server."""

    def ask() -> None:
        with contextmanager(shop.plain)() as db:
            insert(db, "asked")
            raise FlowContinues

    with pytest.raises(FlowContinues):
        ask()
    assert shop.rows == []
    with contextmanager(shop.plain)() as db:
        insert(db, "ordered")
    assert shop.rows == ["ordered"]


async def test_replicas_that_share_a_store_leave_one_row_however_often_the_yes_is_sent(shop: Shop) -> None:
    app = MRTRServer("shop", keys=[bytes(32)], store=SharedStore())
    add_tools(app, shop.on_loop)
    flow = AsyncClient(app).flow("inline", item="tea")
    await flow.start()
    await flow.answer(login=accept(name="ann"))
    one, other = await flow.race(confirm=yes)
    assert one.text == other.text == "ordered"
    assert shop.rows == ["tea"]
