"""Golden transcripts: what goes over the wire in each dialect, message by message.

A transcript is a file in `transcripts/`, which opens with a sentence that says what it guards. Those of the drafts hold
the messages that the drafts print; each request is posted once, with nothing but a content type. `printed.json` lists
what clients send in the drafts.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mrtr_server.protocol.handshake_versions import BY_NAME

from ..support.direct import headers_for
from ..support.handshake import Handshake, check, play
from ..support.serving import in_thread
from ..support.wire import JSON, PREFIX, Listener, Wire
from ..tasks.test_notifications import Opened, until

HERE = Path(__file__).with_name("transcripts")
STATE = "<state>"


def transcripts(dialect: str) -> list[Any]:
    """Return the transcripts of a dialect, each named after its file."""
    paths = sorted((HERE / dialect).glob("*.json"))
    assert paths, f"no transcripts of {dialect}"
    return [pytest.param(json.loads(path.read_text()), id=path.stem) for path in paths]


@pytest.fixture(scope="module")
def wire_to() -> Iterator[Callable[[str], Wire]]:
    """Serve the application of an import string over real HTTP, once for all transcripts that are about it."""
    wires: dict[str, Wire] = {}
    with ExitStack() as stack:

        def start(target: str) -> Wire:
            if target not in wires:
                module, _, name = target.partition(":")
                port = stack.enter_context(in_thread(getattr(importlib.import_module(module), name)))
                wires[target] = Wire(f"http://127.0.0.1:{port}/mcp")
                stack.callback(wires[target].close)
            return wires[target]

        yield start


def up_to_what_differs(answer: JSON) -> JSON:
    """Leave out what the design lists under "As printed, up to": the state, the id."""
    answer = json.loads(json.dumps({**answer, "id": None}))
    answer.get("result", {}).pop("requestState", None)
    return answer


def without_mode(printed: JSON) -> JSON:
    """Leave out the mode of a form: of the rounds of revision 1, some print it, of those of revision 2, none."""
    printed = json.loads(json.dumps(printed))
    for asked in printed.get("result", {}).get("inputRequests", {}).values():
        assert asked["params"].pop("mode", "form") == "form"
    return printed


@pytest.mark.parametrize("transcript", transcripts("draft"))
def test_the_drafts_are_answered_as_printed(wire_to: Callable[[str], Wire], transcript: JSON) -> None:
    wire, state = wire_to(transcript["app"]), None
    assert next(iter(transcript)) == "guards"
    for exchange in transcript["exchanges"]:
        request = json.loads(json.dumps(exchange["request"]))
        for place in (request, request["params"]):
            if "requestState" in place:  # the printed one stands for what the server gave
                place["requestState"] = state
        reply = wire.draft(request)
        assert reply.status == exchange.get("status", 200), reply.body
        assert reply.headers["content-type"] == "application/json"
        assert reply.message["id"] == request["id"], "the id is echoed, whatever the print says"
        assert up_to_what_differs(reply.message) == up_to_what_differs(without_mode(exchange["answer"]))
        state = reply.message.get("result", {}).get("requestState")
        is_asked = "inputRequests" in reply.message.get("result", {})
        assert is_asked == isinstance(state, str), "whoever is asked gets a state"


IDS = ("taskId", "elicitationId")
TIMES = {"createdAt", "lastUpdatedAt"}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
RESPONSE = PREFIX + "elicitation-response"


def with_ids(message: Any, ours: Mapping[str, str]) -> Any:
    """Put our ids where the printed ones are."""
    if isinstance(message, dict):
        return {
            name: ours.get(value, value) if name in IDS else with_ids(value, ours) for name, value in message.items()
        }
    return [with_ids(item, ours) for item in message] if isinstance(message, list) else message


def learn(printed: Any, answer: Any, ours: dict[str, str]) -> None:
    """Note which of our ids stands for which printed one."""
    if isinstance(printed, dict) and isinstance(answer, dict):
        for name in printed.keys() & answer.keys():
            if name in IDS:
                ours.setdefault(printed[name], answer[name])
            learn(printed[name], answer[name], ours)
    elif isinstance(printed, list) and isinstance(answer, list):
        for each, other in zip(printed, answer, strict=False):
            learn(each, other, ours)


def up_to_what_differs_in_tasks(answer: JSON) -> JSON:
    """Leave out what the design lists under "As printed, up to", in the messages about tasks: what times it is, too."""
    answer = up_to_what_differs(answer)
    for holder in (answer["result"], answer["result"].get("task", {})):
        for name in TIMES & holder.keys():
            assert re.fullmatch(TIME, holder[name])
            holder[name] = "<time>"
    for part in answer["result"].get("content", []):
        part["text"] = re.sub(r"RES-\d{4}-\d{3}", "RES-<number>", part["text"])
    return answer


def updated(printed: JSON) -> JSON:
    """Add when a task was last updated, which revision 2 alone prints."""
    printed = json.loads(json.dumps(printed))
    for holder in (printed["result"], printed["result"].get("task", {})):
        if "ttl" in holder:
            holder.setdefault("lastUpdatedAt", holder["createdAt"])
    return printed


def polls(message: JSON) -> bool:
    """Return whether a message is a look at a task that the client of the drafts repeats."""
    return message["method"] == "tasks/get" and RESPONSE not in message["params"].get("_meta", {})


@pytest.mark.parametrize("transcript", transcripts("draft-tasks"))
def test_the_tasks_of_the_drafts_are_answered_as_printed(wire_to: Callable[[str], Wire], transcript: JSON) -> None:
    """Each message is posted once. Of the looks that a client repeats, the drafts print the one that finds something,
    so that one is posted when a listener has heard of it.
    """
    wire = wire_to(transcript["app"])
    ours: dict[str, str] = {}
    assert next(iter(transcript)) == "guards"
    for exchange in transcript["exchanges"]:
        message, printed = with_ids(exchange["request"], ours), exchange["answer"]
        if "method" in message and polls(message):
            with Opened(wire, [message["params"]["taskId"]]) as listener:
                listener.next()
                until(listener, printed["result"]["status"])
        reply = wire.draft(message)
        if printed is None:
            assert (reply.status, reply.body) == (202, b"")
            continue
        assert reply.status == 200, reply.body
        assert reply.message["id"] == message["id"]
        learn(printed, reply.message, ours)
        expected = updated(with_ids(printed, ours))
        assert up_to_what_differs_in_tasks(reply.message) == up_to_what_differs_in_tasks(expected)


def up_to_times_and_state(answer: JSON) -> JSON:
    """Leave out the state, wherever a reply that asks has it, and what times it is. All else is compared in full."""
    answer = json.loads(json.dumps({name: value for name, value in answer.items() if name != "requestState"}))
    result = answer.get("result", {})
    result.pop("requestState", None)
    for holder in (result, result.get("task", {})):
        for name in TIMES & holder.keys():
            assert re.fullmatch(TIME, holder[name])
            holder[name] = "<time>"
    return answer


@pytest.mark.parametrize("transcript", transcripts("draft-encodings"))
def test_the_other_encodings_are_answered_as_printed(wire_to: Callable[[str], Wire], transcript: JSON) -> None:
    """Nothing here is in the form of a later draft, not even a word. Clients as printed send no state back."""
    wire = wire_to(transcript["app"])
    ours: dict[str, str] = {}
    assert next(iter(transcript)) == "guards"
    for exchange in transcript["exchanges"]:
        message, printed = with_ids(exchange["request"], ours), exchange["answer"]
        assert "requestState" not in json.dumps(message)
        if "method" in message and polls(message):
            with Opened(wire, [message["params"]["taskId"]]) as listener:
                listener.next()
                status = printed["result"]["status"].lower()
                until(listener, "input_required" if status == "input_require" else status)
        reply = wire.draft(message)
        if printed is None:
            assert (reply.status, reply.body) == (202, b"")
            continue
        assert reply.status == 200, reply.body
        learn(printed, reply.message, ours)
        expected = up_to_times_and_state({**with_ids(printed, ours), "id": message["id"]})
        assert up_to_times_and_state(reply.message) == expected


PRINTED = json.loads(Path(__file__).with_name("printed.json").read_text())
"""What clients send in the drafts: every request, answer and response that a document prints, by document."""


@pytest.mark.parametrize("document", PRINTED)
def test_every_message_of_a_client_that_a_draft_prints_is_posted(document: str) -> None:
    posted = [
        exchange["request"]
        for dialect in ("draft", "draft-tasks", "draft-encodings")
        for transcript in transcripts(dialect)
        for exchange in transcript.values[0]["exchanges"]
    ]
    for printed in PRINTED[document]:
        # One is printed without its method and params.
        whole = printed if "method" in printed or "result" in printed else None
        assert any(each == whole or (whole is None and printed.items() <= each.items()) for each in posted), printed


def test_a_non_blocking_elicitation_is_three_messages() -> None:
    """Complete Flow Diagram of #1869: none of them is a look that finds nothing."""
    transcript = json.loads((HERE / "draft-tasks" / "non-blocking-elicitation.json").read_text())
    methods = [exchange["request"]["method"] for exchange in transcript["exchanges"]]
    assert methods == ["tools/call", "tasks/get", "tasks/result"]
    assert not any(polls(exchange["request"]) for exchange in transcript["exchanges"])


VOLATILE = {
    "requestState": STATE,
    "elicitationId": "<elicitation>",
    "taskId": "<task>",
    "createdAt": "<time>",
    "lastUpdatedAt": "<time>",
    "cursor": "<cursor>",
}
"""What differs each time, and stands in a transcript as a mark; all else is compared in full."""


def with_ours(message: Any, ours: Mapping[str, str]) -> Any:
    """Put our state and our task's id where a transcript has a mark."""
    if isinstance(message, dict):
        return {name: with_ours(value, ours) for name, value in message.items()}
    if isinstance(message, list):
        return [with_ours(item, ours) for item in message]
    return ours.get(message, message) if isinstance(message, str) else message


def with_marks(message: Any, ours: dict[str, str]) -> Any:
    """Put marks where a message has what differs each time, and note what our values are.

    A state is another in each round, a task stays the same.
    """
    if isinstance(message, list):
        return [with_marks(item, ours) for item in message]
    if not isinstance(message, dict):
        return message
    marked = {name: with_marks(value, ours) for name, value in message.items()}
    for name in VOLATILE.keys() & message.keys():
        value, mark = message[name], VOLATILE[name]
        if name in TIMES:
            assert re.fullmatch(TIME, value)
        elif name == "taskId":
            assert ours.setdefault(mark, value) == value
        ours[mark] = value
        marked[name] = mark
    return marked


def exchanged(wire: Wire, exchange: JSON, ours: dict[str, str]) -> None:
    """Post a request once, and compare what comes back with what was recorded."""
    if "when" in exchange:  # a listener has heard of that status, so that nothing need be asked twice
        with Opened(wire, [ours["<task>"]]) as listener:
            listener.next()
            until(listener, exchange["when"])
    reply = wire.post(with_ours(exchange["request"], ours), exchange.get("headers"))
    assert reply.status == exchange.get("status", 200)
    assert reply.is_stream == ("stream" in exchange)
    expected = exchange["stream"] if "stream" in exchange else [exchange["answer"]]
    assert with_marks(reply.received, ours) == expected


def listened(wire: Wire, exchange: JSON, ours: dict[str, str]) -> None:
    """Open a subscription; after its first message do what is done meanwhile, and read as much as was recorded."""
    message = with_ours(exchange["request"], ours)
    body, headers = json.dumps(message), headers_for(message)
    with wire.client.stream("POST", wire.url, content=body, headers=headers) as response:
        assert response.status_code == exchange.get("status", 200)
        listener, first = Listener(response.iter_lines()), exchange["stream"][0]
        assert with_marks(listener.next(), ours) == first
        for other in exchange["meanwhile"]:
            exchanged(wire, other, ours)
        expected = exchange["stream"][1:]
        assert [with_marks(listener.next(), ours) for _ in expected] == expected


@pytest.mark.parametrize("transcript", transcripts("modern"))
def test_the_ratified_protocol_is_served_as_recorded(wire_to: Callable[[str], Wire], transcript: JSON) -> None:
    wire = wire_to(transcript["app"])
    ours: dict[str, str] = {}
    assert next(iter(transcript)) == "guards"
    for exchange in transcript["exchanges"]:
        (listened if "meanwhile" in exchange else exchanged)(wire, exchange, ours)


KINDS = {
    "modern": {"plain-call", "basic-flow", "task", "unknown-names", "subscription"},
    "draft": {"response-types-answer", "rev1-basic-flow", "rev2-basic-flow", "error"},
    "draft-tasks": {"rev1-echo", "rev2-echo"},
    "draft-encodings": {"response-types-option-1", "response-types-option-2", "message-structure-echo"},
}
"""What each dialect has a transcript of, where it has that: a plain call, a flow with its retry, a task, an error and a
subscription."""


@pytest.mark.parametrize("dialect", KINDS)
def test_each_dialect_has_one_of_each_kind(dialect: str) -> None:
    assert {path.stem for path in (HERE / dialect).glob("*.json")} >= KINDS[dialect]


# With a handshake


@pytest.mark.parametrize("transcript", transcripts("handshake"))
def test_each_version_with_a_handshake_is_served_as_recorded(wire_to: Callable[[str], Wire], transcript: JSON) -> None:
    """What is asked is answered as the transcript says; sealed ids are left out."""
    client = Handshake([wire_to(transcript["app"]).url], version=transcript["version"])
    ours: dict[str, str] = {}
    try:
        for exchange in transcript["exchanges"]:
            replies = play(client, with_ours(exchange, ours))
            assert with_marks(replies, ours) == exchange["replies"]
            for reply in replies:
                check("JSONRPCMessage", {**reply, "id": 1} if "id" in reply else reply, client.version)
    finally:
        client.close()


def test_every_version_with_a_handshake_has_its_transcript() -> None:
    versions = {parameter.values[0]["version"] for parameter in transcripts("handshake")}
    assert versions == set(BY_NAME)
