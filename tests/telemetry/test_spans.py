"""A span a round, named as the conventions for MCP have it, below the client's own and linked to the flow's first."""

import json
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from mrtr_server import Context, Elicit, InputRequired, Inputs, Limits, MRTRServer, Task, ToolError
from mrtr_server.telemetry.open_telemetry import LONGEST, read
from mrtr_server.testing import Client, no, yes

from ..conftest import Serve
from ..support.direct import send
from ..support.handshake import Handshake, handshakes
from ..support.models import Login
from ..support.observed import Observed, documented
from ..support.stdio import over_pipes
from ..support.wire import modern

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "swordfish"


def server(observed: Observed, **settings: Any) -> MRTRServer:
    app = MRTRServer("observed", keys=[bytes(32)], telemetry=observed.telemetry, **settings)

    @app.tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.tool
    async def greet(ctx: Context, greeting: str = "Hi") -> str:
        login = await ctx.elicit("Who?", Login)
        await ctx.step(str, login.name)
        return f"{greeting} {login.name}"

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        login = inputs.get("login", Login)
        return InputRequired(login=Elicit("Who?", Login)) if login is None else login.name

    @app.tool(task=Task(rounds_first=True))
    async def deploy(ctx: Context) -> str:
        await ctx.confirm("Deploy?")
        await ctx.background()
        return (await ctx.elicit("Who?", Login)).name

    @app.tool
    def broken() -> str:
        raise ValueError(SECRET)

    @app.tool
    def unhappy() -> str:
        raise ToolError(SECRET)

    @app.tool
    async def traced(ctx: Context) -> list[str]:
        with observed.tracers.get_tracer("author").start_as_current_span("inner"):
            return [str(baggage.get_baggage("user"))]

    @app.prompt
    async def letter(to: str, ctx: Context) -> str:
        return f"{to} {(await ctx.elicit('Who?', Login)).name}"

    @app.resource("notes://all")
    def notes() -> str:
        return "all"

    @app.resource("notes://{id}")
    def note(id: str) -> str:
        return id

    return app


def of(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


def place(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def links(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


class TestTheConventions:
    def test_a_call_over_http(self, observed: Observed, serve: Serve) -> None:
        assert serve(server(observed)).call("add", {"a": 1}, id=7).text == "2"
        (span,) = observed.spans
        assert (span.name, span.kind, span.status.status_code) == ("tools/call add", SpanKind.SERVER, StatusCode.UNSET)
        attributes = of(span)
        assert attributes.pop("client.port") > 0
        assert attributes == {
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "add",
            "gen_ai.operation.name": "execute_tool",
            "mcp.protocol.version": "2026-07-28",
            "jsonrpc.request.id": "7",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "network.protocol.version": "1.1",
            "client.address": "127.0.0.1",
            "mrtr.outcome": "completed",
            "mrtr.flow.round": 1,
        }

    def test_a_prompt_and_a_resource(self, observed: Observed) -> None:
        client = Client(server(observed))
        client.get_prompt("letter", to="Ann", answers={"login": {"name": "Bob"}})
        client.read("notes://all")
        client.read("notes://swordfish")
        names = [span.name for span in observed.spans]
        assert names == ["prompts/get letter", "prompts/get letter", "resources/read", "resources/read"]
        assert of(observed.spans[0])["gen_ai.prompt.name"] == "letter"
        assert of(observed.spans[2])["mcp.resource.uri"] == "notes://all"
        assert "mcp.resource.uri" not in of(observed.spans[3]), "the rest of its URI is an argument"

    def test_what_does_not_ask_has_a_span_too(self, observed: Observed) -> None:
        assert "result" in Client(server(observed)).request("tools/list").message
        assert [(span.name, of(span)["mrtr.outcome"]) for span in observed.spans] == [("tools/list", "completed")]

    def test_an_error_has_its_code_and_no_word_of_the_client(self, observed: Observed) -> None:
        Client(server(observed)).request("tools/call", {"name": SECRET, "arguments": {}})
        (span,) = observed.spans
        assert (span.name, span.status.status_code, span.status.description) == ("tools/call", StatusCode.ERROR, None)
        assert (of(span)["error.type"], of(span)["rpc.response.status_code"]) == ("-32602", "-32602")
        assert SECRET not in observed.text

    @pytest.mark.parametrize("tool", ["unhappy", "broken"])
    def test_a_result_with_an_error_is_a_tool_error(self, observed: Observed, tool: str) -> None:
        reply = Client(server(observed)).flow(tool).start()
        (span,) = observed.spans
        assert (of(span)["error.type"], "rpc.response.status_code" in of(span)) == ("tool_error", False)
        assert span.status.status_code is StatusCode.ERROR
        if tool == "broken":
            reference = of(span)["mrtr.reference"]
            assert reference in json.dumps(reply.message)
            assert span.status.description == f"reference {reference}"
        assert SECRET not in observed.text

    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "2024-11-05"])
    def test_the_version_is_the_one_that_the_client_speaks(self, observed: Observed, era: str) -> None:
        assert Client(server(observed), era=era).call("add", a=1).text == "2"
        (span,) = observed.named("tools/call add")
        assert of(span)["mcp.protocol.version"] == era

    @pytest.mark.parametrize(("wanted", "agreed"), [("2024-11-05", "2024-11-05"), ("1.0.0", "2025-11-25")])
    def test_that_of_initialize_is_the_one_that_both_agree_on(
        self, observed: Observed, serve: Serve, wanted: str, agreed: str
    ) -> None:
        client = Handshake([serve(server(observed)).url])
        with handshakes(client):
            assert client.http.post(
                client.url(),
                json=client.request("initialize", {"protocolVersion": wanted}),
                headers=client.given(),
            ).is_success
        (span,) = observed.named("initialize")
        assert of(span)["mcp.protocol.version"] == agreed

    def test_the_drafts_have_no_version(self, observed: Observed) -> None:
        Client(server(observed), era="sep-draft").call("add", a=1)
        assert "mcp.protocol.version" not in of(observed.spans[0])

    def test_a_session_is_named_by_a_digest(self, observed: Observed, serve: Serve) -> None:
        client = Handshake([serve(server(observed)).url])
        with handshakes(client):
            client.begin()
            client.call("add", a=1)
            client.call("add", a=2)
        first, second = observed.named("tools/call add")
        assert of(first)["mcp.session.id"] == of(second)["mcp.session.id"]
        assert len(of(first)["mcp.session.id"]) == 16
        assert client.session not in observed.text

    @pytest.mark.parametrize("is_modern", [True, False])
    def test_over_stdio_the_transport_is_a_pipe(self, observed: Observed, is_modern: bool) -> None:
        with over_pipes(server(observed)) as client:
            if not is_modern:
                client.initialize()
            client.call("add", {"a": 1}, modern=is_modern)
        (span,) = observed.named("tools/call add")
        assert of(span)["network.transport"] == "pipe"
        assert not {"network.protocol.name", "client.address"} & of(span).keys()


class TestParents:
    def call(self, serve: Serve, app: MRTRServer, meta: dict[str, Any], headers: dict[str, str | None]) -> None:
        message = modern("tools/call", {"name": "add", "arguments": {"a": 1}})
        message["params"]["_meta"] |= meta
        assert serve(app).post(message, headers).text == "2"

    def parent(self, observed: Observed) -> tuple[int, int] | None:
        (span,) = observed.named("tools/call add")
        return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)

    def test_the_one_in_meta_comes_before_the_headers(self, observed: Observed, serve: Serve) -> None:
        self.call(serve, server(observed), {"traceparent": PARENT, "tracestate": "a=b"}, {"traceparent": OTHER})
        assert self.parent(observed) == (int(TRACE, 16), int(SPAN, 16))
        assert observed.spans[0].parent is not None
        assert observed.spans[0].parent.trace_state.to_header() == "a=b"

    def test_headers_count_where_meta_has_none(self, observed: Observed, serve: Serve) -> None:
        self.call(serve, server(observed), {}, {"traceparent": PARENT})
        assert self.parent(observed) == (int(TRACE, 16), int(SPAN, 16))

    def test_without_either_it_begins_a_trace(self, observed: Observed, serve: Serve) -> None:
        self.call(serve, server(observed), {}, {})
        assert self.parent(observed) is None

    @pytest.mark.anyio
    async def test_the_span_around_it_is_its_parent_or_else_linked(self, observed: Observed) -> None:
        app, message = server(observed), modern("tools/call", {"name": "add", "arguments": {"a": 1}})
        with observed.tracers.get_tracer("web").start_as_current_span("POST") as around:
            at = around.get_span_context()
            await send(app, message)
            message["params"]["_meta"]["traceparent"] = PARENT
            await send(app, message)
        below, beside = observed.named("tools/call add")
        assert below.parent is not None
        assert below.parent.span_id == at.span_id
        assert beside.parent is not None
        assert beside.parent.span_id == int(SPAN, 16)
        assert links(beside) == [(at.trace_id, at.span_id)]

    def test_what_a_handler_begins_is_below_it_and_sees_the_baggage(self, observed: Observed, serve: Serve) -> None:
        message = modern("tools/call", {"name": "traced", "arguments": {}})
        message["params"]["_meta"] |= {"traceparent": PARENT, "baggage": "user=alice"}
        assert "alice" in json.dumps(serve(server(observed)).post(message).message)
        inner, outer = observed.spans
        assert inner.parent is not None
        assert (inner.name, inner.parent.span_id) == ("inner", place(outer)[1])
        assert not trace.get_current_span().get_span_context().is_valid

    @pytest.mark.parametrize(
        "meta",
        [
            {"traceparent": 7},
            {"traceparent": ""},
            {"traceparent": ["00"]},
            {"traceparent": PARENT.upper()},
            {"traceparent": PARENT + "\n"},
            {"traceparent": PARENT + "-more"},
            {"traceparent": "ff" + PARENT[2:]},
            {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
            {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
            {"traceparent": "01" + PARENT[2:] + "-" + "x" * LONGEST["traceparent"]},
            {"traceparent": "٠" * 55},
        ],
        ids=lambda meta: repr(meta)[:40],
    )
    def test_one_that_is_none_is_as_good_as_none(self, observed: Observed, serve: Serve, meta: dict[str, Any]) -> None:
        self.call(serve, server(observed), meta, {})
        assert self.parent(observed) is None

    @pytest.mark.parametrize("name", ["tracestate", "baggage"])
    @pytest.mark.parametrize("value", [7, None, {}, "\0", "a=b\r\nc", "," * 8000, "a=b," * 5000, "=;=%%%"])
    def test_what_comes_with_it_may_be_anything(
        self, observed: Observed, serve: Serve, name: str, value: object
    ) -> None:
        self.call(serve, server(observed), {"traceparent": PARENT, name: value}, {})
        assert self.parent(observed) == (int(TRACE, 16), int(SPAN, 16))

    @pytest.mark.parametrize("value", ["", "x" * 300, "é" * 55, PARENT * 100])
    def test_headers_may_be_anything_too(self, observed: Observed, serve: Serve, value: str) -> None:
        given: dict[str, Any] = {"traceparent": value.encode("latin-1"), "baggage": b"a" * 9000, "tracestate": b"\xff"}
        self.call(serve, server(observed), {}, given)
        assert self.parent(observed) is None


class TestFlows:
    @pytest.mark.parametrize("tool", ["greet", "pure"])
    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "sep-draft"])
    def test_each_round_is_linked_to_the_first(self, observed: Observed, tool: str, era: str) -> None:
        Client(server(observed), era=era).call(tool, answers={"login": {"name": "Ann"}})
        first, second = observed.named(f"tools/call {tool}")
        assert [of(span)["mrtr.outcome"] for span in (first, second)] == ["asked", "completed"]
        assert (links(first), links(second)) == ([], [place(first)])
        assert [of(span)["mrtr.flow.round"] for span in (first, second)] == [1, 2]
        assert of(first)["mrtr.flow.id"] == of(second)["mrtr.flow.id"]
        assert (of(first)["mrtr.asks"], "mrtr.asks" in of(second)) == (("form",), False)
        assert of(first)["mrtr.state.size"] > 100

    def test_so_it_is_at_another_replica(self, observed: Observed) -> None:
        other = Observed()
        flow = Client(server(observed), server(other)).flow("greet")
        flow.finish({"login": {"name": "Ann"}})
        (first,), (second,) = observed.spans, other.spans
        assert links(second) == [place(first)]

    def test_a_replica_without_telemetry_passes_the_link_on(self, observed: Observed) -> None:
        plain = server(Observed())
        silent = MRTRServer("observed", keys=[bytes(32)], telemetry=False)
        silent.include(plain)
        flow = Client(server(observed)).flow("deploy")
        state = flow.start().message["result"]["requestState"]
        again = Client(silent).request(
            "tools/call", {"name": "deploy", "arguments": {}, "requestState": state, "inputResponses": {}}
        )
        last = Client(server(observed)).request(
            "tools/call",
            {
                "name": "deploy",
                "arguments": {},
                "requestState": again.message["result"]["requestState"],
                "inputResponses": {"confirm": {"action": "decline"}},
            },
        )
        assert last.message["result"]["isError"]
        first, third = observed.spans
        assert links(third) == [place(first)]

    def test_a_task_and_its_workers_are_linked_to_it(self, observed: Observed) -> None:
        reply = Client(server(observed), tasks=True).call("deploy", answers={"confirm": yes, "login": {"name": "Ann"}})
        assert reply.text == "Ann"
        first, created = observed.named("tools/call deploy")
        asked, done = observed.named("task deploy")
        for later in (created, asked, done):
            assert links(later) == [place(first)]
            assert of(later)["mrtr.flow.id"] == of(first)["mrtr.flow.id"]
        assert of(created)["mrtr.outcome"] == "task"
        assert [of(span)["mrtr.outcome"] for span in (asked, done)] == ["asked", "completed"]
        assert of(created)["mrtr.task.reference"] == of(asked)["mrtr.task.reference"]
        assert (asked.parent, asked.kind) == (None, SpanKind.INTERNAL)

    def test_a_request_about_a_task_names_the_task_and_is_linked_to_its_flow(self, observed: Observed) -> None:
        client = Client(server(observed), tasks=True)
        client.call("deploy", answers={"confirm": yes, "login": {"name": "Ann"}})
        first, created = observed.named("tools/call deploy")
        (update,), (*looks, last) = observed.named("tasks/update"), observed.named("tasks/get")
        for span in (update, *looks):
            assert links(span) == [place(first)]
            assert of(span)["mrtr.flow.id"] == of(first)["mrtr.flow.id"]
        for span in (update, *looks, last):
            assert of(span)["mrtr.task.reference"] == of(created)["mrtr.task.reference"]
        assert (len(looks) > 0, links(last)) == (True, []), "of what was completed nothing is left but its result"

    def test_one_about_a_task_of_its_own_first_round_is_linked_to_that(self, observed: Observed) -> None:
        app = MRTRServer("observed", keys=[bytes(32)], telemetry=observed.telemetry)

        @app.tool(task="required")
        async def report(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Login)).name

        client = Client(app, tasks=True)
        created = client.request("tools/call", {"name": "report", "arguments": {}}).message["result"]
        for method in ("tasks/get", "tasks/cancel"):
            client.request(method, {"taskId": created["taskId"]})
        (call,) = observed.named("tools/call report")
        assert links(call) == [], "it is the first itself"
        for method in ("tasks/get", "tasks/cancel"):
            (span,) = observed.named(method)
            assert links(span) == [place(call)]
            assert of(span)["mrtr.task.reference"] == of(call)["mrtr.task.reference"]

    def test_one_about_a_task_that_is_not_there_names_none(self, observed: Observed) -> None:
        Client(server(observed), tasks=True).request("tasks/get", {"taskId": "0" * 48})
        (span,) = observed.named("tasks/get")
        assert (links(span), of(span).get("mrtr.task.reference")) == ([], None)

    def test_a_no_is_told_from_a_mistake(self, observed: Observed) -> None:
        Client(server(observed)).call("deploy", answers={"confirm": no})
        assert of(observed.spans[-1])["mrtr.outcome"] == "declined"

    def test_a_flow_that_is_not_sampled_carries_no_place(self) -> None:
        observed = Observed(ALWAYS_OFF)
        state = Client(server(observed)).flow("greet").start()
        Client(server(observed)).call("greet", answers={"login": {"name": "Ann"}})
        sampled = Client(server(Observed())).flow("greet").start()
        assert observed.spans == []
        assert len(state.message["result"]["requestState"]) < len(sampled.message["result"]["requestState"])

    def test_what_is_sealed_is_read_as_strictly(self) -> None:
        assert read(PARENT) is not None
        assert [read(each) for each in ("", "00", PARENT + "x", PARENT.replace("-", "_"))] == [None] * 4


class TestSecrets:
    def test_no_answer_argument_or_state_is_anywhere(
        self, observed: Observed, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = server(observed, limits=Limits(rounds=3))
        with caplog.at_level("INFO", "mrtr_server"):
            client = Client(app, tasks=True)
            client.call("pure", answers={"login": {"name": SECRET}})
            client.call("deploy", answers={"confirm": yes, "login": {"name": SECRET}})
            client.call("greet", greeting=SECRET, answers={"login": {"name": SECRET}})
            client.call("add", a=SECRET)
            client.get_prompt("letter", to=SECRET, answers={"login": {"name": SECRET}})
            client.read(f"notes://{SECRET}")
            state = client.flow("greet").start().message["result"]["requestState"]
            client.request("tools/call", {"name": "greet", "requestState": state, "arguments": {"greeting": SECRET}})
        assert len(observed.spans) > 12
        assert SECRET not in observed.text
        assert state not in observed.text + caplog.text
        assert SECRET not in caplog.text

    def test_every_attribute_is_one_that_the_page_names(self, observed: Observed) -> None:
        client = Client(server(observed), tasks=True)
        client.call("deploy", answers={"confirm": yes, "login": {"name": "x"}})
        client.flow("broken").start()
        client.request("prompts/get", {"name": "nothing"})
        client.read("notes://all")
        assert {name for span in observed.spans for name in of(span)} <= documented("attribute")
