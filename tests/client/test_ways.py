"""The same calls in both eras, by every way to a server; which era it is; and replies that are lost on the way."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as SDKContext
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from mrtr_server import SetupError
from mrtr_server.client import (
    BadReply,
    Bounds,
    CallFailed,
    Client,
    Command,
    NoReply,
    NotAnswered,
    Piece,
    Progress,
    RequestRefused,
)
from mrtr_server.testing import replica
from mrtr_server.wire import HANDSHAKES, MODERN

from ..support.serving import TIMEOUT, in_thread, until
from ..support.stdio import ROOT
from .test_client import app, fill

pytestmark = pytest.mark.anyio

ERAS = (MODERN, HANDSHAKES[0])
STDIO = Command([sys.executable, "-m", "mrtr_server", "stdio", "tests.client.test_client:app"], directory=ROOT)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(params=["a URL", "in process", pytest.param("a command", marks=pytest.mark.processes)])
def server(request: pytest.FixtureRequest, url: str) -> Any:
    return {"a URL": url, "in process": replica(app), "a command": STDIO}[request.param]


@pytest.mark.parametrize("era", [MODERN, *HANDSHAKES])
async def test_a_call_is_answered_in_each_era(server: Any, era: str) -> None:
    noted: list[Progress] = []
    pieces: list[Piece] = []
    async with Client(server, era=era, on_elicit=fill, on_progress=noted.append, on_piece=pieces.append) as client:
        reply = await client.call("count", to=2)
        assert "counted" in reply.text
        assert [each.progress for each in noted] == [1, 2]
        assert (await client.call("recite")).text.startswith("one two ")
        assert [piece.text for piece in pieces] == ["one ", "two ", "three"]
        assert client.era == era
        with pytest.raises(CallFailed, match="Out of paper"):
            await client.call("broken")
        if era != HANDSHAKES[-1] and era != HANDSHAKES[-2]:  # which can't elicit
            assert (await client.call("order", title="Emma")).text == "3 × Emma ordered"
            assert "wants 3" in (await client.get_prompt("greeting", name="Ann")).text


async def test_all_other_kinds_of_questions_are_answered_while_a_call_is_open(server: Any) -> None:
    async with Client(
        server,
        era=HANDSHAKES[0],
        on_link=lambda link: "accept",
        on_sample=lambda sampling: f"{sampling.text} North",
        on_roots=lambda: ["file:///home"],
    ) as client:
        assert (await client.call("everything")).text == "Where to? North from file:///home"
        assert (await client.call("agree")).text == "agreed"
        assert (await client.read("shop://hours")).text == "9 to 5"


async def test_calls_of_one_client_run_at_the_same_time(server: Any) -> None:
    async with Client(server, era=HANDSHAKES[0], on_elicit=fill) as client:
        replies = await asyncio.gather(*(client.call("order", title=str(n)) for n in range(4)))
    assert [each.text for each in replies] == [f"3 × {n} ordered" for n in range(4)]


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_that_is_left_open_ends_the_call(server: Any, era: str) -> None:
    def leave(_: object) -> Any:
        raise NotAnswered

    async with Client(server, era=era, on_elicit=leave) as client:
        with pytest.raises(NotAnswered) as left:
            await client.call("order", title="Emma")
        assert left.value.questions["order"]["params"]["message"] == "How many copies of Emma?"
        assert (await client.call("region", region="north")).text == "in north"


async def test_the_newest_era_is_taken_and_else_a_handshake(server: Any) -> None:
    async with Client(server, on_elicit=fill) as client:
        await client.call("region", region="north")
        assert client.era == MODERN


async def test_a_server_with_a_handshake_alone_gets_one() -> None:
    async with Client(replica(app, dialects=[HANDSHAKES[0]]), on_elicit=fill) as client:
        replies = await asyncio.gather(*(client.call("order", title=str(n)) for n in range(3)))
        assert [each.text for each in replies] == [f"3 × {n} ordered" for n in range(3)]
        assert client.era == HANDSHAKES[0]
    with pytest.raises(SetupError, match="choose from 20"):
        Client("http://127.0.0.1/mcp", era="2023-01-01")


async def test_a_refusal_of_the_first_request_is_no_sign_of_a_handshake(server: Any) -> None:
    async with Client(server) as client:
        with pytest.raises(RequestRefused, match="Unknown tool: nothing"):
            await client.call("nothing")
        assert client.era in (None, MODERN)
        assert (await client.read("shop://hours")).text == "9 to 5"


class Copies(BaseModel):
    copies: int


sdk = MCPServer("official")


@sdk.tool()
async def order(title: str, ctx: SDKContext) -> str:
    """Ask by the official SDK."""
    answer = await ctx.elicit(f"How many of {title}?", Copies)
    assert answer.action == "accept"
    await ctx.report_progress(1, 2, "asked")
    return f"{answer.data.copies} of {title}"


@pytest.mark.parametrize("era", HANDSHAKES[:2])
async def test_the_official_sdk_asks_while_a_call_is_open(era: str) -> None:
    noted: list[Progress] = []
    async with Client(sdk.streamable_http_app(), era=era, on_elicit=fill, on_progress=noted.append) as client:
        assert (await client.call("order", title="Emma")).text == "3 of Emma"
        assert [each.name for each in await client.list_tools()] == ["order"]
    assert noted == [Progress(1, 2, "asked")]


async def test_the_official_sdk_is_spoken_to_in_the_newest_era() -> None:
    async with Client(sdk.streamable_http_app()) as client:
        await client.list_tools()
        assert client.era == MODERN


async def test_an_application_that_is_mounted_is_called_at_its_path() -> None:
    mounted = replica(app, path="/")
    async with Client(
        Starlette(routes=[Mount("/shop", mounted)], lifespan=lambda _: mounted.running()), path="/shop/"
    ) as client:
        assert (await client.call("region", region="north")).text == "in north"


async def test_an_application_that_does_not_start_is_named() -> None:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        raise OSError("no disk")
        yield

    with pytest.raises(SetupError, match=r"startup failed: (?s:.*)no disk"):
        async with Client(Starlette(lifespan=lifespan)):
            pass


def test_what_is_for_another_way_is_refused() -> None:
    with pytest.raises(SetupError, match="not for a Command"):
        Client(STDIO, token="secret")
    with pytest.raises(SetupError, match="give a list"):
        Command("uvx weather")
    with pytest.raises(SetupError, match="a URL has its own"):
        Client("http://127.0.0.1/mcp", path="/mcp")


# Servers of the handshake era that are slow, broken or hostile


def event(id: str = "", message: Any = None, retry: int | None = None) -> bytes:
    data = "" if message is None else json.dumps({"jsonrpc": "2.0", **message})
    return f"id: {id}\n{f'retry: {retry}' + chr(10) if retry is not None else ''}data: {data}\n\n".encode()


class Older:
    """A server of the handshake era: each stream of a call, or of who comes back to it, is the next of `streams`."""

    def __init__(self, *streams: list[bytes]) -> None:
        self.streams = [*streams]
        self.got: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.sessions = 0

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/mcp", self._serve, methods=["POST", "GET", "DELETE"])])

    def methods(self) -> list[Any]:
        return [message.get("method", "answer") if message else method for method, message, _ in self.got]

    async def _serve(self, request: Request) -> Response:
        body = await request.body()
        message: dict[str, Any] = json.loads(body) if body else {}
        self.got.append((request.method, message, dict(request.headers)))
        method = message.get("method")
        if request.method == "POST" and method == "initialize":
            self.sessions += 1
            about = {"protocolVersion": HANDSHAKES[0], "capabilities": {}, "serverInfo": {"name": "o", "version": "1"}}
            result = {"jsonrpc": "2.0", "id": message["id"], "result": about}
            return JSONResponse(result, headers={"Mcp-Session-Id": f"session-{self.sessions}"})
        if request.headers.get("mcp-session-id") != f"session-{self.sessions}":
            return Response(status_code=404)
        if request.method == "DELETE" or (message and (method is None or method.startswith("notifications/"))):
            return Response(status_code=202)
        if not self.streams:
            return Response(status_code=405)

        async def stream() -> AsyncIterator[bytes]:
            number = next(
                each["id"] for _, each, _ in reversed(self.got) if each and each.get("method") == "tools/call"
            )
            for part in self.streams.pop(0):
                yield part.replace(b'"NUMBER"', str(number).encode())

        return StreamingResponse(stream(), media_type="text/event-stream")


DONE = {"id": "NUMBER", "result": {"content": [{"type": "text", "text": "done"}]}}
FORM: dict[str, Any] = {"id": "q.1", "method": "elicitation/create"}
FORM["params"] = {"message": "?", "requestedSchema": {"type": "object", "properties": {"copies": {"type": "integer"}}}}


async def test_a_stream_that_the_server_closes_is_continued_after_its_last_event() -> None:
    older = Older([event("1", retry=1)], [event("2", FORM)], [event("3", retry=1)], [event("4", DONE)])
    async with Client(older.app(), era=HANDSHAKES[0], on_elicit=fill, bounds=Bounds(resends=1)) as client:
        assert (await client.call("tool")).text == "done"
    assert older.methods() == [
        "initialize",
        "notifications/initialized",
        "tools/call",
        "GET",
        "answer",
        "GET",
        "GET",
        "DELETE",
    ]
    came_back = [headers["last-event-id"] for method, _, headers in older.got if method == "GET"]
    assert came_back == ["1", "2", "3"]
    assert all(headers["mcp-protocol-version"] == HANDSHAKES[0] for _, _, headers in older.got[1:])
    assert older.got[4][1] == {"jsonrpc": "2.0", "id": "q.1", "result": {"action": "accept", "content": {"copies": 3}}}


@pytest.mark.parametrize("lost", [[event("1")], [b": nothing"]])
async def test_a_reply_that_nobody_continues_is_lost_and_the_call_not_sent_again(lost: list[bytes]) -> None:
    older = Older(lost)
    async with Client(older.app(), era=HANDSHAKES[0]) as client:
        with pytest.raises(NoReply):
            await client.call("tool")
    assert older.methods().count("tools/call") == 1


async def test_a_session_that_has_ended_is_begun_again() -> None:
    older = Older([event("1", DONE)], [event("1", DONE)])
    async with Client(older.app()) as client:
        await client.call("tool")
        older.sessions += 1  # it knows the one before no more
        assert (await client.call("tool")).text == "done"
    assert older.methods().count("initialize") == 2


async def test_the_time_of_a_person_is_not_that_of_the_server() -> None:
    async def think(_: object) -> Any:
        await asyncio.sleep(0.6)
        return {"copies": 1}

    bounds = Bounds(request_seconds=0.5)
    async with Client(app, era=HANDSHAKES[0], on_elicit=think, bounds=bounds) as client:
        assert (await client.call("recite")).text.endswith("three")


async def test_what_was_not_declared_is_refused_and_a_ping_answered() -> None:
    ask = {"id": 7, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    older = Older([event("1", {"id": 5, "method": "ping"}), event("2", ask), event("3", DONE)])
    async with Client(older.app(), era=HANDSHAKES[0], on_elicit=fill) as client:
        assert (await client.call("tool")).text == "done"
    answers = [message for _, message, _ in older.got if message and "method" not in message]
    assert answers[0] == {"jsonrpc": "2.0", "id": 5, "result": {}}
    assert answers[1]["error"]["code"] == -32601


async def test_questions_without_an_end_end_the_call() -> None:
    older = Older([event(str(n), FORM) for n in range(9)])
    async with Client(older.app(), era=HANDSHAKES[0], on_elicit=fill, bounds=Bounds(rounds=2, questions=2)) as client:
        with pytest.raises(BadReply, match="without an end"):
            await client.call("tool")
    assert "notifications/cancelled" in older.methods()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit(3)", "The server has ended"),
        ("print('hello')", "no JSON-RPC message; is the command that of an MCP server"),
        ("import sys; sys.stdin.readline(); print('{' * 300_000)", "a line of more than 100000 bytes"),
    ],
)
async def test_a_command_that_is_no_server_is_told(program: str, why: str) -> None:
    client = Client(Command([sys.executable, "-c", program]), bounds=Bounds(response_bytes=100_000))
    with pytest.raises((NoReply, BadReply), match=why):
        async with client:
            pass


@pytest.mark.processes
async def test_a_command_that_takes_no_request_any_more_is_told_with_its_exit_code(tmp_path: Path) -> None:
    closed, asked = tmp_path / "closed", tmp_path / "asked"
    program = f"""
import os, sys, time
os.close(0)
open({str(closed)!r}, "w").close()
while not os.path.exists({str(asked)!r}):
    time.sleep(0.01)
sys.exit(3)
"""
    command = Command([sys.executable, "-c", program])
    async with Client(command, era=MODERN, on_message=lambda *_: asked.touch()) as client:
        await until(closed.exists, "the end of its input")
        await asyncio.sleep(0.01)  # in which the event loop sees that, too
        with pytest.raises(NoReply, match="The server has ended, with the exit code 3"):
            await client.list_tools()


@pytest.mark.processes
async def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    reply = {"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": [MODERN]}}
    program = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("pid", "w").write(str(os.getpid()))
print({json.dumps(json.dumps(reply))}, flush=True)
time.sleep({TIMEOUT})
"""
    async with Client(Command([sys.executable, "-c", program], directory=tmp_path)) as client:
        assert client.era == MODERN
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


_TWO_CALLS = f"""
import json, sys
def read():
    return json.loads(sys.stdin.readline())
def write(*messages):
    sys.stdout.write("".join(json.dumps(dict(jsonrpc="2.0", **each)) + chr(10) for each in messages))
    sys.stdout.flush()
result = lambda number, text: dict(id=number, result=dict(content=[dict(type="text", text=text)]))
begun = dict(protocolVersion="{HANDSHAKES[0]}", capabilities=dict(tools=dict()), serverInfo=dict(name="a", version="1"))
write(dict(id=read()["id"], result=begun))
calls = []
while len(calls) < 2:
    message = read()
    if message.get("method") == "tools/list":
        write(dict(id=message["id"], result=dict(tools=[])))
    elif message.get("method") == "tools/call":
        calls.append(message["id"])
schema = dict(type="object", properties=dict())
params = dict(message="Go on?", requestedSchema=schema)
question = dict(id="q", method="elicitation/create", params=params)
write(*([result(calls[0], "done")] if sys.argv[1] == "replies" else []), question)
while (message := read()).get("id") != "q":
    pass
write(result(calls[1], message["result"]["action"]))
sys.stdin.read()
"""


@pytest.mark.processes
async def test_a_question_behind_the_reply_of_one_call_is_to_another_that_is_open() -> None:
    command = Command([sys.executable, "-c", _TWO_CALLS, "replies"])
    async with Client(command, era=HANDSHAKES[0], on_elicit=lambda _: "decline") as client:
        replies = await asyncio.gather(client.call("first"), client.call("second"))
    assert [each.text for each in replies] == ["done", "decline"]


@pytest.mark.processes
async def test_a_question_is_to_another_call_where_the_one_that_heard_it_is_left() -> None:
    asked: list[object] = []

    async def answer(question: object) -> Literal["decline"]:
        asked.append(question)
        if len(asked) == 1:
            first.cancel()
            await asyncio.sleep(TIMEOUT)
        return "decline"

    command = Command([sys.executable, "-c", _TWO_CALLS, "asks alone"])
    async with Client(command, era=HANDSHAKES[0], on_elicit=answer) as client:
        first, second = (asyncio.create_task(client.call(name)) for name in ("first", "second"))
        assert (await second).text == "decline"
        await asyncio.wait([first])
    assert first.cancelled()
    assert len(asked) == 2


async def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(SetupError, match="'no-such-server' can't be started"):
        async with Client(Command(["no-such-server"])):
            pass


@pytest.mark.processes
async def test_a_call_that_is_left_is_cancelled_and_the_process_ends() -> None:
    sent: list[Any] = []
    client = Client(STDIO, era=HANDSHAKES[0], on_elicit=fill, on_message=lambda way, message: sent.append(message))
    async with client:
        call = asyncio.create_task(client.call("count", to=10**9))
        await until(lambda: any(each.get("method") == "notifications/progress" for each in sent), "progress")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.call("region", region="north")).text == "in north"
    assert any(each.get("method") == "notifications/cancelled" for each in sent)
