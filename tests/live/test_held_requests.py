"""What a call holds in memory while it waits for a person: ids, and nothing of its request, which the store has."""

import asyncio
import gc
import json
import logging
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from mrtr_server import CallInfo, CallNext, Context, Elicit, InputRequired, Inputs, MRTRServer, Sample
from mrtr_server.testing import EVERYTHING

from ..support.direct import Exchange, scope_of
from ..support.handshake import NEWEST
from ..support.models import Login
from ..support.stdio import over_pipes
from ..support.wire import ACCEPT, JSON, Reply, request, text_of

pytestmark = pytest.mark.anyio

SIZE = 3_000_000
"""Bytes of what a call is sent with, or is answered with: far more than what a slow machine does meanwhile leaves."""

SMALL = SIZE // 10
"""Bytes that a call may hold while it waits; one that holds nothing of its request has about 25,000."""

CALLS = 3


def large() -> str:
    """Return a text that nothing else holds."""
    return "x" * SIZE


def serving(**settings: Any) -> MRTRServer:
    app = MRTRServer("held", keys=[bytes(32)], **settings)

    @app.tool
    async def ask(ctx: Context, note: Any = None) -> str:
        """Ask for a name."""
        return f"{(await ctx.elicit('Who?', Login)).name} {len(note)}"

    @app.tool
    async def ask_twice(ctx: Context, note: Any = None) -> str:
        """Ask for a name, and another one."""
        first = await ctx.elicit("Who?", Login, key="first")
        second = await ctx.elicit("Who else?", Login, key="second")
        return f"{first.name} {second.name} {len(note)}"

    @app.tool
    async def echo(ctx: Context, note: str = "") -> str:
        """Ask about all that the call was sent with."""
        return (await ctx.elicit(f"Is this yours? {note}", Login)).name

    @app.tool
    async def ask_side_by_side(ctx: Context, note: Any = None) -> str:
        """Ask the model and a person."""
        sampled, login = await ctx.ask(Sample("Write much"), Elicit("Who?", Login))
        return f"{login.name} {len(sampled.text)}"

    @app.tool
    def ask_purely(inputs: Inputs, note: Any = None) -> str | InputRequired:
        """Ask for a name, as a pure function."""
        login = inputs.get("login", Login)
        return f"{login.name} {len(note)}" if login else InputRequired(login=Elicit("Who?", Login))

    @app.tool(single_use=True)
    async def ask_once(login: Annotated[Login, Elicit("Who?")], note: Any = None) -> str:
        """Ask for a name, by a parameter."""
        return f"{login.name} {len(note)}"

    @app.tool(task="optional")
    async def ask_in_task(ctx: Context) -> str:
        """Ask for a name, in a task."""
        return (await ctx.elicit("Who?", Login)).name

    @app.prompt
    async def prompt(ctx: Context, note: str = "") -> str:
        """Ask for a name, for a prompt."""
        return f"{(await ctx.elicit('Who?', Login)).name} {len(note)}"

    @app.resource("notes://mine")
    async def mine(ctx: Context) -> str:
        """Ask for a name, for a resource."""
        return (await ctx.elicit("Who?", Login)).name

    return app


class OpenCall:
    """A call that is open, of a client that reads all that comes."""

    def __init__(self, client: "Client", exchange: Exchange) -> None:
        self.client = client
        self.exchange = exchange

    @property
    def messages(self) -> list[JSON]:
        """What has come so far."""
        lines = self.exchange.reply.body.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def last_id(self) -> str:
        """The id of the last event."""
        lines = self.exchange.reply.body.decode().splitlines()
        return [line[4:] for line in lines if line.startswith("id: ")][-1]

    async def asked(self, method: str = "elicitation/create", nth: int = 1) -> JSON:
        """Wait until a client was asked so many times, and return the last question."""
        while len(found := [each for each in self.messages if each.get("method") == method]) < nth:
            assert not self.exchange.has_ended, self.messages
            await asyncio.sleep(0.005)
        return found[-1]

    async def result(self) -> JSON:
        """Return the response, the last message of all."""
        await self.exchange.end()
        return self.messages[-1]

    async def leave(self) -> None:
        self.exchange.disconnect()
        await self.exchange.end()

    def forget(self) -> None:
        """Hold nothing of what has come."""
        self.exchange.sent.clear()


class Client:
    """A client that begins with a handshake, without a socket: what the test itself holds is known."""

    def __init__(self, app: MRTRServer) -> None:
        self.app = app
        self.headers = {"content-type": "application/json", "accept": ACCEPT}
        self.ids = 0

    def send(self, message: JSON | None, method: str = "POST", **headers: str) -> Exchange:
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        listed = [(name.encode(), value.encode()) for name, value in given.items()]
        body = b"" if message is None else json.dumps(message).encode()
        return Exchange(self.app, scope_of(listed, method=method)).body(body).start()

    async def begin(self) -> "Client":
        info = {"name": "held", "version": "1"}
        params = {"protocolVersion": NEWEST, "capabilities": EVERYTHING, "clientInfo": info}
        reply = await self.send(request("initialize", params)).end()
        self.headers |= {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": NEWEST}
        return self

    def open(self, method: str, params: JSON) -> OpenCall:
        self.ids += 1
        return OpenCall(self, self.send(request(method, params, id=self.ids)))

    def call(self, tool: str, **arguments: Any) -> OpenCall:
        return self.open("tools/call", {"name": tool, "arguments": arguments})

    async def answer(self, asked: JSON, result: JSON) -> Reply:
        reply = await self.send({"jsonrpc": "2.0", "id": asked["id"], "result": result}).end()
        assert reply.status == 202
        return reply

    async def accept(self, asked: JSON, name: str = "ada") -> None:
        await self.answer(asked, {"action": "accept", "content": {"name": name}})


Begin = Callable[[Client], Awaitable[OpenCall]]
"""Begins a call, and returns it once it waits."""


def calls(tool: str) -> Begin:
    async def begin(client: Client) -> OpenCall:
        call = client.call(tool, note=large())
        await call.asked()
        return call

    return begin


async def a_second_question(client: Client) -> OpenCall:
    call = client.call("ask_twice", note=large())
    await client.accept(await call.asked())
    await call.asked(nth=2)
    return call


async def a_call_that_its_client_comes_back_to(client: Client) -> OpenCall:
    call = await calls("ask")(client)
    last_id = call.last_id
    await call.leave()
    again = OpenCall(client, client.send(None, "GET", last_event_id=last_id))
    await again.exchange.until(b"event: prime")
    return again


async def one_of_two_answers(client: Client) -> OpenCall:
    call = client.call("ask_side_by_side")
    await call.asked()
    sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": large()}}
    await client.answer(await call.asked("sampling/createMessage"), sampled)
    return call


async def a_prompt(client: Client) -> OpenCall:
    call = client.open("prompts/get", {"name": "prompt", "arguments": {"note": large()}})
    await call.asked()
    return call


async def a_resource_with_more_than_it_needs(client: Client) -> OpenCall:
    call = client.open("resources/read", {"uri": "notes://mine", "_meta": {"more": large()}})
    await call.asked()
    return call


async def the_result_of_a_task_with_more_than_it_needs(client: Client) -> OpenCall:
    begun = await client.send(
        request("tools/call", {"name": "ask_in_task", "arguments": {}, "task": {}}, id=1000)
    ).end()
    task = begun.message["result"]["task"]["taskId"]
    call = client.open("tasks/result", {"taskId": task, "_meta": {"more": large()}})
    await call.asked()
    return call


WAITING: dict[str, Begin] = {
    **{tool: calls(tool) for tool in ("ask", "echo", "ask_purely", "ask_once")},
    **{
        begin.__name__: begin
        for begin in (
            a_second_question,
            a_call_that_its_client_comes_back_to,
            one_of_two_answers,
            a_prompt,
            a_resource_with_more_than_it_needs,
            the_result_of_a_task_with_more_than_it_needs,
        )
    },
}


async def held_by(client: Client, begin: Begin) -> tuple[float, float]:
    """Return how many bytes are held for each of some calls that wait, and for each when its client has left.

    No garbage is collected meanwhile, so what is held in a circle counts.
    """
    await (await begin(client)).leave()  # what is made for the first one stays
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        waiting = [await begin(client) for _ in range(CALLS)]
        for call in waiting:
            call.forget()
        await asyncio.sleep(0.2)  # until threads of the store have done with theirs
        held, _ = tracemalloc.get_traced_memory()
        for call in waiting:
            await call.leave()
        waiting.clear()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (held - before) / CALLS, (left - before) / CALLS


Start = Callable[..., Awaitable[Client]]
"""Starts a server with these settings, and returns a client of it that has begun a session."""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def started(**settings: Any) -> Client:
            app = serving(**settings)
            await stack.enter_async_context(app.running())
            return await Client(app).begin()

        yield started


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage: what refers to itself in a circle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
class TestACallThatWaits:
    @pytest.mark.parametrize("kind", WAITING)
    async def test_holds_nothing_of_what_it_was_sent_with(self, start: Start, url: str, kind: str) -> None:
        held, left = await held_by(await start(store=url), WAITING[kind])
        assert max(held, left) < SMALL

    @pytest.mark.parametrize("kind", ["ask", "a_second_question"])
    async def test_nor_do_those_who_observe_it(
        self, start: Start, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "mrtr_server")
        client = await start(store=f"sqlite:///{tmp_path}/store.db")

        @client.app.around(sees_arguments=True, sees_answers=True)
        async def around(call: CallInfo, call_next: CallNext) -> None:
            await call_next(call)

        held, left = await held_by(client, WAITING[kind])
        assert max(held, left) < SMALL
        assert any("tools/call" in each.message for each in caplog.records)

    async def test_is_in_memory_once_where_that_is_the_store(self, start: Start) -> None:
        held, _ = await held_by(await start(), calls("ask"))
        assert SIZE < held < SIZE + SMALL

    async def test_holds_nothing_over_standard_input_either(self, tmp_path: Path) -> None:
        app = serving(store=f"sqlite:///{tmp_path}/store.db")
        with over_pipes(app) as client:
            client.initialize()

            def begin() -> None:
                client.begin_call("ask_twice", {"note": large()})
                asked = client.next()
                client.send(id=asked["id"], result={"action": "accept", "content": {"name": "ada"}})
                assert client.next()["method"] == "elicitation/create"

            begin()
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for _ in range(CALLS):
                    begin()
                await asyncio.sleep(0.2)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (held - before) / CALLS < SMALL


class TestItsAnswer:
    """What was let go of is read again, and nothing of it is lost."""

    @pytest.mark.parametrize("tool", ["ask", "ask_purely", "ask_once"])
    async def test_runs_it_with_all_of_its_arguments(self, start: Start, url: str, tool: str) -> None:
        client = await start(store=url)
        call = await calls(tool)(client)
        await client.accept(await call.asked())
        assert text_of(await call.result()) == f"ada {SIZE}"

    async def test_without_a_database_too(self, start: Start) -> None:
        client = await start()
        call = await a_second_question(client)
        await client.accept(await call.asked(nth=2), "bob")
        assert text_of(await call.result()) == f"ada bob {SIZE}"

    async def test_is_found_where_another_one_was_waited_for(self, start: Start, url: str) -> None:
        client = await start(store=url)
        call = await one_of_two_answers(client)
        await client.accept(await call.asked())
        assert text_of(await call.result()) == f"ada {SIZE}"

    async def test_continues_what_its_client_came_back_to(self, start: Start, url: str) -> None:
        client = await start(store=url)
        first = await calls("ask")(client)
        asked, last_id = await first.asked(), first.last_id
        await first.leave()
        again = OpenCall(client, client.send(None, "GET", last_event_id=last_id))
        await again.exchange.until(b"event: prime")
        await client.accept(asked)
        assert text_of(await again.result()) == f"ada {SIZE}"

    async def test_is_in_vain_where_the_store_has_lost_the_call(self, start: Start, tmp_path: Path) -> None:
        client = await start(store=f"sqlite:///{tmp_path}/store.db")
        call = await calls("ask")(client)
        with closing(sqlite3.connect(tmp_path / "store.db")) as database:
            database.execute("DELETE FROM mrtr_kept")
            database.commit()
        await client.accept(await call.asked())
        assert (await call.result())["error"]["message"] == "It is too late to continue this call; call again"
