"""Outcomes as bytes: any replica makes the same reply of them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mrtr_server import Elicit, InsufficientScope, ProtocolError, errors
from mrtr_server.errors import (
    Busy,
    Declined,
    Full,
    InternalFault,
    InvalidParams,
    InvalidRequest,
    InvalidRequestState,
    MissingCapability,
    OverBudget,
    OverShare,
    PagesRequired,
    RequestError,
    Unavailable,
    UnknownTarget,
    UnsupportedVersion,
)
from mrtr_server.flow.outcome_codec import dump_outcome, load_outcome
from mrtr_server.logs.refusals import RefusalLog
from mrtr_server.protocol.dialect import Surface
from mrtr_server.protocol.handshake import HandshakeDialect
from mrtr_server.protocol.messages import (
    Call,
    Complete,
    Discovery,
    HandedOver,
    NeedsInput,
    Task,
    TaskCreated,
    YieldReason,
)
from mrtr_server.protocol.served_dialects import DIALECTS
from mrtr_server.transport.requests import note_refusal

from ..support.apps import Order

CALL = Call(method="tools/call", params={}, target="pay", request_id=7)
SURFACE = Surface({"name": "x", "version": "1"}, ["2026-07-28"], lambda tool: "forbidden")

OUTCOMES = [
    Complete({"content": [{"type": "text", "text": "é\u2028"}], "isError": False}),
    Complete({"structuredContent": {"whole": 1.0, "large": 2**70, "none": None}}, 5.0, "public"),
    NeedsInput(
        {"order": Elicit("What?", Order).question().because("No."), "x": Elicit("?", Order).question()}, "abc", 60.5
    ),
    HandedOver("abc", 1e9),
    TaskCreated(Task("id", "working", 1.0, 2.0, 60.0, 1.5, "busy")),
    TaskCreated(
        Task(
            "task-id",
            "input_required",
            1.0,
            2.0,
            60.0,
            1.5,
            questions={"order_2": Elicit("What?", Order).question()},
            names={"order_2": "order"},
            first_ask=True,
        )
    ),
]
ERRORS = [
    OverBudget("too much", "rounds", 10, more=[1]),
    MissingCapability({"elicitation": {"url": {}}}),
    InvalidRequestState("expired"),
    InternalFault("1f2e", "detail"),
    InvalidParams("no", {"field": "a"}),
    InvalidRequest("no"),
    UnknownTarget("tool", "x"),
    UnsupportedVersion("1", ["2"]),
    ProtocolError("no"),
    Declined("no", {"action": "cancel"}),
    Busy(1.0),
    Full("stored_states", 5),
    OverShare("held_streams", 5),
    Unavailable("abcd"),
    InsufficientScope("a", "b"),
    PagesRequired({}),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_is_itself_again(outcome: Any) -> None:
    again = load_outcome(dump_outcome(outcome))
    assert dump_outcome(again) == dump_outcome(outcome)


def test_a_hand_over_is_one_again_and_its_reason_is_no_part_of_what_is_recorded() -> None:
    recorded = dump_outcome(HandedOver("abc", 1e9, YieldReason.FULL))
    assert recorded == b'["input",{},"abc",1000000000.0]'  # as releases write it that know no other form
    assert load_outcome(recorded) == HandedOver("abc", 1e9)


@pytest.mark.parametrize(
    ("dialect", "outcome"),
    [
        (dialect, outcome)
        for dialect in DIALECTS.values()
        for outcome in OUTCOMES
        if dialect is not HandshakeDialect or isinstance(outcome, Complete)  # questions are no results there
    ],
)
def test_an_outcome_makes_the_same_reply(dialect: Any, outcome: Any) -> None:
    writer = dialect(SURFACE)
    assert writer.dump_outcome(CALL, load_outcome(dump_outcome(outcome))) == writer.dump_outcome(CALL, outcome)


@pytest.mark.parametrize("dialect", list(DIALECTS.values()))
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_makes_the_same_reply(dialect: Any, error: RequestError) -> None:
    again = load_outcome(dump_outcome(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    writer = dialect(SURFACE)
    assert writer.error(7, again) == writer.error(7, error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_has_all_that_others_ask_of_it_and_is_logged_as_any(error: RequestError) -> None:
    again = load_outcome(dump_outcome(error))
    assert isinstance(again, RequestError)
    assert [name for name in vars(error) if not hasattr(again, name)] == []
    note_refusal(RefusalLog(), CALL, again)


def test_the_scopes_that_are_missing_are_named_by_every_delivery() -> None:
    again = load_outcome(dump_outcome(InsufficientScope("a", "b")))
    assert isinstance(again, InsufficientScope)
    assert again.scopes == ("a", "b")


def kinds(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


@pytest.mark.parametrize("kind", list(kinds(RequestError)))
def test_every_kind_of_error_can_be_read_back(kind: type[RequestError]) -> None:
    assert getattr(errors, kind.__name__) is kind


def test_an_outcome_is_json_whatever_numbers_are_in_it() -> None:
    strange = {"numbers": [float("nan"), float("inf"), 1.5]}
    for outcome in (Complete(strange), OverBudget("no", "rounds", 1, more=strange)):
        assert json.loads(dump_outcome(outcome), parse_constant=pytest.fail)


@pytest.mark.parametrize("name", ["FromALaterVersion", "ToolError", "Mapping", "__doc__"])
def test_an_error_that_is_not_known_is_a_plain_one(name: str) -> None:
    again = load_outcome(f'["error", "{name}", "what happened", null]'.encode())
    assert type(again) is RequestError
    assert again.message == "what happened"


@pytest.mark.parametrize(
    "written", [b"", b"{}", b"[]", b"null", b'["input"]', b'["input", [], ""]', b'["error"]', b"\xff"]
)
def test_what_is_no_outcome_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        load_outcome(written)


def test_only_flows_have_outcomes_to_record() -> None:
    with pytest.raises(ValueError, match="not an outcome of a flow"):
        dump_outcome(Discovery({}, "", 0.0, "public"))
