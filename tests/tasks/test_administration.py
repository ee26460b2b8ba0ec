"""What an operator does to a task, in the rows: the commands are tried in `cli/test_tasks.py`."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from mrtr_server import Context, KeyRing, Limits, MRTRServer, ProtocolError, SetupError, SQLStore, Task, TaskRow
from mrtr_server.errors import UnknownTarget
from mrtr_server.protocol.messages import Change
from mrtr_server.tasks.administration import TaskAdministration
from mrtr_server.testing import AsyncClient

from ..support.databases import task_row
from ..support.effects import EFFECTS, effect
from ..support.serving import TIMEOUT
from ..support.users import Bearer

pytestmark = pytest.mark.anyio

RING = KeyRing([bytes(32)])


class AdministrationBench:
    """A server whose task fails until it is mended, and its operator."""

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self.operator = TaskAdministration(store)
        self.app = MRTRServer("bench", keys=[bytes(32)], store=store)
        self.mended = False

        @self.app.tool(task=Task("required", poll=0.05, ttl=60))
        async def work(ctx: Context) -> str:
            done = await ctx.step(effect, "part")
            if not self.mended:
                raise ProtocolError("Broken")
            return f"{done} and the rest"

    async def failed(self) -> TaskRow:
        """Run a task that fails, and return its row."""
        flow = AsyncClient(self.app, tasks=True).flow("work")
        await flow.start()
        return await self.operator.find((await flow.wait()).task.id)

    async def ended(self, row: TaskRow) -> TaskRow:
        """Wait for the end of a task, and return its row."""
        async with asyncio.timeout(TIMEOUT):
            while (found := await self.operator.find(row.id)).status == "working":  # noqa: ASYNC110  what it waits for tells nobody
                await asyncio.sleep(0.02)
        return found


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[AdministrationBench]:
    made = AdministrationBench(SQLStore(f"sqlite:///{tmp_path}/tasks.db"))
    yield made
    await made.app._parts.worker.close()
    await made.store.close()


async def test_a_retried_task_has_all_its_time_and_attempts_again(bench: AdministrationBench) -> None:
    failed = await bench.failed()
    assert failed.status == "failed"
    worn = await bench.store.change_task(
        failed, attempts=6, message="gave up", lease="worker", leased_until=time.time() + 60
    )
    assert worn is not None
    await bench.app._parts.worker.close()  # so that nobody takes the new one
    before = time.time()
    new = await bench.operator.retry(failed.id, RING)
    after = time.time()
    assert await bench.operator.find(new.id) == new
    assert new.id != failed.id
    assert new.call not in (b"", failed.call), "it is bound to the row"
    assert before <= new.created == new.updated <= after
    assert new.deadline == new.created + failed.ttl
    assert new.expires - new.created == pytest.approx(failed.expires - failed.created)
    same = failed._replace(
        id=new.id,
        status="working",
        message="",
        created=new.created,
        updated=new.created,
        deadline=new.deadline,
        expires=new.expires,
        call=new.call,
        journal=new.journal,
        outcome=b"",
        version=0,
        attempts=0,
        lease="",
        leased_until=0.0,
    )
    assert new == same


async def test_a_retried_task_runs_no_step_again(bench: AdministrationBench) -> None:
    failed = await bench.failed()
    bench.mended = True
    ended = await bench.ended(await bench.operator.retry(failed.reference, RING))
    assert ended.status == "completed"
    assert EFFECTS == ["part"]
    assert (await bench.operator.find(failed.id)).status == "failed"
    with pytest.raises(SetupError, match="is completed; only a task that failed can be retried"):
        await bench.operator.retry(ended.id, RING)


async def test_a_retried_task_counts_for_its_caller_and_tenant(url: str) -> None:
    store, limits = SQLStore(url), Limits(stored_tasks=8, tenant_share=0.25, caller_share=1.0)
    app = MRTRServer("bench", keys=[bytes(32)], store=store, auth=Bearer(), limits=limits)

    @app.tool(task=Task("required", poll=0.05))
    async def work(ctx: Context) -> str:
        raise ProtocolError("Broken")

    flow = AsyncClient(app, token="ann@acme", tasks=True).flow("work")
    await flow.start()
    await TaskAdministration(store).retry((await flow.wait()).task.id, RING)
    full = await AsyncClient(app, token="bob@acme", tasks=True).flow("work").start()
    assert full.error.data == {"limit": "stored_tasks", "value": 2}
    await app._parts.worker.close()
    await store.close()


async def test_a_task_that_kept_no_request_is_not_retried(bench: AdministrationBench) -> None:
    row = task_row(status="failed", call=b"")
    await bench.store.add_task(row)
    with pytest.raises(SetupError, match="failed under an earlier release, which kept nothing"):
        await bench.operator.retry(row.id, RING)


async def test_a_cancelled_task_says_since_when_and_stays_as_it_is(bench: AdministrationBench) -> None:
    row = task_row(status="input_required", message="asks", created=time.time() - 60, updated=time.time() - 60)
    await bench.store.add_task(row)
    before = time.time()
    cancelled = await bench.operator.cancel(row.id)
    assert (cancelled.status, cancelled.message, cancelled.call) == ("cancelled", "", b"")
    assert before <= cancelled.updated <= time.time()
    assert await bench.operator.cancel(row.id) == cancelled


@pytest.mark.parametrize("kind", ["task", "run"], ids=["who waits for it", "its worker"])
async def test_a_cancelled_task_is_told_at_once_to_who_has_to_do_with_it(
    bench: AdministrationBench, kind: Literal["task", "run"]
) -> None:
    row = task_row()
    await bench.store.add_task(row)
    change = Change(kind, row.id)
    listening = bench.store.fanout().subscribe(frozenset({change}))
    await bench.operator.cancel(row.id)
    async with asyncio.timeout(TIMEOUT):
        assert await listening.next() == [change]
    listening.close()


async def test_a_task_is_found_by_digits_that_it_alone_begins_with(bench: AdministrationBench) -> None:
    one, two = (task_row(id=f"{'ab' * 3}{digit}{'0' * 25}") for digit in "12")
    for row in (one, two):
        await bench.store.add_task(row)
    assert await bench.operator.find(f"{'ab' * 3}1") == one
    with pytest.raises(SetupError, match=f"Several tasks begin with {'ab' * 3}; give more digits"):
        await bench.operator.find("ab" * 3)
    for nowhere in ("", "ff", "nothing", "%"):
        with pytest.raises(UnknownTarget):
            await bench.operator.find(nowhere)
