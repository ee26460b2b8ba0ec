"""A flow that nobody goes on with leaves nothing behind."""

import asyncio
import gc

import pytest

from mrtr_server import Context, Elicit, InputRequired, Inputs, MRTRServer
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.round import Round
from tests.apps import Login
from tests.walk import Walk

FLOWS = 50

app = MRTRServer("forgetful", keys=[bytes(32)])


@app.tool
def pure(inputs: Inputs) -> str | InputRequired:
    login = inputs.get("login", Login)
    return InputRequired(login=Elicit("Who are you?", Login)) if login is None else login.name


@app.tool
async def inline(ctx: Context) -> str:
    return (await ctx.elicit("Who are you?", Login)).name


@app.tool
async def side_by_side(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(ctx.elicit("Who is the first?", Login, key="first"))
        other = group.create_task(ctx.elicit("Who is the second?", Login, key="second"))
    return one.result().name + other.result().name


def held() -> int:
    """How many rounds, journals and tasks there are."""
    gc.collect()
    return sum(isinstance(each, Round | Journal | asyncio.Task) for each in gc.get_objects())


@pytest.mark.parametrize("tool", ["pure", "inline", "side_by_side"])
def test_an_abandoned_flow_is_forgotten(tool: str) -> None:
    async def abandon(flows: int) -> int:
        for _ in range(flows):
            assert await Walk(app, target=tool).questions()
        return held()

    async def compare() -> tuple[int, int]:
        return await abandon(1), await abandon(FLOWS)

    before, after = asyncio.run(compare())
    assert after == before


def test_what_is_held_is_seen() -> None:
    before = held()
    kept = [Journal(0.0) for _ in range(3)]
    assert held() == before + len(kept)
