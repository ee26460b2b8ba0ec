"""A function may close the stream of its call: its client comes back to any replica for what comes of it."""

import asyncio
from typing import Any

import pytest

from mrtr_server import Context, MRTRServer

from ..support.effects import EFFECTS
from ..support.handshake import OLDER, Handshake
from ..support.models import Login
from ..support.wire import text_of
from .conftest import Connect


def register(app: MRTRServer) -> MRTRServer:
    @app.tool
    async def work(ctx: Context, logs: bool = False) -> str:
        """Let the client go, and work on."""
        if logs:
            await ctx.log("begun")
        await ctx.close_stream(retry=0.2)
        await ctx.progress(1)
        await asyncio.sleep(0.2)
        EFFECTS.append("worked")
        return "worked"

    @app.tool
    def work_in_a_thread(ctx: Context) -> str:
        """Let the client go, from a thread."""
        ctx.close_stream(retry=0.2)
        EFFECTS.append("worked")
        return "worked"

    @app.tool
    async def ask_around(ctx: Context) -> str:
        """Let the client go before a question, and after it."""
        await ctx.close_stream()
        login = await ctx.elicit("Who?", Login)
        await ctx.close_stream()
        EFFECTS.append("asked")
        return f"{login.name} is here"

    return app


def events(client: Handshake, tool: str, **arguments: Any) -> tuple[str, int | None, list[str]]:
    """Call a tool; return the last id of its stream, when to come back, and what came on it."""
    with client.calling(tool, **arguments) as stream:
        came = [event.data for event in stream.events()]
    return stream.last_id, stream.retry, came


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    ("tool", "arguments"), [("work", {}), ("work", {"logs": True}), ("work_in_a_thread", {})], ids=str
)
def test_its_client_comes_back_for_the_result(
    connect: Connect, database: str, servers: int, tool: str, arguments: dict[str, Any]
) -> None:
    client = connect(servers, store=database, register=register)
    last, retry, came = events(client, tool, **arguments)
    assert retry == 200
    assert came[-1] == ""
    assert not any("result" in data for data in came)
    with client.resume(last) as stream:
        assert text_of(stream.end()) == "worked"
    assert EFFECTS == ["worked"]


@pytest.mark.parametrize("servers", [1, 2])
def test_it_is_asked_when_it_comes_back(connect: Connect, database: str, servers: int) -> None:
    client = connect(servers, store=database, register=register)
    last, retry, came = events(client, "ask_around")
    assert (retry, came) == (1000, [""])
    with client.resume(last) as stream:
        asked = stream.ask()
        client.accept(asked, name="Jane")
        assert [event.data for event in stream.events()] == [""], "closed again, with nothing to read"
    with client.resume(stream.last_id) as stream:
        assert text_of(stream.end()) == "Jane is here"
    assert EFFECTS == ["asked"]


def test_those_that_can_t_come_back_wait(connect: Connect) -> None:
    client = connect(register=register)
    whole = client.send("tools/call", {"name": "work", "arguments": {}}, Accept="application/json")
    assert whole.text == "worked"
    for version in OLDER:
        assert connect(version=version, register=register).call("work").text == "worked"
    assert EFFECTS == ["worked"] * 4
