"""A flow that nobody goes on with leaves nothing behind."""

import asyncio
import gc

import pytest

from mrtr_server import Context, Elicit, InputRequired, Inputs, MRTRServer
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.round import Round
from mrtr_server.testing import AsyncClient
from tests.support.models import Login

pytestmark = pytest.mark.alone

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


def held() -> list[object]:
    """The rounds, journals and tasks that there are."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Round | Journal | asyncio.Task)]


def new_since(before: list[object]) -> list[object]:
    """Those that have come since. The others may be of other tests, and go meanwhile."""
    known = {id(each) for each in before}
    return [each for each in held() if id(each) not in known]


@pytest.mark.parametrize("tool", ["pure", "inline", "side_by_side"])
def test_an_abandoned_flow_is_forgotten(tool: str) -> None:
    async def abandon(flows: int) -> None:
        for _ in range(flows):
            assert (await AsyncClient(app).flow(tool).start()).questions

    async def compare() -> tuple[int, int]:
        before = held()
        await abandon(1)
        after_one = len(new_since(before))
        await abandon(FLOWS)
        return after_one, len(new_since(before))

    after_one, after_many = asyncio.run(compare())
    assert after_many == after_one


def test_what_is_held_is_seen() -> None:
    before = held()
    kept: list[object] = [Journal(0.0) for _ in range(3)]
    assert new_since(before) == kept
