"""Keys of tasks: they are rotated while tasks are parked, and who lacks one leaves its tasks to others."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from mrtr_server import ClientInfo, Context, InProcessStore, KeyRing, Limits, MRTRServer, Principal, SQLStore, Task
from mrtr_server.errors import InvalidRequestState, OverBudget
from mrtr_server.flow.journal import Journal, Step
from mrtr_server.limits import LARGEST_META
from mrtr_server.protocol.callers import CAPABILITIES_FIELD, CLIENT_FIELD
from mrtr_server.protocol.messages import Call, Progress, TaskOffer
from mrtr_server.tasks.sealing import _LONGEST_WAIT, RowBinding, SealedTasks, _dump_call
from mrtr_server.testing import AsyncClient, yes

from ..support.databases import task_row
from ..support.wire import JSON

pytestmark = pytest.mark.anyio

OLD, NEW, WRONG = (bytes([number]) * 32 for number in range(3))


@asynccontextmanager
async def server(
    path: Path, *keys: bytes, run_tasks: bool = True, name: str = "bank"
) -> AsyncIterator[tuple[MRTRServer, AsyncClient]]:
    """A replica with these keys, and a client of it."""
    app = MRTRServer(name, keys=keys, store=SQLStore(f"sqlite:///{path}/tasks.db"), run_tasks=run_tasks)

    @app.tool(task=Task("required", poll=0.05))
    async def pay(ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return "paid" if name == "bank" else f"paid by the {name}"

    @app.tool(task=Task("required", poll=0.05, rounds_first=True), single_use=True)
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
        other._parts.redeemer.store = forgetful = InProcessStore()
        forgetful.has_epochs = True
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


INFO: JSON = {"name": "app", "version": "1"}
ABLE: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}


class TestARequestThatIsKept:
    CALL = Call(
        "tools/call",
        {"_meta": {"trace": "x"}, "name": "pay", "arguments": {"to": "bob"}},
        target="pay",
        arguments={"to": "bob"},
        client=ClientInfo({"name": "app", "version": "1"}, {"elicitation": {}}),
        principal=Principal("ann", "issuer", "app"),
        scopes=frozenset({"b", "a"}),
        headers={b"host": b"here:8000", b"cookie": b"secret"},
        root="/under",
        progress_token="p",
        task=TaskOffer(at_once=True),
        request_id=7,
    )

    @staticmethod
    def kept(call: Call, audience: str = "", read_by: str = "") -> Call:
        """Return a call as a server reads it that another one has kept."""
        here, there = (SealedTasks(KeyRing([OLD]), Limits(), name) for name in (audience, read_by))
        row = task_row()
        return there.unseal_call(row._replace(call=here.seal_call(RowBinding(row.id, row.owner), call)))

    def test_has_what_its_handler_may_need_and_nothing_else(self) -> None:
        assert self.kept(self.CALL) == replace(
            self.CALL,
            params={"_meta": {"trace": "x"}},
            headers={b"host": b"here:8000"},
            task=None,
            request_id=0,
        )

    def test_has_the_tenant_of_its_caller_where_older_releases_look_for_nothing(self) -> None:
        kept = self.kept(replace(self.CALL, principal=Principal("ann", "issuer", "app", "acme")))
        assert kept.principal is not None
        assert kept.principal.tenant == "acme"
        read = json.loads(_dump_call(replace(self.CALL, principal=kept.principal), ""))
        assert (read["principal"], read["tenant"]) == (["ann", "issuer", "app"], "acme")
        assert "tenant" not in json.loads(_dump_call(self.CALL, ""))

    @pytest.mark.parametrize(
        "fields",
        [{"task": None}, {"task": TaskOffer()}, {"progress_token": None}],
        ids=["none", "later", "no-progress"],
    )
    def test_reports_progress_where_it_was_to_be_a_task_and_nothing_else(self, fields: JSON) -> None:
        assert self.kept(replace(self.CALL, **fields)).progress_token is None

    def test_may_come_from_nobody_and_say_nothing(self) -> None:
        call = self.kept(Call("tools/call", {}, target="pay"))
        assert (call.params, call.arguments, call.principal, call.user) == ({}, {}, None, None)
        assert (call.scopes, call.headers, call.root) == (frozenset(), {b"host": b""}, "")

    @pytest.mark.parametrize(
        ("said", "once"),
        [({CLIENT_FIELD: INFO, CAPABILITIES_FIELD: ABLE}, True), ({CLIENT_FIELD: INFO, CAPABILITIES_FIELD: {}}, False)],
        ids=["as-known", "otherwise"],
    )
    def test_has_once_what_its_client_says_of_itself(self, said: JSON, once: bool) -> None:
        call = replace(self.CALL, client=ClientInfo(INFO, ABLE), params={"_meta": {"trace": "x", **said}})
        assert self.kept(call).params == {"_meta": {"trace": "x", **said}}
        sizes = [
            len(SealedTasks(KeyRing([OLD]), Limits()).seal_call(RowBinding("id", "owner"), each))
            for each in (replace(call, params={"_meta": {"trace": "x"}}), call)
        ]
        assert (sizes[1] - sizes[0] < 30) is once

    def test_is_read_by_the_server_that_it_came_to_and_by_an_operator(self) -> None:
        for reader in ("https://a.example/mcp", ""):
            assert self.kept(self.CALL, "https://a.example/mcp", reader).target == "pay"
        with pytest.raises(InvalidRequestState) as refusal:
            self.kept(self.CALL, "https://a.example/mcp", "https://b.example/mcp")
        assert refusal.value.reason == (
            "it is of the server 'https://a.example/mcp'. Give each server a database of its own"
        )

    def test_is_refused_where_it_says_too_much_beside_the_arguments(self) -> None:
        def call(size: int) -> Call:
            return replace(self.CALL, params={"_meta": {"x": "x" * size}}, arguments={"x": "x" * LARGEST_META})

        kept = from_json(_dump_call(call(0), ""))
        del kept["arguments"]
        largest = LARGEST_META - len(to_json(kept))
        self.kept(call(largest))
        with pytest.raises(OverBudget, match=f"at most {LARGEST_META} bytes of its request") as refusal:
            self.kept(call(largest + 1))
        assert refusal.value.data == {"limit": "_meta", "value": LARGEST_META}


class TestAJournal:
    """A worker that finds its task changed continues it only where the journal is the one that it has."""

    binding = RowBinding("task", "ann")
    row = task_row(id="task", owner="ann")

    def sealed(self, *keys: bytes) -> SealedTasks:
        return SealedTasks(KeyRing(keys), Limits())

    def test_is_the_same_where_it_was_sealed_anew_under_another_key(self) -> None:
        journal = Journal(1.0)
        old, new = (each.seal_journal(self.binding, journal, 2.0) for each in (self.sealed(OLD), self.sealed(NEW)))
        assert self.sealed(NEW, OLD).is_same_journal(self.row, old, new)

    def test_is_another_one_where_it_says_something_else_or_does_not_open(self) -> None:
        journal, sealed = Journal(1.0), self.sealed(OLD)
        mine = sealed.seal_journal(self.binding, journal, 2.0)
        foreign = self.sealed(NEW).seal_journal(self.binding, journal, 2.0)
        journal.steps["paid"] = Step("paid", {}, "yes", [])
        assert not sealed.is_same_journal(self.row, mine, sealed.seal_journal(self.binding, journal, 2.0))
        assert not sealed.is_same_journal(self.row, mine, foreign)

    def test_opens_as_long_as_its_task_lives_however_long_a_flow_may_take_in_rounds(self) -> None:
        sealed = SealedTasks(KeyRing([OLD]), Limits(flow_seconds=60))
        row = self.row._replace(journal=sealed.seal_journal(self.binding, Journal(1.0), 100.0))
        assert sealed.unseal_journal(row, 1e6).started == 1.0


@pytest.mark.parametrize("progress", [1, 0.5, math.inf, -math.inf])
def test_the_progress_of_a_task_is_a_number_that_others_can_be_compared_with(progress: float) -> None:
    sealed, binding = SealedTasks(KeyRing([OLD]), Limits()), RowBinding("task", "ann")
    note = Progress("token", progress, progress, "half", "task")
    assert sealed.unseal_progress(binding, sealed.seal_progress(binding, note)) == note


class TestTheStateOfAWait:
    """What a client sends again that waits for the result of a task."""

    sealed = SealedTasks(KeyRing([OLD]), Limits())
    binding = RowBinding("task", "ann")

    @pytest.mark.parametrize("pieces", [0, 1, 12_345])
    def test_says_how_many_pieces_its_client_has(self, pieces: int) -> None:
        assert self.sealed.check_wait(self.binding, self.sealed.seal_wait(self.binding, pieces)) == pieces

    @pytest.mark.parametrize("other", [RowBinding("other", "ann"), RowBinding("task", "bob")], ids=["task", "owner"])
    def test_opens_for_its_task_and_owner_alone(self, other: RowBinding) -> None:
        with pytest.raises(InvalidRequestState) as refusal:
            self.sealed.check_wait(other, self.sealed.seal_wait(self.binding, 1))
        assert "it belongs to another task or principal" in refusal.value.reason

    @pytest.mark.parametrize(
        ("state", "reason"), [(7, "not a string"), (None, "not a string"), ("x" * (_LONGEST_WAIT + 1), "too large")]
    )
    def test_is_looked_at_before_it_is_opened(self, state: Any, reason: str) -> None:
        with pytest.raises(InvalidRequestState) as refusal:
            self.sealed.check_wait(self.binding, state)
        assert refusal.value.reason == reason

    def test_is_opened_up_to_its_largest_size(self) -> None:
        with pytest.raises(InvalidRequestState) as refusal:
            self.sealed.check_wait(self.binding, "x" * _LONGEST_WAIT)
        assert refusal.value.reason != "too large"
