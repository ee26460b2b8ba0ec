"""One line a call at INFO, with the reference that the client got, and one line each for what an operator must know."""

import asyncio
import logging
from typing import Any

import pytest

from mrtr_server import BearerTokens, Context, Limits, MRTRServer, StoreUnavailable, Task
from mrtr_server.flow.admission import CALM_SECONDS, Overload
from mrtr_server.storage.health import Outage
from mrtr_server.testing import Client, Clock, yes

from ..conftest import Serve
from ..support.direct import send
from ..support.help import FAULTS
from ..support.models import Login
from ..support.observed import Lines, Observed, documented, logged
from ..support.stdio import over_pipes
from ..support.wire import modern


def server(**settings: Any) -> MRTRServer:
    app = MRTRServer("logged", keys=[bytes(32)], **settings)

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
        return "deployed"

    @app.tool(task="required")
    async def prepare(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Login)).name

    @app.tool
    def broken() -> str:
        raise ValueError("broken")

    @app.prompt
    def letter(to: str) -> str:
        raise ValueError("broken")

    return app


class TestTasks:
    """Who makes a task, and who reads, answers or cancels it, is in the log (Tasks, Security Considerations)."""

    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
    def test_each_that_is_made_and_each_access_has_a_line_that_says_who_and_which(self, serve: Serve, era: str) -> None:
        with logged() as lines:
            wire = serve(server(auth=BearerTokens({"t": "alice", "u": "bob"})))
            flow = Client(wire.url, token="t", era=era, tasks=True).flow("prepare")
            flow.start()
            flow.look()
            flow.cancel()
            other = Client(wire.url, token="u", era=era, tasks=True).flow("prepare")
            other.task = flow.task
            assert "Unknown task" in other.look().error.message
        made, *seen = (each for each in lines.of("call") if "task" in each)
        assert (made["method"], made["outcome"], made["tool"]) == ("tools/call", "task", "prepare")
        assert flow.task is not None
        assert made["task"] in flow.task
        assert len(made["task"]) == 8
        assert {each["method"] for each in seen} >= {"tasks/get", "tasks/cancel"}
        assert {(each["task"], each["tool"], each["principal"]) for each in seen} == {
            (made["task"], "prepare", made["principal"])
        }
        (refused,) = (each for each in lines.of("call") if each["method"] == "tasks/get" and "error" in each)
        assert "task" not in refused
        assert refused["principal"] not in ("", made["principal"])


class TestALineACall:
    def test_has_what_was_called_by_whom_and_what_came_of_it(self, serve: Serve) -> None:
        with logged() as lines:
            wire = serve(server(auth=BearerTokens({"t": "alice", "u": "bob"})))
            Client(wire.url, token="t").call("greet", answers={"login": {"name": "Ann"}})
            Client(wire.url, token="u").call("add", a=1)
        first, second, other = (each for each in lines.of("call") if each["method"] == "tools/call")
        for fields, number, outcome in ((first, 1, "asked"), (second, 2, "completed")):
            assert {**fields, "ms": 0, "flow": "", "principal": ""} == {
                "event": "call",
                "method": "tools/call",
                "tool": "greet",
                "round": number,
                "flow": "",
                "principal": "",
                "outcome": outcome,
                "ms": 0,
            }
            assert 0 < fields["ms"] < 60_000
        assert first["flow"] == second["flow"]
        assert first["principal"] == second["principal"] != other["principal"]
        assert "alice" not in str([record.getMessage() for record in lines.records])
        assert "flow" not in other, "a call that is over in one round needs none"

    def test_the_text_says_it_too(self) -> None:
        with logged() as lines:
            Client(server()).call("add", a=1)
        (record,) = [each for each in lines.records if each.levelno == logging.INFO]
        assert record.getMessage().startswith("tools/call add: completed in ")

    @pytest.mark.parametrize("era", ["2025-11-25", "sep-draft"])
    def test_there_is_one_a_round_in_every_era(self, era: str) -> None:
        with logged() as lines:
            Client(server(), era=era).call("greet", answers={"login": {"name": "Ann"}})
        assert [each["outcome"] for each in lines.of("call") if "tool" in each] == ["asked", "completed"]

    def test_there_is_one_over_stdio(self) -> None:
        with logged() as lines, over_pipes(server()) as client:
            client.call("add", {"a": 1}, modern=True)
        assert [each["tool"] for each in lines.of("call")] == ["add"]

    def test_each_round_of_a_task_has_one(self) -> None:
        with logged() as lines:
            Client(server(), tasks=True).call("deploy", answers={"confirm": yes})
        (ran,) = lines.of("task_round")
        created = next(each for each in lines.of("call") if each["outcome"] == "task")
        assert (ran["tool"], ran["outcome"], ran["attempt"], len(ran["task"])) == ("deploy", "completed", 1, 8)
        assert ran["flow"] == created["flow"]

    @pytest.mark.parametrize(("method", "name"), [("tools/call", "broken"), ("prompts/get", "letter")])
    def test_it_has_the_reference_that_the_client_got(self, method: str, name: str) -> None:
        with logged() as lines:
            reply = Client(server()).request(
                method, {"name": name, "arguments": {"to": "x"} if name == "letter" else {}}
            )
        (fields,) = lines.of("call")
        (failure,) = lines.of("failure")
        assert fields["reference"] == failure["reference"]
        assert fields["reference"] in str(reply.message)
        assert any(f"(reference {fields['reference']})" in record.getMessage() for record in lines.records)

    def test_it_names_the_trace(self) -> None:
        observed = Observed()
        with logged() as lines:
            Client(server(telemetry=observed.telemetry)).call("add", a=1)
        (fields,), (span,) = lines.of("call"), observed.spans
        assert int(fields["trace_id"], 16) == span.context.trace_id
        assert int(fields["span_id"], 16) == span.context.span_id

    def test_its_fields_are_those_that_the_page_names(self) -> None:
        with logged() as lines:
            client = Client(server(telemetry=Observed().telemetry), tasks=True)
            client.call("deploy", answers={"confirm": yes})
            client.request("tools/call", {"name": "none", "arguments": {}})
        for fields in lines.of("call") + lines.of("task_round"):
            assert fields.keys() <= documented("field")
            assert all(type(value) in (str, int, float) for value in fields.values())

    def test_a_name_that_a_client_made_up_is_not_in_it(self) -> None:
        with logged() as lines:
            Client(server()).request("tools/call", {"name": "made up", "arguments": {}})
        assert not any("made up" in record.getMessage() for record in lines.records)
        assert [each["error"] for each in lines.of("call")] == ["-32602"]


def events(lines: Lines) -> list[str]:
    return [fields["event"] for record in lines.records if (fields := getattr(record, "fields", None))]


class TestOnce:
    def test_an_overload_begins_and_ends_with_a_line_each(self) -> None:
        clock = Clock(0.0)
        overload = Overload(clock)
        with logged() as lines:
            for _ in range(100):
                overload.note(5, 7)
                overload.look()
                clock.advance(1)
            assert events(lines) == ["overload"]
            clock.advance(CALM_SECONDS)
            overload.look()
            overload.look()
            assert events(lines) == ["overload", "overload_over"]
            overload.note(5, 7)
        assert events(lines) == ["overload", "overload_over", "overload"]
        assert lines.of("overload")[0] == {"event": "overload", "running": 5, "waiting": 7, "help": FAULTS}
        assert lines.of("overload_over")[0]["calls"] == 100

    def test_an_overload_that_nobody_looked_at_in_between_ends_as_the_next_one_begins(self) -> None:
        clock = Clock(64.0)
        overload = Overload(clock)
        with logged() as lines:
            overload.note(5, 7)
            clock.advance(3.125)
            overload.note(5, 7)
            clock.advance(CALM_SECONDS)
            overload.note(5, 7)
        assert events(lines) == ["overload", "overload_over", "overload"]
        (over,) = lines.of("overload_over")
        assert (over["seconds"], over["calls"]) == (3.1, 2), "from the first to the last"
        assert lines.records[1].getMessage() == "Not overloaded any more, after 3 s in which 2 calls were turned away"

    @pytest.mark.anyio
    async def test_a_server_that_hands_calls_over_says_so_once(self) -> None:
        app = MRTRServer("busy", keys=[bytes(32)], limits=Limits(max_concurrency=1, shed_above=1))
        end = asyncio.Event()

        @app.tool
        async def wait(ctx: Context) -> str:
            await end.wait()
            return "done"

        def call() -> Any:
            return send(app, modern("tools/call", {"name": "wait", "arguments": {}}))

        with logged() as lines:
            running = asyncio.create_task(call())
            while not app._parts.admission.is_full:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.001)
            for _ in range(5):
                assert "inputRequests" not in (await call()).message["result"]
            end.set()
            await running
        assert events(lines).count("overload") == 1

    @pytest.mark.anyio
    async def test_a_drain_is_said_once(self) -> None:
        app = server()
        with logged() as lines:
            async with app._parts.lifecycle.run(run_tasks=False):
                app.drain()
                app.drain()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert events(lines).count("drain") == 1

    @pytest.mark.anyio
    async def test_an_unusable_store_is_said_once_and_its_return_too(self) -> None:
        with logged() as lines:
            outage = Outage("logged")
            for _ in range(3):
                outage.failed("put", StoreUnavailable("gone"))
            outage.worked("put", wrote=True)
        assert events(lines) == ["store_away", "store_back"]
        away, back = (getattr(record, "fields") for record in lines.records)  # noqa: B009  logging adds it
        assert away["reference"] == back["reference"]
