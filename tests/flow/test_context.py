"""What a handler has of its call: who calls, which flow it is, and what goes to the client meanwhile."""

from typing import Any

import pytest

from mrtr_server import Context, Elicit, MRTRServer
from mrtr_server.protocol.messages import LogLevel
from mrtr_server.testing import AsyncClient, accept

from ..support.models import Login

pytestmark = pytest.mark.anyio

LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")


async def test_a_flow_has_one_id_in_all_its_rounds_and_no_other_has_it(app: MRTRServer) -> None:
    seen: list[tuple[str, int]] = []

    @app.tool
    async def ask(ctx: Context) -> str:
        seen.append((ctx.flow, ctx.round))
        return (await ctx.elicit("Who?", Login)).name

    for _ in range(2):
        flow = AsyncClient(app).flow("ask")
        await flow.start()
        await flow.answer(login=accept(name="ann"))
    (first, one), (again, two), (other, _), (other_again, _) = seen
    assert (one, two) == (1, 2)
    assert len(first) == 32
    assert first == again
    assert other == other_again
    assert first != other


@pytest.mark.parametrize(
    ("asks", "named", "what"),
    [
        (["Who?"], {}, "and not 'Who?'"),
        ([Login], {}, "and not <class"),
        ([], {"who": "Who?"}, "and not 'Who?'"),
        ([Elicit("Who?", Login)], {"who": Elicit("Who?", Login)}, "in order or by name, not both"),
    ],
)
async def test_asks_are_asks_in_order_or_by_name(
    app: MRTRServer, asks: list[Any], named: dict[str, Any], what: str
) -> None:
    raised: list[str] = []

    @app.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.ask(*asks, **named)
        except TypeError as error:
            raised.append(str(error))
        return "done"

    assert (await AsyncClient(app).call("ask")).text == "done"
    (message,) = raised
    assert what in message


@pytest.mark.parametrize(
    ("wanted", "levels"),
    [
        (None, []),
        ("debug", ["debug", "info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("emergency", []),
    ],
)
async def test_messages_go_to_a_client_that_wants_their_level(
    app: MRTRServer, wanted: LogLevel | None, levels: list[str]
) -> None:
    @app.tool
    async def talk(ctx: Context) -> str:
        for level in LEVELS:
            await ctx.log(f"a message of {level}", level=level)
        return "done"

    @app.tool
    def talk_plainly(ctx: Context) -> str:
        for level in LEVELS:
            ctx.log(f"a message of {level}", level=level)
        return "done"

    client = AsyncClient(app, log_level=wanted)
    for tool in ("talk", "talk_plainly"):
        reply = await client.call(tool)
        assert ([message.level for message in reply.messages], reply.failed) == (levels, False)


async def test_headers_come_without_the_token_of_the_caller(app: MRTRServer) -> None:
    seen: list[Any] = []

    @app.tool
    async def look(ctx: Context) -> str:
        assert ctx.request is not None
        seen.extend([dict(ctx.headers), ctx.request.headers["authorization"]])
        return "done"

    flow = AsyncClient(app).flow("look")
    flow.token = "hunter2"
    flow.headers["Proxy-Authorization"] = "Basic hunter3"
    flow.headers["X-Request-Id"] = "7"
    await flow.start()
    headers, whole = seen
    assert headers["x-request-id"] == "7"
    assert "hunter" not in str(headers)
    assert whole == "Bearer hunter2"
