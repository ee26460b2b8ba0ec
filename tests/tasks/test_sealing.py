"""Keys of tasks: they are rotated while tasks are parked, and who lacks one leaves its tasks to others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mrtr_server import Context, InProcessStore, MRTRServer, SQLStore
from mrtr_server.testing import AsyncClient, yes

pytestmark = pytest.mark.anyio

OLD, NEW, WRONG = (bytes([number]) * 32 for number in range(3))


@asynccontextmanager
async def server(
    path: Path, *keys: bytes, run_tasks: bool = True, name: str = "bank"
) -> AsyncIterator[tuple[MRTRServer, AsyncClient]]:
    """A replica with these keys, and a client of it."""
    app = MRTRServer(name, keys=keys, store=SQLStore(f"sqlite:///{path}/tasks.db"), run_tasks=run_tasks)

    @app.tool(task="required", poll=0.05)
    async def pay(ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return "paid" if name == "bank" else f"paid by the {name}"

    @app.tool(task="required", single_use=True, poll=0.05)
    async def transfer(ctx: Context) -> str:
        await ctx.confirm("Transfer?")
        await ctx.background()
        await ctx.confirm("Really?")
        return "transferred"

    try:
        yield app, AsyncClient(app, tasks=True)
    finally:
        await app._parts.worker.close()
        await app._parts.shared.store.close()


async def test_a_task_goes_on_in_every_phase_of_a_rotation(tmp_path: Path) -> None:
    async with server(tmp_path, OLD) as (_, client):
        flow = client.flow("pay")
        await flow.start()
        assert (await flow.wait()).task.status == "input_required"
    for keys in ((OLD, NEW), (NEW, OLD)):
        async with server(tmp_path, *keys) as (app, _):
            flow.move_to(app)
            assert (await flow.look()).task.status == "input_required"
    async with server(tmp_path, NEW, OLD) as (app, _):
        flow.move_to(app)
        assert (await flow.answer(confirm=yes)).text == "paid"
    async with server(tmp_path, NEW) as (app, _):  # what it ended with was sealed by the new one
        flow.move_to(app)
        assert (await flow.look()).text == "paid"


@pytest.mark.parametrize("rings", [((OLD, NEW), (NEW, OLD)), ((NEW, OLD), (OLD, NEW))])
async def test_a_flow_that_comes_again_is_the_same_task_whichever_key_comes_first(
    tmp_path: Path, rings: tuple[tuple[bytes, ...], ...]
) -> None:
    async with server(tmp_path, *rings[0]) as (_, client), server(tmp_path, *rings[1]) as (other, _):
        flow = client.flow("transfer")
        await flow.start()
        first = await flow.answer(confirm=yes)
        # As if the record of it had been lost with the first replica.
        other._parts.redeemer._store = InProcessStore()
        flow.move_to(other)
        assert (await flow.replay(first)).task.id == first.task.id


async def test_a_worker_with_another_key_leaves_tasks_to_others_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path, OLD) as (_, client):
        flow = client.flow("pay")
        task = (await flow.start()).task.id
        await flow.wait()
    async with server(tmp_path, WRONG) as (wrong, _), server(tmp_path, OLD, run_tasks=False) as (app, other):
        flow.move_to(wrong)
        assert (await flow.look()).error.code == -32603
        flow.move_to(app)
        await other.request("tasks/update", {"taskId": task, "inputResponses": {"confirm": yes.raw}})
        await asyncio.sleep(3)  # so that it comes to the wrong one again
        assert (await flow.look()).task.status == "working"
        async with server(tmp_path, OLD) as (right, _):
            flow.move_to(right)
            await flow.look()  # which wakes its worker
            assert (await flow.wait()).text == "paid"
    assert (
        caplog.text.count("Tasks can't be run here: sealed under a key that is not in the ring. Give every replica")
        == 1
    )


async def test_a_server_of_another_name_runs_no_tasks_of_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path, OLD, name="shop") as (_, stranger):
        await (flow := stranger.flow("pay")).start()  # its worker works
        await flow.wait()
        async with server(tmp_path, OLD, run_tasks=False) as (_, client):
            pay = client.flow("pay")
            task = (await pay.start()).task.id
            await asyncio.sleep(3)  # so that it comes to the shop
            assert (await pay.look()).task.status == "working"
            async with server(tmp_path, OLD) as (bank, _):
                pay.move_to(bank)
                await pay.look()  # which wakes its worker
                await pay.wait()
                given = {"taskId": task, "inputResponses": {"confirm": yes.raw}}
                await stranger.request("tasks/update", given)  # of its own user, to whom it shows the task
                assert (await pay.wait()).text == "paid"
    assert caplog.text.count("Tasks can't be run here: it is of the server 'bank'. Give each server a database") == 1
