"""A step takes nothing that a round without a result rolls back: its record would say that it ran."""

import dataclasses
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, date
from decimal import Decimal
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from mrtr_server import Context, Depends, MRTRServer
from mrtr_server.testing import AsyncClient, yes

pytestmark = pytest.mark.anyio


class Database:
    """A session as a test fakes it: what was added to it counts once it is committed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: list[str] = []
        self.committed: list[str] = []

    @contextmanager
    def begin(self) -> Iterator[None]:
        self.rows.clear()
        yield
        self.committed += self.rows

    def add(self, row: str) -> str:
        self.rows.append(row)
        return row


database = Database()


def session() -> Iterator[Database]:
    with database.begin():
        yield database


async def async_session() -> AsyncIterator[Database]:
    with database.begin():
        yield database


DB = Annotated[Database, Depends(session)]


class Orders:
    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, row: str) -> str:
        return self._db.add(row)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of work."""

    db: Database
    tables: list[Orders] = dataclasses.field(default_factory=list[Orders])

    def add(self, row: str) -> str:
        return self.db.add(row)


class Slots:
    __slots__ = ("db", "unset")

    def __init__(self, db: Database) -> None:
        self.db = db


class Pair(NamedTuple):
    name: str
    db: Database


def add(db: Database, row: str) -> str:
    return db.add(row)


def use(*_: Any, **__: Any) -> str:
    return "used"


def with_default(db: Database) -> Callable[[], str]:
    def insert(db: Database = db) -> str:
        return db.add("row")

    return insert


def with_closure(db: Database) -> Callable[[], str]:
    later: str

    def insert() -> str:
        return db.add("row") + later

    later = ""
    return insert


Step = Callable[[Context, Database], Awaitable[Any]]

TAKES_IT: dict[str, Step] = {
    "an argument": lambda ctx, db: ctx.step(add, db, "row"),
    "an argument by name": lambda ctx, db: ctx.step(add, row="row", db=db),
    "a bound method": lambda ctx, db: ctx.step(db.add, "row"),
    "a method of what has it": lambda ctx, db: ctx.step(Orders(db).add, "row"),
    "what has it in a slot": lambda ctx, db: ctx.step(use, Slots(db)),
    "a partial": lambda ctx, db: ctx.step(partial(add, db), "row", key="add"),
    "a partial of a partial": lambda ctx, db: ctx.step(partial(partial(add, row="row"), db=db), key="add"),
    "a lambda": lambda ctx, db: ctx.step(lambda: db.add("row"), key="add"),
    "a function within": lambda ctx, db: ctx.step(with_closure(db)),
    "a default": lambda ctx, db: ctx.step(with_default(db)),
    "a list": lambda ctx, db: ctx.step(use, [1, [db]]),
    "a dict": lambda ctx, db: ctx.step(use, {"dbs": ({"first": db},)}),
    "a queue": lambda ctx, db: ctx.step(use, deque([db])),
    "a set": lambda ctx, db: ctx.step(use, frozenset({db})),
    "a tuple with names": lambda ctx, db: ctx.step(use, Pair("a", db)),
    "a dataclass": lambda ctx, db: ctx.step(use, Unit(db)),
    "a list in a dataclass": lambda ctx, db: ctx.step(use, Unit(Database(), [Orders(db)])),
}


@pytest.fixture
def app() -> MRTRServer:
    database.rows.clear()
    database.committed.clear()
    return MRTRServer("undone", keys=[bytes(32)])


async def refusal(app: MRTRServer, tool: str = "run") -> str:
    """What the log says of a tool whose step is refused; empty if it came to its question."""
    reply = await AsyncClient(app).flow(tool).start()
    if reply.needs_input:
        return ""
    assert "reference" in reply.failure
    assert reply.steps == []
    return reply.log.text


class TestAStepIsRefused:
    @pytest.mark.parametrize("takes", TAKES_IT)
    async def test_that_takes_what_was_yielded_as(self, app: MRTRServer, takes: str) -> None:
        @app.tool
        async def run(db: DB, ctx: Context) -> str:
            await TAKES_IT[takes](ctx, db)
            await ctx.confirm("sure?")
            return "done"

        said = await refusal(app)
        assert "was given a value of Depends(session)" in said
        assert 'on_ask="commit"' in said
        assert database.committed == database.rows == []

    async def test_by_its_name_before_it_runs_and_whatever_the_handler_makes_of_that(self, app: MRTRServer) -> None:
        @app.tool
        async def run(db: Annotated[Database, Depends(async_session)], ctx: Context) -> str:
            try:
                await ctx.step(add, db, "row")
            except BaseException:
                db.add("swallowed")
                raise
            return "done"

        assert "The step 'add' was given a value of Depends(async_session)" in await refusal(app)
        assert database.committed == []

    async def test_that_takes_what_another_dependency_has_made_of_it(self, app: MRTRServer) -> None:
        def orders(db: DB) -> Orders:
            return Orders(db)

        def name(orders: Annotated[Orders, Depends(orders)]) -> str:
            return "ann"

        async def more(orders: Annotated[Orders, Depends(orders)]) -> AsyncIterator[list[Orders]]:
            yield [orders]

        class Opaque:
            __slots__ = ("__weakref__",)

        def opaque(more: Annotated[list[Orders], Depends(more, on_ask="commit")]) -> Opaque:
            return Opaque()

        @app.tool
        async def made(orders: Annotated[Orders, Depends(orders)], ctx: Context) -> str:
            return await ctx.step(orders.add, "row")

        @app.tool
        async def in_turn(more: Annotated[list[Orders], Depends(more, on_ask="commit")], ctx: Context) -> str:
            return await ctx.step(use, more[0])

        @app.tool
        async def unknown(opaque: Annotated[Opaque, Depends(opaque)], ctx: Context) -> str:
            return await ctx.step(use, opaque)

        @app.tool
        async def data(name: Annotated[str, Depends(name)], ctx: Context) -> str:
            await ctx.step(use, name)
            await ctx.confirm("sure?")
            return "done"

        for tool in ("made", "in_turn", "unknown"):
            assert "was given a value of Depends(session)" in await refusal(app, tool)
        assert await refusal(app, "data") == ""

    async def test_that_takes_the_session_of_a_unit_of_work(self, app: MRTRServer) -> None:
        engine = create_engine("sqlite://")

        class UnitOfWork:
            def __init__(self) -> None:
                self.engine = engine
                self.session = Session(engine)

        async def unit() -> AsyncIterator[UnitOfWork]:
            unit = UnitOfWork()
            with unit.session.begin():
                yield unit

        def nested(unit: Annotated[UnitOfWork, Depends(unit)]) -> UnitOfWork:
            return UnitOfWork()

        takes: dict[str, Callable[[UnitOfWork], Any]] = {
            "session": lambda unit: [unit.session],
            "method": lambda unit: unit.session.add,
            "engine": lambda unit: unit.engine,  # to open a session of its own
        }

        def add(name: str, dependency: Callable[..., Any], take: Callable[[UnitOfWork], Any]) -> None:
            @app.tool(name=name)
            async def run(unit: Annotated[UnitOfWork, Depends(dependency)], ctx: Context) -> str:
                await ctx.step(use, take(unit))
                await ctx.confirm("sure?")
                return "done"

        for dependency in (unit, nested):
            for name, take in takes.items():
                add(tool := f"{dependency.__name__}_{name}", dependency, take)
                said = await refusal(app, tool)
                assert ("was given a value of Depends(unit)" in said) is (name != "engine"), tool

    async def test_that_takes_a_list_which_a_generator_yields(self, app: MRTRServer) -> None:
        def batch() -> Iterator[list[str]]:
            rows: list[str] = []
            yield rows
            database.committed += rows

        @app.tool
        async def run(rows: Annotated[list[str], Depends(batch)], ctx: Context) -> str:
            await ctx.step(lambda: rows.append("row"), key="append")
            return "done"

        assert "The step 'append' was given a value of Depends(batch)" in await refusal(app)

    async def test_in_a_dependency_in_a_task_and_in_pieces(self, app: MRTRServer) -> None:
        async def inserting(db: DB, ctx: Context) -> str:
            return await ctx.step(add, db, "row")

        @app.tool
        def dependency(row: Annotated[str, Depends(inserting)]) -> str:
            return row

        @app.tool
        async def pieces(db: DB, ctx: Context) -> AsyncIterator[str]:
            yield "one"
            yield await ctx.step(add, db, "row")

        @app.tool(task="required")
        async def task(db: DB, ctx: Context) -> str:
            return await ctx.step(add, db, "row")

        for tool in ("dependency", "pieces"):
            assert "was given a value of Depends(session)" in await refusal(app, tool)
        flow = AsyncClient(app, tasks=True).flow("task")
        await flow.start()
        assert "reference" in (await flow.wait()).failure
        assert database.committed == []
        await app._parts.worker.close()

    async def test_a_connection_that_lasts_while_a_transaction_on_it_does_not(self, tmp_path: Path) -> None:
        @asynccontextmanager
        async def lifespan(app: MRTRServer) -> AsyncIterator[sqlite3.Connection]:
            with closing(sqlite3.connect(tmp_path / "shared.db", check_same_thread=False)) as db:
                yield db

        async def transaction(
            db: Annotated[sqlite3.Connection, Depends(lifespan)],
        ) -> AsyncIterator[sqlite3.Connection]:
            with db:
                yield db

        shared = MRTRServer("shared", keys=[bytes(32)], lifespan=lifespan)

        @shared.tool
        async def run(
            db: Annotated[sqlite3.Connection, Depends(transaction)],
            same: Annotated[sqlite3.Connection, Depends(lifespan)],
            ctx: Context,
        ) -> str:
            return await ctx.step(use, same)

        assert "was given a value of Depends(transaction)" in await refusal(shared)

    async def test_an_object_of_an_orm_that_a_dependency_has_found(self, app: MRTRServer, tmp_path: Path) -> None:
        class Base(DeclarativeBase):
            pass

        class User(Base):
            __tablename__ = "users"
            id: Mapped[int] = mapped_column(primary_key=True)
            name: Mapped[str]

        class Book(MappedAsDataclass, Base):
            __tablename__ = "books"
            id: Mapped[int] = mapped_column(primary_key=True)
            title: Mapped[str]

        engine = create_engine(f"sqlite:///{tmp_path / 'users.db'}")
        Base.metadata.create_all(engine)
        with Session(engine) as db, db.begin():
            db.add_all([User(id=1, name="ann"), Book(id=1, title="Emma")])

        def orm_session() -> Iterator[Session]:
            with Session(engine) as db, db.begin():
                yield db

        def user(db: Annotated[Session, Depends(orm_session)]) -> User:
            return db.get_one(User, 1)

        def book(db: Annotated[Session, Depends(orm_session)]) -> Book:
            return db.get_one(Book, 1)

        def titles(db: Annotated[Session, Depends(orm_session)]) -> Any:
            return db.execute(select(Book.title)).one()

        @app.tool
        async def rename(user: Annotated[User, Depends(user)], ctx: Context) -> str:
            return await ctx.step(use, user)

        @app.tool
        async def retitle(book: Annotated[Book, Depends(book)], ctx: Context) -> str:
            return await ctx.step(use, book)

        @app.tool
        async def query(db: Annotated[Session, Depends(orm_session)], ctx: Context) -> str:
            return await ctx.step(use, db.query(User))

        @app.tool
        async def show(title: Annotated[Any, Depends(titles)], ctx: Context) -> str:
            await ctx.step(use, title)
            await ctx.step(use, engine)  # to open a session of its own
            await ctx.confirm("sure?")
            return "done"

        for tool in ("rename", "retitle", "query"):
            assert "was given a value of Depends(orm_session)" in await refusal(app, tool)
        assert await refusal(app, "show") == ""
        engine.dispose()


@dataclasses.dataclass
class Settings:
    tenant: str
    limits: dict[str, int]


class Profile(BaseModel):
    name: str
    since: date


class Pool:
    """A pool that knows the connections that it has handed out, as most do."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    @contextmanager
    def connection(self) -> Iterator[object]:
        self.taken.append(taken := object())
        yield taken
        self.taken.remove(taken)


POOL = Pool()


class TestWhatItCosts:
    async def test_values_that_hold_each_other_are_looked_at_once(self, app: MRTRServer) -> None:
        @dataclasses.dataclass
        class Node:
            children: list["Node"] = dataclasses.field(default_factory=list["Node"])

        root = Node()
        root.children = [Node(root.children) for _ in range(1000)]
        for child in root.children:
            child.children = root.children

        def tree(db: DB) -> Iterator[Node]:
            yield root

        @app.tool
        async def run(tree: Annotated[Node, Depends(tree)], ctx: Context) -> str:
            await ctx.step(use, "data")
            await ctx.confirm("sure?")
            return "done"

        assert await refusal(app) == ""


class TestAStepRuns:
    DATA: tuple[Any, ...] = (
        *(None, True, 7, "tenant", b"raw", Decimal("1.5"), date(2026, 5, 1), IPv4Address("127.0.0.1"), Path("/srv")),
        (UTC, 1),
    )

    async def test_that_takes_data_which_a_generator_yields(self, app: MRTRServer) -> None:
        def made(value: Any) -> Callable[[], Iterator[Any]]:
            def tenant() -> Iterator[Any]:
                yield value

            return tenant

        for number, value in enumerate(self.DATA):

            @app.tool(name=f"tool{number}")
            async def run(value: Annotated[Any, Depends(made(value))], ctx: Context) -> str:
                await ctx.step(use, value)
                await ctx.confirm("sure?")
                return "done"

            assert await refusal(app, f"tool{number}") == "", value

    async def test_that_takes_data_which_others_have_read(self, app: MRTRServer) -> None:
        def profile(db: DB) -> Profile:
            return Profile(name="ann", since=date(2026, 5, 1))

        def settings(db: DB) -> Settings:
            return Settings("acme", {"rows": 10})

        def mailer(profile: Annotated[Profile, Depends(profile)]) -> Orders:
            return Orders(Database())

        @app.tool
        async def run(
            profile: Annotated[Profile, Depends(profile)],
            settings: Annotated[Settings, Depends(settings)],
            mailer: Annotated[Orders, Depends(mailer)],
            ctx: Context,
        ) -> str:
            await ctx.step(use, profile, [settings], settings.limits)
            await ctx.step(mailer.add, "mail")  # it was made of data alone
            await ctx.confirm("sure?")
            return "done"

        assert await refusal(app) == ""

    async def test_that_takes_the_pool_or_what_the_lifespan_has_yielded(self) -> None:
        @contextmanager
        def connection() -> Iterator[object]:
            with POOL.connection() as taken:
                yield taken

        class Resources:
            def __init__(self) -> None:
                self.orders = Orders(Database())

        @asynccontextmanager
        async def lifespan(app: MRTRServer) -> AsyncIterator[Resources]:
            yield Resources()

        def lasting(
            taken: Annotated[object, Depends(connection)], resources: Annotated[Resources, Depends(lifespan)]
        ) -> Orders:
            return resources.orders

        app = MRTRServer("lasting", keys=[bytes(32)], lifespan=lifespan)

        @app.tool
        async def run(
            taken: Annotated[object, Depends(connection)],
            resources: Annotated[Resources, Depends(lifespan)],
            same: Annotated[Orders, Depends(lasting)],
            ctx: Context,
        ) -> str:
            await ctx.step(use, POOL)
            await ctx.step(use, resources)
            await ctx.step(resources.orders.add, "one")
            await ctx.step(same.add, "two")
            await ctx.confirm("sure?")
            return "done"

        assert (await AsyncClient(app).flow("run").start()).steps == ["use", "use", "add", "add"]

    async def test_that_takes_what_is_left_normally_and_its_record_stays(self, app: MRTRServer) -> None:
        @app.tool
        async def run(db: Annotated[Database, Depends(async_session, on_ask="commit")], ctx: Context) -> str:
            await ctx.step(add, db, "row")
            await ctx.confirm("sure?")
            return "done"

        done = await AsyncClient(app).call("run", answers={"confirm": yes})
        assert (done.steps, done.replayed, done.rolled_back) == (["add"], ["add"], [])
        assert database.committed == ["row"]

    async def test_that_was_recorded_by_a_release_that_took_it(self, app: MRTRServer) -> None:
        def version(*, commits: bool) -> MRTRServer:
            served = MRTRServer("versions", keys=[bytes(32)])

            @served.tool
            async def run(
                db: Annotated[Database, Depends(async_session, on_ask="commit" if commits else "rollback")],
                ctx: Context,
            ) -> str:
                await ctx.step(add, db, "row")
                await ctx.confirm("sure?")
                return "done"

            return served

        flow = AsyncClient(version(commits=True)).flow("run")
        assert (await flow.start()).needs_input
        flow.move_to(version(commits=False))
        done = await flow.answer(confirm=yes)
        assert (done.text, done.replayed) == ("done", ["add"])

    async def test_that_opens_what_it_needs(self, app: MRTRServer, tmp_path: Path) -> None:
        file = tmp_path / "orders.db"
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE orders (item)")

        def connect() -> Iterator[sqlite3.Connection]:
            with closing(sqlite3.connect(file, check_same_thread=False)) as db, db:
                yield db

        def insert(item: str) -> None:
            with contextmanager(connect)() as db:
                db.execute("INSERT INTO orders VALUES (?)", (item,))

        @app.tool
        async def order(item: str, db: Annotated[sqlite3.Connection, Depends(connect)], ctx: Context) -> int:
            await ctx.step(insert, item)
            await ctx.confirm("sure?")
            return int(db.execute("SELECT count(*) FROM orders").fetchone()[0])

        done = await AsyncClient(app).call("order", item="tea", answers={"confirm": yes})
        assert done.structured == 1
        assert done.rolled_back == ["Depends(connect)"]
