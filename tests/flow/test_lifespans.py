"""What `lifespan=` yields reaches handlers, wherever the server runs; so does the HTTP request, where there is one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from mrtr_server import Confirm, Context, Depends, KeyRing, MRTRServer, Task
from mrtr_server.flow.states import inspect_state
from mrtr_server.testing import AsyncClient, SharedStore, replica, yes

from ..conftest import Serve
from ..support.wire import mirrored, modern, text_of

pytestmark = pytest.mark.anyio

USE = modern("tools/call", {"name": "use"})
HEADERS = {**mirrored(USE), "Accept": "application/json, text/event-stream"}
SECRET = "the password of the database"


@dataclass
class Resources:
    """What a server opens when it starts."""

    number: int
    password: str = SECRET


class Life:
    """A `lifespan=` that notes what happens."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.fails = False

    @property
    def opened(self) -> int:
        return self.happened.count("open")

    def __call__(self, server: MRTRServer) -> AbstractAsyncContextManager[Resources]:
        return self._run(server)

    @asynccontextmanager
    async def _run(self, server: MRTRServer) -> AsyncIterator[Resources]:
        if self.fails:
            raise RuntimeError("no database")
        self.happened.append("open")
        yield Resources(self.opened)
        self.happened.append("close")


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def app(life: Life) -> MRTRServer:
    app = MRTRServer("living", keys=KeyRing.generate(), lifespan=life)

    async def doubled(resources: Annotated[Resources, Depends(life)]) -> int:
        return resources.number * 2

    @app.tool
    async def use(
        ctx: Context, resources: Annotated[Resources, Depends(life)], twice: Annotated[int, Depends(doubled)]
    ) -> str:
        assert ctx.opened is resources
        return f"{resources.number} {twice}"

    @app.tool
    def plain(ctx: Context) -> int:
        number: int = ctx.opened.number
        return number

    @app.prompt
    async def prompted(ctx: Context) -> str:
        return str(ctx.opened.number)

    @app.resource("number://it")
    async def read(ctx: Context) -> str:
        return str(ctx.opened.number)

    @app.tool
    async def ask(ctx: Context, resources: Annotated[Resources, Depends(life)]) -> str:
        await ctx.confirm("Sure?")
        return resources.password

    @app.tool(task=Task(rounds_first=True))
    async def work(resources: Annotated[Resources, Depends(life)], ctx: Context) -> str:
        await ctx.background()
        assert ctx.request is None
        return str(resources.number)

    return app


class TestWhereItRuns:
    async def test_in_a_server_that_is_started(self, app: MRTRServer, life: Life) -> None:
        async with AsyncClient(app) as client:
            assert (await client.call("use")).text == "1 2"
            assert (await client.call("plain")).text == "1"
            assert "1" in json.dumps((await client.get_prompt("prompted")).result)
            assert "1" in json.dumps((await client.read("number://it")).result)
            assert life.happened == ["open"]
        assert life.happened == ["open", "close"]

    async def test_in_a_server_that_nobody_starts_from_its_first_call_on(self, app: MRTRServer, life: Life) -> None:
        client = AsyncClient(app)
        await client.request("tools/list")
        assert life.happened == []
        replies = await asyncio.gather(*(client.call("use") for _ in range(5)))
        assert {reply.text for reply in replies} == {"1 2"}
        assert life.happened == ["open"]

    def test_which_leaves_it_when_its_event_loop_ends(self, app: MRTRServer, life: Life) -> None:
        async def call() -> str:
            return (await AsyncClient(app).call("use")).text

        assert [asyncio.run(call()), asyncio.run(call())] == ["1 2", "2 4"]
        assert life.happened == ["open", "close"] * 2

    async def test_a_start_that_failed_is_tried_again_at_the_next_call(self, app: MRTRServer, life: Life) -> None:
        life.fails = True
        reply = await AsyncClient(app).flow("use").start()
        assert reply.result["isError"]
        assert "no database" in reply.log
        life.fails = False
        assert (await AsyncClient(app).call("use")).text == "1 2"

    @pytest.mark.parametrize("outer", [FastAPI, Starlette])
    def test_in_another_application_that_passes_its_lifespan_on(
        self, app: MRTRServer, life: Life, outer: Callable[..., Any]
    ) -> None:
        site = outer(routes=[Mount("/tools", app), Route("/mcp", app)], lifespan=app.running)
        with TestClient(site, base_url="http://127.0.0.1") as client:
            assert life.happened == ["open"]
            for path in ("/tools/mcp", "/mcp"):
                reply = client.post(path, json=USE, headers=HEADERS)
                assert text_of(reply.json()) == "1 2"
        assert life.happened == ["open", "close"]

    def test_in_another_application_that_passes_nothing_on(self, app: MRTRServer, life: Life) -> None:
        with TestClient(Starlette(routes=[Mount("/", app)]), base_url="http://127.0.0.1") as client:
            reply = client.post("/mcp", json=USE, headers=HEADERS)
            assert text_of(reply.json()) == "1 2"
        assert life.happened == ["open", "close"]

    async def test_in_a_task(self, app: MRTRServer, life: Life) -> None:
        async with AsyncClient(app, tasks=True) as client:
            assert (await client.call("work")).text == "1"

    async def test_in_a_worker_that_serves_no_requests(self, app: MRTRServer, life: Life) -> None:
        store = SharedStore()
        server, worker = replica(app, store=store, run_tasks=False), replica(app, store=store)
        async with AsyncClient(server, tasks=True) as client, worker.worker():
            assert (await client.call("work")).text == "2"

    async def test_each_replica_has_its_own(self, app: MRTRServer) -> None:
        async with AsyncClient(app, replica(app)) as client:
            assert [(await client.flow("use").start()).text for _ in range(2)] == ["1 2", "1 2"]
        other = Life()
        async with AsyncClient(replica(app, lifespan=other)) as client:
            assert (await client.call("use")).text == "1 2"
        assert other.opened == 1

    async def test_without_one_the_authors_mistake_is_named(self) -> None:
        app = MRTRServer("lifeless", keys=KeyRing.generate())

        @app.tool
        async def use(ctx: Context) -> str:
            return str(ctx.opened)

        reply = await AsyncClient(app).flow("use").start()
        assert "'use' needs what lifespan= yields, and its MRTRServer has no lifespan=" in reply.log


class TestSecrecy:
    async def test_no_value_of_a_dependency_is_in_a_schema_a_state_or_the_log(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        client = AsyncClient(app)
        (tool,) = [each for each in (await client.request("tools/list")).result["tools"] if each["name"] == "ask"]
        assert tool["inputSchema"]["properties"] == {}
        flow = client.flow("ask")
        asked = await flow.start()
        ring = app._parts.shared.ring
        assert SECRET not in str(inspect_state(asked.state, ring))
        assert SECRET not in caplog.text
        assert (await flow.answer({"confirm": yes})).text == SECRET

    async def test_a_dependency_is_no_step(self, app: MRTRServer) -> None:
        reply = await AsyncClient(app).call("ask", answers={"confirm": yes})
        assert (reply.steps, reply.replayed) == ([], [])


class TestRequests:
    async def test_each_round_has_the_request_that_it_came_in(self, app: MRTRServer) -> None:
        seen: list[str] = []

        @app.tool
        async def who(ctx: Context, sure: Annotated[bool, Confirm("Sure?")]) -> str:
            assert isinstance(ctx.request, Request)
            seen.append(ctx.request.headers["x-round"])
            with pytest.raises(RuntimeError):  # it has been read
                await ctx.request.body()
            return ctx.request.url.path

        async def note(ctx: Context) -> str:
            assert ctx.request is not None
            seen.append(ctx.request.headers["x-round"])
            return ""

        @app.tool
        async def both(noted: Annotated[str, Depends(note)], sure: Annotated[bool, Confirm("Sure?")]) -> str:
            return "done"

        flow = AsyncClient(app, headers={"x-round": "1"}).flow("both")
        await flow.start()
        flow.headers = {"x-round": "2"}
        assert (await flow.answer(sure=yes)).text == "done"
        assert seen == ["1", "2"]
        assert (await AsyncClient(app, headers={"x-round": "3"}).call("who", answers={"sure": yes})).text == "/mcp"
        assert seen == ["1", "2", "3"]

    async def test_one_of_the_handshake_era_is_the_request_that_is_open(self, app: MRTRServer) -> None:
        @app.tool
        async def where(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            assert ctx.request is not None
            return ctx.request.method

        assert (await AsyncClient(app, era="2025-11-25").call("where", answers={"confirm": yes})).text == "POST"

    def test_it_has_what_the_outer_application_put_there(self, app: MRTRServer, serve: Serve) -> None:
        @app.tool
        def tenant(ctx: Context) -> str:
            assert ctx.request is not None
            return f"{ctx.request.path_params['tenant']} {type(ctx.request.app).__name__}"

        wire = serve(Starlette(routes=[Mount("/tenants/{tenant}", app)]), path="/tenants/acme/mcp")
        assert wire.call("tenant").text == "acme Starlette"
