"""Dependencies with teardown: entered for a round, left in reverse order before anything of it goes out."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, PlainSerializer

from mrtr_server import (
    Confirm,
    Context,
    Depends,
    Elicit,
    FlowContinues,
    InProcessStore,
    InputRequired,
    Inputs,
    KeyRing,
    MRTRServer,
    NotFound,
    Refusal,
    Shutdown,
    State,
    Task,
    ToolError,
)
from mrtr_server.flow import runner
from mrtr_server.tasks import worker
from mrtr_server.testing import Answer, AsyncClient, accept, cancel, decline, no, replica, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.flows import is_state_only
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime
from ..support.wire import modern

pytestmark = pytest.mark.anyio


Who = Annotated[Login, Elicit("who?")]
Sure = Annotated[bool, Confirm("sure?")]

happened: list[str] = []
"""What happened, in its order."""


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    happened.clear()


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("teardown", keys=KeyRing.generate())


def note(what: str) -> str:
    happened.append(what)
    return what


def noted(name: str, kind: str = "async") -> Callable[..., Any]:
    """Make a dependency that notes how it is entered and left."""

    def plain() -> Iterator[str]:
        note(f"enter {name}")
        try:
            yield name
        except BaseException as error:
            note(f"{name} got {type(error).__name__}")
            raise
        else:
            note(f"leave {name}")

    async def asynchronous() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        with contextmanager(plain)() as value:
            yield value
        await asyncio.sleep(0)

    kinds: dict[str, Callable[..., Any]] = {
        "plain": plain,
        "async": asynchronous,
        "contextmanager": contextmanager(plain),
        "asynccontextmanager": asynccontextmanager(asynchronous),
    }
    return kinds[kind]


session = noted("session")
SESSION = Annotated[str, Depends(session)]

OnAsk = Literal["rollback", "commit"]
each_way = pytest.mark.parametrize("how", ["rollback", "commit"])
"""Both ways in which a dependency is left in a round without a result."""

LEFT: dict[OnAsk, list[str]] = {
    "rollback": ["enter session", "session got FlowContinues"],
    "commit": ["enter session", "leave session"],
}
"""What happens in a round without a result."""


class Pool:
    """An object whose methods are dependencies."""

    def session(self) -> Iterator[str]:
        yield note("session")
        note("session closed")

    @contextmanager
    def decorated(self) -> Iterator[str]:
        yield note("decorated")
        note("decorated closed")

    def __call__(self) -> Iterator[str]:
        yield note("called")
        note("call closed")


def with_argument(title: str, size: int) -> Iterator[str]:
    yield note(f"{title} {size}")
    note("partial closed")


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def as_list(function: Callable[..., Iterator[Any]]) -> Callable[..., list[Any]]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> list[Any]:
        return list(function(*args, **kwargs))

    return wrapper


class TestEntering:
    @pytest.mark.parametrize("kind", ["plain", "async", "contextmanager", "asynccontextmanager"])
    async def test_every_kind_is_entered_and_left_around_the_handler(self, app: MRTRServer, kind: str) -> None:
        @app.tool
        async def run(value: Annotated[str, Depends(noted("it", kind))]) -> str:
            return note(f"handler has {value}")

        assert (await AsyncClient(app).flow("run").start()).text == "handler has it"
        assert happened == ["enter it", "handler has it", "leave it"]

    async def test_they_are_left_in_reverse_order_nested_ones_too(self, app: MRTRServer) -> None:
        def inner(outer: Annotated[str, Depends(noted("outer", "plain"))]) -> Iterator[str]:
            note(f"enter inner in {outer}")
            yield "inner"
            note(f"leave inner in {outer}")

        @app.tool
        def run(
            inner: Annotated[str, Depends(inner)],
            last: Annotated[str, Depends(noted("last"))],
            outer: Annotated[str, Depends(noted("another", "asynccontextmanager"))],
        ) -> str:
            return note("handler")

        assert (await AsyncClient(app).flow("run").start()).text
        assert happened == [
            "enter outer",
            "enter inner in outer",
            "enter last",
            "enter another",
            "handler",
            "leave another",
            "leave last",
            "leave inner in outer",
            "leave outer",
        ]

    async def test_one_is_entered_once_a_round_whoever_needs_it(self, app: MRTRServer) -> None:
        session = noted("session")

        def one(session: Annotated[str, Depends(session)]) -> str:
            return session

        @app.tool
        def run(one: Annotated[str, Depends(one)], session: Annotated[str, Depends(session)], sure: Sure) -> str:
            return f"{one} {session}"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        assert happened == ["enter session", "session got FlowContinues"]
        assert (await flow.answer(sure=yes)).text == "session session"
        assert happened[2:] == ["enter session", "leave session"]

    async def test_whatever_can_be_called_may_yield(self, app: MRTRServer) -> None:
        @app.tool
        def run(
            title: str,
            a: Annotated[str, Depends(Pool().session)],
            b: Annotated[str, Depends(Pool().decorated)],
            c: Annotated[str, Depends(Pool())],
            d: Annotated[str, Depends(partial(with_argument, size=3))],
            e: Annotated[str, Depends(traced(noted("traced", "plain")))],
            f: Annotated[str, Depends(traced(noted("traced cm", "asynccontextmanager")))],
        ) -> str:
            return f"{a} {b} {c} {d} {e} {f}"

        text = (await AsyncClient(app).flow("run", title="tea").start()).text
        assert text == "session decorated called tea 3 traced traced cm"
        assert happened[-6:] == [
            "leave traced cm",
            "leave traced",
            "partial closed",
            "call closed",
            "decorated closed",
            "session closed",
        ]

    async def test_any_other_object_is_passed_as_it_is(self, app: MRTRServer) -> None:
        class Connection:
            def __enter__(self) -> str:
                return note("entered")

            def __exit__(self, *_: object) -> None:
                note("left")

        given: list[Any] = []

        @app.tool
        async def run(
            a: Annotated[Any, Depends(Connection)],
            b: Annotated[Any, Depends(lambda: noted("b", "contextmanager")())],
            c: Annotated[Any, Depends(lambda: (n for n in range(3)))],
            d: Annotated[Any, Depends(as_list(Pool().session))],
        ) -> str:
            given.extend([a, b, list(c), d])
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).text
        assert isinstance(given[0], Connection)
        assert hasattr(given[1], "__enter__")
        assert given[2:] == [[0, 1, 2], ["session"]]
        assert happened == ["session", "session closed"]

    async def test_plain_ones_run_in_threads_and_async_ones_in_the_handlers_task(self, app: MRTRServer) -> None:
        loop = threading.get_ident()

        def in_thread() -> Iterator[bool]:
            yield threading.get_ident() != loop
            note(str(threading.get_ident() != loop))

        async def on_loop(ctx: Context) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            yield task
            note(str(asyncio.current_task() is task))

        @app.tool
        async def run(one: Annotated[bool, Depends(in_thread)], task: Annotated[Any, Depends(on_loop)]) -> str:
            return f"{one} {asyncio.current_task() is task}"

        assert (await AsyncClient(app).flow("run").start()).text == "True True"
        assert happened == ["True", "True"]

    async def test_in_prompts_and_resources_too(self, app: MRTRServer) -> None:
        @app.prompt
        def letter(value: Annotated[str, Depends(noted("prompt"))]) -> str:
            return value

        @app.resource("notes://{topic}")
        def read(topic: str, value: Annotated[str, Depends(noted("resource"))]) -> str:
            raise NotFound(topic)

        await AsyncClient(app).prompt_flow("letter").start()
        assert (await AsyncClient(app).resource_flow("notes://tea").start()).error
        assert happened == ["enter prompt", "leave prompt", "enter resource", "resource got NotFound"]


class TestRoundsWithoutAResult:
    """`FlowContinues` is thrown in at the yield, or the generator goes on after it."""

    @each_way
    async def test_where_the_round_parks(self, app: MRTRServer, how: OnAsk) -> None:
        @app.tool
        def declared(session: Annotated[str, Depends(session, on_ask=how)], login: Who) -> str:
            return note("handler")

        @app.tool
        async def inline(session: Annotated[str, Depends(session, on_ask=how)], ctx: Context) -> str:
            login = await ctx.elicit("who?", Login)
            return note(f"handler {login.name}")

        async def asking(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        @app.tool
        async def dependency(
            session: Annotated[str, Depends(session, on_ask=how)], name: Annotated[str, Depends(asking)]
        ) -> str:
            return note("handler")

        @app.tool
        def pure(
            session: Annotated[str, Depends(session, on_ask=how)], inputs: Inputs, state: State[int]
        ) -> str | InputRequired:
            login = inputs.get("login", Login)
            return InputRequired(login=Elicit("who?", Login), state=1) if login is None else note("handler")

        for target in ("declared", "inline", "dependency", "pure"):
            happened.clear()
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).questions == {"login": "who?"}
            assert happened == LEFT[how]
            assert (await flow.answer(login=accept(name="ann"))).text
            assert [each.partition(" ")[0] for each in happened[2:]] == ["enter", "handler", "leave"]

    async def test_where_the_round_parks_with_task_groups_that_work(self, app: MRTRServer) -> None:
        async def fail() -> None:
            raise LookupError

        async def grouping(ctx: Context) -> AsyncIterator[None]:
            try:
                yield
            except FlowContinues:
                note("continues")
            task = asyncio.current_task()
            assert task is not None
            note(f"{task.cancelling()} cancellations")  # or a group would add one of its own, from Python 3.13 on
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
            except* LookupError:
                await asyncio.sleep(0)
                note("seen")

        @app.tool
        async def inline(it: Annotated[None, Depends(grouping)], ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert (await AsyncClient(app).flow("inline").start()).questions == {"login": "who?"}
        assert happened == ["continues", "0 cancellations", "seen"]

    @each_way
    async def test_where_the_flow_goes_on_elsewhere(self, app: MRTRServer, how: OnAsk) -> None:
        @app.tool(single_use=True)
        async def run(session: Annotated[str, Depends(session, on_ask=how)], ctx: Context) -> str:
            return await ctx.step(note, "step")  # not before there is a state

        flow = AsyncClient(app).flow("run")
        assert is_state_only(await flow.start())
        assert happened == LEFT[how]
        assert (await flow.send()).text == "step"
        assert happened == [*LEFT[how], "enter session", "step", "leave session"]

    async def test_where_a_pure_function_keeps_a_state_and_asks_nothing(self, app: MRTRServer) -> None:
        @app.tool
        def run(session: SESSION, state: State[int]) -> str | InputRequired:
            return InputRequired(state=1) if state.value is None else note("handler")

        flow = AsyncClient(app).flow("run")
        assert is_state_only(await flow.start())
        assert (await flow.send()).text == "handler"
        assert happened == [*LEFT["rollback"], "enter session", "handler", "leave session"]

    @each_way
    async def test_where_the_flow_becomes_a_task_and_in_the_rounds_of_that(self, app: MRTRServer, how: OnAsk) -> None:
        @app.tool(task=Task(rounds_first=True))
        async def run(session: Annotated[str, Depends(session, on_ask=how)], ctx: Context) -> str:
            await ctx.background()
            login = await ctx.elicit("who?", Login)
            return note(f"handler {login.name}")

        flow = AsyncClient(app, tasks=True).flow("run")
        assert (await flow.start()).is_task
        await flow.wait()
        assert happened == LEFT[how] * 2
        await flow.answer(login={"name": "ann"})
        assert (await flow.wait()).text == "handler ann"
        assert happened == [*LEFT[how] * 2, "enter session", "handler ann", "leave session"]
        await app._parts.worker.close()

    async def test_however_long_it_takes_and_whatever_is_left_waiting(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def slow() -> AsyncIterator[None]:
            try:
                yield
            finally:
                for _ in range(100):
                    await asyncio.sleep(0)
                note("left")

        aside: list[asyncio.Task[Any]] = []

        @app.tool
        async def run(slow: Annotated[None, Depends(slow)], ctx: Context) -> str:
            aside.append(asyncio.create_task(ctx.elicit("aside?", Login, key="aside")))
            await ctx.elicit("who?", Login)
            return "ran"

        flow = AsyncClient(app).flow("run")
        assert ((await flow.start()).questions).keys() == {"login", "aside"}
        assert happened == ["left"]
        assert "is abandoned" not in caplog.text

    async def test_before_anything_goes_out(self, app: MRTRServer) -> None:
        began, gate = asyncio.Event(), asyncio.Event()

        async def session() -> AsyncIterator[None]:
            try:
                yield
            finally:
                began.set()
                await gate.wait()

        @app.tool
        def result(session: Annotated[None, Depends(session)]) -> str:
            return "ran"

        @app.tool
        def question(session: Annotated[None, Depends(session)], login: Who) -> str:
            return "ran"

        for target, part in (("result", b"ran"), ("question", b"requestState")):
            began.clear()
            gate.clear()
            exchange = started(app, target)
            async with asyncio.timeout(TIMEOUT):
                await began.wait()
                await asyncio.sleep(0)
                assert exchange.sent == []
                gate.set()
                assert part in (await exchange.end()).body

    async def test_after_the_result_was_written(self, app: MRTRServer) -> None:
        class Session:
            is_open = True

        def session() -> Iterator[Session]:
            opened = Session()
            yield opened
            opened.is_open = False

        class Book:
            """An object of a database, which reads what it does not hold yet."""

            def __init__(self, session: Session) -> None:
                self._session = session

        class Shown(BaseModel, arbitrary_types_allowed=True):
            book: Annotated[Book, PlainSerializer(lambda book: f"open: {book._session.is_open}", return_type=str)]

        @app.tool
        def show(session: Annotated[Session, Depends(session)]) -> Shown:
            return Shown(book=Book(session))

        assert (await AsyncClient(app).flow("show").start()).structured == {"book": "open: True"}


def started(app: MRTRServer, target: str) -> Exchange:
    message = modern("tools/call", {"name": target, "arguments": {}})
    return Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()


async def leave(exchange: Exchange) -> None:
    """Let the client close the connection, and the server come to all that it does about that by itself."""
    exchange.disconnect()
    while not exchange._coming.empty():  # noqa: ASYNC110  what it waits for has no event
        await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)


class TestErrors:
    """What the round ends with is thrown in at the yield."""

    @pytest.mark.parametrize("kind", ["plain", "async", "contextmanager", "asynccontextmanager"])
    async def test_an_error_of_the_handler(self, app: MRTRServer, kind: str) -> None:
        @app.tool
        def run(
            outer: Annotated[str, Depends(noted("outer", kind))], inner: Annotated[str, Depends(noted("inner", kind))]
        ) -> str:
            raise ToolError("sold out")

        assert (await AsyncClient(app).flow("run").start()).failure == "sold out"
        assert happened == ["enter outer", "enter inner", "inner got ToolError", "outer got ToolError"]

    async def test_an_error_of_what_is_declared_after_it(self, app: MRTRServer) -> None:
        def fail() -> str:
            raise ToolError("no")

        def failing() -> Iterator[str]:
            note("enter failing")
            fail()
            yield "failing"
            note("leave failing")

        @app.tool
        def dependency(session: SESSION, other: Annotated[str, Depends(failing)]) -> str:
            return note("handler")

        @app.tool
        def message(session: SESSION, login: Annotated[Login, Elicit(fail)]) -> str:
            return note("handler")

        assert (await AsyncClient(app).flow("dependency").start()).failure == "no"
        assert (await AsyncClient(app).flow("message").start()).failure == "no"
        assert happened == [
            "enter session",
            "enter failing",
            "session got ToolError",
            "enter session",
            "session got ToolError",
        ]

    async def test_a_result_that_can_not_be_written(self, app: MRTRServer) -> None:
        @app.tool
        def run(session: SESSION) -> Any:
            return object()

        assert "reference" in (await AsyncClient(app).flow("run").start()).failure
        assert happened == ["enter session", "session got FlowError"]

    @pytest.mark.parametrize("answer", [no, decline, cancel], ids=str)
    async def test_a_no(self, app: MRTRServer, answer: Answer) -> None:
        @app.tool
        def declared(session: SESSION, confirm: Sure) -> str:
            return note("handler")

        @app.tool
        async def inline(session: SESSION, ctx: Context) -> str:
            await ctx.confirm("sure?")
            return note("handler")

        @app.tool
        def pure(session: SESSION, inputs: Inputs) -> str | InputRequired:
            sure = Confirm("sure?")
            return note("handler") if inputs.get("confirm", sure) else InputRequired(confirm=sure)

        for target in ("declared", "inline", "pure"):
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).needs_input
            happened.clear()
            assert "The user" in (await flow.answer(confirm=answer)).failure
            assert happened == ["enter session", "session got Refusal"]

    async def test_what_the_client_lacks_and_what_the_author_did_wrong(self, app: MRTRServer) -> None:
        @app.tool
        async def lacks(session: SESSION, ctx: Context) -> str:
            await ctx.elicit("who?", Login)
            return note("handler")

        @app.tool
        async def wrong(session: SESSION, ctx: Context) -> str:
            await ctx.step(lambda: 5)
            return note("handler")

        assert (await AsyncClient(app, capabilities={}).flow("lacks").start()).error
        assert "reference" in (await AsyncClient(app).flow("wrong").start()).failure
        assert happened == ["enter session", "session got MissingCapability", "enter session", "session got FlowError"]

    async def test_one_that_is_swallowed_has_happened_all_the_same(self, app: MRTRServer) -> None:
        async def swallowing() -> AsyncIterator[None]:
            try:
                yield
            except BaseException as error:
                note(f"swallowed {type(error).__name__}")

        @app.tool
        def fails(swallows: Annotated[None, Depends(swallowing)], outer: SESSION) -> str:
            raise ToolError("sold out")

        @app.tool
        async def asks(session: SESSION, swallows: Annotated[None, Depends(swallowing)], ctx: Context) -> str:
            await ctx.confirm("sure?")
            return note("handler")

        assert (await AsyncClient(app).flow("fails").start()).failure == "sold out"
        flow = AsyncClient(app).flow("asks")
        assert (await flow.start()).needs_input
        happened.clear()
        assert "declined" in (await flow.answer(confirm=no)).failure
        assert happened == ["enter session", "swallowed Refusal", "session got Refusal"]

    async def test_one_may_be_made_into_another(self, app: MRTRServer) -> None:
        @contextmanager
        def translated() -> Iterator[None]:
            try:
                yield
            except LookupError as error:
                raise ToolError(f"there is no {error.args[0]}") from error

        @app.tool
        def run(session: SESSION, translated: Annotated[None, Depends(translated)]) -> str:
            raise LookupError("Emma")

        assert (await AsyncClient(app).flow("run").start()).failure == "there is no Emma"
        assert happened == ["enter session", "session got ToolError"]

    @pytest.mark.parametrize("failure", [ToolError("never mind"), RuntimeError("broken")], ids=repr)
    async def test_a_no_can_not_be_made_into_another_error(
        self, app: MRTRServer, failure: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        def translating() -> Iterator[None]:
            try:
                yield
            except Refusal:
                raise failure from None

        @app.tool
        def run(session: SESSION, translated: Annotated[None, Depends(translating)], confirm: Sure) -> str:
            return note("handler")

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        happened.clear()
        assert "declined" in (await flow.answer(confirm=no)).failure
        assert happened == ["enter session", "session got Refusal"]
        assert "The teardown of Depends(translating) failed, after 'run' had ended with Refusal" in caplog.text
        assert str(failure) in caplog.text

    async def test_a_mistake_of_the_authors_can_not_be_made_into_another_error(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def translating() -> AsyncIterator[None]:
            try:
                yield
            except Exception:
                raise ToolError("never mind") from None

        @app.tool
        async def run(translated: Annotated[None, Depends(translating)], ctx: Context) -> str:
            return str(await ctx.step(lambda: 5))

        assert "reference" in (await AsyncClient(app).flow("run").start()).failure
        assert "The teardown of Depends(translating) failed, after 'run' had ended with FlowError" in caplog.text


class TestCancellation:
    def add_a_step_that_waits(self, app: MRTRServer) -> tuple[asyncio.Event, asyncio.Event]:
        """Add the tool `run`, with one step; return the event of its begin, and the one that it waits for."""
        began, gate = asyncio.Event(), asyncio.Event()

        async def work() -> str:
            began.set()
            await gate.wait()
            return note("step")

        @app.tool
        async def run(session: SESSION, ctx: Context) -> str:
            return await ctx.step(work)

        return began, gate

    @pytest.mark.parametrize("swallows", [False, True], ids=["that the handler lets pass", "that the handler swallows"])
    async def test_it_is_thrown_in_when_the_client_leaves(self, app: MRTRServer, swallows: bool) -> None:
        began = asyncio.Event()

        @app.tool
        async def run(outer: SESSION, inner: Annotated[str, Depends(noted("inner", "plain"))], ctx: Context) -> str:
            began.set()
            with suppress(asyncio.CancelledError) if swallows else nullcontext():
                await asyncio.Event().wait()
            return "done"

        exchange = started(app, "run")
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            exchange.disconnect()
            await exchange.end()
        assert happened == ["enter session", "enter inner", "inner got CancelledError", "session got CancelledError"]

    async def test_a_step_that_runs_has_ended_by_then(self, app: MRTRServer) -> None:
        began, gate = self.add_a_step_that_waits(app)
        exchange = started(app, "run")
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await leave(exchange)
            gate.set()
            await exchange.end()
        assert happened == ["enter session", "step", "session got CancelledError"]

    @pytest.mark.parametrize("where", ["handler", "dependency", "entering", "entering async"])
    async def test_what_runs_in_a_thread_has_ended_by_then(
        self,
        app: MRTRServer,
        where: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        virtual_time: VirtualTime,
    ) -> None:
        monkeypatch.setattr(runner, "WIND_DOWN_SECONDS", 0.01)  # which is for handlers that nobody can end otherwise
        loop, began, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def work() -> str:
            loop.call_soon_threadsafe(began.set)
            assert gate.wait(TIMEOUT)
            return note("thread")

        def entering() -> Iterator[str]:
            value = work()
            try:
                yield value
            finally:
                note("leave thread")

        async def parking(ctx: Context) -> AsyncIterator[str]:
            yield "may park"

        def nothing() -> str:
            return "nothing"

        dependency = {"handler": nothing, "dependency": work, "entering": entering, "entering async": entering}[where]
        more = parking if where == "entering async" else nothing

        @app.tool
        def run(session: SESSION, more: Annotated[str, Depends(more)], it: Annotated[str, Depends(dependency)]) -> str:
            return work() if where == "handler" else note("handler")

        exchange = started(app, "run")
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            with virtual_time.passing():
                await leave(exchange)
                await asyncio.sleep(0.03)
            assert happened == ["enter session"]
            assert not exchange.has_ended, "however long it takes"
            gate.set()
            await exchange.end()
        left = ["leave thread"] if where.startswith("entering") else []
        assert happened == ["enter session", "thread", *left, "session got CancelledError"]
        assert "is abandoned" not in caplog.text

    @pytest.mark.parametrize("target", ["result", "parks"])
    async def test_a_client_that_leaves_does_not_cut_a_teardown(self, app: MRTRServer, target: str) -> None:
        began, gate = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[None]:
            try:
                yield
            finally:
                began.set()
                await gate.wait()
                note("left")

        @app.tool
        def result(slow: Annotated[None, Depends(slow)]) -> str:
            return "ran"

        @app.tool
        async def parks(slow: Annotated[None, Depends(slow)], ctx: Context) -> str:
            await ctx.elicit("who?", Login)
            return "ran"

        exchange = started(app, target)
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await leave(exchange)
            gate.set()
            await exchange.end()
        assert happened == ["left"]

    async def test_a_second_cancellation_leaves_what_a_step_still_uses(self, app: MRTRServer) -> None:
        began, gate = self.add_a_step_that_waits(app)
        exchange = started(app, "run")
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await leave(exchange)
            assert happened == ["enter session"]
            assert exchange._task is not None
            exchange._task.cancel()  # a server that must end
            await exchange.end()
            for _ in range(50):
                await asyncio.sleep(0)
            assert happened == ["enter session", "session got CancelledError"]
            gate.set()

    async def test_a_teardown_that_fails_then_is_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        began = asyncio.Event()

        async def failing() -> AsyncIterator[None]:
            try:
                yield
            finally:
                raise RuntimeError("could not roll back")

        @app.tool
        async def run(session: SESSION, failing: Annotated[None, Depends(failing)]) -> str:
            began.set()
            return await asyncio.Future()

        exchange = started(app, "run")
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            exchange.disconnect()
            await exchange.end()
        assert happened == ["enter session", "session got CancelledError"]
        assert "could not roll back" in caplog.text

    async def test_a_timeout_across_the_yield_is_one_of_the_handler(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def limited() -> AsyncIterator[None]:
            try:
                async with asyncio.timeout(0.01):
                    yield
            except TimeoutError:
                raise ToolError("too slow") from None

        async def unsaid() -> AsyncIterator[None]:
            try:
                async with asyncio.timeout(0.01):
                    yield
            except TimeoutError:
                pass

        @app.tool
        async def slow(session: SESSION, limited: Annotated[None, Depends(limited)]) -> str:
            return await asyncio.Future()

        @app.tool
        async def unknown(limited: Annotated[None, Depends(unsaid)]) -> str:
            return await asyncio.Future()

        assert (await AsyncClient(app).flow("slow").start()).failure == "too slow"
        assert happened == ["enter session", "session got ToolError"]
        assert "reference" in (await AsyncClient(app).flow("unknown").start()).failure
        assert "raised CancelledError, but was not cancelled" in caplog.text

    async def test_a_guard_that_catches_the_end_of_the_round_lets_nothing_on(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def guard(ctx: Context) -> AsyncIterator[bool]:
            try:
                await ctx.confirm("sure?")
            except BaseException:
                note("caught")
            yield True

        async def plain_guard(ctx: Context) -> bool:
            try:
                return await ctx.confirm("sure?")
            except BaseException:
                note("caught")
                return True

        @app.tool
        def one(guard: Annotated[bool, Depends(guard)], other: Annotated[str, Depends(noted("other"))]) -> str:
            return note("handler")

        @app.tool
        def two(guard: Annotated[bool, Depends(plain_guard)], other: Annotated[str, Depends(noted("other"))]) -> str:
            return note("handler")

        for target in ("one", "two"):
            happened.clear()
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).questions == {"confirm": "sure?"}
            assert "declined" in (await flow.answer(confirm=no)).failure
            assert happened == ["caught", "caught"]


class TestFailures:
    """A teardown that fails fails the round, unless it was only to be rolled back."""

    @staticmethod
    async def failing() -> AsyncIterator[None]:
        yield
        raise RuntimeError("could not commit")

    async def test_after_a_result_and_after_a_question(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        def result(session: SESSION, failing: Annotated[None, Depends(self.failing)]) -> str:
            return "ran"

        @app.tool
        def question(
            session: SESSION, failing: Annotated[None, Depends(self.failing, on_ask="commit")], login: Who
        ) -> str:
            return "ran"

        @app.tool
        async def inline(
            session: SESSION, failing: Annotated[None, Depends(self.failing, on_ask="commit")], ctx: Context
        ) -> str:
            await ctx.elicit("who?", Login)
            return "ran"

        for target in ("result", "question", "inline"):
            happened.clear()
            caplog.clear()
            said = (await AsyncClient(app).flow(target).start()).failure
            assert "reference" in said
            assert "could not commit" not in said
            assert "could not commit" in caplog.text
            assert happened == ["enter session", "session got RuntimeError"]

    async def test_with_what_it_says_to_the_model(self, app: MRTRServer) -> None:
        def commit() -> Iterator[None]:
            yield
            raise ToolError("somebody else was faster")

        @app.tool
        def run(commit: Annotated[None, Depends(commit)]) -> str:
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).failure == "somebody else was faster"

    @pytest.mark.parametrize("where", ["handler", "dependency", "entering", "leaving"])
    async def test_an_exit_in_a_thread_fails_the_call_and_not_the_server(
        self, app: MRTRServer, where: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def leave(at: str) -> None:
            if where == at:
                raise SystemExit

        def entered() -> Iterator[None]:
            leave("entering")
            yield
            leave("leaving")

        def called() -> None:
            leave("dependency")

        @app.tool
        def run(
            session: SESSION, entered: Annotated[None, Depends(entered)], called: Annotated[None, Depends(called)]
        ) -> str:
            leave("handler")
            return "ran"

        assert "reference" in (await AsyncClient(app).flow("run").start()).failure
        assert "called sys.exit()" in caplog.text
        assert happened == ["enter session", "session got RuntimeError"]

    @pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
    @pytest.mark.parametrize("decorated", [False, True], ids=["bare", "decorated"])
    async def test_one_that_never_yields_or_yields_twice_is_the_authors_mistake(
        self, app: MRTRServer, asynchronous: bool, decorated: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        def times(count: int, catching: bool = False) -> Callable[..., Any]:
            def gives() -> Iterator[int]:
                try:
                    yield from range(count)
                except ToolError:
                    if catching:
                        yield 5
                finally:
                    note("closed")

            async def gives_async() -> AsyncIterator[int]:
                for number in gives():
                    try:
                        yield number
                    except ToolError:
                        if catching:
                            yield 5
                        raise

            if asynchronous:
                return asynccontextmanager(gives_async) if decorated else gives_async
            return contextmanager(gives) if decorated else gives

        @app.tool
        def never(session: SESSION, value: Annotated[int, Depends(times(0))]) -> str:
            return note("handler")

        @app.tool
        def twice(session: SESSION, value: Annotated[int, Depends(times(2))]) -> str:
            return note("handler")

        @app.tool
        def again(value: Annotated[int, Depends(times(1, catching=True))]) -> str:
            raise ToolError("sold out")

        for target, message in (("never", "ended without a yield"), ("twice", "yielded twice"), ("again", "twice")):
            caplog.clear()
            assert "reference" in (await AsyncClient(app).flow(target).start()).failure
            assert message in caplog.text
            assert "The dependency Depends(gives" in caplog.text
        assert happened.count("closed") == 3
        assert happened.count("session got FlowError") == 2
        assert happened.count("handler") == 1

    async def test_no_ask_and_no_step_comes_after_the_yield(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def use(what: str) -> Callable[[Context], AsyncIterator[None]]:
            async def late(ctx: Context) -> AsyncIterator[None]:
                yield
                calls: dict[str, Callable[[], Awaitable[Any]]] = {
                    "an ask": lambda: ctx.confirm("sure?"),
                    "a step": lambda: ctx.step(note, "late"),
                    "a checkpoint": ctx.checkpoint,
                    "ctx.background()": ctx.background,
                }
                try:
                    await calls[what]()
                except Exception:
                    note("swallowed")

            return late

        def plain(ctx: Context) -> Iterator[None]:
            yield
            ctx.confirm("sure?")  # type: ignore[unused-coroutine]

        for number, what in enumerate(("an ask", "a step", "a checkpoint", "ctx.background()")):

            @app.tool(name=f"tool{number}")
            def run(late: Annotated[None, Depends(use(what))]) -> str:
                return "ran"

            assert "reference" in (await AsyncClient(app).flow(f"tool{number}").start()).failure
            assert f"{what} was called after the yield of a dependency" in caplog.text
        assert happened == ["swallowed"] * 4

        @app.tool
        def last(late: Annotated[None, Depends(plain)]) -> str:
            return "ran"

        assert "reference" in (await AsyncClient(app).flow("last").start()).failure
        assert "was called in a plain `def`" in caplog.text

    async def test_asks_and_steps_may_come_before_it(self, app: MRTRServer) -> None:
        async def account(ctx: Context) -> AsyncIterator[str]:
            login = await ctx.elicit("who?", Login)
            try:
                yield await ctx.step(note, f"account of {login.name}")
            finally:
                note("left")

        @app.tool
        async def show(account: Annotated[str, Depends(account)], ctx: Context) -> str:
            await ctx.confirm("show?")
            return account

        flow = AsyncClient(app).flow("show")
        assert (await flow.start()).questions == {"login": "who?"}
        assert happened == []
        assert (await flow.answer(login=accept(name="ann"))).questions == {"confirm": "show?"}
        assert (await flow.answer(confirm=yes)).text == "account of ann"
        assert happened == ["account of ann", "left", "left"]


class TestFailuresBesideAQuestion:
    """A teardown that fails where it was only to be rolled back is logged, and the question goes out."""

    @staticmethod
    def raising() -> Generator[None]:
        try:
            yield
        finally:
            raise RuntimeError("could not roll back")

    @staticmethod
    def translating() -> Generator[None]:
        try:
            yield
        except BaseException:
            raise ToolError("could not roll back") from None

    @staticmethod
    def yielding() -> Generator[None]:
        try:
            yield
        except BaseException:
            yield

    @staticmethod
    def refusing() -> Generator[None]:
        try:
            yield
        finally:
            raise Refusal("decline")

    @staticmethod
    def exiting() -> Generator[None]:
        try:
            yield
        finally:
            raise SystemExit("could not roll back")

    @staticmethod
    def swallowing() -> Generator[None]:
        with suppress(BaseException):
            yield

    @pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
    @pytest.mark.parametrize("way", ["raising", "translating", "yielding", "refusing", "exiting", "swallowing"])
    async def test_whatever_it_makes_of_it(
        self, app: MRTRServer, way: str, asynchronous: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain: Callable[[], Generator[None]] = getattr(self, way)

        async def on_loop() -> AsyncIterator[None]:
            generator = plain()
            next(generator)
            try:
                yield
            except BaseException as error:
                with suppress(StopIteration):
                    generator.throw(error)
                    yield

        @app.tool
        async def inline(
            outer: Annotated[str, Depends(noted("outer"))],
            failing: Annotated[None, Depends(on_loop if asynchronous else plain)],
            inner: Annotated[str, Depends(noted("inner", "plain"))],
            ctx: Context,
        ) -> str:
            login = await ctx.elicit("who?", Login)
            raise LookupError(login.name)

        flow = AsyncClient(app).flow("inline")
        asked = await flow.start()
        assert asked.questions == {"login": "who?"}
        assert happened == ["enter outer", "enter inner", "inner got FlowContinues", "outer got FlowContinues"]
        assert ("failed, after 'inline' had ended with FlowContinues" in caplog.text) is (way != "swallowing")
        assert len(asked.rolled_back) == 3

    async def test_a_task_group_around_the_yield_has_not_failed(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = False

        async def work() -> None:
            try:
                await asyncio.Future()
            finally:
                if broken:
                    raise OSError("could not stop")

        async def group() -> AsyncIterator[None]:
            async with asyncio.TaskGroup() as group:
                group.create_task(work())
                await asyncio.sleep(0)
                yield

        @app.tool
        async def run(
            outer: Annotated[str, Depends(noted("outer"))], group: Annotated[None, Depends(group)], ctx: Context
        ) -> str:
            await ctx.confirm("sure?")
            raise ToolError("sold out")

        for broken in (False, True):
            happened.clear()
            flow = AsyncClient(app).flow("run")
            assert (await flow.start()).questions == {"confirm": "sure?"}
            assert happened == ["enter outer", "outer got FlowContinues"]
            assert ("could not stop" in caplog.text) is broken
            broken = False  # what is cancelled by a no stops as it should
            assert "declined" in (await flow.answer(confirm=no)).failure
            assert happened[2:] == ["enter outer", "outer got Refusal"]
        flow = AsyncClient(app).flow("run")
        await flow.start()
        assert (await flow.answer(confirm=yes)).failure == "sold out"

    async def test_one_that_commits_fails_the_round_and_those_around_it_learn_of_that(self, app: MRTRServer) -> None:
        @app.tool
        def run(
            outer: Annotated[str, Depends(noted("outer"))],
            failing: Annotated[None, Depends(TestFailures.failing, on_ask="commit")],
            inner: Annotated[str, Depends(noted("inner"))],
            login: Who,
        ) -> str:
            return "ran"

        assert "reference" in (await AsyncClient(app).flow("run").start()).failure
        assert happened == ["enter outer", "enter inner", "inner got FlowContinues", "outer got RuntimeError"]

    async def test_one_that_commits_between_others_is_left_normally(self, app: MRTRServer) -> None:
        @app.tool
        def run(
            outer: Annotated[str, Depends(noted("outer"), on_ask="commit")],
            middle: Annotated[str, Depends(noted("middle"))],
            inner: Annotated[str, Depends(noted("inner", "contextmanager"), on_ask="commit")],
            login: Who,
        ) -> str:
            raise ToolError("sold out")

        flow = AsyncClient(app).flow("run")
        asked = await flow.start()
        assert happened[3:] == ["leave inner", "middle got FlowContinues", "leave outer"]
        assert asked.rolled_back == ["Depends(asynchronous)_2"]
        happened.clear()
        assert (await flow.answer(login=accept(name="ann"))).failure == "sold out"
        assert happened[3:] == ["inner got ToolError", "middle got ToolError", "outer got ToolError"]


class TestContextVariables:
    async def test_are_as_the_generator_set_them_until_it_resets_them(self, app: MRTRServer) -> None:
        tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

        async def on_loop() -> AsyncIterator[None]:
            token = tenant.set("acme")
            try:
                yield
            finally:
                tenant.reset(token)
                note(f"then {tenant.get()}")

        def in_thread() -> Iterator[None]:
            token = tenant.set("thread")
            try:
                yield
            finally:
                note(f"still {tenant.get()}")
                tenant.reset(token)
                note(f"then {tenant.get()}")

        @app.tool
        def plain(a: Annotated[None, Depends(on_loop)], b: Annotated[None, Depends(in_thread)]) -> str:
            return tenant.get()

        @app.tool
        async def asks(
            a: Annotated[None, Depends(on_loop)], b: Annotated[None, Depends(in_thread)], ctx: Context
        ) -> str:
            await ctx.confirm("sure?")
            return tenant.get()

        assert (await AsyncClient(app).flow("plain").start()).text == "acme"
        flow = AsyncClient(app).flow("asks")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "acme"
        assert happened == ["still thread", "then acme", "then nobody"] * 3

    async def test_a_task_group_may_be_open_across_the_yield(self, app: MRTRServer) -> None:
        async def group() -> AsyncIterator[asyncio.TaskGroup]:
            try:
                async with asyncio.TaskGroup() as group:
                    yield group
            finally:
                note("all ended")

        async def work() -> None:
            try:
                await asyncio.sleep(0.1)
                note("worked")
            except asyncio.CancelledError:
                note("cancelled")
                raise

        @app.tool
        async def run(group: Annotated[asyncio.TaskGroup, Depends(group)], ctx: Context) -> str:
            group.create_task(work())
            await ctx.confirm("sure?")
            return "ran"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "ran"
        assert happened == ["cancelled", "all ended", "worked", "all ended"]


class TestTasks:
    async def test_steps_are_durable_before_a_teardown(self) -> None:
        store = InProcessStore()
        app = MRTRServer("first", keys=[bytes(32)], store=store, shutdown=Shutdown(lame_duck=0, seconds=0.8))
        began = asyncio.Event()
        hangs = True

        async def session() -> AsyncIterator[None]:
            yield
            began.set()
            if hangs:
                await asyncio.Future()
            note("left")

        @app.tool(task="required")
        async def pay(session: Annotated[None, Depends(session)], ctx: Context) -> str:
            return await ctx.step(note, "paid")

        flow = AsyncClient(app, tasks=True).flow("pay")
        assert (await flow.start()).is_task
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await app._parts.worker.close()  # in the middle of the teardown
            assert happened == ["paid"]
            hangs = False
            other = replica(app)
            flow.move_to(other)
            assert (await flow.wait()).text == "paid"
        assert happened == ["paid", "left"]
        await other._parts.worker.close()

    async def test_one_that_fails_fails_the_result_and_leaves_the_steps(self, app: MRTRServer) -> None:
        async def failing() -> AsyncIterator[None]:
            yield
            raise RuntimeError("could not commit")

        @app.tool(task="required")
        async def pay(failing: Annotated[None, Depends(failing)], ctx: Context) -> str:
            return await ctx.step(note, "paid")

        flow = AsyncClient(app, tasks=True).flow("pay")
        await flow.start()
        assert "reference" in (await flow.wait()).failure
        assert happened == ["paid"]
        await app._parts.worker.close()

    async def test_one_that_is_cancelled_gets_the_cancellation(self, app: MRTRServer) -> None:
        began, left = asyncio.Event(), asyncio.Event()

        async def session() -> AsyncIterator[None]:
            try:
                yield
            except BaseException as error:
                note(type(error).__name__)
                left.set()
                raise

        @app.tool(task="required")
        async def wait(session: Annotated[None, Depends(session)], ctx: Context) -> str:
            began.set()
            return await asyncio.Future()

        flow = AsyncClient(app, tasks=True).flow("wait")
        await flow.start()
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await flow.cancel()
            await left.wait()
        assert happened == ["CancelledError"]
        await app._parts.worker.close()

    async def test_one_that_runs_elsewhere_by_now_gets_it_too(
        self, app: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 600.0)  # so that a step hears of it first
        began, gate = asyncio.Event(), asyncio.Event()

        async def work() -> str:
            began.set()
            await gate.wait()
            return note("step")

        @app.tool(task="required")
        async def run(session: SESSION, ctx: Context) -> str:
            await ctx.step(work)
            return note("handler")

        flow = AsyncClient(app, tasks=True).flow("run")
        await flow.start()
        async with asyncio.timeout(TIMEOUT):
            await began.wait()
            await flow.cancel()
            gate.set()
            while len(happened) < 3:  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.01)
        assert happened == ["enter session", "step", "session got CancelledError"]
        await app._parts.worker.close()
