"""Faults of a database that come one after the other: refused, then away; ran, then left; done, and the reply lost.

Each is scripted below a real server, on both databases. The others' faults come out of the database itself: a row that
another replica has taken looks as if it had.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from mrtr_server import Context, Limits, MRTRServer, Redemption, SQLStore, StoreUnavailable, TaskRow
from mrtr_server.flow import single_use
from mrtr_server.tasks import task_run, worker
from mrtr_server.testing import AsyncClient, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.serving import TIMEOUT
from ..support.wire import modern

pytestmark = pytest.mark.anyio
T = TypeVar("T")

LEASE = 0.4
"""In seconds."""
TAKEN = "UPDATE mrtr_redemptions SET token = 'another', leased_until = {until}"
"""Another replica has taken each grant, as one may that took us for dead."""

AWAY, LOST, OVER = "away", "lost", "over"
"""Nothing is done; all is done, and the reply is lost; no faults any more."""


class Faulty(SQLStore):
    """A store in a database, whose methods fail as they are told to, one call after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.script: dict[str, list[str]] = {}
        """For each method what becomes of its next calls: a fault, or a statement that is run before."""
        self.calls: list[str] = []
        self._called = asyncio.Event()

    async def called(self, method: str, times: int) -> None:
        """Wait until a method was called so often."""
        async with asyncio.timeout(TIMEOUT):
            while self.calls.count(method) < times:
                self._called.clear()
                await self._called.wait()

    async def _meet(self, method: str, work: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(method)
        self._called.set()
        script = self.script.get(method) or [OVER]
        fault = script.pop(0)
        if fault == AWAY:
            raise StoreUnavailable(f"{method} is away")
        if fault not in (LOST, OVER):
            await self.database.execute(fault, {})
        came = await work()
        if fault == LOST:
            raise StoreUnavailable(f"the reply of {method} was lost")
        return came

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float, **more: Any) -> Redemption:
        return await self._meet("redeem", lambda: SQLStore.redeem(self, state, answers, lease=lease, keep=keep, **more))

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        return await self._meet("renew", lambda: SQLStore.renew(self, state, token, lease=lease))

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        return await self._meet("record", lambda: SQLStore.record(self, state, token, outcome))

    async def release(self, state: str, token: str) -> None:
        await self._meet("release", lambda: SQLStore.release(self, state, token))

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        return await self._meet("change_task", lambda: SQLStore.change_task(self, row, seconds=seconds, **changes))

    async def claim_tasks(
        self, lease: str, *, seconds: float, most: int, tools: Sequence[str], without: Sequence[str] = (), **more: Any
    ) -> list[TaskRow]:
        def claim() -> Awaitable[list[TaskRow]]:
            return SQLStore.claim_tasks(self, lease, seconds=seconds, most=most, tools=tools, without=without, **more)

        return await self._meet("claim_tasks", claim)

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        return await self._meet("renew_tasks", lambda: SQLStore.renew_tasks(self, lease, ids, seconds=seconds))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_use, "RECORD_AGAIN", (0.01, 0.01))
    monkeypatch.setattr(task_run, "AGAIN_AFTER", 0.01)


class Bank:
    """A server that pays, once the test lets it, and what it has paid."""

    def __init__(self, url: str) -> None:
        self.store = Faulty(url)
        self.app = MRTRServer("bank", keys=[bytes(32)], store=self.store, limits=Limits(lease_seconds=LEASE))
        self.paid: list[str] = []
        self.paying = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.app.tool(name="pay", single_use=True)(self._pay)
        self.app.tool(name="work", task="required")(self._work)

    async def _pay(self, ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return await self._effect()

    async def _work(self, ctx: Context) -> str:
        first = await ctx.step(self._effect, key="first")
        return f"{first}; {await ctx.step(self._effect, key='second')}"

    async def _effect(self) -> str:
        self.paying.set()
        await self.gate.wait()
        self.paid.append("paid")
        return f"paid {len(self.paid)}"

    async def asked(self) -> Any:
        """Begin a payment; its question is open."""
        flow = AsyncClient(self.app, log_level=None).flow("pay")
        assert (await flow.start()).questions == {"confirm": "Pay?"}
        return flow

    async def close(self) -> None:
        await self.app._parts.worker.close()
        await self.store.close()


@pytest.fixture
async def bank(url: str) -> AsyncIterator[Bank]:
    made = Bank(url)
    await made.store.check()
    yield made
    await made.close()


class TestASingleUseRound:
    async def test_that_ran_is_told_of_though_its_record_was_refused_and_the_store_went_away(self, bank: Bank) -> None:
        flow = await bank.asked()
        bank.store.script = {"record": [TAKEN.format(until="9e9")], "redeem": [OVER, AWAY]}
        assert (await flow.answer(confirm=yes)).text == "paid 1"
        assert bank.store.calls[-3:] == ["redeem", "record", "redeem"]
        assert bank.paid == ["paid"]

    async def test_that_ran_is_recorded_though_its_client_left_and_its_grant_had_passed_on(self, bank: Bank) -> None:
        flow = await bank.asked()
        bank.store.script = {"record": [TAKEN.format(until="0.0")]}
        bank.gate.clear()
        params = {
            "name": "pay",
            "arguments": {},
            "requestState": flow.state,
            "inputResponses": {"confirm": yes.raw},
        }
        message = modern("tools/call", params)
        leaving = Exchange(bank.app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
        await bank.paying.wait()
        leaving.disconnect()
        await leaving.end()
        bank.gate.set()
        await bank.store.called("record", 2)
        assert (await flow.answer(confirm=yes)).text == "paid 1"
        assert bank.paid == ["paid"]
        assert bank.store.calls.count("record") == 2
        assert "release" not in bank.store.calls

    async def test_whose_grant_was_lost_with_its_reply_runs_when_it_comes_again(self, bank: Bank) -> None:
        flow = await bank.asked()
        bank.store.script = {"redeem": [LOST, OVER]}
        refused = await flow.answer(confirm=yes)
        assert refused.error.message.startswith("Nothing was done")
        assert bank.paid == []
        assert (await flow.answer(confirm=yes)).text == "paid 1"
        assert bank.paid == ["paid"]

    async def test_whose_record_was_lost_with_its_reply_is_recorded_once(self, bank: Bank) -> None:
        flow = await bank.asked()
        bank.store.script = {"record": [LOST, AWAY]}
        assert (await flow.answer(confirm=yes)).text == "paid 1"
        await bank.store.called("record", 3)  # for which the reply does not wait where the machine is slow
        assert (await flow.replay()).text == "paid 1"
        assert bank.store.calls.count("record") == 3
        assert bank.paid == ["paid"]

    async def test_whose_renewals_fail_in_turn_runs_once(self, bank: Bank) -> None:
        flow = await bank.asked()
        bank.store.script = {"renew": [AWAY, LOST, AWAY]}
        bank.gate.clear()
        paying = asyncio.create_task(flow.answer(confirm=yes))
        await bank.store.called("renew", 4)
        bank.gate.set()
        assert (await paying).text == "paid 1"
        assert (await flow.replay()).text == "paid 1"
        assert bank.paid == ["paid"]


class TestATask:
    async def test_whose_changes_are_lost_or_fail_in_turn_does_each_step_once(self, bank: Bank) -> None:
        bank.store.script = {"change_task": [LOST, AWAY, AWAY, LOST, AWAY, LOST]}
        done = await AsyncClient(bank.app, tasks=True, log_level=None).call("work")
        assert done.text == "paid 1; paid 2"
        assert bank.paid == ["paid"] * 2
        assert bank.store.script["change_task"] == []

    async def test_whose_renewals_fail_in_turn_runs_once(self, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", 0.05)
        bank.store.script = {"renew_tasks": [AWAY, LOST, AWAY]}
        bank.gate.clear()
        flow = AsyncClient(bank.app, tasks=True, log_level=None).flow("work")
        await flow.start()
        await bank.store.called("renew_tasks", 4)
        bank.gate.set()
        assert (await flow.wait()).text == "paid 1; paid 2"
        assert bank.paid == ["paid"] * 2
