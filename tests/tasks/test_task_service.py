"""Tasks: the rules of a flow that goes on in the background, on every kind of store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.requests import HTTPConnection

from mrtr_server import (
    Context,
    Depends,
    Elicit,
    IdempotencyKey,
    InProcessStore,
    InputRequired,
    Inputs,
    Limits,
    MRTRServer,
    ProtocolError,
    SQLStore,
    State,
    Store,
    Task,
    ToolError,
)
from mrtr_server.storage.rows import epoch_of
from mrtr_server.tasks import worker
from mrtr_server.testing import Answers, AsyncClient, Clock, accept, no, replica, short_lease, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.effects import EFFECTS, effect
from ..support.flows import update
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime
from ..support.wire import meta, modern

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return virtual_time.backend


DAY = 24 * 3600
EXTENSION = "io.modelcontextprotocol/tasks"

app = MRTRServer("tasks", keys=[bytes(32)])
ran: list[str] = []
"""What the tools have done."""

flows: set[str] = set()
"""The flows that they belong to."""

gates: dict[str, asyncio.Event] = {}
"""What lets a step go on, and says that it has begun."""


class Size(BaseModel):
    size: int


def did(what: str) -> str:
    ran.append(what)
    return what


async def waits(name: str) -> str:
    """Say that it has begun, wait to be let go on, and count as done."""
    gates.setdefault(f"{name} began", asyncio.Event()).set()
    await gates.setdefault(name, asyncio.Event()).wait()
    return did(name)


async def began(name: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        await gates.setdefault(f"{name} began", asyncio.Event()).wait()


def let(name: str) -> None:
    gates.setdefault(name, asyncio.Event()).set()


@app.tool(task="optional")
async def greet(ctx: Context) -> str:
    """Ask for a name."""
    login = await ctx.elicit("Who are you?", Login)
    return f"Hello, {login.name}"


@app.tool(task="required")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


@app.tool
def never() -> str:
    """Be no task."""
    return "done"


@app.tool(task="optional")
async def both(ctx: Context) -> str:
    """Ask two things at once."""
    login, size = await asyncio.gather(ctx.elicit("Who are you?", Login), ctx.elicit("How tall?", Size))
    return f"{login.name} is {size.size} tall"


@app.tool(task="optional")
def pure(inputs: Inputs) -> str | InputRequired:
    """Ask as a pure function."""
    login = inputs.get("login", Login)
    return InputRequired(login=Elicit("Who are you?", Login)) if login is None else f"Hello, {login.name}"


def chosen(login: Annotated[Login, Elicit("Who are you?")]) -> str:
    return did(f"chosen {login.name}")


@app.tool(task="optional", confirm="Really?")
async def declared(size: Annotated[Size, Elicit("How tall?")], who: Annotated[str, Depends(chosen)]) -> str:
    """Declare all that is asked."""
    return f"{who} is {size.size} tall"


@app.tool(task="optional")
async def sure(ctx: Context) -> str:
    """Ask for a yes, and do it."""
    await ctx.confirm("Really?")
    return await ctx.step(did, "the deed")


def order(thing: str, key: IdempotencyKey = IdempotencyKey()) -> str:
    did(f"{thing} {key}")
    return str(key)


@app.tool(task=Task(rounds_first=True))
async def rounds(ctx: Context) -> list[str]:
    """Ask and order in rounds, and go on as a task."""
    flows.add(ctx.flow)
    first = await ctx.step(order, "first")
    login = await ctx.elicit("Who are you?", Login)
    await ctx.background()
    await ctx.progress(message=f"Working for {login.name}")
    second = await ctx.step(order, "second")
    size = await ctx.elicit("How tall?", Size)
    return [first, second, str(size.size)]


@app.tool(task=Task(rounds_first=True))
async def beside(ctx: Context) -> str:
    """Ask beside the call that goes on as a task."""
    _, login = await asyncio.gather(ctx.background(), ctx.elicit("Who are you?", Login))
    return f"{login.name}{await ctx.step(did, '!')}"


async def goes_on(ctx: Context) -> str:
    login = await ctx.elicit("Who are you?", Login)
    await ctx.background()
    return login.name


@app.tool(task=Task("optional", rounds_first=True))
async def depends(name: Annotated[str, Depends(goes_on)], ctx: Context) -> str:
    """Go on as a task in a dependency."""
    return await ctx.step(did, name)


@app.tool(task="optional", single_use=True)
async def once(ctx: Context) -> str:
    """Be one task, however often its request comes."""
    await ctx.step(did, "once")
    login = await ctx.elicit("Who are you?", Login)
    return login.name


@app.tool(task=Task(rounds_first=True), single_use=True)
async def once_later(ctx: Context) -> str:
    """Go on as one task, however often the request comes."""
    await ctx.background()
    return await ctx.step(did, "once")


@app.tool(task="optional")
async def patient(ctx: Context, name: str) -> str:
    """Run a step that waits, and another one."""
    await ctx.progress(message="Waiting")
    await ctx.step(waits, name)
    did(f"after {name}")
    return await ctx.step(did, f"next to {name}")


@app.tool(task="optional")
async def waits_alone() -> None:
    """Wait for ever, in no step."""
    gates.setdefault("alone began", asyncio.Event()).set()
    try:
        await asyncio.Event().wait()
    finally:
        let("alone ended")


@app.tool(task="optional")
async def pauses(ctx: Context) -> str:
    """Wait in no step, and then run one."""
    await waits("pause")
    return await ctx.step(did, "after the pause")


@app.tool(task="optional")
async def fails(how: str) -> str:
    """Fail in one of the ways that there are."""
    raise {
        "tool": ToolError("it is closed"),
        "bug": ZeroDivisionError("a secret"),
        "request": ProtocolError("over quota", {"retryAfter": 5}),
        "no JSON": ProtocolError("over quota", {"object": object()}),
    }[how]


@app.tool(task="optional")
async def huge(ctx: Context) -> str:
    """Keep more than a flow may."""
    await ctx.step(lambda: "x" * 300_000, key="huge")
    return did("went on")


@app.tool(task="optional")
def stuck(state: State[int]) -> InputRequired:
    """Keep the same state for ever."""
    return InputRequired(state=1)


@app.tool(task="optional")
def counts(state: State[int]) -> str | InputRequired:
    """Keep a state that grows, and ask nothing."""
    count = state.value or 0
    return "counted to 5" if count == 5 else InputRequired(state=count + 1)


@app.tool(task=Task("optional", ttl=3 * DAY))
async def stays(ctx: Context) -> str:
    """Wait for three days for a yes."""
    await ctx.confirm("Really?")
    return did("the late deed")


@app.tool(task=Task("optional", ttl=600), answer_within=60)
async def hurries(ctx: Context) -> str:
    """Wait a minute for a yes."""
    await ctx.confirm("Really?")
    return did("the deed")


@app.tool(task="optional")
async def mumbles(ctx: Context) -> str:
    """Say what not every database and client can read, and ask."""
    await ctx.progress(message="Around\0 \ud800")
    return (await ctx.elicit("Who are you?", Login)).name


@app.tool(task="optional")
async def looks_around(ctx: Context) -> dict[str, Any]:
    """Tell what a task knows of its request."""
    return {"headers": dict(ctx.headers), "user": ctx.user, "task": ctx.meta.get("progressToken") is not None}


class Tokens(AuthenticationBackend):
    """Whoever has a token is who it names."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(), Named(token)) if token else None


class Named(SimpleUser):
    @property
    def identity(self) -> str:
        return self.username


@pytest.fixture(params=["in process", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = InProcessStore() if request.param == "in process" else SQLStore(f"sqlite:///{tmp_path}/tasks.db")
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    flows.clear()
    gates.clear()


@pytest.fixture
async def server(store: Store) -> AsyncIterator[MRTRServer]:
    made = replica(app, store=store)
    yield made
    await made._parts.worker.close()


@pytest.fixture
def client(server: MRTRServer) -> AsyncClient:
    return AsyncClient(server, tasks=True, log_level=None)


async def started(client: AsyncClient, tool: str, /, **arguments: Any) -> Any:
    """Start a task, and give its flow."""
    flow = client.flow(tool, arguments)
    reply = await flow.start()
    assert reply.task.status == "working"
    return flow


async def until_nothing_runs(flow: Any) -> None:
    """Wait until the worker of a cancelled task has said that nothing of it runs any more."""
    async with asyncio.timeout(TIMEOUT):
        while (await flow.look()).task.message:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class TestACall:
    async def test_becomes_a_task_where_the_client_takes_one(self, client: AsyncClient) -> None:
        reply = await client.flow("greet").start()
        assert reply.result["resultType"] == "task"
        assert (reply.result["ttlMs"], reply.result["pollIntervalMs"]) == (3_600_000, 1000)

    async def test_is_answered_in_rounds_where_it_does_not(self, server: MRTRServer) -> None:
        reply = await AsyncClient(server).flow("greet").start()
        assert reply.result["resultType"] == "input_required"

    async def test_of_a_tool_that_must_be_a_task_is_refused_where_it_does_not(self, server: MRTRServer) -> None:
        reply = await AsyncClient(server).flow("add", one=1, other=2).start()
        assert (reply.error.code, reply.error.data) == (
            -32021,
            {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )

    async def test_of_a_tool_that_is_never_a_task_is_answered(self, client: AsyncClient) -> None:
        assert (await client.call("never")).text == "done"

    async def test_that_does_not_fit_fails_before_there_is_a_task(self, client: AsyncClient) -> None:
        reply = await client.flow("add", one="x").start()
        assert not reply.is_task
        assert "one" in reply.failure

    async def test_gives_a_task_that_every_replica_finds(self, client: AsyncClient, server: MRTRServer) -> None:
        flow = await started(client, "greet")
        flow.move_to(replica(server))
        assert (await flow.wait()).task.status == "input_required"

    async def test_gives_ids_that_nobody_can_guess_and_that_name_the_epoch_of_its_store(
        self, client: AsyncClient, store: Store
    ) -> None:
        ids = {(await client.flow("greet").start()).task.id for _ in range(20)}
        assert len({id[:8] for id in ids}) == 20, "what the log calls them"
        epoch = await store.epoch()
        assert {len(id.replace(f"-{epoch}-", "")) for id in ids} == {48}
        assert {epoch_of(id) for id in ids} == {epoch}

    async def test_has_the_limits_of_the_server_unless_its_tool_has_some(self, server: MRTRServer) -> None:
        limited = replica(server, limits=Limits(task_seconds=50, poll_seconds=0.5))
        client = AsyncClient(limited, tasks=True)
        served, own = [(await client.flow(tool).start()).result for tool in ("greet", "hurries")]
        assert (served["ttlMs"], served["pollIntervalMs"], own["ttlMs"]) == (50_000, 500, 600_000)
        await limited._parts.worker.close()

    async def test_runs_to_its_end_without_its_client(self, client: AsyncClient) -> None:
        flow = await started(client, "add", one=1, other=2)
        reply = await flow.wait()
        assert reply.structured == 3
        assert reply.result["resultType"] == "complete"

    async def test_has_the_request_but_no_headers_and_no_user(self, client: AsyncClient) -> None:
        flow = await started(client, "looks_around")
        reply = await flow.wait()
        assert reply.structured == {"headers": {"host": "127.0.0.1"}, "user": None, "task": True}


class TestAsks:
    async def test_park_the_task_until_they_are_answered(self, client: AsyncClient) -> None:
        flow = await started(client, "greet")
        asked = await flow.wait()
        assert (asked.task.status, asked.questions) == ("input_required", {"login": "Who are you?"})
        assert (await flow.answer(login={"name": "Ann"})).text == "Hello, Ann"

    async def test_side_by_side_are_open_at_once_and_answered_in_parts(self, client: AsyncClient) -> None:
        flow = await started(client, "both")
        assert (await flow.wait()).questions == {"login": "Who are you?", "size": "How tall?"}
        # What was answered is not shown by the very next look, and the other is still open.
        partly = await flow.answer(size={"size": 180})
        assert (partly.task.status, list(partly.asks)) == ("input_required", ["login"])
        assert (await flow.answer(login={"name": "Ann"})).text == "Ann is 180 tall"

    async def test_that_nobody_made_are_ignored(self, client: AsyncClient) -> None:
        flow = await started(client, "greet")
        await flow.wait()
        assert (await flow.send({"stranger": accept(name="x")})).task.status == "input_required"
        assert (await flow.send({})).task.status == "input_required"

    async def test_never_use_a_key_twice(self, client: AsyncClient) -> None:
        flow = await started(client, "both")
        await flow.wait()
        again = await flow.answer(login=accept(other="x"), size=accept(size="tall"))
        assert sorted(again.asks) == ["login_2", "size_2"]
        assert again.questions["login_2"].endswith("Who are you?")
        # A late answer to the first question is an answer to none.
        assert sorted((await flow.send({"login": accept(name="x")})).asks) == ["login_2", "size_2"]
        third = await flow.answer(login_2={"name": "Ann"}, size_2=accept(size="small"))
        assert list(third.asks) == ["size_3"]
        assert (await flow.answer(size_3={"size": 180})).text == "Ann is 180 tall"

    async def test_take_the_first_of_two_answers_that_come_at_once(self, client: AsyncClient) -> None:
        flow = await started(client, "greet")
        await flow.wait()
        answers = [{"inputResponses": {"login": accept(name=name).raw}} for name in ("Ann", "Bob", "Cid")]
        replies = await asyncio.gather(*(update(client, flow, each) for each in answers))
        assert all(reply.result["resultType"] == "complete" for reply in replies)
        assert (await flow.wait()).text == "Hello, Ann"

    async def test_take_both_of_two_parts_that_come_at_once(self, client: AsyncClient) -> None:
        flow = await started(client, "both")
        await flow.wait()
        parts = {"login": accept(name="Ann").raw, "size": accept(size=180).raw}
        await asyncio.gather(*(update(client, flow, {"inputResponses": {key: raw}}) for key, raw in parts.items()))
        assert (await flow.wait()).text == "Ann is 180 tall"

    async def test_that_are_declined_end_the_task_with_a_result(self, client: AsyncClient) -> None:
        flow = await started(client, "sure")
        await flow.wait()
        reply = await flow.answer(confirm=no)
        assert reply.task.status == "completed"
        assert "declined" in reply.failure
        assert ran == []

    @pytest.mark.parametrize("tool", ["pure", "greet"])
    async def test_of_every_style_work_unchanged(self, client: AsyncClient, tool: str) -> None:
        assert (await client.call(tool, answers={"login": {"name": "Ann"}})).text == "Hello, Ann"

    async def test_that_are_declared_work_unchanged(self, client: AsyncClient) -> None:
        answers: Answers = {"confirm": yes, "size": {"size": 180}, "login": {"name": "Ann"}}
        assert (await client.call("declared", answers=answers)).text == "chosen Ann is 180 tall"

    async def test_that_are_declared_and_declined_run_nothing(self, client: AsyncClient) -> None:
        flow = client.flow("declared")
        reply = await flow.finish(confirm=no, size={"size": 1}, login={"name": "Ann"})
        assert "declined" in reply.failure

    async def test_of_what_the_client_can_not_do_fail_the_task(
        self, server: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = AsyncClient(server, tasks=True, capabilities={})
        flow = await started(client, "greet")
        reply = await flow.wait()
        assert reply.task.status == "failed"
        assert reply.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
        (line,) = [each.getMessage() for each in caplog.records if "the capability" in each.getMessage()]
        assert line.startswith("'a task of greet' was refused: ")

    @pytest.mark.parametrize("params", [{}, {"inputResponses": None}, {"inputResponses": {"login": "Ann"}}], ids=str)
    async def test_need_answers_in_the_right_shape(self, client: AsyncClient, params: dict[str, Any]) -> None:
        flow = await started(client, "greet")
        await flow.wait()
        assert (await update(client, flow, params)).error.code == -32602

    async def test_take_no_more_than_a_flow_may_keep(self, client: AsyncClient) -> None:
        flow = await started(client, "greet")
        await flow.wait()
        many = await flow.send({str(number): accept(name="x") for number in range(65)})
        large = await flow.send({"login": accept(name="x" * 300_000)})
        assert [many.error.data, large.error.data] == [
            {"limit": "answers", "value": 64},
            {"limit": "state_bytes", "value": 262_144},
        ]
        assert (await flow.answer(login={"name": "Ann"})).text == "Hello, Ann"


class TestRoundsFirst:
    async def test_ask_and_run_steps_before_there_is_a_task(self, client: AsyncClient) -> None:
        flow = client.flow("rounds")
        asked = await flow.start()
        assert not asked.is_task
        assert len(ran) == 1
        begun = await flow.answer(login={"name": "Ann"})
        assert begun.is_task
        asked = await flow.wait()
        assert (asked.task.message, list(asked.asks)) == ("Working for Ann", ["size"])
        first, second, size = (await flow.answer(size={"size": 180})).structured
        assert ran == [f"first {first}", f"second {second}"]  # each once
        assert (size, first != second) == ("180", True)
        assert len(flows) == 1  # of which the idempotency keys are made

    async def test_stay_in_rounds_for_a_client_without_tasks(self, server: MRTRServer) -> None:
        reply = await AsyncClient(server).call("rounds", answers={"login": {"name": "Ann"}, "size": {"size": 1}})
        assert len(reply.structured) == 3

    async def test_answer_what_is_asked_beside_it_in_rounds(self, client: AsyncClient) -> None:
        flow = client.flow("beside")
        assert not (await flow.start()).is_task
        assert (await flow.answer(login={"name": "Ann"})).is_task
        assert (await flow.wait()).text == "Ann!"
        assert ran == ["!"]

    async def test_stay_in_rounds_in_what_is_no_tool(self) -> None:
        alone = MRTRServer("alone", keys=[bytes(32)])

        @alone.prompt
        async def letter(ctx: Context) -> str:
            await ctx.background()
            return "Dear all"

        @alone.resource("letters://all")
        async def letters(ctx: Context) -> str:
            await ctx.background()
            return "Dear all"

        client = AsyncClient(alone, tasks=True)
        for reply in (await client.prompt_flow("letter").start(), await client.resource_flow("letters://all").start()):
            assert "Dear all" in str(reply.message["result"])

    async def test_may_go_on_from_a_dependency(self, client: AsyncClient) -> None:
        flow = client.flow("depends")
        assert not (await flow.start()).is_task
        assert (await flow.answer(login={"name": "Ann"})).is_task
        assert (await flow.wait()).text == "Ann"


class TestSingleUse:
    @pytest.mark.parametrize("tool", ["once", "once_later"])
    async def test_makes_one_task_of_a_request_that_comes_again(self, client: AsyncClient, tool: str) -> None:
        flow = client.flow(tool)
        assert (await flow.start()).needs_input  # so that a repetition can be told from a new call
        first = await flow.answer()
        again = [await flow.replay() for _ in range(2)]
        assert {first.task.id} == {each.task.id for each in again}
        reply = await flow.wait()
        if tool == "once":
            reply = await flow.answer(login={"name": "Ann"})
        assert reply.complete
        assert ran == ["once"]

    async def test_gives_its_task_to_no_repetition_that_takes_none(self, server: MRTRServer) -> None:
        """A server must not return a task to a client that does not declare the extension (Capability Negotiation)."""
        flow = AsyncClient(server, tasks=True).flow("once")
        await flow.start()
        params = {"name": "once", "arguments": {}, "requestState": flow.last.state}
        first = await AsyncClient(server, tasks=True).request("tools/call", params)
        refused = await AsyncClient(server).request("tools/call", params)
        assert refused.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        again = await AsyncClient(server, tasks=True).request("tools/call", params)
        assert again.result["taskId"] == first.result["taskId"]

    async def test_makes_one_task_of_requests_that_come_at_once(self, client: AsyncClient) -> None:
        flow = client.flow("once")
        await flow.start()
        assert len({reply.task.id for reply in await flow.race()}) == 1

    async def test_makes_one_task_where_the_record_of_it_was_lost_and_tells_how_it_is(self, server: MRTRServer) -> None:
        """A replica that ends between the two leaves a task that the next delivery finds."""
        flow = AsyncClient(server, tasks=True).flow("once")
        await flow.start()
        params = {"name": "once", "arguments": {}, "requestState": flow.last.state}
        first = await flow.answer()
        await flow.wait()

        async def deliver_again() -> tuple[str, str]:
            # The same tasks, and redemptions that never were.
            forgetful = replica(server, store=Forgetful())
            forgetful._parts.tasks.store = server._parts.tasks.store
            reply = await AsyncClient(forgetful, tasks=True).request("tools/call", params)
            await forgetful._parts.worker.close()
            told = reply.message["result"]
            return told["taskId"], told["status"]

        assert await deliver_again() == (first.task.id, "input_required")
        await flow.answer(login={"name": "Ann"})
        await flow.wait()
        assert await deliver_again() == (first.task.id, "completed")
        assert ran == ["once"]


class Forgetful(InProcessStore):
    """Knows of no redemption, in whichever epoch."""

    has_epochs = True


class TestWhatATaskSaysOfItself:
    async def test_is_what_every_database_and_client_can_read(self, client: AsyncClient) -> None:
        reply = await (await started(client, "mumbles")).wait()
        assert reply.task.message == "Around\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"

    async def test_is_said_no_more_once_it_has_ended(self, client: AsyncClient, server: MRTRServer) -> None:
        """It was about work that goes on no more; a failure says what failed."""
        ended, cancelled = await started(client, "mumbles"), await started(client, "mumbles")
        for flow in (ended, cancelled):
            assert (await flow.wait()).task.message
        assert (await ended.answer(login={"name": "Ann"})).task.status == "completed"
        await cancelled.cancel()
        assert (await cancelled.look()).task.status == "cancelled"
        for flow in (ended, cancelled):
            assert "statusMessage" not in (await flow.look()).result
            row = await server._parts.tasks.store.find_task(flow.task)
            assert row is not None
            assert row.message == ""


class TestEnds:
    async def test_with_a_message_for_the_model_are_results(self, client: AsyncClient) -> None:
        flow = await started(client, "fails", how="tool")
        reply = await flow.wait()
        assert (reply.task.status, reply.failure) == ("completed", "it is closed")

    async def test_with_a_bug_show_a_reference_alone(
        self, client: AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow = await started(client, "fails", how="bug")
        reply = await flow.wait()
        assert "reference" in reply.failure
        assert "secret" not in reply.failure
        assert reply.failure.split()[-1].strip(").") in caplog.text
        assert "ZeroDivisionError" in caplog.text

    async def test_with_an_error_of_the_request_are_failed(self, client: AsyncClient) -> None:
        flow = await started(client, "fails", how="request")
        reply = await flow.wait()
        assert (reply.task.status, reply.task.message) == ("failed", "over quota")
        assert reply.error == (-32603, "over quota", {"retryAfter": 5})

    async def test_with_an_error_that_no_client_could_read_are_failed(self, client: AsyncClient) -> None:
        flow = await started(client, "fails", how="no JSON")
        reply = await flow.wait()
        assert reply.task.status == "failed"
        assert reply.error.data.keys() == {"reference"}

    async def test_with_too_much_to_keep_are_failed_and_nothing_goes_on(self, client: AsyncClient) -> None:
        flow = await started(client, "huge")
        reply = await flow.wait()
        assert reply.error.data == {"limit": "state_bytes", "value": 262_144}
        assert ran == []

    async def test_with_a_state_that_never_changes_are_failed(self, client: AsyncClient) -> None:
        flow = await started(client, "stuck")
        assert "without progress in between" in (await flow.wait()).error.message

    async def test_keep_nothing_of_the_flow(self, client: AsyncClient, server: MRTRServer) -> None:
        flow = await started(client, "greet")
        await flow.wait()
        await flow.answer(login={"name": "Ann"})
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        assert (row.call, row.journal, row.questions, row.lease) == (b"", b"", b"", "")

    async def test_take_no_answer_and_no_cancellation(self, client: AsyncClient) -> None:
        flow = await started(client, "add", one=1, other=2)
        await flow.wait()
        assert (await update(client, flow, {"inputResponses": {"x": {}}})).result["resultType"] == "complete"
        assert (await flow.cancel()).result["resultType"] == "complete"
        assert (await flow.look()).task.status == "completed"


class TestHandingOver:
    """What the worker hands over by itself is no handler that makes no progress, however often it happens."""

    async def test_is_known_from_the_round_and_not_from_how_the_worker_is_afterwards(self) -> None:
        app = MRTRServer("tasks", keys=[bytes(32)])
        rounds = 0

        @app.tool(task="required")
        async def interrupted(ctx: Context) -> str:
            nonlocal rounds
            rounds += 1
            if rounds < 3:
                app.drain()
                try:
                    await ctx.checkpoint()  # ends the round here
                finally:
                    app._parts.admission.reopen()
            return f"done in round {rounds}"

        async with AsyncClient(app, tasks=True) as client:
            assert (await client.call("interrupted")).text == "done in round 3"


class TestTime:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def server(self, clock: Clock, tmp_path: Path) -> MRTRServer:
        return replica(app, store=InProcessStore(clock=clock), clock=clock)

    async def test_for_an_answer_runs_out_with_an_error_that_says_so(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "hurries")
        await flow.wait()
        clock.advance(61)
        reply = await flow.look()
        assert (reply.task.status, reply.error.code) == ("failed", -32603)
        assert "did not come in time" in reply.error.message
        # A late yes is one to nothing, and the code behind the question does not run.
        await update(client, flow, {"inputResponses": {"confirm": yes.raw}})
        assert (await flow.look()).task.status == "failed"
        assert ran == []

    async def test_for_an_answer_is_all_of_the_task_s_time(self, client: AsyncClient, clock: Clock) -> None:
        """However long a flow may take in rounds: its author has said how long this task may."""
        late, lost = await started(client, "stays"), await started(client, "stays")
        for flow in (late, lost):
            await flow.wait()
        clock.advance(3 * DAY - 60)
        assert (await late.answer(confirm=yes)).text == "the late deed"
        clock.advance(61)
        reply = await lost.look()
        assert reply.task.status == "failed"
        assert "did not come in time" in reply.error.message

    async def test_for_an_answer_ends_with_the_answer(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "hurries")
        await flow.wait()
        clock.advance(59)
        assert (await flow.answer(confirm=yes)).text == "the deed"

    async def test_to_live_ends_what_has_not_ended(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "patient", name="slow")
        await began("slow")
        clock.advance(3601)
        reply = await flow.look()
        assert (reply.task.status, reply.error.message) == ("failed", "The task did not end in time")
        let("slow")
        await asyncio.sleep(1.2)
        assert ran == ["slow"]

    async def test_to_live_over_changes_nothing_of_what_has_ended(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "hurries")
        await flow.wait()
        assert (await flow.answer(confirm=yes)).text == "the deed"
        cancelled = await started(client, "hurries")
        await cancelled.wait()
        await cancelled.cancel()
        clock.advance(601)
        assert (await flow.look()).text == "the deed"
        assert (await cancelled.look()).task.status == "cancelled"

    async def test_to_live_is_over_at_its_last_moment(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "hurries")
        await flow.wait()
        clock.advance(60)
        assert (await flow.look()).task.status == "failed"

    async def test_runs_out_without_anybody_looking(
        self, client: AsyncClient, clock: Clock, server: MRTRServer
    ) -> None:
        flow = await started(client, "hurries")
        await flow.wait()
        clock.advance(61)
        await asyncio.sleep(1.7)
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        assert row.status == "failed"

    async def test_to_live_over_it_is_deleted(self, client: AsyncClient, clock: Clock) -> None:
        flow = await started(client, "hurries")
        clock.advance(600 + 299.5)
        assert (await flow.look()).task.status == "failed"
        clock.advance(1)
        assert (await flow.look()).error.code == -32602


class TestCancellation:
    async def test_of_a_task_that_waits_ends_it(self, client: AsyncClient) -> None:
        flow = await started(client, "sure")
        await flow.wait()
        assert (await flow.cancel()).result["resultType"] == "complete"
        assert (await flow.look()).task.status == "cancelled"
        await update(client, flow, {"inputResponses": {"confirm": yes.raw}})
        assert (await flow.look()).task.status == "cancelled"
        assert ran == []

    @pytest.mark.parametrize("where", ["here", "on another replica"])
    async def test_of_one_that_runs_lets_a_step_finish_and_begins_nothing(
        self, client: AsyncClient, server: MRTRServer, where: str
    ) -> None:
        flow = await started(client, "patient", name="slow")
        await began("slow")
        other = replica(server, run_tasks=False)
        if where == "on another replica":
            flow.move_to(other)
        await flow.cancel()
        seen = await flow.look()
        assert (seen.task.status, "may still be running" in seen.task.message) == ("cancelled", True)
        let("slow")
        await until_nothing_runs(flow)
        assert ran == ["slow"]
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        assert row.lease == "", "it was given back, and did not run out"

    async def test_says_that_a_step_goes_on_for_as_long_as_it_does(
        self, client: AsyncClient, server: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 0.05)
        limited = replica(server, limits=short_lease(1.0))
        flow = await started(AsyncClient(limited, tasks=True, log_level=None), "patient", name="slow")
        await began("slow")
        await flow.cancel()
        await asyncio.sleep(1.5)  # longer than the lease
        assert "may still be running" in (await flow.look()).task.message
        let("slow")
        await until_nothing_runs(flow)
        assert ran == ["slow"]
        await limited._parts.worker.close()

    async def test_on_this_server_is_heard_of_at_once(
        self, client: AsyncClient, server: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 600.0)
        flow = await started(client, "waits_alone")
        await began("alone")
        await flow.cancel()
        async with asyncio.timeout(TIMEOUT):
            await gates.setdefault("alone ended", asyncio.Event()).wait()

    async def test_that_the_worker_has_not_heard_of_lets_no_step_begin(
        self, client: AsyncClient, server: MRTRServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 600.0)
        flow = await started(client, "pauses")
        await began("pause")
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        await server._parts.tasks.store.change_task(row, status="cancelled")
        let("pause")
        await until_nothing_runs(flow)
        assert ran == ["pause"]

    async def test_ends_a_handler_that_comes_to_no_boundary(self) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def forever() -> None:
            """Never end."""
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()

        mine = MRTRServer("endless", keys=[bytes(32)])
        mine.tool(task="optional")(forever)
        flow = await started(AsyncClient(mine, tasks=True), "forever")
        await begun.wait()
        await flow.cancel()
        async with asyncio.timeout(TIMEOUT):
            await ended.wait()
        await mine._parts.worker.close()


async def test_small_tasks_are_looked_up_in_one_go(client: AsyncClient, server: MRTRServer) -> None:
    ids = sorted([(await started(client, "sure")).task for _ in range(3)])
    tasks, left = await server._parts.tasks.peek(ids, "")
    assert (sorted(tasks), left) == (ids, [])


class TestPrincipals:
    @pytest.fixture
    def server(self, store: Store) -> MRTRServer:
        return replica(app, store=store, auth=Tokens())

    @pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
    async def test_have_no_tasks_but_their_own(self, server: MRTRServer, method: str) -> None:
        flow = await started(AsyncClient(server, tasks=True, token="ann"), "greet")
        await flow.wait()
        stranger = AsyncClient(server, tasks=True, token="bob")
        params = {"inputResponses": {"login": accept(name="x").raw}} if method == "tasks/update" else {}
        found, none = [(await stranger.request(method, {"taskId": id, **params})).error for id in (flow.task, "0" * 48)]
        assert (found.code, found.message.replace(flow.task, "0" * 48)) == (none.code, none.message)
        assert (await flow.look()).task.status == "input_required"
        await server._parts.worker.close()

    async def test_are_those_of_the_task(self, server: MRTRServer) -> None:
        flow = await started(AsyncClient(server, tasks=True, token="ann"), "greet")
        await flow.wait()
        assert (await flow.answer(login={"name": "Ann"})).text == "Hello, Ann"
        await server._parts.worker.close()


class TestWhatIsStored:
    async def test_comes_back_as_it_was(self, client: AsyncClient, server: MRTRServer) -> None:
        class Key(BaseModel):
            id: str = Field(alias="_id")
            value: SecretStr
            raw: bytes = Field(exclude=True)

        def make() -> Key:
            return Key(_id=effect("made"), value=SecretStr("s3cret"), raw=b"\xff")

        name = f"keyed_{token_hex(4)}"  # the server is that of all stores

        @server.tool(name=name, task="required")
        async def keyed(ctx: Context) -> str:
            key = await ctx.step(make)
            await ctx.confirm("Use it?")
            return f"{key.id} {key.value.get_secret_value()} {key.raw!r}"

        flow = await started(client, name)
        await flow.wait()
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        assert b"s3cret" not in row.journal
        assert (await flow.answer(confirm=yes)).text == r"made s3cret b'\xff'"
        assert EFFECTS == ["made"]

    async def test_can_be_read_by_nobody_without_the_keys(self, client: AsyncClient, server: MRTRServer) -> None:
        flow = await started(client, "both")
        await flow.wait()
        await flow.send({"login": accept(name="confidential")})
        row = await server._parts.tasks.store.find_task(flow.task)
        assert row is not None
        stored = b"".join((row.call, row.journal, row.questions, row.outcome, row.message.encode()))
        assert b"confidential" not in stored
        assert b"How tall" not in stored

    async def test_opens_in_its_own_place_alone(
        self, client: AsyncClient, server: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Who can write to the database can't put one task's result into another's."""
        store = server._parts.tasks.store
        mine, other = [await started(client, "add", one=one, other=1) for one in (1, 10)]
        for flow in (mine, other):
            await flow.wait()
        rows = [await store.find_task(flow.task) for flow in (mine, other)]
        assert rows[0] is not None
        assert rows[1] is not None
        await store.change_task(rows[0], outcome=rows[1].outcome)
        reply = await mine.look()
        assert (reply.error.code, reply.error.data.keys()) == (-32603, {"reference"})
        assert "belongs to another task" in caplog.text
        assert mine.task not in caplog.text

    async def test_without_authentication_is_protected_by_the_id_alone_which_the_log_says_once(
        self, client: AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            await client.flow("greet").start()
        assert caplog.text.count("protected by their ids alone") == 1


class TestListening:
    """`subscriptions/listen` with `taskIds`."""

    async def test_tells_what_a_look_would(self, client: AsyncClient, server: MRTRServer) -> None:
        flow = await started(client, "greet")
        async with Listener(server, [flow.task], "") as listener:
            assert listener.agreed == [flow.task]
            await flow.wait()
            await listener.until("input_required")  # or it might see the row only when that is over
            await flow.answer(login={"name": "Ann"})
            await listener.until("completed")
        *before, last = listener.told
        assert last["result"]["content"] == [{"type": "text", "text": "Hello, Ann"}]
        heard = [(each["status"], each["lastUpdatedAt"], each.get("statusMessage")) for each in listener.told]
        assert len(set(heard)) == len(heard), "nothing is told twice"
        assert "input_required" in {each["status"] for each in before}

    async def test_needs_the_extension(self, server: MRTRServer) -> None:
        reply = await AsyncClient(server).request("subscriptions/listen", {"notifications": {"taskIds": ["x"]}})
        assert reply.error.code == -32021

    async def test_agrees_to_the_callers_own_tasks_alone(self, store: Store) -> None:
        server = replica(app, store=store, auth=Tokens())
        flow = await started(AsyncClient(server, tasks=True, token="ann"), "greet")
        async with Listener(server, [flow.task, "nobody"], "bob") as stranger:
            assert stranger.agreed == []
            async with Listener(server, [flow.task, "nobody"], "ann") as owner:
                assert owner.agreed == [flow.task]
                await flow.cancel()
                assert (await owner.until("cancelled"))["taskId"] == flow.task
            assert stranger.told == []
        await server._parts.worker.close()


class Listener:
    """One open subscription to tasks."""

    def __init__(self, server: MRTRServer, ids: list[str], token: str) -> None:
        message = modern("subscriptions/listen", {"notifications": {"taskIds": ids}})
        message["params"]["_meta"] = meta({"extensions": {EXTENSION: {}}})
        headers = headers_for(message) + ([(b"authorization", f"Bearer {token}".encode())] if token else [])
        self._exchange = Exchange(server, scope_of(headers)).body(json.dumps(message).encode())

    @property
    def told(self) -> list[dict[str, Any]]:
        """What it has heard of tasks so far."""
        received = self._exchange.reply.received
        return [each["params"] for each in received if each.get("method") == "notifications/tasks"]

    @property
    def agreed(self) -> list[str]:
        """The tasks that it was promised to hear of."""
        ids: list[str] = self._exchange.reply.received[0]["params"]["notifications"].get("taskIds", [])
        return ids

    async def __aenter__(self) -> "Listener":
        self._exchange.start()
        await self._exchange.until(b"acknowledged")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._exchange.disconnect()
        await self._exchange.end()

    async def hears(self, message: str) -> None:
        """Wait until it has heard of a task with this message."""
        await self._exchange.until(f'"statusMessage":"{message}"'.encode())

    async def until(self, status: str) -> dict[str, Any]:
        """Wait until it has heard of a task with this status; return that task."""
        await self._exchange.until(f'"status":"{status}"'.encode())
        return self.told[-1]
