"""`timeout=` of a tool: how long its function may run in each round, and what becomes of what runs then."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from mrtr_server import Context, Depends, InProcessStore, Limits, MRTRServer, SetupError
from mrtr_server.flow import runner
from mrtr_server.testing import AsyncClient

from ..support.serving import TIMEOUT
from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

SHORT = 0.2
"""In seconds."""

YES = {"confirm": True}


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("timely", keys=[bytes(32)], limits=Limits(threads=1))


def assert_given_up(reply: Any, tool: str) -> None:
    """See that the model is told."""
    assert reply.failure == f"{tool} timed out after 0.2 seconds. Part of its work may have been done."


async def test_an_async_function_is_cancelled(app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    @app.tool(timeout=SHORT)
    async def slow() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return "slow"

    assert_given_up(await AsyncClient(app).call("slow"), "slow")
    assert ended.is_set()
    assert caplog.messages == ["'slow' timed out after 0.2 s"]


async def test_a_plain_one_runs_on_and_keeps_its_thread(
    app: MRTRServer, caplog: pytest.LogCaptureFixture, virtual_time: VirtualTime
) -> None:
    gate, loop, began = threading.Event(), asyncio.get_running_loop(), asyncio.Event()

    @app.tool(timeout=SHORT)
    def slow() -> str:
        loop.call_soon_threadsafe(began.set)
        gate.wait(TIMEOUT)
        return "slow"

    first = asyncio.create_task(AsyncClient(app).call("slow"))
    await began.wait()
    with virtual_time.passing():
        assert_given_up(await first, "slow")
    assert "it continues in its thread, and occupies it until it returns" in caplog.text
    assert app._parts.threads.busy == 1
    with virtual_time.passing():  # there is no other thread, and this one never begins
        assert_given_up(await AsyncClient(app).call("slow"), "slow")
    gate.set()
    assert (await AsyncClient(app).call("slow")).text == "slow"


async def test_waiting_for_the_person_does_not_count(app: MRTRServer) -> None:
    @app.tool(timeout=SHORT)
    async def asks(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return "done"

    flow = AsyncClient(app).flow("asks")
    await flow.start()
    await asyncio.sleep(SHORT * 1.5)
    assert (await flow.answer(confirm=YES)).text == "done"


async def test_waiting_for_its_turn_does_not_count() -> None:
    app = MRTRServer("timely", keys=[bytes(32)], limits=Limits(max_concurrency=1))

    @app.tool
    async def long() -> str:
        await asyncio.sleep(SHORT * 1.5)
        return "long"

    @app.tool(timeout=SHORT)
    async def short() -> str:
        return "short"

    replies = await asyncio.gather(*(AsyncClient(app).call(tool) for tool in ("long", "short")))
    assert [reply.text for reply in replies] == ["long", "short"]


async def test_a_step_that_runs_is_not_cut_and_no_other_begins(app: MRTRServer) -> None:
    ran = list[str]()

    async def step(name: str) -> str:
        await asyncio.sleep(SHORT * 1.5)
        ran.append(name)
        return name

    @app.tool(timeout=SHORT)
    async def steps(ctx: Context) -> str:
        await ctx.step(step, "first")
        return await ctx.step(step, "second")

    assert_given_up(await AsyncClient(app).call("steps"), "steps")
    assert ran == ["first"]


async def test_in_a_task_it_is_the_result(app: MRTRServer) -> None:
    @app.tool(task="optional", timeout=SHORT)
    async def background(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        await asyncio.sleep(600)
        return "done"

    flow = AsyncClient(app, tasks=True).flow("background")
    await flow.start()
    await flow.wait()
    await asyncio.sleep(SHORT * 1.5)
    await flow.answer(confirm=YES)
    assert_given_up(await flow.wait(), "background")
    await app._parts.worker.close()


async def test_what_is_done_once_is_recorded_as_given_up() -> None:
    app, ran = MRTRServer("timely", keys=[bytes(32)], store=InProcessStore()), list[str]()

    @app.tool(single_use=True, timeout=SHORT)
    async def once(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        ran.append("begun")
        await asyncio.sleep(600)
        return "done"

    flow = AsyncClient(app).flow("once")
    await flow.start()
    assert_given_up(await flow.answer(confirm=YES), "once")
    assert ran == ["begun"]


async def test_what_its_dependencies_hold_is_torn_down(app: MRTRServer) -> None:
    seen = list[str]()

    def held() -> Iterator[str]:
        try:
            yield "held"
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            seen.append("released")

    @app.tool(timeout=SHORT)
    async def holds(thing: Annotated[str, Depends(held)]) -> str:
        await asyncio.sleep(600)
        return thing

    assert_given_up(await AsyncClient(app).call("holds"), "holds")
    assert seen == ["CancelledError", "released"]


async def test_a_timeout_of_the_functions_own_is_an_error_like_any(
    app: MRTRServer, caplog: pytest.LogCaptureFixture
) -> None:
    @app.tool(timeout=30)
    async def fails() -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(600)
        return "never"

    assert "Internal error" in (await AsyncClient(app).call("fails")).failure
    assert "timed out" not in caplog.text


async def test_one_of_what_the_server_does_beside_the_function_is_a_fault_and_not_told_as_its_own() -> None:
    handler: Any = SimpleNamespace(name="slow", is_async=True)

    async def publish() -> Any:
        raise TimeoutError("the store took too long")

    with pytest.raises(TimeoutError, match="the store took too long"):
        await runner._in_time(handler, TIMEOUT, publish())


async def test_what_ends_in_time_is_as_ever(app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
    @app.tool(timeout=30)
    def quick() -> str:
        time.sleep(0.01)
        return "quick"

    assert (await AsyncClient(app).call("quick")).text == "quick"
    assert caplog.messages == []


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "5"])
def test_no_positive_number_is_refused(app: MRTRServer, seconds: Any) -> None:
    with pytest.raises(SetupError, match="timeout="):
        app.tool(timeout=seconds)
