"""Null for a member that may be left out is absent in every dialect; as a value of a model or a person it is null."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import Context, MRTRServer

from ..support.handshake import NEWEST
from ..support.stdio import over_pipes
from ..support.wire import Wire, meta, modern

app = MRTRServer("nulls", keys=[bytes(32)], dialects=["2026-07-28", "2025-11-25", "sep-draft"])


class Name(BaseModel):
    name: str | None = "nobody"
    value: int | None = 5


@app.tool
def echo(data: dict[str, Any] | None = None, other: Any = 1) -> str:
    return repr((data, other))


@app.tool
async def ask(ctx: Context) -> str:
    return repr(await ctx.elicit("Who?", Name, key="value"))


@app.tool
async def write(ctx: Context) -> str:
    return (await ctx.sample("Write")).text


@app.prompt
def greet(name: str = "you") -> str:
    return name


@app.completion("name", prompt="greet")
def names(value: str) -> list[str]:
    return ["you"]


WHO = {"name": "name", "value": ""}


@pytest.fixture
def wire(serve: Any) -> Wire:
    wire: Wire = serve(app)
    return wire


class TestRequests:
    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("ping", None),
            ("tools/list", None),
            ("tools/list", {"cursor": None, "_meta": None}),
            ("resources/templates/list", {"cursor": None}),
            ("tools/call", {"name": "echo", "arguments": None, "task": None, "_meta": {"progressToken": None}}),
            ("tools/call", {"name": "echo", "inputResponses": None, "requestState": None}),
            ("prompts/get", {"name": "greet", "arguments": {"name": None}}),
            (
                "completion/complete",
                {
                    "ref": {"type": "ref/prompt", "name": "greet"},
                    "argument": {"name": "x", "value": ""},
                    "context": None,
                },
            ),
        ],
        ids=str,
    )
    def test_of_the_handshake_and_of_the_drafts(self, wire: Wire, method: str, params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        for headers in ({"MCP-Protocol-Version": NEWEST}, {}):
            if method == "ping" and not headers:  # which the drafts do not have
                continue
            reply = wire.send(
                json.dumps(message).encode(),
                {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers},
            )
            assert "result" in reply.message, reply.message

    @pytest.mark.parametrize(
        "params",
        [
            {"arguments": None, "inputResponses": None, "requestState": None},
            {"_meta": {**meta(), "progressToken": None, "io.modelcontextprotocol/clientInfo": None}},
            {"_meta": {**meta(), "io.modelcontextprotocol/logLevel": None, "traceparent": None}},
            {"_meta": {**meta({"roots": None, "elicitation": {"form": {}}, "extensions": None})}},
        ],
        ids=str,
    )
    def test_of_the_ratified_version(self, wire: Wire, params: Any) -> None:
        message = modern("tools/call", {"name": "echo"})
        message["params"] |= params
        assert wire.post(message).text == "(None, 1)"

    @pytest.mark.parametrize(
        ("capability", "asks"), [({"form": None, "url": None}, True), ({"form": None, "url": {}}, False), (None, False)]
    )
    def test_within_a_capability(self, wire: Wire, capability: Any, asks: bool) -> None:
        message = modern("tools/call", {"name": "ask"})
        message["params"]["_meta"] |= meta({"elicitation": capability})
        assert ("result" in wire.post(message).message) == asks

    def test_an_argument_keeps_its_nulls(self, wire: Wire) -> None:
        assert wire.call("echo", {"data": {"a": None, "_meta": None}, "other": None}).text == (
            "({'a': None, '_meta': None}, None)"
        )

    def test_of_a_long_message_are_absent(self, wire: Wire) -> None:
        message = modern("tools/call", {"name": "echo", "arguments": {"data": {"a": "a" * 100_000}, "other": None}})
        message["params"] |= {"inputResponses": None, "requestState": None}
        assert wire.post(message).text.endswith("'}, None)")

    def test_what_must_be_there_is_missed(self, wire: Wire) -> None:
        assert wire.post(modern("tools/call", {"name": None}), {"Mcp-Name": None}).code in (-32602, -32020)
        assert wire.post(modern("completion/complete", {"ref": None, "argument": None})).code == -32602

    def test_a_request_whose_id_is_null_is_no_notification(self, wire: Wire) -> None:
        message = {**modern("tools/list"), "id": None}
        assert wire.post(message).status == 400


class TestAnswers:
    @pytest.mark.parametrize("content", [None, {"name": None}], ids=str)
    def test_of_a_form(self, wire: Wire, content: Any) -> None:
        asked = wire.call("ask")
        answer = {"action": "accept", "content": content, "_meta": None}
        name = "'nobody'" if content is None else "None"
        answered = wire.call("ask", state=asked.state, answers={"value": answer})
        assert answered.text == f"Name(name={name}, value=5)"

    def test_that_are_null_are_none(self, wire: Wire) -> None:
        asked = wire.call("ask")
        assert list(wire.call("ask", state=asked.state, answers={"value": None}).asked) == ["value"]

    def test_to_a_call_that_is_open(self) -> None:
        with over_pipes(app) as client:
            client.initialize()
            client.begin("tools/call", {"name": "ask"})
            result = {"action": "accept", "content": None, "_meta": None}
            client.send(id=client.next()["id"], method=None, result=result, error=None)
            assert client.next()["result"]["content"][0]["text"] == "Name(name='nobody', value=5)"
            client.begin("tools/call", {"name": "write"})
            written = {
                "role": "assistant",
                "content": {"type": "text", "text": "hi"},
                "model": None,
                "stopReason": None,
            }
            client.send(id=client.next()["id"], result=written)
            assert client.next()["result"]["content"][0]["text"] == "hi"
