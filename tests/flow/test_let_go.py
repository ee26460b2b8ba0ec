"""What a round has held is free as soon as it has ended: nothing of it waits for the next garbage collection."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import Context, Depends, Elicit, InputRequired, Inputs, MRTRServer, ToolError
from mrtr_server.testing import AsyncClient

from ..support.models import Login

pytestmark = pytest.mark.anyio


class Note(BaseModel):
    """An argument, of which a test sees whether anything holds it."""

    text: str


class Held:
    """The arguments of calls."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Note]] = []

    def see(self, note: Note) -> None:
        self.seen.append(weakref.ref(note))

    @property
    def left(self) -> int:
        """How many have been seen and are still there."""
        assert self.seen
        return sum(each() is not None for each in self.seen)


HELD = Held()


async def asks(ctx: Context, note: Note) -> str:
    """Ask."""
    HELD.see(note)
    return (await ctx.elicit("Who?", Login)).name


async def asks_side_by_side(ctx: Context, note: Note) -> str:
    """Ask twice at once."""
    HELD.see(note)
    await asyncio.gather(ctx.elicit("Who?", Login, key="a"), ctx.elicit("Who else?", Login, key="b"))
    return "done"


async def asks_in_a_group(ctx: Context, note: Note) -> str:
    """Ask in a task group."""
    HELD.see(note)
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.elicit("Who?", Login))
    return "done"


async def fails_in_a_group(ctx: Context, note: Note) -> str:
    """Fail in a task group."""
    HELD.see(note)
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
    return "done"


async def fails_beside_a_question(ctx: Context, note: Note) -> str:
    """Fail in a task group in which somebody is asked."""
    HELD.see(note)
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.elicit("Who?", Login))
        group.create_task(fail())
    return "done"


async def fail() -> None:
    """Fail for the model."""
    await asyncio.sleep(0)
    raise ToolError("It is not there")


async def asks_after_a_step(ctx: Context, note: Note) -> str:
    """Ask after a step, and catch what comes."""
    HELD.see(note)
    await ctx.step(lambda: note.text, key="step")
    try:
        return (await ctx.elicit("Who?", Login)).name
    except Exception as error:
        return str(error)


async def session(note: Note) -> AsyncIterator[Note]:
    """Yield what is rolled back with a round that asks."""
    yield note


def plain_session(note: Note) -> Iterator[Note]:
    """Yield it, as a plain function."""
    yield note


async def asks_with_dependencies(
    ctx: Context,
    note: Note,
    one: Annotated[Note, Depends(session)],
    other: Annotated[Note, Depends(plain_session)],
) -> str:
    """Ask while dependencies are open, after a step."""
    HELD.see(one)
    HELD.see(other)
    text = note.text
    await ctx.step(lambda: text, key="step")
    return (await ctx.elicit("Who?", Login)).name


def asks_purely(inputs: Inputs, note: Note) -> str | InputRequired:
    """Ask, as a pure function."""
    HELD.see(note)
    login = inputs.get("login", Login)
    return login.name if login else InputRequired(login=Elicit("Who?", Login))


async def tells_the_model(ctx: Context, note: Note) -> str:
    """Fail for the model."""
    HELD.see(note)
    raise ToolError("It is not there")


async def takes_too_long(ctx: Context, note: Note) -> str:
    """Take too long."""
    HELD.see(note)
    await asyncio.sleep(60)
    return "done"


ROUNDS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        asks,
        asks_side_by_side,
        asks_in_a_group,
        fails_in_a_group,
        fails_beside_a_question,
        asks_after_a_step,
        asks_with_dependencies,
        asks_purely,
        tells_the_model,
    )
}


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage: what refers to itself in a circle stays."""
    HELD.seen.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def call(function: Callable[..., Any], **options: Any) -> None:
    """Call a function as a tool, and answer nothing."""
    app = MRTRServer("held", keys=[bytes(32)])
    app.tool(**options)(function)
    await AsyncClient(app, tasks=True).flow(function.__name__, note={"text": "x"}).start()
    await asyncio.sleep(0.05)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", ROUNDS)
async def test_the_arguments_of_a_round_are_free_when_it_has_ended(kind: str) -> None:
    await call(ROUNDS[kind])
    assert HELD.left == 0


@pytest.mark.usefixtures("no_collection")
async def test_those_of_one_that_timed_out_are_too() -> None:
    await call(takes_too_long, timeout=0.01)
    assert HELD.left == 0


@pytest.mark.usefixtures("no_collection")
async def test_those_of_a_task_that_waits_are_too() -> None:
    await call(asks_after_a_step, task="required")
    assert HELD.left == 0
