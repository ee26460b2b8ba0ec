"""Progress grows from note to note, or is not sent, in every version; the log tells the author once a round."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mrtr_server import Context, MRTRServer
from mrtr_server.testing import Client

REPORTED = (1, 1, 0.5, math.nan, 2, -math.inf, math.inf, 3, 2.5)
ERAS = ("2026-07-28", "2025-11-25", "2025-03-26", "2024-11-05")


def app_with(function: Any) -> MRTRServer:
    app = MRTRServer("app", keys=[bytes(32)])
    app.tool(function)
    return app


def sent(reply: Any) -> list[float]:
    return [each.progress for each in reply.progress]


@pytest.mark.parametrize("era", ERAS)
class TestProgress:
    def test_that_does_not_grow_is_not_sent_and_logged_once(self, era: str, caplog: pytest.LogCaptureFixture) -> None:
        async def work(ctx: Context) -> str:
            for number in REPORTED:
                await ctx.progress(number)
            return "done"

        reply = Client(app_with(work), era=era).call("work")
        assert reply.text == "done"
        assert sent(reply) == [1, 2, 3]
        assert caplog.text.count("'work' reports progress that does not grow: 1 after 1") == 1

    def test_of_a_plain_function_grows_too(self, era: str) -> None:
        def work(ctx: Context) -> str:
            for number in REPORTED:
                ctx.progress(number)
            return "done"

        told = sent(Client(app_with(work), era=era).call("work"))
        assert told[-1] == 3
        assert told == sorted(set(told)), "newer progress may come in the place of older"

    def test_beside_pieces_grows(self, era: str) -> None:
        async def report(ctx: Context) -> None:
            await ctx.progress(2)

        async def work(ctx: Context) -> AsyncIterator[str]:
            for _ in range(3):
                yield "piece"
                await report(ctx)

        told = sent(Client(app_with(work), era=era).call("work"))
        assert told == sorted(set(told))
        assert told[-1] == 3

    def test_has_a_total_only_where_that_is_a_number(self, era: str) -> None:
        async def work(ctx: Context) -> str:
            await ctx.progress(1, math.inf)
            await ctx.progress(2, 3)
            return "done"

        assert [each.total for each in Client(app_with(work), era=era).call("work").progress] == [None, 3]


def test_of_an_open_call_is_not_sent_again_when_the_function_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    async def work(ctx: Context) -> str:
        await ctx.progress(1)
        name = await ctx.elicit("Name?", str)
        await ctx.progress(2)
        return name

    client = Client(app_with(work), era="2025-11-25", answers={"value": "Ann"})
    told = sent(client.call("work"))
    assert told == sorted(set(told))
    assert {1, 2} <= set(told)
    assert "does not grow" not in caplog.text
