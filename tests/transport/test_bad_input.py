"""What bad input gets: the table of the design, row by row, from a real server in a process of its own.

Whatever comes in, the server answers with a status, a code and an id that a client can act on, in one line of JSON; it
never answers 500, and never with an id of null.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.shared.inbound import encode_header_value
from pydantic import BaseModel

from mrtr_server import Elicit, InputRequired, Inputs, KeyRing, MRTRServer

from ..conftest import Serve
from ..support.apps import LIMITS, strict
from ..support.direct import exchange
from ..support.serving import ROOT, in_process
from ..support.wire import (
    ACCEPT,
    EVERYTHING,
    JSON,
    PREFIX,
    VERSION,
    Reply,
    Wire,
    accept,
    meta,
    mirrored,
    modern,
    request,
)
from ..support.wire import problems as official_problems

PLAIN = {"Content-Type": "application/json"}

SHORT_AND_LONG = (0, 40_000)
"""How long a body is at least, in bytes: long ones are looked at in another way."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
DECLINED = -31001


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with in_process("tests.support.apps:strict", log=tmp_path_factory.mktemp("bad_input") / "log") as server:
        sender = Wire(f"http://127.0.0.1:{server.port}/mcp")
        yield sender
        sender.close()


def refused(reply: Reply, status: int, code: int, id: str | int | None) -> JSON:
    """Check a JSON-RPC error that came as one line of JSON; return its `data`."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert b"\n" not in reply.body
    assert set(reply.message) == ({"jsonrpc", "error"} if id is None else {"jsonrpc", "id", "error"})
    assert reply.message["jsonrpc"] == "2.0"
    assert reply.message.get("id") == id
    assert reply.error.code == code
    assert reply.error.message
    assert set(reply.message["error"]) <= {"code", "message", "data"}
    data: JSON = reply.message["error"].get("data", {})
    return data


# Not a request at all


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list",}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"} {}',
        b'\xff\xfe{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}',
        b"\x00",
    ],
    ids=["empty", "words", "cut", "comma", "two", "byte order mark", "not UTF-8", "NUL"],
)
def test_what_is_not_json_is_a_parse_error_without_an_id(wire: Wire, body: bytes) -> None:
    refused(wire.send(body, PLAIN), 400, PARSE_ERROR, None)


def test_a_byte_order_mark_is_passed_over(wire: Wire) -> None:
    body = b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    assert "tools" in wire.send(body, PLAIN).result
    assert wire.send(b"\xef\xbb\xbf" + body, PLAIN).code == PARSE_ERROR


@pytest.mark.parametrize("half", [rb"\ud800", rb"\uDCFF", b"\xed\xa0\x80"])
@pytest.mark.parametrize("dialect", ["modern", "draft"])
def test_half_of_a_character_is_one_that_is_unknown(wire: Wire, half: bytes, dialect: str) -> None:
    """Its request is answered, with its id, as any other is; a header says the same in UTF-8, which has no halves."""
    make = modern if dialect == "modern" else request
    message = make("tools/call", {"name": "deploy", "arguments": {"service": "cut HALF"}}, id="x")
    named = {"Mcp-Param-Service": encode_header_value("cut \N{REPLACEMENT CHARACTER}")}
    headers = {**PLAIN, **({**mirrored(message), **named} if dialect == "modern" else {})}
    reply = wire.send(json.dumps(message).encode().replace(b"HALF", half), headers)
    assert reply.message["id"] == "x"
    assert "Deploy cut \N{REPLACEMENT CHARACTER}?" in str(reply.result)
    for broken in ({"method": "HALF"}, {"params": {"_meta": "HALF"}}, {"params": {"HALF": 1}}, {"HALF": "HALF"}):
        reply = wire.send(json.dumps({**message, **broken}).encode().replace(b"HALF", half), headers)
        assert reply.message["id"] == "x"


@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1E+400",
        "9" * 400 + ".5",
        "9" * 250 + "e99",
        "0.1e400",
        "1e+0400",
    ],
    ids=lambda number: number[:12],
)
@pytest.mark.parametrize("length", SHORT_AND_LONG)
@pytest.mark.parametrize("dialect", ["modern", "draft"])
def test_numbers_that_are_not_finite_are_a_parse_error(wire: Wire, number: str, dialect: str, length: int) -> None:
    make = modern if dialect == "modern" else request
    message = make("tools/call", {"name": "add", "arguments": {"a": "NUMBER"}})
    body = json.dumps(message).replace('"NUMBER"', number).encode().ljust(length)
    headers = {**PLAIN, **(mirrored(message) if dialect == "modern" else {})}
    readable = "N" not in number and "I" not in number
    refused(wire.send(body, headers), 400, PARSE_ERROR, 1 if readable else None)


@pytest.mark.parametrize(
    "before",
    [
        '"requestState":"x"',
        '"requestState":""',
        r'"requestState":"x\""',
        r'"\\"requestState":"x"',
        r'"x\"requestState":":"',
    ],
    ids=["a state", "empty", "with a quote", "after a backslash", "part of a name"],
)
@pytest.mark.parametrize("wrong", ["1e999", "[" * 70 + "]" * 70], ids=["number", "depth"])
def test_what_follows_a_state_is_looked_at(wire: Wire, before: str, wrong: str) -> None:
    """The state itself is left out, since it is the most of a retry."""
    body = json.dumps(request("tools/call", {"name": "add", "arguments": {"a": "THERE"}})).encode()
    reply = wire.send(body.replace(b'"a": "THERE"', f'"a": {{{before},"b":{wrong}}}'.encode()), PLAIN)
    number = wrong.startswith("1")
    if before.startswith(r'"\\'):  # ends the string at once
        refused(reply, 400, PARSE_ERROR, None)
    else:
        refused(reply, 400, PARSE_ERROR if number else INVALID_PARAMS, 1)


def test_a_batch_is_no_request(wire: Wire) -> None:
    reply = wire.send(json.dumps([request("tools/list"), request("prompts/list", id=2)]).encode(), PLAIN)
    refused(reply, 400, INVALID_REQUEST, None)
    assert "batch" in reply.error.message


@pytest.mark.parametrize("body", [b"[]", b"1", b'"tools/list"', b"null", b"true", b"{}"])
def test_json_that_is_no_message_is_no_request(wire: Wire, body: bytes) -> None:
    refused(wire.send(body, PLAIN), 400, INVALID_REQUEST, None)


@pytest.mark.parametrize("id", [7, "seven", 0, -1, "", 2**60])
@pytest.mark.parametrize(
    "change",
    [
        {"method": None},
        {"method": 5},
        {"method": ""},
        {"method": ["tools/list"]},
        {"jsonrpc": "1.0"},
        {"jsonrpc": 2.0},
        {"jsonrpc": None},
        {"params": []},
        {"params": "x"},
    ],
    ids=str,
)
def test_a_message_that_is_no_request_is_answered_with_its_id(wire: Wire, id: str | int, change: JSON) -> None:
    refused(wire.draft({**request("tools/list", id=id), **change}), 400, INVALID_REQUEST, id)


@pytest.mark.parametrize("more", [{}, {"params": "x"}, {"params": []}, {"params": None}], ids=str)
def test_a_response_is_no_request(wire: Wire, more: JSON) -> None:
    """Clients answered the server's own requests this way before 2026-07-28."""
    refused(wire.draft({"jsonrpc": "2.0", "id": 3, "result": {}, **more}), 400, INVALID_REQUEST, 3)


@pytest.mark.parametrize("params", [None, "x", [1], 5], ids=str)
def test_a_response_has_no_params_but_an_object(wire: Wire, params: Any) -> None:
    refused(wire.draft({"jsonrpc": "2.0", "id": 3, "result": {}, "params": params}), 400, INVALID_REQUEST, 3)


@pytest.mark.parametrize("id", [None, 1.5, True, [], {}], ids=str)
def test_an_id_that_is_no_id_is_left_out_of_the_answer(wire: Wire, id: Any) -> None:
    refused(wire.draft({**request("tools/list"), "id": id}), 400, INVALID_REQUEST, None)


# Not a POST of JSON


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"])
def test_anything_but_post_is_405_and_says_what_is_allowed(wire: Wire, method: str) -> None:
    """A `GET` is one that takes no stream."""
    reply = wire.send(b"", method=method)
    assert reply.status == 405
    assert reply.headers["allow"] == ("POST" if method == "GET" else "GET, POST")
    assert reply.body == b""


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/jsonp", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_is_415(wire: Wire, kind: str | None) -> None:
    reply = wire.send(json.dumps(request("tools/list")).encode(), {} if kind is None else {"Content-Type": kind})
    assert reply.status == 415
    assert b"\n" not in reply.body


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"])
def test_json_may_come_with_parameters_and_in_any_case(wire: Wire, kind: str) -> None:
    assert wire.send(json.dumps(request("tools/list")).encode(), {"Content-Type": kind}).status == 200


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "notifications/unheard-of"])
@pytest.mark.parametrize("headers", [{}, {"MCP-Protocol-Version": VERSION}, {"Mcp-Session-Id": "x"}], ids=str)
def test_a_notification_is_202_without_a_body(wire: Wire, method: str, headers: dict[str, str]) -> None:
    reply = wire.send(json.dumps({"jsonrpc": "2.0", "method": method}).encode(), {**PLAIN, **headers})
    assert (reply.status, reply.body) == (202, b"")


def test_another_path_is_404(wire: Wire) -> None:
    with_slash, elsewhere = Wire(wire.url + "/"), Wire(wire.url + "/else")
    assert with_slash.draft(request("tools/list")).status == 200
    assert elsewhere.draft(request("tools/list")).status == 404
    with_slash.close()
    elsewhere.close()


# Versions and headers


def test_an_unsupported_version_is_answered_with_the_ones_that_are(wire: Wire) -> None:
    message = modern("tools/list", id="v")
    message["params"]["_meta"][PREFIX + "protocolVersion"] = "v999.0.0"
    reply = wire.post(message, {"MCP-Protocol-Version": "v999.0.0"})
    data = refused(reply, 400, UNSUPPORTED_VERSION, "v")
    assert data == {"supported": [VERSION], "requested": "v999.0.0"}


def test_the_versions_in_the_error_are_the_ones_that_discover_lists(wire: Wire) -> None:
    message = modern("tools/list")
    message["params"]["_meta"][PREFIX + "protocolVersion"] = "2099-01-01"
    named = wire.post(message, {"MCP-Protocol-Version": "2099-01-01"}).error.data["supported"]
    assert named == wire.modern("server/discover").result["supportedVersions"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("MCP-Protocol-Version", "v999.0.0"),
        ("Mcp-Method", "prompts/get"),
        ("Mcp-Method", "TOOLS/CALL"),
        ("Mcp-Method", ""),
        ("Mcp-Name", "greet"),
        ("Mcp-Name", ""),
        ("Mcp-Name", "=?base64?!!!?="),
        ("MCP-Protocol-Version", None),
        ("Mcp-Method", None),
        ("Mcp-Name", None),
    ],
)
def test_headers_that_differ_from_the_body_or_are_missing_are_a_mismatch(
    wire: Wire, header: str, value: str | None
) -> None:
    reply = wire.post(modern("tools/call", {"name": "add", "arguments": {"a": 1}}, id=9), {header: value})
    refused(reply, 400, HEADER_MISMATCH, 9)
    assert header in reply.error.message


@pytest.mark.parametrize(
    "broken",
    [
        {"_meta": None},
        {"_meta": {}},
        {"_meta": []},
        {"_meta": "x"},
        {"_meta": {PREFIX + "protocolVersion": VERSION}},
        {"_meta": {PREFIX + "clientCapabilities": {}}},
        {"_meta": meta() | {PREFIX + "protocolVersion": 20260728}},
        {"_meta": meta() | {PREFIX + "protocolVersion": None}},
        {"_meta": meta() | {PREFIX + "clientCapabilities": []}},
        {"_meta": meta() | {PREFIX + "clientCapabilities": None}},
        {"_meta": meta() | {PREFIX + "clientInfo": "curl"}},
        {"_meta": meta() | {PREFIX + "logLevel": "loud"}},
        {"_meta": meta() | {PREFIX + "logLevel": ["info"]}},
        {"_meta": meta() | {"progressToken": 1.5}},
        {"_meta": meta() | {"progressToken": True}},
        {"_meta": meta() | {"progressToken": {}}},
    ],
    ids=lambda broken: str(broken["_meta"])[-60:],
)
def test_meta_that_is_missing_or_malformed_is_invalid_params(wire: Wire, broken: JSON) -> None:
    refused(wire.post(request("tools/list", broken, id=4)), 400, INVALID_PARAMS, 4)


def test_params_may_not_be_missing_since_meta_is_in_them(wire: Wire) -> None:
    refused(wire.post(request("tools/list", id=4)), 400, INVALID_PARAMS, 4)


@pytest.mark.parametrize(
    "method",
    ["unknown/method", "initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list", "x" * 999],
)
def test_an_unknown_method_is_404(wire: Wire, method: str) -> None:
    """Those of the past among them: a modern request gets what 2026-07-28 has."""
    refused(wire.modern(method, id=500), 404, METHOD_NOT_FOUND, 500)


def test_an_unknown_method_is_404_for_the_drafts_too(wire: Wire) -> None:
    refused(wire.draft(request("unknown/method", id=500)), 404, METHOD_NOT_FOUND, 500)


@pytest.mark.parametrize("headers", [{}, {"MCP-Protocol-Version": "2025-11-25"}, {"Mcp-Session-Id": "s"}], ids=str)
@pytest.mark.parametrize("asked_for", ["2025-11-25", "2024-11-05", 7, None])
def test_initialize_of_an_era_that_is_not_served_is_told_which_are(
    serve: Serve, headers: dict[str, str], asked_for: Any
) -> None:
    message = request("initialize", {"protocolVersion": asked_for, "capabilities": {}}, id=0)
    wire = serve(MRTRServer("modern", keys=[bytes(32)], dialects=[VERSION]))
    data = refused(wire.send(json.dumps(message).encode(), {**PLAIN, **headers}), 200, UNSUPPORTED_VERSION, 0)
    assert data["supported"] == [VERSION]
    assert isinstance(data["requested"], str)


# Names and arguments


@pytest.mark.parametrize("dialect", ["modern", "draft"])
@pytest.mark.parametrize(
    ("method", "field", "name"),
    [
        ("tools/call", "name", "nowhere"),
        ("prompts/get", "name", "nowhere"),
        ("resources/read", "uri", "notes://no/such/note"),
        ("resources/read", "uri", "nowhere"),
        ("tools/call", "name", ""),
        ("tools/call", "name", "ünïcode"),
    ],
)
def test_unknown_names_come_back_in_the_error(wire: Wire, dialect: str, method: str, field: str, name: str) -> None:
    send = wire.modern if dialect == "modern" else lambda method, params, id: wire.draft(request(method, params, id=id))
    assert refused(send(method, {field: name}, id=5), 400, INVALID_PARAMS, 5) == {field: name}


@pytest.mark.parametrize("name", [None, 5, ["add"], {"name": "add"}, True], ids=str)
@pytest.mark.parametrize(
    ("method", "field"), [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")]
)
def test_a_name_that_is_no_string_is_refused(wire: Wire, method: str, field: str, name: Any) -> None:
    refused(wire.draft(request(method, {field: name}, id=5)), 400, INVALID_PARAMS, 5)
    refused(wire.post(modern(method, {field: name}, id=5), {"Mcp-Name": "x"}), 400, HEADER_MISMATCH, 5)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({}, ["a"]),
        ({"a": "one"}, ["a"]),
        ({"a": None}, ["a"]),
        ({"a": 1.5}, ["a"]),
        ({"a": [], "b": {}}, ["a", "b"]),
        ({"b": 2}, ["a"]),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_for_the_model_to_mend(wire: Wire, arguments: JSON, fields: list[str]) -> None:
    reply = wire.call("add", arguments)
    assert reply.status == 200
    assert [line.split(":")[0] for line in reply.failure.splitlines()[1:]] == [f"- {field}" for field in fields]


@pytest.mark.parametrize("arguments", [[], "x", 5, True], ids=str)
@pytest.mark.parametrize("dialect", ["modern", "draft"])
def test_arguments_that_are_no_object_are_invalid_params(wire: Wire, dialect: str, arguments: Any) -> None:
    params = {"name": "add", "arguments": arguments}
    reply = wire.modern("tools/call", params) if dialect == "modern" else wire.draft(request("tools/call", params))
    refused(reply, 400, INVALID_PARAMS, 1)


def test_arguments_of_a_prompt_or_resource_that_do_not_fit_are_an_error_that_names_them(wire: Wire) -> None:
    """Their results have no `isError` to say it with."""
    prompt = wire.modern("prompts/get", {"name": "review", "arguments": {}})
    assert refused(prompt, 400, INVALID_PARAMS, 1) == {"name": "review"}
    assert "language" in prompt.error.message
    resource = wire.modern("resources/read", {"uri": "notes://music/one"})
    assert refused(resource, 400, INVALID_PARAMS, 1) == {"uri": "notes://music/one"}
    assert "number" in resource.error.message


@pytest.mark.parametrize("cursor", ["x", 5, None.__class__.__name__, {}, "Wy4uLl0.x"], ids=str)
def test_a_cursor_that_is_not_of_this_list_is_invalid_params(wire: Wire, cursor: Any) -> None:
    refused(wire.modern("tools/list", {"cursor": cursor}), 400, INVALID_PARAMS, 1)


def test_a_cursor_of_another_list_is_invalid_params(wire: Wire) -> None:
    cursor = wire.modern("tools/list").result["nextCursor"]
    assert wire.modern("tools/list", {"cursor": cursor}).result["tools"]
    refused(wire.modern("prompts/list", {"cursor": cursor}), 400, INVALID_PARAMS, 1)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": {}, "argument": {}},
        {"ref": "review", "argument": {"name": "language", "value": "p"}},
        {"ref": {"type": "ref/tool", "name": "add"}, "argument": {"name": "a", "value": "1"}},
        {"ref": {"type": "ref/prompt", "name": 5}, "argument": {"name": "language", "value": "p"}},
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "language", "value": 5}},
        {"ref": {"type": "ref/prompt", "name": "nowhere"}, "argument": {"name": "language", "value": "p"}},
        {"ref": {"type": "ref/resource", "uri": "nowhere"}, "argument": {"name": "language", "value": "p"}},
    ],
    ids=str,
)
def test_a_completion_of_nothing_known_is_invalid_params(wire: Wire, params: JSON) -> None:
    refused(wire.modern("completion/complete", params), 400, INVALID_PARAMS, 1)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": ["toolsListChanged"]},
        {"notifications": {"toolsListChanged": "yes"}},
        {"notifications": {"resourceSubscriptions": "notes://all"}},
        {"notifications": {"resourceSubscriptions": [5]}},
        {"notifications": {"resourceSubscriptions": ["x"] * 1001}},
    ],
    ids=lambda params: str(params)[:60],
)
def test_a_subscription_to_nothing_known_is_invalid_params(wire: Wire, params: JSON) -> None:
    refused(wire.modern("subscriptions/listen", params), 400, INVALID_PARAMS, 1)


# Sealed state


def test_a_state_that_does_not_open_gets_one_frozen_error_whatever_the_reason(wire: Wire) -> None:
    state = wire.call("greet").state
    other = MRTRServer("strict", keys=KeyRing.generate())

    @other.tool
    def greet(inputs: Inputs) -> InputRequired:
        class Login(BaseModel):
            name: str

        return InputRequired(login=Elicit("Who are you?", Login))

    foreign = asyncio.run(
        exchange(other, json.dumps(request("tools/call", {"name": "greet"})).encode(), _plain())
    ).state
    bad: list[Any] = [
        "",
        "x",
        "foo",
        state + "-TAMPERED",
        state[:-1],
        state[:40],
        state + "=",
        state[::-1],
        ("B" if state[60] == "A" else "A").join((state[:60], state[61:])),
        state.swapcase(),
        " " + state,
        "=" * 100,
        "ü" * 80,
        "A" * 60_000,
        foreign,
        wire.call("everything").state,
        wire.modern("prompts/get", {"name": "review", "arguments": {"language": "C"}}).state,
        5,
        True,
        [state],
        {"state": state},
    ]
    replies = [wire.call("greet", answers={"login": accept(name="octocat")}, state=each) for each in bad]
    assert {reply.body for reply in replies} == {replies[0].body}
    refused(replies[0], 400, INVALID_PARAMS, 1)
    assert wire.call("greet", answers={"login": accept(name="octocat")}, state=state).text == "Hello, octocat"


def test_a_state_belongs_to_its_arguments(wire: Wire) -> None:
    params = {"name": "deploy", "arguments": {"service": "shop"}}
    state = wire.post(modern("tools/call", params), {"Mcp-Param-Service": "shop"}).state
    yes = {"inputResponses": {"confirm": accept(confirm=True)}, "requestState": state}
    moved = {**params, "arguments": {"service": "bank"}, **yes}
    refused(wire.post(modern("tools/call", moved), {"Mcp-Param-Service": "bank"}), 400, INVALID_PARAMS, 1)
    assert wire.post(modern("tools/call", {**params, **yes}), {"Mcp-Param-Service": "shop"}).text == "shop is deployed"


# Answers


@pytest.mark.parametrize("dialect", ["modern", "draft"])
@pytest.mark.parametrize(
    "answers", [[], "x", 5, True, {"login": 12345}, {"login": []}, {"login": {}, "x": "y"}], ids=str
)
def test_answers_that_are_no_map_of_objects_are_invalid_params(wire: Wire, dialect: str, answers: Any) -> None:
    params = {"name": "greet", "inputResponses": answers}
    reply = wire.modern("tools/call", params) if dialect == "modern" else wire.draft(request("tools/call", params))
    refused(reply, 400, INVALID_PARAMS, 1)


@pytest.mark.parametrize(
    "answers",
    [
        None,
        {},
        {"login": None},
        {"someone_else": accept(name="octocat")},
        {"login": {}},
        {"login": {"action": "accept"}},
        {"login": {"action": "accept", "content": None}},
        {"login": {"action": "accept", "content": []}},
        {"login": {"action": "accept", "content": "octocat"}},
        {"login": accept()},
        {"login": accept(name=5)},
        {"login": accept(name=None)},
        {"login": accept(name={"first": "octo"})},
        {"login": accept(nickname="octocat")},
        {"login": {"action": "perhaps", "content": {"name": "octocat"}}},
        {"login": {"action": ["accept"], "content": {"name": "octocat"}}},
        {"login": {"content": {"name": "octocat"}}},
        {"login": {"role": "assistant", "content": {"type": "text", "text": "octocat"}, "model": "m"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_state", [True, False], ids=["with a state", "without one"])
def test_answers_that_are_missing_or_not_as_asked_bring_the_question_again(
    wire: Wire, answers: JSON, with_state: bool
) -> None:
    first = wire.call("greet")
    state: JSON = {"state": first.state} if with_state else {}
    reply = wire.call("greet", answers=answers, **state)
    assert reply.status == 200
    assert list(reply.result["inputRequests"]) == ["login"]
    again, asked = (each.result["inputRequests"]["login"]["params"] for each in (reply, first))
    assert again["message"].endswith(asked["message"])
    assert again["requestedSchema"] == asked["requestedSchema"]
    assert wire.call("greet", answers={"login": accept(name="octocat")}, state=reply.state).text == "Hello, octocat"


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize(
    ("method", "params", "key"),
    [
        ("prompts/get", {"name": "review", "arguments": {"language": "C"}}, "login"),
        ("resources/read", {"uri": "notes://all"}, "login"),
    ],
)
def test_a_declined_ask_of_a_prompt_or_resource_is_an_error_with_a_code_of_ours(
    wire: Wire, method: str, params: JSON, key: str, action: str
) -> None:
    state = wire.modern(method, params).state
    reply = wire.modern(method, {**params, "inputResponses": {key: {"action": action}}, "requestState": state})
    assert refused(reply, 200, DECLINED, 1) == {"action": action}
    assert not -32768 <= DECLINED <= -32000, "JSON-RPC reserves that range"


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_declined_ask_of_a_tool_is_a_result_that_says_so(wire: Wire, action: str) -> None:
    reply = wire.call("greet", answers={"login": {"action": action}}, state=wire.call("greet").state)
    assert "was not carried out" in reply.failure


# Budgets


def test_a_body_over_the_limit_is_413_before_it_is_read(wire: Wire) -> None:
    data = refused(wire.send(b" " * (LIMITS.body_bytes + 1), PLAIN), 413, INVALID_REQUEST, None)
    assert data == {"limit": "body_bytes", "value": LIMITS.body_bytes}


def test_a_body_over_the_limit_is_413_when_it_comes_in_chunks_of_unknown_number(wire: Wire) -> None:
    reply = wire.send((b" " * 1024 for _ in range(LIMITS.body_bytes // 1024 + 1)), PLAIN)
    assert refused(reply, 413, INVALID_REQUEST, None) == {"limit": "body_bytes", "value": LIMITS.body_bytes}


def test_a_body_of_just_the_limit_is_read(wire: Wire) -> None:
    body = json.dumps(request("tools/list")).encode().ljust(LIMITS.body_bytes)
    assert wire.send(body, PLAIN).status == 200
    assert wire.send(iter([body[:100], body[100:]]), PLAIN).status == 200


@pytest.mark.parametrize("length", SHORT_AND_LONG)
@pytest.mark.parametrize("dialect", ["modern", "draft"])
def test_json_that_nests_deeper_than_the_limit_is_refused(wire: Wire, dialect: str, length: int) -> None:
    make = modern if dialect == "modern" else request
    message = make("tools/call", {"name": "add", "arguments": {"a": 1}, "long": "x" * length, "more": "NESTED"})

    def send(depth: int, opening: str = '{"x":[', closing: str = "]}") -> Reply:
        """The message and its params are two levels; each pair of brackets is two more."""
        pairs, odd = divmod(depth - 2, 2)
        nested = "[" * odd + opening * pairs + "1" + closing * pairs + "]" * odd
        body = json.dumps(message).replace('"NESTED"', nested).encode()
        return wire.send(body, {**PLAIN, **(mirrored(message) if dialect == "modern" else {})})

    assert send(LIMITS.json_depth).result["structuredContent"] == 1
    for depth in (LIMITS.json_depth + 1, 190, 4000):  # the parser itself stops at 200
        data = refused(send(depth), 400, INVALID_PARAMS, 1)
        assert data == {"limit": "json_depth", "value": LIMITS.json_depth}


def test_brackets_within_strings_do_not_nest(wire: Wire) -> None:
    params: JSON = {"name": "add", "arguments": {"a": 1}, "note": "[{" * 1000}
    assert wire.modern("tools/call", params).result["structuredContent"] == 1


def test_more_answers_than_the_limit_are_refused(wire: Wire) -> None:
    reply = wire.call("greet", answers={str(number): {} for number in range(LIMITS.answers + 1)})
    data = refused(reply, 400, INVALID_PARAMS, 1)
    assert data == {"limit": "answers", "value": LIMITS.answers}


def test_a_flow_over_its_rounds_ends(wire: Wire) -> None:
    reply = wire.call("endless")
    for number in range(1, LIMITS.rounds):
        (key,) = reply.result["inputRequests"]
        reply = wire.call("endless", answers={key: accept(name=str(number))}, state=reply.state)
    (key,) = reply.result["inputRequests"]
    last = wire.call("endless", answers={key: accept(name="last")}, state=reply.state)
    assert refused(last, 400, INVALID_PARAMS, 1) == {"limit": "rounds", "value": LIMITS.rounds}


def test_a_state_over_its_size_ends_the_flow_and_names_what_is_large(wire: Wire) -> None:
    reply = wire.call("hoard")
    assert refused(reply, 400, INVALID_PARAMS, 1) == {"limit": "state_bytes", "value": LIMITS.state_bytes}
    assert "the handler's own state" in reply.error.message


# Capabilities


@pytest.mark.parametrize(
    ("tool", "declared", "missing"),
    [
        ("greet", {}, {"elicitation": {"form": {}}}),
        ("greet", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("greet", {"sampling": {}}, {"elicitation": {"form": {}}}),
        ("visit", {}, {"elicitation": {"url": {}}}),
        ("visit", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("everything", {}, {"elicitation": {"form": {}}, "sampling": {}}),
        ("everything", {"elicitation": {}}, {"sampling": {}}),
    ],
)
def test_an_ask_that_the_client_did_not_declare_is_refused_and_names_what_is_missing(
    wire: Wire, tool: str, declared: JSON, missing: JSON
) -> None:
    data = refused(wire.call(tool, capabilities=declared, id="c"), 400, MISSING_CAPABILITY, "c")
    assert data == {"requiredCapabilities": missing}


def test_an_answer_that_is_already_there_needs_no_capability(wire: Wire) -> None:
    state = wire.call("greet").state
    reply = wire.call("greet", answers={"login": accept(name="octocat")}, state=state, capabilities={})
    assert reply.text == "Hello, octocat"


# Browsers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "x"]
)
def test_an_origin_that_is_not_allowed_is_403(wire: Wire, origin: str) -> None:
    reply = wire.send(json.dumps(request("tools/list")).encode(), {**PLAIN, "Origin": origin})
    assert reply.status == 403
    assert b"\n" not in reply.body


# Failures inside


def test_what_went_wrong_inside_is_a_reference_and_nothing_else(wire: Wire) -> None:
    tool = wire.call("crash")
    assert re.fullmatch(r"Internal error \(reference [0-9a-f]{8}\)", tool.failure)
    prompt = wire.modern("prompts/get", {"name": "broken"})
    assert set(refused(prompt, 500, INTERNAL, 1)) == {"reference"}
    assert b"swordfish" not in tool.body + prompt.body


def test_a_sampled_message_that_is_none_brings_the_question_again(wire: Wire) -> None:
    said = {"role": "assistant", "content": {"type": "text", "text": 5}, "model": "m"}
    reply = wire.modern("prompts/get", {"name": "summary", "inputResponses": {"said": said}})
    assert list(reply.result["inputRequests"]) == ["said"]


# Whatever comes in


def test_codes_that_the_protocol_has_dropped_are_only_in_the_handshake_era() -> None:
    package = ROOT / "mrtr_server"
    sources = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    for dropped in ("32042", "32002"):  # a page that is required, and a resource that is not found
        assert {name for name, source in sources.items() if dropped in source} == {"protocol/handshake.py"}


def _plain() -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"accept", ACCEPT.encode())]


ANSWERS: JSON = {
    "login": accept(name="octocat"),
    "what": accept(size="small", count=2),
    "order": accept(size="large", count=3),
    "confirm": accept(confirm=True),
    "sample": {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"},
    "roots": {"roots": [{"uri": "file:///home"}]},
}
REQUESTS: list[tuple[str, JSON]] = [
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    ("tools/call", {"name": "greet", "arguments": {}}),
    ("tools/call", {"name": "order", "arguments": {}}),
    ("tools/call", {"name": "everything", "arguments": {}}),
    ("tools/call", {"name": "endless", "arguments": {}}),
    ("tools/call", {"name": "visit", "arguments": {}}),
    ("prompts/get", {"name": "review", "arguments": {"language": "Python"}}),
    ("resources/read", {"uri": "notes://music/1"}),
    ("resources/read", {"uri": "notes://all"}),
    ("tools/list", {"cursor": "x"}),
    ("resources/templates/list", {}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "review"},
            "argument": {"name": "language", "value": "p"},
            "context": {"arguments": {"x": "y"}},
        },
    ),
    ("server/discover", {}),
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["accept", "decline", "cancel", "login", "add", "notes://all", "form", ""])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path to every value within a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def broken_requests(draw: st.DrawFn) -> tuple[JSON, bool]:
    """Draw a request that is right but for up to three places; and whether it is a modern one."""
    method, params = draw(st.sampled_from(REQUESTS))
    more: JSON = {"task": {"ttl": 5}}
    if draw(st.booleans()):
        more["inputResponses"] = {
            key: ANSWERS[key] for key in draw(st.lists(st.sampled_from(list(ANSWERS)), unique=True))
        }
    if draw(st.booleans()):
        more["requestState"] = STATES.get((method, target(params)), "x")
    in_modern = draw(st.booleans())
    message = (modern if in_modern else request)(method, {**params, **more})
    message = json.loads(json.dumps(message))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(message))))
        within = message
        for key in path[:-1]:
            within = within[key]
        if draw(st.booleans()) or isinstance(within, list):
            within[path[-1]] = draw(values)
        else:
            del within[path[-1]]
        if not isinstance(message.get("params", {}), dict) or not message:
            break
    return message, in_modern


STATES: dict[tuple[str, str], str] = {}


def target(params: JSON) -> str:
    """Return the name or URI that a request is about; empty for none."""
    return str(params.get("name", params.get("uri", "")))


class Errors(logging.Handler):
    """Collects what the package logs as an error: a fault on the server's side, whatever the client was told."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as loop:
        for method, params in REQUESTS:
            if target(params):
                body = json.dumps(request(method, params)).encode()
                result = loop.run(exchange(strict, body, _plain())).message.get("result", {})
                if "requestState" in result:
                    STATES[method, target(params)] = result["requestState"]
        assert len(STATES) == 8
        yield loop


@pytest.fixture(scope="module")
def errors() -> Iterator[list[logging.LogRecord]]:
    handler = Errors()
    logging.getLogger("mrtr_server").addHandler(handler)
    yield handler.records
    logging.getLogger("mrtr_server").removeHandler(handler)


def never_at_fault(reply: Reply, errors: list[logging.LogRecord]) -> None:
    assert not errors, errors.pop().getMessage()
    assert reply.status in (200, 202, 400, 404), reply.body
    if not reply.body:
        return
    assert b"\n" not in reply.body
    assert "id" not in reply.message or type(reply.message["id"]) in (str, int)
    if "error" in reply.message:
        assert reply.code in (
            PARSE_ERROR,
            INVALID_REQUEST,
            METHOD_NOT_FOUND,
            INVALID_PARAMS,
            HEADER_MISMATCH,
            MISSING_CAPABILITY,
            UNSUPPORTED_VERSION,
            DECLINED,
        )


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(broken=broken_requests())
def test_wrong_types_anywhere_are_never_a_fault_of_ours(
    runner: asyncio.Runner, errors: list[logging.LogRecord], broken: tuple[JSON, bool]
) -> None:
    message, in_modern = broken
    headers = _plain()
    if in_modern:
        params = message.get("params")
        named = {"method": str(message.get("method", "")), "params": params if isinstance(params, dict) else {}}
        headers += [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in mirrored(named).items()
        ]
    reply = runner.run(exchange(strict, json.dumps(message).encode(), headers))
    never_at_fault(reply, errors)
    if reply.body and type(message.get("id")) in (str, int) and reply.code != PARSE_ERROR:
        assert reply.message.get("id", message["id"]) == message["id"]
    if reply.body and in_modern and reply.status == 200:
        assert not (wrong := list(official_problems(str(message["method"]), reply))), wrong


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_bytes_of_any_kind_are_never_a_fault_of_ours(
    runner: asyncio.Runner, errors: list[logging.LogRecord], body: bytes
) -> None:
    never_at_fault(runner.run(exchange(strict, body, _plain())), errors)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-service", b"mcp-session-id"]
            ),
            st.sampled_from(
                [VERSION.encode(), b"tools/call", b"deploy", b"=?base64?ZGVwbG95?=", b"=?base64?", b"2025-11-25"]
            )
            | st.binary(max_size=12),
        ),
        max_size=5,
    )
)
def test_headers_of_any_kind_are_never_a_fault_of_ours(
    runner: asyncio.Runner, errors: list[logging.LogRecord], headers: list[tuple[bytes, bytes]]
) -> None:
    message = modern("tools/call", {"name": "deploy", "arguments": {"service": "x"}}, capabilities=EVERYTHING)
    never_at_fault(runner.run(exchange(strict, json.dumps(message).encode(), [*_plain(), *headers])), errors)
