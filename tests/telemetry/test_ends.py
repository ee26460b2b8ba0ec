"""How a call, and a round of a task, ended: in a word, with its error, and whether its flow is over."""

import asyncio

import pytest

from mrtr_server.errors import InternalFault, RequestError
from mrtr_server.flow.endings import Asking, Backgrounded, Yielded
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.call_facts import CallFacts
from mrtr_server.protocol.messages import (
    Acknowledged,
    Complete,
    HandedOver,
    NeedsInput,
    Outcome,
    TaskPage,
    YieldReason,
)
from mrtr_server.tasks.round_executor import TaskEnd
from mrtr_server.telemetry.ends import End, end_of, end_of_task, end_of_task_error


@pytest.fixture
def facts() -> CallFacts:
    return CallFacts()


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Complete({}), End("completed", ends_flow=True)),
        (Complete({"isError": True}), End("tool_error", "tool_error", ends_flow=True)),
        (NeedsInput({}, "state", 0.0), End("asked")),
        (HandedOver("state", 0.0, None), End("handed_over")),
        (TaskPage([], ""), End("completed")),
        (Acknowledged("task"), End("completed")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_outcome_says_how_its_call_ended(facts: CallFacts, outcome: Outcome, end: End) -> None:
    assert end_of(outcome, facts) == end


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Complete({}), End("completed")),
        (Complete({"isError": True}), End("tool_error", "tool_error")),
        (InternalFault("12345678"), End("error", "internal_fault")),
        (Asking({}), End("asked")),
        (Yielded(YieldReason.DRAINING), End("handed_over")),
        (Backgrounded(Journal(0.0)), End("handed_over")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_round_of_a_task_ends_no_flow(facts: CallFacts, outcome: TaskEnd, end: End) -> None:
    assert end_of_task(outcome, facts) == end


def test_a_no_is_told_from_a_failure(facts: CallFacts) -> None:
    facts.declined = True
    assert end_of(Complete({"isError": True}), facts).outcome == "declined"
    assert end_of_task(Complete({"isError": True}), facts).outcome == "declined"


def test_a_round_of_a_task_that_is_cancelled_is_no_error() -> None:
    assert end_of_task_error(asyncio.CancelledError()) == End("cancelled", "cancelled")
    error: RequestError = InternalFault("12345678")
    assert end_of_task_error(error).outcome == "error"
