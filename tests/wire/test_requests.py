"""A request of the ratified protocol says in its headers what its body says, whatever the values are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.protocol.envelope import decode_header
from mrtr_server.protocol.header_params import HeaderParameter
from mrtr_server.wire.requests import About, write_modern, write_request

from ..support.wire import PREFIX, VERSION

ABOUT = About({"name": "test", "version": "1"}, {"elicitation": {}})


def test_a_request_has_all_that_the_protocol_requires() -> None:
    headers, body = write_modern(ABOUT, 7, "tools/list", {"cursor": "c"})
    assert headers == {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/list",
    }
    assert json.loads(body) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/list",
        "params": {
            "cursor": "c",
            "_meta": {
                PREFIX + "protocolVersion": VERSION,
                PREFIX + "clientInfo": ABOUT.info,
                PREFIX + "clientCapabilities": ABOUT.capabilities,
                "progressToken": 7,
            },
        },
    }


def test_the_level_of_the_log_is_there_where_one_is_wanted() -> None:
    _, body = write_modern(ABOUT._replace(log_level="warning"), 1, "tools/list", {})
    assert json.loads(body)["params"]["_meta"][PREFIX + "logLevel"] == "warning"


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/get", "taskId"),
        ("tasks/update", "taskId"),
        ("tasks/cancel", "taskId"),
    ],
)
def test_what_a_method_is_about_is_in_a_header(method: str, field: str) -> None:
    assert write_modern(ABOUT, 1, method, {field: "it"})[0]["Mcp-Name"] == "it"


@given(st.text(max_size=40))
def test_any_name_arrives_as_it_is(name: str) -> None:
    headers, body = write_modern(ABOUT, 1, "tools/call", {"name": name})
    assert headers["Mcp-Name"].isascii()
    assert headers["Mcp-Name"].isprintable() or "\t" in headers["Mcp-Name"]
    assert decode_header(headers["Mcp-Name"].encode()) == name == json.loads(body)["params"]["name"]


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("eu", "eu"),
        (3, "3"),
        (True, "true"),
        (" eu", "=?base64?IGV1?="),
        ("=?base64?eHg=?=", "=?base64?PT9iYXNlNjQ/ZUhnPT89?="),
        ("ö", "=?base64?w7Y=?="),
        ("a\nb", "=?base64?YQpi?="),
    ],
)
def test_an_argument_that_a_header_mirrors_is_there_in_the_form_of_a_header(value: Any, header: str) -> None:
    mirrored = [HeaderParameter("mcp-param-region", ("where", "region"), "string")]
    params = {"name": "t", "arguments": {"where": {"region": value}}}
    assert write_modern(ABOUT, 1, "tools/call", params, mirrored)[0]["mcp-param-region"] == header


@pytest.mark.parametrize("arguments", [{}, {"where": None}, {"where": {"region": None}}, {"where": ["region"]}, None])
def test_an_argument_that_is_not_there_has_no_header(arguments: Any) -> None:
    mirrored = [HeaderParameter("mcp-param-region", ("where", "region"), "string")]
    headers, _ = write_modern(ABOUT, 1, "tools/call", {"name": "t", "arguments": arguments}, mirrored)
    assert "mcp-param-region" not in headers


def test_a_request_of_any_version_is_one_line_of_json() -> None:
    body = write_request(3, "ping", {"text": "a\nb"})
    assert b"\n" not in body
    assert json.loads(body) == {"jsonrpc": "2.0", "id": 3, "method": "ping", "params": {"text": "a\nb"}}
