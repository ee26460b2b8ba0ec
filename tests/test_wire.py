"""A client's side of the wire, without I/O: requests, the events of a stream, and the rounds of a call.

A request of the ratified protocol says in its headers what its body says, whatever the values are. Events are read as
they come, in whatever pieces. A walk of a call knows which request is next, and where a result leaves the call.
"""

import json
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.client import BadReply
from mrtr_server.protocol.header_params import HeaderParameter, decode_header
from mrtr_server.wire import About, Event, EventReader, Rounds, write_modern, write_request

from .support.wire import PREFIX, VERSION

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


ASKED = {"login": {"method": "elicitation/create", "params": {}}}


def call() -> Rounds:
    return Rounds("tools/call", "order", {"title": "Emma"}, most=2)


def test_a_round_carries_the_answers_and_the_newest_state() -> None:
    rounds = call()
    first = {"name": "order", "arguments": {"title": "Emma"}}
    assert rounds.next({}) == ("tools/call", first)
    rounds.take({"resultType": "input_required", "inputRequests": ASKED, "requestState": "one"})
    assert (rounds.questions, rounds.pause, rounds.is_over) == (ASKED, 0.0, False)
    assert rounds.next({"login": "ann"})[1] == {**first, "inputResponses": {"login": "ann"}, "requestState": "one"}
    rounds.take({"resultType": "input_required", "inputRequests": ASKED})
    assert rounds.next({})[1] == first, "a round without a state ends the one before"
    rounds.take({"content": []})
    assert rounds.is_over


def test_rounds_without_a_question_come_at_once_and_then_ever_later() -> None:
    rounds, pauses = call(), []
    for _ in range(8):
        rounds.next({})
        rounds.take({"resultType": "input_required", "requestState": "s"})
        pauses.append(rounds.pause)
    assert pauses[0] == 0.0
    assert pauses[1:] == sorted(pauses[1:])
    assert 0 < pauses[1] < pauses[-1] == 1.0


def test_a_call_that_became_a_task_is_looked_at_and_each_of_its_questions_is_answered_once() -> None:
    rounds = call()
    rounds.take({"resultType": "task", "taskId": "t", "status": "working"})
    assert rounds.next({}) == ("tasks/get", {"taskId": "t"})
    rounds.take({"status": "input_required", "inputRequests": ASKED, "pollIntervalMs": 200})
    assert (rounds.questions, rounds.pause) == (ASKED, 0.0)
    assert rounds.next({"login": "ann"}) == ("tasks/update", {"taskId": "t", "inputResponses": {"login": "ann"}})
    assert rounds.next({}) == ("tasks/get", {"taskId": "t"})
    rounds.take({"status": "input_required", "inputRequests": ASKED, "pollIntervalMs": 200})
    assert (rounds.questions, rounds.pause) == ({}, 0.2)
    rounds.take({"status": "failed", "error": {}})
    assert rounds.is_over


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "poem"},
        {"resultType": "task"},
        {"resultType": "input_required"},
        {"resultType": "input_required", "requestState": 5},
        {"resultType": "input_required", "requestState": "s", "inputRequests": ["login"]},
        {"resultType": "input_required", "inputRequests": {key: {} for key in "abc"}},
    ],
)
def test_a_result_that_means_nothing_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(BadReply):
        call().take(result)


STREAM = (
    b": a comment\n\n"
    b"id: 7\nevent: message\nretry: 1500\ndata: first\ndata: second\n\n"
    b"data:unspaced\r\n\r\n"
    b"data: \xe2\x80\xa8 is no end of a line\n\n"
)
EVENTS = [("7", "message", "first\nsecond", 1500), ("", "message", "unspaced", None)]
EVENTS.append(("", "message", "\u2028 is no end of a line", None))


def read(*parts: bytes) -> list[Event]:
    reader = EventReader(Event)
    return [event for part in parts for event in reader.feed(part)]


def seen(events: list[Event]) -> list[tuple[str, str, str, int | None]]:
    return [(event.id, event.kind, event.data, event.retry) for event in events]


def test_a_stream_is_read_whole() -> None:
    assert seen(read(STREAM)) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_however_it_is_cut(cuts: list[int]) -> None:
    parts = [STREAM[start:end] for start, end in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert seen(read(*parts)) == EVENTS


def test_an_event_has_its_bytes_with_the_comments_before_it() -> None:
    assert b"".join(event.raw for event in read(STREAM)) == STREAM


def test_an_event_comes_with_its_empty_line_and_not_before() -> None:
    reader = EventReader(Event)
    assert reader.feed(b"data: x\n") == []
    assert [event.data for event in reader.feed(b"\n")] == ["x"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_further_empty_lines_are_skipped_and_not_kept(end: bytes) -> None:
    reader, many = EventReader(Event), end * 40_000
    began = process_time()
    for _ in range(50):
        assert reader.feed(many) == []
        assert [event.raw for event in reader.feed(b"data: x" + end + many)] == [b"data: x" + end * 2]
    assert process_time() - began < 1
    assert [event.data for event in reader.feed(b"data: y\n\n" + many + b"data: z\n\n")] == ["y", "z"]


def test_comments_are_counted() -> None:
    reader = EventReader(Event)
    assert reader.feed(b": one\n:\n\ndata: x\n: three\n\n")[0].data == "x"
    assert reader.comments == 3


def test_the_class_of_the_events_is_that_of_the_reader() -> None:
    class Special(Event):
        """Another kind."""

    assert [type(event) for event in EventReader(Special).feed(b"data: x\n\n")] == [Special]


@pytest.mark.parametrize(
    ("said", "retry"),
    [
        ("0", 0),
        ("999999999", 999_999_999),
        ("1" * 10, None),
        ("1" * 10_000, None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
    ],
)
def test_a_time_to_come_back_after_is_a_number_of_a_few_digits(said: str, retry: int | None) -> None:
    (event,) = read(f"retry: {said}\ndata: x\n\n".encode())
    assert event.retry == retry
