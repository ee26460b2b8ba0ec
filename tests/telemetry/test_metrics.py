"""What is measured and counted, with labels that no client can make more of."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import BearerTokens, Context, InProcessStore, KeyRing, Limits, MRTRServer, Redemption, SQLStore, Task
from mrtr_server.flow.admission import Admission
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.messages import Call
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.storage.rows import Lease
from mrtr_server.tally import Tally
from mrtr_server.tasks.records import TaskRecords
from mrtr_server.tasks.task_run import TaskRun
from mrtr_server.tasks.task_service import Tasks
from mrtr_server.telemetry import meters
from mrtr_server.telemetry.names import BUCKETS, METRICS
from mrtr_server.testing import Client, decline, no, yes

from ..conftest import Serve
from ..support.direct import send
from ..support.models import Login
from ..support.observed import Observed
from ..support.wire import modern

CALLS, FLOWS, ASKS, ANSWERS = "mrtr.server.rounds", "mrtr.server.flows", "mrtr.server.asks", "mrtr.server.answers"
REFUSALS, TASKS = "mrtr.server.refusals", "mrtr.server.tasks"
DURATION = "mcp.server.operation.duration"


def server(observed: Observed, **settings: Any) -> MRTRServer:
    app = MRTRServer("measured", keys=[bytes(32)], telemetry=observed.telemetry, **settings)

    @app.tool
    def add(a: int) -> int:
        return a

    @app.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Login)).name

    @app.tool(task=Task(rounds_first=True))
    async def deploy(ctx: Context) -> str:
        await ctx.confirm("Deploy?")
        await ctx.background()
        return (await ctx.elicit("Who?", Login)).name

    return app


LOGIN = {"login": {"name": "Ann"}}


class TestCallsAndFlows:
    def test_the_duration_has_the_labels_and_buckets_of_the_conventions(self, observed: Observed) -> None:
        client = Client(server(observed))
        client.call("add", a=1)
        client.request("tools/call", {"name": "nothing", "arguments": {}})
        common = {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "mcp.protocol.version": "2026-07-28",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "network.protocol.version": "1.1",
        }
        failed = {"error.type": "-32602", "rpc.response.status_code": "-32602"}
        assert observed.points(DURATION) == [({**common, "gen_ai.tool.name": "add"}, 1), ({**common, **failed}, 1)]
        assert BUCKETS[DURATION] == (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)

    def test_rounds_and_flows_are_counted_by_their_end_and_length(self, observed: Observed) -> None:
        client = Client(server(observed))
        client.call("add", a=1)
        client.call("greet", answers=LOGIN)
        client.call("deploy", answers={"confirm": no})
        assert observed.value(CALLS, outcome="asked") == 2
        assert observed.value(FLOWS, outcome="completed", rounds="1", tool="add") == 1
        assert observed.value(FLOWS, outcome="completed", rounds="2", tool="greet") == 1
        assert observed.value(FLOWS, outcome="declined", rounds="2") == 1
        assert observed.value(FLOWS) == 3

    def test_an_abandoned_flow_is_one_that_waits_and_is_not_resumed(self, observed: Observed) -> None:
        one, other = server(observed), server(observed)
        Client(one, other).call("greet", answers=LOGIN)
        Client(one).flow("greet").start()
        waits, resumes = (observed.value(f"mrtr.server.flow.{each}", round="1") for each in ("waits", "resumes"))
        assert (waits, resumes) == (2, 1)

    def test_questions_are_counted_by_kind_and_by_what_came_of_them(self, observed: Observed) -> None:
        client = Client(server(observed), tasks=True)
        client.call("deploy", answers={"confirm": yes, **LOGIN})
        client.call("deploy", answers={"confirm": decline})
        flow = client.flow("greet").start()
        client.request(
            "tools/call", {"name": "greet", "arguments": {}, "requestState": flow.message["result"]["requestState"]}
        )
        assert observed.value(ASKS, kind="confirm") == 2
        assert observed.value(ASKS, kind="form") == 3
        assert observed.value(ANSWERS, kind="confirm", action="accept") == 1
        assert observed.value(ANSWERS, kind="confirm", action="decline") == 1
        assert observed.value(ANSWERS, kind="form", action="accept") == 1
        assert observed.value(ANSWERS, kind="form", action="missing") == 1

    def test_the_size_of_each_state(self, observed: Observed) -> None:
        Client(server(observed)).call("greet", answers=LOGIN)
        assert observed.value("mrtr.server.state.size", tool="greet") == 1

    def test_two_servers_of_a_process_are_counted_together(self, observed: Observed) -> None:
        for app in (server(observed), server(observed)):
            Client(app).call("add", a=1)
        assert observed.value(DURATION) == 2

    def test_names_that_clients_make_up_are_no_labels(self, observed: Observed) -> None:
        client = Client(server(observed))
        for number in range(50):
            client.request("tools/call", {"name": f"made-up-{number}", "arguments": {}})
            client.request("prompts/get", {"name": f"made-up-{number}"})
            client.request(f"made/up/{number}")
        assert "made-up" not in observed.text
        assert "made/up" not in observed.text
        assert len(observed.points(CALLS)) == 2

    def test_every_metric_has_the_labels_that_the_page_names(self, observed: Observed) -> None:
        client = Client(server(observed), tasks=True)
        client.call("deploy", answers={"confirm": yes, **LOGIN})
        client.request("no/such")
        for metric in METRICS:
            for labels, _ in observed.points(metric.name):
                assert labels.keys() <= set(metric.labels), metric.name


class TestRefusals:
    def test_each_is_counted_by_its_reason(self, observed: Observed, serve: Serve) -> None:
        app = server(observed, limits=Limits(body_bytes=5000, rounds=1))
        wire = serve(app)
        wire.send(b"{", {"Content-Type": "application/json"})
        wire.send(b"x" * 6000, {"Content-Type": "application/json"})
        wire.send(b"{}", {"Content-Type": "application/json", "Origin": "http://evil.example"})
        wire.post(modern("no/such"), {})
        wire.post(modern("tools/list"), {"Mcp-Method": "prompts/list"})
        wire.call("greet", state="forged")
        wire.call("greet", capabilities={})
        found = {
            (labels["mrtr.refusal.reason"], labels.get("mrtr.limit")): n for labels, n in observed.points(REFUSALS)
        }
        assert found == {
            ("parse_error", None): 1,
            ("payload_too_large", "body_bytes"): 1,
            ("origin", None): 1,
            ("unknown_method", None): 1,
            ("header_mismatch", None): 1,
            ("state_unreadable", None): 1,
            ("missing_capability", None): 1,
        }

    def test_a_state_that_does_not_open_says_why(self, observed: Observed) -> None:
        app = server(observed)
        state = Client(app).flow("greet").start().message["result"]["requestState"]
        other = MRTRServer("measured", keys=[b"1" * 32], telemetry=observed.telemetry)
        other.include(app)
        again = {"name": "greet", "arguments": {}, "requestState": state}
        Client(other).request("tools/call", again)
        Client(app).request("tools/call", {**again, "arguments": {"more": 1}})
        assert observed.value(REFUSALS, reason="state_key_unknown") == 1
        assert observed.value(REFUSALS, reason="state_of_another") == 1

    def test_who_is_not_authenticated(self, observed: Observed, serve: Serve) -> None:
        wire = serve(server(observed, auth=BearerTokens({"t": "alice"})))
        wire.client.post(wire.url, json={})
        wire.client.post(wire.url, json={}, headers={"Authorization": "Bearer x"})
        Client(wire.url, token="t").call("add", a=1)
        assert observed.value(REFUSALS, reason="unauthenticated") == 2

    @pytest.mark.anyio
    async def test_calls_that_are_handed_over_for_lack_of_room(self, observed: Observed) -> None:
        app = server(observed, limits=Limits(max_concurrency=1, shed_above=1))
        begun, end = asyncio.Event(), asyncio.Event()

        @app.tool
        async def wait() -> str:
            begun.set()
            await end.wait()
            return "done"

        call = modern("tools/call", {"name": "wait", "arguments": {}})
        running = asyncio.create_task(send(app, call))
        await begun.wait()
        await send(app, call)
        assert observed.value("mrtr.server.shed", outcome="handed_over") == 1
        end.set()
        await running

    @pytest.mark.anyio
    async def test_a_drain_is_no_lack_of_room(self, observed: Observed) -> None:
        app = server(observed)
        await send(app, modern("tools/list"))
        app.drain()
        await send(app, modern("tools/call", {"name": "greet", "arguments": {}}))
        assert observed.value(CALLS, outcome="handed_over") == 1
        assert observed.value("mrtr.server.shed") == 0
        assert observed.value("mrtr.server.draining") == 1


class TestTasks:
    def test_each_status_and_how_long_it_lasted(self, observed: Observed) -> None:
        client = Client(server(observed), tasks=True)
        client.call("deploy", answers={"confirm": yes, **LOGIN})
        assert {labels["mrtr.task.status"]: n for labels, n in observed.points(TASKS)} == {
            "working": 2,
            "input_required": 1,
            "completed": 1,
        }
        took = {labels["mrtr.task.status"]: n for labels, n in observed.points("mrtr.server.task.status.duration")}
        assert took == {"queued": 2, "working": 2, "input_required": 1}

    @pytest.mark.anyio
    async def test_one_whose_answer_does_not_come_is_abandoned(self) -> None:
        tally, now = Tally(), 1000.0
        store = InProcessStore(clock=lambda: now)
        records = TaskRecords(store, KeyRing([bytes(32)]), InProcessFanout(), Limits(), clock=lambda: now, tally=tally)
        tasks = Tasks(records, InProcessFanout(), Admission(Limits()))
        task = await tasks.start(
            TaskTerms(required=True, rounds_first=False), Call("tools/call", {}, "act"), Journal(now)
        )
        row = await store.find_task(task.id)
        assert row is not None
        waiting = await store.change_task(row, status="input_required", deadline=now)
        assert waiting is not None
        await records.expire(waiting)
        assert tally.of("mrtr.server.tasks.abandoned") == [(("act",), 1)]

    @pytest.mark.anyio
    async def test_one_that_a_dead_worker_had_is_a_take_over_and_what_comes_late_is_dropped(
        self, observed: Observed
    ) -> None:
        store = InProcessStore()
        app = server(observed, store=store)
        parts = app._parts
        parts.observe()
        call = Call("tools/call", {}, "deploy")
        await parts.tasks.start(TaskTerms(required=True, rounds_first=False), call, Journal(time.time()))
        (row,) = await store.claim_tasks("dead", seconds=0.01, most=1, tools=["deploy"])
        late = TaskRun(
            TaskRecords(store, parts.shared.ring, parts.fanout, Limits(), tally=parts.tally), row, Lease(9, 0)
        )
        late.begin(Journal(row.created), 3600.0, None)
        await asyncio.sleep(0.02)  # its lease
        parts.worker.start()
        while not observed.named("task deploy"):  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
        await late.keep()
        await parts.worker.close()
        assert dict(observed.named("task deploy")[0].attributes or {})["mrtr.task.attempt"] == 2
        assert observed.value("mrtr.server.takeovers", work="task") == 1
        assert observed.value("mrtr.server.results.dropped", work="task") == 1


class TestTheStore:
    def test_how_long_each_operation_took(self, observed: Observed, tmp_path: Path) -> None:
        app = server(observed, store=f"sqlite:///{tmp_path}/s.db")
        Client(app, tasks=True).call("deploy", answers={"confirm": yes, **LOGIN})
        timed = {
            labels["mrtr.store.operation"] for labels, _ in observed.points("mrtr.server.store.operation.duration")
        }
        assert {"redeem", "record", "add_task", "change_task", "find_task"} <= timed
        assert "wait_for_tasks" not in timed

    @pytest.mark.anyio
    async def test_one_that_fails_is_timed_with_its_error(self, observed: Observed) -> None:
        app = server(observed, store=SQLStore("postgresql://u@127.0.0.1:1/none"))
        reply = await send(app, modern("tools/call", {"name": "deploy", "arguments": {}}))
        answers = {"confirm": {"action": "accept", "content": {"confirm": True}}}
        state = reply.message["result"]["requestState"]
        again = {"name": "deploy", "arguments": {}, "requestState": state, "inputResponses": answers}
        assert (await send(app, modern("tools/call", again))).status == 503
        assert observed.value("mrtr.server.store.operation.duration", type="store_unavailable", operation="redeem") == 1
        assert observed.value("mrtr.server.store.away") == 1
        assert observed.value(REFUSALS, reason="not_executed") == 1
        await app._parts.shared.watched.close()

    @pytest.mark.anyio
    async def test_rounds_that_are_taken_over_or_come_too_late(self, observed: Observed) -> None:
        class Taken(InProcessStore):
            async def redeem(self, *args: Any, **options: Any) -> Redemption:
                return Redemption("granted", "token", attempt=2)

            async def record(self, *args: Any) -> bool:
                return False

        watched = server(observed, store=Taken())._parts.shared.watched
        await watched.redeem("s", "a", lease=1, keep=1)
        await watched.record("s", "t", b"")
        tally = watched._tally
        assert tally.of("mrtr.server.takeovers") == [(("round",), 1)]
        assert tally.of("mrtr.server.results.dropped") == [(("round",), 1)]


class TestTheLoop:
    def test_how_late_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(meters, "INTERVAL", 0.01)
        found: list[float] = []

        async def scene() -> None:
            meters.measure_lag(found.append)
            meters.measure_lag(lambda _: pytest.fail("it is measured already"))
            time.sleep(0.1)  # noqa: ASYNC251  this is what is measured
            while not found:  # noqa: ASYNC110  a timer is no event
                await asyncio.sleep(0.001)

        asyncio.run(scene())
        assert 0.05 < found[0] < 60

    @pytest.mark.anyio
    async def test_it_is_measured_wherever_a_server_runs(self, observed: Observed) -> None:
        app = server(observed)
        await send(app, modern("tools/list"))
        await asyncio.sleep(meters.INTERVAL * 1.5)
        assert observed.value("mrtr.server.event_loop.lag") >= 1

    @pytest.mark.anyio
    async def test_calls_in_flight_and_waiting(self, observed: Observed) -> None:
        app = MRTRServer("waiting", keys=[bytes(32)], telemetry=observed.telemetry, limits=Limits(max_concurrency=1))
        begun, end = asyncio.Event(), asyncio.Event()

        @app.tool
        async def wait() -> str:
            begun.set()
            await end.wait()
            return "done"

        calls = [asyncio.create_task(send(app, modern("tools/call", {"name": "wait", "arguments": {}}))) for _ in "ab"]
        await begun.wait()
        while app._parts.admission.waiting < 1:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.001)
        assert observed.value("mrtr.server.requests.in_flight") == 2
        assert observed.value("mrtr.server.queue.length") == 1
        end.set()
        await asyncio.gather(*calls)
        assert observed.value("mrtr.server.requests.in_flight") == 0
