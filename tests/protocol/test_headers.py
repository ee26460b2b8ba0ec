"""Headers that mirror the body: a gateway may route by the one what the server executes by the other."""

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp.shared.inbound import encode_header_value
from pydantic import BaseModel

from mrtr_server import Header, MRTRServer, SetupError

from ..support.direct import exchange, headers_for
from ..support.serving import TIMEOUT, in_thread
from ..support.wire import JSON, Reply, Wire, modern, request

MISMATCH = (400, -32020)

app = MRTRServer("headers", keys=[bytes(32)])


class Target(BaseModel):
    zone: Annotated[str, Header("Zone")]
    rank: int = 0


@app.tool
def say(message: Annotated[str, Header("Message")]) -> str:
    """Take a string that a header mirrors."""
    return message


@app.tool
def place(
    region: Annotated[str, Header("Region")] = "none",
    floor: Annotated[int, Header("Floor")] = 0,
    express: Annotated[bool, Header("Express")] = False,
) -> str:
    """Take one parameter of each kind, none of them required."""
    return f"{region} {floor} {express}"


@app.tool(
    input_schema={
        "type": "object",
        "properties": {
            "where": {
                "type": "object",
                "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}, "rank": {"type": "integer"}},
            },
            "count": {"type": "integer", "x-mcp-header": "Count"},
        },
    }
)
def nested(arguments: dict[str, Any]) -> str:
    """Take a mirrored parameter within an object."""
    return json.dumps(arguments)


@app.tool(name="dotted.name-1")
def dotted() -> str:
    """Have a name with all that names may have."""
    return "dotted"


@app.resource("files://{+path}")
def file(path: str) -> str:
    """Have URIs with all that URIs may have."""
    return path


@app.prompt
def greeting() -> str:
    """Have a name to be mirrored."""
    return "hello"


@app.completion("x", prompt="greeting")
def suggest(value: str) -> list[str]:
    """Suggest what was typed."""
    return [value]


@pytest.fixture(scope="module", params=["h11", "httptools"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """The two parsers of uvicorn differ in what they leave of whitespace."""
    with in_thread(app, http=request.param) as port:
        sender = Wire(f"http://127.0.0.1:{port}/mcp")
        yield sender
        sender.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as loop:
        yield loop


def raw(wire: Wire, message: JSON, *lines: str) -> Reply:
    """Send a message with header lines just as they are, which no HTTP client would do."""
    body = json.dumps(message).encode()
    host, port = wire.url.split("/")[2].split(":")
    head = ["POST /mcp HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
        connection.sendall("\r\n".join([*head, "Connection: close", *lines, "", ""]).encode("latin-1") + body)
        received = b""
        while part := connection.recv(65536):
            received += part
    head_bytes, _, answer = received.partition(b"\r\n\r\n")
    return Reply(int(head_bytes.split()[1]), {}, answer)


def lines_of(message: JSON, **changed: str) -> list[str]:
    """Return the header lines of a conforming client, with some of them changed."""
    given = {name.decode(): value.decode() for name, value in headers_for(message)}
    del given["content-type"]
    return [
        f"{name}: {value}" for name, value in (given | {k.replace("_", "-"): v for k, v in changed.items()}).items()
    ]


class TestWhitespace:
    """Whitespace around a value is none of it (RFC 9110, section 5.5); uvicorn passes some of it through."""

    @pytest.mark.parametrize("padding", ["{}", " {}", "{} ", "   {}  ", "\t{}\t", " \t {} \t "])
    def test_around_a_value_is_trimmed(self, wire: Wire, padding: str) -> None:
        message = modern("tools/call", {"name": "say", "arguments": {"message": "hi"}})
        lines = lines_of(
            message,
            mcp_method=padding.format("tools/call"),
            mcp_name=padding.format("say"),
            mcp_protocol_version=padding.format("2026-07-28"),
            mcp_param_message=padding.format("hi"),
        )
        assert raw(wire, message, *lines).text == "hi"

    def test_around_a_sentinel_is_trimmed_and_within_it_kept(self, wire: Wire) -> None:
        message = modern("tools/call", {"name": "say", "arguments": {"message": " hi "}})
        assert raw(wire, message, *lines_of(message, mcp_param_message="  =?base64?IGhpIA==?=  ")).text == " hi "
        assert raw(wire, message, *lines_of(message, mcp_param_message=" hi ")).code == -32020


class TestRepeatedHeaders:
    @pytest.mark.parametrize("name", ["mcp-method", "mcp-name", "mcp-protocol-version", "mcp-param-message"])
    @pytest.mark.parametrize("second", ["the same", "another"])
    def test_are_refused_even_if_they_agree(self, wire: Wire, name: str, second: str) -> None:
        """Of two values a gateway may take the first, and the server the last."""
        message = modern("tools/call", {"name": "say", "arguments": {"message": "hi"}})
        lines = lines_of(message, mcp_param_message="hi")
        (line,) = (each for each in lines if each.startswith(name))
        repeated = line if second == "the same" else f"{name}: another"
        for order in ([*lines, repeated], [repeated, *lines]):
            assert raw(wire, message, *order).status == 400

    @pytest.mark.parametrize("name", ["Mcp-Method", "MCP-METHOD", "mcp-method"])
    def test_are_found_in_any_case(self, wire: Wire, name: str) -> None:
        message = modern("tools/list")
        assert raw(wire, message, *lines_of(message)).result["tools"]
        reply = raw(wire, message, *lines_of(message), f"{name}: tools/list")
        assert (reply.status, reply.code) == MISMATCH

    def test_are_refused_by_the_drafts_too(self, wire: Wire) -> None:
        message = request("tools/list")
        assert raw(wire, message, "Mcp-Method: tools/list").result["tools"]
        reply = raw(wire, message, "Mcp-Method: tools/list", "Mcp-Method: tools/list")
        assert (reply.status, reply.code) == MISMATCH

    def test_of_http_itself_do_not_matter(self, wire: Wire) -> None:
        message = modern("tools/list")
        lines = ["Accept: application/json", "Accept: text/event-stream", "X-Forwarded-For: a", "X-Forwarded-For: b"]
        assert raw(wire, message, *lines_of(message), *lines).result["tools"]


class TestNames:
    @pytest.mark.parametrize(
        ("method", "params", "named"),
        [
            ("tools/call", {"name": "dotted.name-1"}, "dotted.name-1"),
            ("prompts/get", {"name": "greeting"}, "greeting"),
            ("resources/read", {"uri": "files://a/b c"}, "files://a/b c"),
            ("resources/read", {"uri": "files://grün/世界"}, "files://grün/世界"),
            ("resources/read", {"uri": "files://=?base64?x?="}, "files://=?base64?x?="),
        ],
    )
    def test_are_mirrored_plain_or_encoded(self, wire: Wire, method: str, params: JSON, named: str) -> None:
        message = modern(method, params)
        assert wire.post(message, {"Mcp-Name": encode_header_value(named)}).status == 200
        encoded = f"=?base64?{b64encode(named.encode()).decode()}?="
        assert wire.post(message, {"Mcp-Name": encoded}).status == 200, "what need not be encoded may be"
        reply = wire.post(message, {"Mcp-Name": "other"})
        assert (reply.status, reply.code) == MISMATCH

    def test_are_not_asked_of_methods_that_have_none(self, wire: Wire) -> None:
        assert wire.post(modern("tools/list"), {"Mcp-Name": None}).result["tools"]
        reference = {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "x", "value": ""}}
        assert wire.post(modern("completion/complete", reference), {"Mcp-Name": None}).status == 200


class TestParameters:
    def place(self, wire: Wire, arguments: JSON, **headers: str) -> Reply:
        message = modern("tools/call", {"name": "place", "arguments": arguments})
        return wire.post(message, {f"Mcp-Param-{name}": value for name, value in headers.items()})

    @pytest.mark.parametrize(
        ("arguments", "headers", "text"),
        [
            ({}, {}, "none 0 False"),
            ({"region": "eu"}, {"Region": "eu"}, "eu 0 False"),
            ({"region": ""}, {"Region": ""}, " 0 False"),
            ({"region": "true"}, {"Region": "true"}, "true 0 False"),
            ({"region": "7"}, {"Region": "7"}, "7 0 False"),
            ({"floor": 7}, {"Floor": "7"}, "none 7 False"),
            ({"floor": -7}, {"Floor": "-7"}, "none -7 False"),
            ({"floor": 0}, {"Floor": "0"}, "none 0 False"),
            ({"floor": 42}, {"Floor": "42.0"}, "none 42 False"),
            ({"floor": 42.0}, {"Floor": "42"}, "none 42 False"),
            ({"floor": 42}, {"Floor": "042"}, "none 42 False"),
            ({"floor": 2**60}, {"Floor": str(2**60)}, f"none {2**60} False"),
            ({"express": True}, {"Express": "true"}, "none 0 True"),
            ({"express": False}, {"Express": "false"}, "none 0 False"),
        ],
        ids=str,
    )
    def test_that_headers_mirror_are_compared_by_value(
        self, wire: Wire, arguments: JSON, headers: dict[str, str], text: str
    ) -> None:
        assert self.place(wire, arguments, **headers).text == text

    @pytest.mark.parametrize(
        ("arguments", "headers"),
        [
            ({"region": "eu"}, {}),
            ({"region": ""}, {}),
            ({"region": "eu"}, {"Region": "us"}),
            ({"region": "eu"}, {"Region": "EU"}),
            ({"region": "eu"}, {"Region": "eu, us"}),
            ({"region": "eu"}, {"Region": ""}),
            ({"region": "eu"}, {"Region": "=?base64?!!!?="}),
            ({"region": None}, {"Region": ""}),
            ({"region": None}, {"Region": "null"}),
            ({}, {"Region": "eu"}),
            ({}, {"Floor": "0"}),
            ({"floor": 7}, {}),
            ({"floor": 7}, {"Floor": "8"}),
            ({"floor": 7}, {"Floor": "seven"}),
            ({"floor": 7}, {"Floor": ""}),
            ({"floor": 7}, {"Floor": "7.5"}),
            ({"floor": 7}, {"Floor": "7e0"}),
            ({"floor": 7}, {"Floor": "0x7"}),
            ({"floor": 7}, {"Floor": "+7"}),
            ({"floor": 7}, {"Floor": "٧".encode().decode("latin-1")}),
            ({"floor": 1}, {"Floor": "true"}),
            ({"express": True}, {"Express": "1"}),
            ({"express": True}, {"Express": "True"}),
            ({"express": True}, {"Express": "false"}),
            ({"express": False}, {}),
        ],
        ids=str,
    )
    def test_that_are_missing_differ_or_were_never_sent_are_a_mismatch(
        self, wire: Wire, arguments: JSON, headers: dict[str, str]
    ) -> None:
        message = modern("tools/call", {"name": "place", "arguments": arguments})
        lines = [f"Mcp-Param-{name}: {value}" for name, value in headers.items()]
        reply = raw(wire, message, *lines_of(message), *lines)
        assert (reply.status, reply.code) == MISMATCH

    def test_are_found_along_their_path(self, wire: Wire) -> None:
        def call(arguments: JSON, **headers: str) -> Reply:
            message = modern("tools/call", {"name": "nested", "arguments": arguments})
            return wire.post(message, {f"Mcp-Param-{name}": value for name, value in headers.items()})

        assert call({"where": {"zone": "a"}}, Zone="a").status == 200
        assert call({"where": {"zone": "a"}, "count": 3}, Zone="a", Count="3.0").status == 200
        assert call({"where": {"rank": 1}}).status == 200
        assert call({"where": {}}).status == 200
        assert call({"zone": "a"}).status == 200, "the same name elsewhere is not mirrored"
        for arguments, headers in (
            ({"where": {"zone": "a"}}, {"Zone": "b"}),
            ({"where": {"zone": "a"}}, {}),
            ({"where": "a"}, {"Zone": "a"}),
            ({"zone": "a"}, {"Zone": "a"}),
        ):
            reply = call(arguments, **headers)
            assert (reply.status, reply.code) == MISMATCH

    def test_of_the_wrong_type_are_the_models_to_mend_once_header_and_body_agree(self, wire: Wire) -> None:
        reply = self.place(wire, {"floor": "seven"}, Floor="seven")
        assert "floor" in reply.failure

    def test_that_are_null_have_no_header(self, wire: Wire) -> None:
        """They are absent where there is a default, and otherwise the model hears that they do not fit."""
        assert self.place(wire, {"region": None}).text == "none 0 False"

    def test_that_no_tool_has_are_passed_over(self, wire: Wire) -> None:
        """A gateway may add its own (HTTP, field extensibility)."""
        assert self.place(wire, {}, Unheard="x").status == 200
        assert wire.post(modern("tools/list"), {"Mcp-Param-Region": "eu"}).status == 200

    def test_are_marked_in_the_schema_that_clients_read(self, wire: Wire) -> None:
        tools = {tool["name"]: tool["inputSchema"]["properties"] for tool in wire.modern("tools/list").result["tools"]}
        assert tools["say"]["message"] == {"type": "string", "x-mcp-header": "Message"}
        assert tools["place"]["floor"]["x-mcp-header"] == "Floor"
        assert tools["nested"]["where"]["properties"]["zone"]["x-mcp-header"] == "Zone"


class TestSchemas:
    """What would make conforming clients drop the tool from their list is refused when the decorator runs."""

    @pytest.mark.parametrize("kind", [float, list[str], dict[str, str], Target, str | int])
    def test_of_other_types_can_not_be_mirrored(self, kind: Any) -> None:
        def tool(value: Any) -> str:
            return ""

        tool.__annotations__["value"] = Annotated[kind, Header("Value")]
        with pytest.raises(SetupError, match=r"can't be mirrored|properties alone"):
            MRTRServer("refusing", keys=[bytes(32)]).tool(tool)

    @pytest.mark.parametrize("name", ["", "two words", "new\nline", "colon:", "ünï", "(x)"])
    def test_must_name_a_header(self, name: str) -> None:
        def tool(value: Annotated[str, Header(name)]) -> str:
            return ""

        with pytest.raises(SetupError, match="can't be the name of a header"):
            MRTRServer("refusing", keys=[bytes(32)]).tool(tool)

    def test_must_not_share_a_header_in_any_case(self) -> None:
        def tool(a: Annotated[str, Header("Same")], b: Annotated[str, Header("SAME")]) -> str:
            return ""

        with pytest.raises(SetupError, match="share the header"):
            MRTRServer("refusing", keys=[bytes(32)]).tool(tool)


class TestEncoding:
    """The Base64 sentinel, as the official client writes it."""

    @settings(max_examples=200, deadline=None)
    @given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    @example(value="")
    @example(value=" padded ")
    @example(value="line1\nline2")
    @example(value="=?base64?literal?=")
    @example(value="=?base64??=")
    @example(value="=?base64?=")
    @example(value="=?BASE64?SGk=?=")
    @example(value="Hello, 世界")
    @example(value="\x7f\x00\t")
    def test_any_value_that_the_official_client_encodes_arrives_as_it_was(
        self, runner: asyncio.Runner, value: str
    ) -> None:
        message = modern("tools/call", {"name": "say", "arguments": {"message": value}})
        headers = [*headers_for(message), (b"mcp-param-message", encode_header_value(value).encode("ascii"))]
        assert runner.run(exchange(app, json.dumps(message).encode(), headers)).text == value

    @settings(max_examples=100, deadline=None)
    @given(header=st.binary(max_size=20), value=st.text(max_size=10))
    @example(header=b"\x0bhi", value="hi")
    def test_any_other_header_is_a_mismatch(self, runner: asyncio.Runner, header: bytes, value: str) -> None:
        """Unless it says the same in another way, which only whitespace and needless encoding can."""
        message = modern("tools/call", {"name": "say", "arguments": {"message": value}})
        reply = runner.run(
            exchange(app, json.dumps(message).encode(), [*headers_for(message), (b"mcp-param-message", header)])
        )
        if header.strip(b" \t") == value.encode():
            assert reply.text == value
        else:
            assert (reply.status, reply.code) == MISMATCH

    @pytest.mark.parametrize(
        ("header", "value"),
        [
            ("us-west1", "us-west1"),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界"),
            ("=?base64?IHBhZGRlZCA=?=", " padded "),
            ("=?base64?bGluZTEKbGluZTI=?=", "line1\nline2"),
            ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
            ("SGVsbG8=", "SGVsbG8="),
            ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
            ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ],
    )
    def test_the_examples_of_the_specification_are_read(self, wire: Wire, header: str, value: str) -> None:
        message = modern("tools/call", {"name": "say", "arguments": {"message": value}})
        assert wire.post(message, {"Mcp-Param-Message": header}).text == value

    @pytest.mark.parametrize(
        "header",
        [
            "=?base64?SGVsbG8?=",
            "=?base64?SGVs!!!bG8=?=",
            "=?base64?SGVsbG8==?=",
            "=?base64? SGVsbG8=?=",
            "=?base64?SGVsbG8=\t?=",
            "=?base64?/w==?=",
            "Hellö",
            "",
        ],
    )
    def test_a_broken_sentinel_is_a_mismatch(self, wire: Wire, header: str) -> None:
        message = modern("tools/call", {"name": "say", "arguments": {"message": "Hello"}})
        reply = raw(wire, message, *lines_of(message), f"Mcp-Param-Message: {header}")
        assert (reply.status, reply.code) == MISMATCH
