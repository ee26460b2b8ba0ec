"""The labels of an end: its word, its error, and whether its flow is over."""

import asyncio

import pytest

from mrtr_server import ProtocolError
from mrtr_server.errors import InternalFault
from mrtr_server.flow.endings import Asking
from mrtr_server.methods.middleware import Came, note_end
from mrtr_server.protocol.messages import Call, Complete, HandedOver, NeedsInput
from mrtr_server.telemetry.calls import Labels, labels_of_call, labels_of_task


@pytest.mark.parametrize(
    ("came", "labels"),
    [
        (Complete({}), Labels("completed", ends_flow=True)),
        (Complete({"isError": True}), Labels("tool_error", "tool_error", ends_flow=True)),
        (NeedsInput({}, "state"), Labels("asked")),
        (HandedOver("state"), Labels("handed_over")),
        (asyncio.CancelledError(), Labels("cancelled", "cancelled")),
        (ProtocolError("no"), Labels("error", "protocol_error", ends_flow=True)),
        (ValueError("a secret"), Labels("error", "internal_fault", ends_flow=False)),
        (GeneratorExit(), Labels("error", "internal_fault")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_of_a_call(came: Came, labels: Labels) -> None:
    call = Call("tools/call", {})
    note_end(call, came)
    assert labels_of_call(call.trace, came, None) == labels


@pytest.mark.parametrize(
    ("came", "labels"),
    [
        (Asking({}), Labels("asked")),
        (InternalFault("12345678"), Labels("error", "internal_fault")),
        (asyncio.CancelledError(), Labels("cancelled", "cancelled")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_of_a_round_of_a_task(came: Came, labels: Labels) -> None:
    call = Call("tools/call", {})
    note_end(call, came)
    assert labels_of_task(call.trace, came) == labels


def test_an_error_of_ours_has_its_reference_in_the_trace() -> None:
    call, error = Call("tools/call", {}), InternalFault("12345678")
    note_end(call, error)
    labels_of_call(call.trace, error, None)
    assert call.trace.reference == "12345678"
