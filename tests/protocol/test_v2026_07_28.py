"""The dialect of 2026-07-28: what each request carries, in which order it is checked, and what each result says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from mrtr_server import (
    BearerTokens,
    Context,
    ElicitUrl,
    Icon,
    InputRequired,
    Inputs,
    ListRoots,
    Lists,
    MRTRServer,
    Sample,
    ServerInfo,
    State,
    TextContent,
    ToolResult,
)
from mrtr_server.protocol.dialect import result_of_tool
from mrtr_server.protocol.messages import Call

from ..conftest import Serve
from ..support.apps import strict
from ..support.serving import in_thread
from ..support.wire import JSON, PREFIX, TASKS, VERSION, Reply, Wire, accept, meta, modern, request

PROTOCOL_VERSION, CAPABILITIES = PREFIX + "protocolVersion", PREFIX + "clientCapabilities"


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with in_thread(strict) as port:
        sender = Wire(f"http://127.0.0.1:{port}/mcp")
        yield sender
        sender.close()


class TestChecks:
    """Each request below is wrong in two ways; the one that is checked first is what the client hears of.

    The order is the one that the specification and the conformance suite imply: the version's header, `_meta`, both
    against each other, the version, the other headers, the method, the parameters.
    """

    def send(self, wire: Wire, message: JSON, headers: dict[str, str | None]) -> tuple[int, int | None]:
        reply = wire.post(message, headers)
        assert reply.message.get("id") == message["id"]
        return reply.status, reply.code

    def test_a_missing_version_header_goes_before_a_broken_meta(self, wire: Wire) -> None:
        message = request("tools/list", {"_meta": {PROTOCOL_VERSION: VERSION}})
        assert self.send(wire, message, {"MCP-Protocol-Version": None}) == (400, -32020)

    def test_a_broken_meta_goes_before_a_header_that_differs(self, wire: Wire) -> None:
        message = request("tools/list", {"_meta": {PROTOCOL_VERSION: VERSION}})
        assert self.send(wire, message, {"MCP-Protocol-Version": "v999.0.0"}) == (400, -32602)

    def test_a_header_that_differs_goes_before_an_unsupported_version(self, wire: Wire) -> None:
        message = request("tools/list", {"_meta": meta() | {PROTOCOL_VERSION: "v999.0.0"}})
        assert self.send(wire, message, {}) == (400, -32020)

    def test_an_unsupported_version_goes_before_a_wrong_method_header(self, wire: Wire) -> None:
        message = request("tools/list", {"_meta": meta() | {PROTOCOL_VERSION: "v999.0.0"}})
        assert self.send(wire, message, {"MCP-Protocol-Version": "v999.0.0", "Mcp-Method": "x"}) == (400, -32022)

    def test_a_wrong_method_header_goes_before_an_unknown_method(self, wire: Wire) -> None:
        assert self.send(wire, modern("unknown/method"), {"Mcp-Method": "tools/list"}) == (400, -32020)

    def test_a_wrong_name_header_goes_before_an_unknown_tool(self, wire: Wire) -> None:
        assert self.send(wire, modern("tools/call", {"name": "nowhere"}), {"Mcp-Name": "add"}) == (400, -32020)

    def test_a_wrong_parameter_header_goes_before_a_missing_capability(self, wire: Wire) -> None:
        message = modern("tools/call", {"name": "deploy", "arguments": {"service": "shop"}}, capabilities={})
        assert self.send(wire, message, {"Mcp-Param-Service": "bank"}) == (400, -32020)
        assert self.send(wire, message, {"Mcp-Param-Service": "shop"}) == (400, -32021)

    def test_the_capability_goes_before_nothing_that_is_wrong(self, wire: Wire) -> None:
        """It is known to be missing only when the handler asks, after the arguments were read."""
        message = modern("tools/call", {"name": "deploy", "arguments": {"service": None}}, capabilities={})
        assert wire.post(message).result["isError"] is True


class TestMeta:
    def test_needs_a_version_and_capabilities_only(self, wire: Wire) -> None:
        assert wire.post(request("tools/list", {"_meta": {PROTOCOL_VERSION: VERSION, CAPABILITIES: {}}})).result[
            "tools"
        ]

    def test_may_have_anything_else(self, wire: Wire) -> None:
        extra = {
            "com.example/trace": [1, {"x": None}],
            "progressToken": "p",
            PREFIX + "unheardOf": 1,
            "traceparent": "x",
        }
        assert wire.post(request("tools/list", {"_meta": {**meta(), **extra}})).result["tools"]

    def test_of_one_request_says_nothing_of_the_next(self, wire: Wire) -> None:
        """Capabilities are declared per request, and nothing is remembered."""
        assert wire.call("greet", capabilities={"elicitation": {}}).status == 200
        assert wire.call("greet", capabilities={}).code == -32021

    def test_reaches_the_handler(self, serve: Serve) -> None:
        app = MRTRServer("seen", keys=[bytes(32)])

        @app.tool
        def seen(ctx: Context) -> list[Any]:
            return [ctx.client.name, ctx.client.version, ctx.meta["com.example/x"], ctx.client.supports("sampling")]

        params = {"_meta": {**meta({"sampling": {}}, clientInfo={"name": "c", "version": "1"}), "com.example/x": 5}}
        reply = serve(app).post(request("tools/call", {"name": "seen", **params}))
        assert reply.result["structuredContent"] == ["c", "1", 5, True]

    @pytest.mark.parametrize(
        ("declared", "forms", "urls"),
        [
            ({}, False, False),
            ({"elicitation": {}}, True, False),
            ({"elicitation": {"form": {}}}, True, False),
            ({"elicitation": {"url": {}}}, False, True),
            ({"elicitation": {"form": {}, "url": {}}}, True, True),
            ({"elicitation": {"form": None}}, True, False),  # null is absent, and so this is the empty object
            ({"elicitation": None}, False, False),
            ({"elicitation": []}, False, False),
            ({"elicitation": "yes"}, False, False),
        ],
    )
    def test_says_which_modes_of_elicitation_may_be_used(
        self, wire: Wire, declared: JSON, forms: bool, urls: bool
    ) -> None:
        """An empty object means forms only."""
        assert (wire.call("greet", capabilities=declared).status == 200) is forms
        assert (wire.call("visit", capabilities=declared).status == 200) is urls

    @pytest.mark.parametrize(
        ("ask", "needs"),
        [
            (Sample("x"), {"sampling": {}}),
            (Sample("x", include_context="none"), {"sampling": {}}),
            (Sample("x", include_context="allServers"), {"sampling": {"context": {}}}),
            (Sample("x", tools=[{"name": "t", "inputSchema": {"type": "object"}}]), {"sampling": {"tools": {}}}),
            (Sample("x", tool_choice={"mode": "auto"}), {"sampling": {"tools": {}}}),
            (ListRoots(), {"roots": {}}),
            (ElicitUrl("x", "https://example.com"), {"elicitation": {"url": {}}}),
        ],
    )
    def test_must_declare_what_an_ask_needs(self, serve: Serve, ask: Any, needs: JSON) -> None:
        app = MRTRServer("needs", keys=[bytes(32)])

        @app.tool
        def needy(inputs: Inputs) -> InputRequired:
            return InputRequired(it=ask)

        wire = serve(app)
        (name,) = needs
        less: list[JSON] = [{}, {} if needs[name] == {} else {name: {}}]
        for declared in less:
            refused = wire.call("needy", capabilities=declared)
            assert (refused.status, refused.code) == (400, -32021)
            assert refused.error.data == {"requiredCapabilities": needs}
        asked = wire.call("needy", capabilities=needs)
        assert list(asked.result["inputRequests"]) == ["it"]


TEXTS = st.text() | st.sampled_from(['"', "\\", "\n", "\u2028"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image"])},
    optional={"text": TEXTS | st.none(), "annotations": st.fixed_dictionaries({"priority": st.floats()})},
)
BODIES = st.fixed_dictionaries(
    {"content": st.lists(BLOCKS, max_size=2)},
    optional={"isError": st.booleans(), "structuredContent": TEXTS | st.floats()},
)


class TestResults:
    @given(BODIES)
    def test_of_tools_are_written_as_any_other_json(self, body: JSON) -> None:
        """A lone text, as most results are, is put together without a look at the rest."""
        whole = from_json(to_json(body, inf_nan_mode="null"))
        written = result_of_tool(Call("tools/call", {}), body, b"", b"}}")
        assert from_json(written) == {"jsonrpc": "2.0", "id": 0, "result": whole}

    def test_all_say_of_which_type_they_are_and_whose(self, wire: Wire) -> None:
        info = {PREFIX + "serverInfo": {"name": "strict", "version": "1.2.3"}}
        replies = {
            "complete": [
                wire.call("add", {"a": 1}),
                wire.call("fail"),
                wire.modern("tools/list"),
                wire.modern("server/discover"),
                wire.modern("resources/templates/list"),
            ],
            "input_required": [wire.call("greet"), wire.modern("resources/read", {"uri": "notes://all"})],
        }
        for kind, several in replies.items():
            for reply in several:
                assert reply.result["resultType"] == kind
                assert reply.result["_meta"] == info

    def test_keep_the_meta_of_the_handler(self, serve: Serve) -> None:
        app = MRTRServer("meta", keys=[bytes(32)])

        @app.tool
        def tagged() -> ToolResult:
            return ToolResult(content=["x"], meta={"com.example/cost": 3})

        told = serve(app).call("tagged").result["_meta"]
        assert told == {"com.example/cost": 3, PREFIX + "serverInfo": {"name": "meta", "version": "0.0.0"}}

    def test_that_can_be_kept_say_for_how_long_and_by_whom(self, serve: Serve) -> None:
        app = MRTRServer("kept", keys=[bytes(32)], lists=Lists(cache_seconds=2.5))

        @app.resource("doc://one", cache_seconds=60, cache="public")
        def one() -> str:
            return "1"

        wire = serve(app)
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"):
            result = wire.modern(method).result
            assert (result["ttlMs"], result["cacheScope"]) == (2500, "public")
        result = wire.modern("resources/read", {"uri": "doc://one"}).result
        assert (result["ttlMs"], result["cacheScope"]) == (60_000, "public")
        assert "ttlMs" not in wire.modern("tools/call", {"name": "nowhere"}).message

    def test_of_lists_are_private_where_there_is_authentication(self, serve: Serve) -> None:
        app = MRTRServer("private", keys=[bytes(32)], auth=BearerTokens({"t": "alice"}))
        reply = serve(app).post(modern("tools/list"), {"Authorization": "Bearer t"})
        assert reply.result["cacheScope"] == "private"

    def test_never_need_input_where_the_protocol_does_not_let_them(self, wire: Wire) -> None:
        """Extra fields of a retry are nothing to a request that can't ask."""
        for method in ("tools/list", "prompts/list", "resources/list", "server/discover"):
            result = wire.modern(method, {"inputResponses": 5, "requestState": None}).result
            assert result["resultType"] == "complete"

    @pytest.mark.parametrize("id", [0, -1, 1_800_000_000_000, 2**53, "", "a", "ünï", "1"])
    def test_echo_the_id_as_it_is(self, wire: Wire, id: str | int) -> None:
        for reply in (wire.call("add", {"a": 1}, id=id), wire.call("greet", id=id), wire.call("nowhere", id=id)):
            assert reply.message["id"] == id
            assert type(reply.message["id"]) is type(id)

    def test_are_single_lines_whatever_is_in_them(self, serve: Serve) -> None:
        app = MRTRServer("lines", keys=[bytes(32)])

        @app.tool
        async def lines(ctx: Context) -> TextContent:
            await ctx.progress(1, message="one\ntwo\r\n\ndata: three")
            return TextContent(text="one\ntwo\u2028three\r\n\n")

        wire = serve(app)
        assert wire.call("lines").body.count(b"\n") == 0
        streamed = wire.call("lines", progressToken=1)
        assert streamed.received[0]["params"]["message"] == "one\ntwo\r\n\ndata: three"
        assert streamed.text == "one\ntwo\u2028three\r\n\n"

    def test_hold_no_number_that_json_does_not_have(self, serve: Serve) -> None:
        """A NaN of a tool would make the whole reply something that no client can read."""
        app = MRTRServer("numbers", keys=[bytes(32)])

        @app.tool
        def nan() -> float:
            return float("nan")

        @app.tool
        def loose() -> Any:
            return {"values": [float("inf"), 1.5]}

        @app.tool
        async def logging(ctx: Context) -> str:
            await ctx.log({"measured": float("nan")})
            return "logged"

        def strictly(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        wire = serve(app)
        for name in ("nan", "loose"):
            json.loads(wire.call(name).body, parse_constant=strictly)
        logged = wire.call("logging", logLevel="info")
        assert logged.received[0]["params"]["data"] == {"measured": None}
        assert b"NaN" not in logged.body

    def test_that_only_hand_a_state_over_ask_nothing(self, serve: Serve) -> None:
        """`inputRequests` is left out then, and the client may retry at once."""
        app = MRTRServer("handing", keys=[bytes(32)])

        @app.tool
        def hand_over(kept: State[int]) -> str | InputRequired:
            return "kept" if kept.value else InputRequired(state=1)

        wire = serve(app)
        handed = wire.call("hand_over")
        assert set(handed.result) == {"resultType", "requestState", "_meta"}
        assert wire.call("hand_over", state=handed.state).text == "kept"
        drafted = wire.draft(request("tools/call", {"name": "hand_over"}))
        assert set(drafted.result) == {"requestState"}


class TestDiscover:
    def test_says_what_the_server_is_and_speaks(self, serve: Serve) -> None:
        app = MRTRServer(
            "known",
            info=ServerInfo(
                version="3.1",
                title="Known",
                description="Knows things.",
                website_url="https://example.com",
                icons=[Icon(src="https://example.com/i.png", mime_type="image/png", sizes=["48x48"])],
            ),
            instructions="Ask away.",
            keys=[bytes(32)],
        )
        result = serve(app).modern("server/discover").result
        assert result["supportedVersions"] == [VERSION]
        assert result["instructions"] == "Ask away."
        assert result["_meta"][PREFIX + "serverInfo"] == {
            "name": "known",
            "version": "3.1",
            "title": "Known",
            "description": "Knows things.",
            "websiteUrl": "https://example.com",
            "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48"]}],
        }

    def test_advertises_what_there_is_and_nothing_else(self, serve: Serve) -> None:
        """Server Capabilities: present if the server offers any; so also what is registered while it runs."""
        app = MRTRServer("growing", keys=[bytes(32)])
        wire = serve(app)

        def advertised() -> set[str]:
            return set(wire.modern("server/discover").result["capabilities"])

        assert advertised() == {"prompts", "tools", "resources", "logging"}, "all that it may get"
        app.prompt(name="review")(lambda: "Review it")
        assert advertised() == {"prompts", "logging"}
        app.tool(name="add")(lambda: "added")
        assert advertised() == {"prompts", "tools", "logging"}
        app.resource("file:///{name}", name="file")(lambda name: name)
        assert advertised() == {"prompts", "tools", "resources", "logging"}
        app.completion("name", resource="file:///{name}")(lambda value: [value])
        assert advertised() == {"prompts", "tools", "resources", "completions", "logging"}
        app.tool(name="work", task="optional")(lambda: "worked")
        assert advertised() == {"prompts", "tools", "resources", "completions", "logging", "extensions"}

    def test_advertises_a_resource_that_is_no_template(self, serve: Serve) -> None:
        app = MRTRServer("fixed", keys=[bytes(32)])
        app.resource("file:///a", name="a")(lambda: "a")
        assert "resources" in serve(app).modern("server/discover").result["capabilities"]

    def test_advertises_all_lists_where_there_is_nothing_yet(self, serve: Serve) -> None:
        """A client looks for capabilities once, and would never ask for a list that came after."""
        app = MRTRServer("later", keys=[bytes(32)])
        wire = serve(app)
        assert wire.modern("server/discover").result["capabilities"] == {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "logging": {},
        }
        app.prompt(name="greet")(lambda: "hello")
        assert set(wire.modern("server/discover").result["capabilities"]) == {"prompts", "logging"}

    def test_advertises_what_listeners_can_have(self, wire: Wire) -> None:
        capabilities = wire.modern("server/discover").result["capabilities"]
        assert capabilities["tools"] == capabilities["prompts"] == {"listChanged": True}
        assert capabilities["resources"] == {"listChanged": True, "subscribe": True}

    def test_needs_no_capabilities(self, wire: Wire) -> None:
        assert wire.modern("server/discover", capabilities={}).status == 200


class TestTheClient:
    @pytest.mark.parametrize("info", [{"name": "host"}, {"version": "1"}, {}, {"name": 5, "version": None, "x": []}])
    def test_may_say_less_of_itself_than_the_schema_would_have(self, serve: Serve, info: JSON) -> None:
        """`Implementation` requires a version. It is for display only, and clients that send none are served."""
        app = MRTRServer("asking", keys=[bytes(32)])

        @app.tool
        def who(ctx: Context) -> dict[str, Any]:
            return {"name": ctx.client.name, "version": ctx.client.version, "sent": ctx.client.info}

        said = serve(app).call("who", clientInfo=info).result["structuredContent"]
        shown = {name: str(info[name]) if info.get(name) is not None else "" for name in ("name", "version")}
        assert said == {**shown, "sent": info}

    @pytest.mark.parametrize("info", ["host", ["host"], 5], ids=repr)
    def test_is_no_text_or_list(self, wire: Wire, info: Any) -> None:
        assert (wire.call("greet", clientInfo=info).status, wire.call("greet", clientInfo=info).code) == (400, -32602)


class TestAStateOfARequestThatNeverAsks:
    """It can't have been given one, so it is refused with the one error that every state gets which does not open."""

    @pytest.mark.parametrize(
        "method",
        [
            "tools/list",
            "prompts/list",
            "resources/list",
            "resources/templates/list",
            "completion/complete",
            "server/discover",
            "subscriptions/listen",
            "tasks/get",
            "tasks/update",
            "tasks/cancel",
        ],
    )
    @pytest.mark.parametrize("state", ["x", "", 5, {}, False], ids=repr)
    def test_is_refused(self, wire: Wire, method: str, state: Any) -> None:
        asked = wire.call("greet").state
        message = "requestState is not valid for this request; send the request again without it"
        params = {
            "ref": {"type": "ref/prompt", "name": "review"},
            "argument": {"name": "language", "value": ""},
            "notifications": {"toolsListChanged": True},
            "taskId": "x",
            "inputResponses": {},
        }
        capabilities = {"elicitation": {}, **TASKS}
        for sent in (state, asked):
            reply = wire.modern(method, {**params, "requestState": sent}, capabilities=capabilities)
            assert (reply.status, reply.code, reply.error.message) == (400, -32602, message)


class TestNotes:
    """Progress and log messages: only what the client asked for, only where it takes a stream."""

    def kinds(self, reply: Reply) -> list[str]:
        return [message["method"].rpartition("/")[2] for message in reply.received if "method" in message]

    def test_are_sent_for_a_token_and_a_level(self, wire: Wire) -> None:
        count = {"to": 2}
        assert self.kinds(wire.call("count", count)) == []
        assert self.kinds(wire.call("count", count, progressToken=0)) == ["progress", "progress"]
        assert self.kinds(wire.call("count", count, logLevel="info")) == ["message"]
        assert self.kinds(wire.call("count", count, logLevel="debug")) == ["message", "message"]
        assert self.kinds(wire.call("count", count, logLevel="warning")) == []
        assert self.kinds(wire.call("count", count, logLevel="info", progressToken="")) == [
            "message",
            "progress",
            "progress",
        ]

    @pytest.mark.parametrize("token", [0, -5, 2**60, "", "tök"])
    def test_carry_the_token_as_it_is(self, wire: Wire, token: str | int) -> None:
        first = wire.call("count", {"to": 1}, progressToken=token).received[0]
        assert first["params"]["progressToken"] == token
        assert type(first["params"]["progressToken"]) is type(token)

    def test_come_before_a_need_for_input_on_the_same_stream(self, serve: Serve) -> None:
        app = MRTRServer("before", keys=[bytes(32)])

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.progress(1)
            await ctx.confirm("Go on?")
            return "gone on"

        wire = serve(app)
        asked = wire.call("ask", progressToken=1)
        assert self.kinds(asked) == ["progress"]
        assert asked.result["resultType"] == "input_required"
        done = wire.call("ask", answers={"confirm": accept(confirm=True)}, state=asked.state, progressToken=2)
        assert done.received[0]["params"]["progressToken"] == 2, "each round has a token of its own"
        assert done.text == "gone on"
