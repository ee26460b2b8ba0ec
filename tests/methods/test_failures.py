"""What goes wrong while a handler runs: what the model reads, what the client gets, and what the log has."""

import logging
from typing import Any

import pytest

from mrtr_server import Refusal, StoreUnavailable, ToolError
from mrtr_server.errors import ArgumentsMisfit, Busy, InternalFault, InvalidRequestState, RequestError, Unavailable
from mrtr_server.methods.failures import ErrorReporter, problems, refused, tool_failure
from mrtr_server.protocol.messages import Call, Complete

CALL = Call("tools/call", {}, "pay")
SECRET = "hunter2"


@pytest.fixture
def errors() -> ErrorReporter:
    return ErrorReporter(debug=False)


class TestAReport:
    def test_shows_the_client_a_reference_and_the_log_the_error(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        fault = errors.report(CALL, ValueError(SECRET))
        assert isinstance(fault, InternalFault)
        assert SECRET not in f"{fault} {fault.data}"
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert (fault.data or {})["reference"] in record.getMessage()
        assert SECRET in caplog.text
        assert "tools/call 'pay' failed" in caplog.text

    def test_shows_the_client_the_error_while_debugging(self) -> None:
        assert str(ErrorReporter(debug=True).report(CALL, ValueError(SECRET))) == f"ValueError: {SECRET}"

    def test_leaves_the_reference_in_the_trace_of_the_call(self, errors: ErrorReporter) -> None:
        call = Call("tools/call", {}, "pay")
        fault = errors.report(call, ValueError())
        assert call.trace.reference == (fault.data or {})["reference"] != ""

    def test_of_a_store_says_why_and_shows_no_value_that_led_to_it(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        try:
            raise StoreUnavailable("the disk is full") from ValueError(SECRET)
        except StoreUnavailable as error:
            fault = errors.report(CALL, error)
        assert isinstance(fault, InternalFault)
        assert "the disk is full" in caplog.text
        assert SECRET not in caplog.text

    def test_of_a_store_that_is_in_the_log_is_not_repeated(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = StoreUnavailable("away")
        error.reference = "abc"
        fault = errors.report(CALL, error)
        assert isinstance(fault, Unavailable)
        assert fault.data == {"reference": "abc"}
        assert caplog.records == []

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), InvalidRequestState("another key")])
    def test_of_a_task_has_the_reason_and_not_its_id(
        self, errors: ErrorReporter, error: StoreUnavailable | InvalidRequestState, caplog: pytest.LogCaptureFixture
    ) -> None:
        errors.report_task(Call("tasks/get", {}, SECRET), error)
        assert ("another key" if isinstance(error, InvalidRequestState) else "away") in caplog.text
        assert SECRET not in caplog.text


class TestAFlowThatHasBegun:
    def test_and_no_longer_fits_is_in_the_log_once_a_minute(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            errors.note_changed("pay")
        (record,) = caplog.records
        assert record.getMessage().startswith("'pay': the arguments of a flow that has begun do not fit it any more")

    def test_and_whose_tool_is_gone_is_in_the_log_once_a_minute(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            errors.note_gone("pay")
        (record,) = caplog.records
        assert record.getMessage().startswith("A flow that has begun is of the tool 'pay', which this server does not")


class TestATool:
    def test_that_fails_by_a_tool_error_has_a_result_that_says_why(self, errors: ErrorReporter) -> None:
        for error, says in ((ToolError("Out of paper"), "Out of paper"), (ToolError(""), "The tool failed.")):
            outcome = tool_failure(CALL, error, errors)
            assert isinstance(outcome, Complete)
            assert outcome.body == {"content": [{"type": "text", "text": says}], "isError": True}

    def test_that_fails_otherwise_has_a_result_with_a_reference(
        self, errors: ErrorReporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        outcome = tool_failure(CALL, ValueError(SECRET), errors)
        assert isinstance(outcome, Complete)
        (block,) = outcome.body["content"]
        assert block["text"].startswith("Internal error (reference ")
        assert outcome.body["isError"] is True
        assert SECRET in caplog.text

    def test_that_raises_what_is_an_error_of_the_request_has_no_result(self, errors: ErrorReporter) -> None:
        error: RequestError = Busy(None, "later")
        assert tool_failure(CALL, error, errors) is error

    def test_whose_store_is_away_has_no_result_so_that_the_client_tries_again(self, errors: ErrorReporter) -> None:
        error = StoreUnavailable("away")
        error.reference = "abc"
        assert isinstance(tool_failure(CALL, error, errors), Unavailable)


def test_arguments_that_do_not_fit_are_named_line_by_line() -> None:
    misfit = ArgumentsMisfit([("days", "Field required"), ("", "too many")])
    assert problems("pay", misfit) == "The arguments of pay do not fit:\n- days: Field required\n- too many"


@pytest.mark.parametrize(
    ("action", "confirming", "says"),
    [
        ("decline", False, "The user declined to answer, so the request was not carried out."),
        ("cancel", False, "The user dismissed the question without an answer, so the request was not carried out."),
        ("decline", True, "The user was asked to confirm and declined, so the request was not carried out."),
        ("cancel", True, "The user dismissed the confirmation without a choice, so the request was not carried out."),
    ],
)
def test_each_no_has_its_sentence(action: Any, confirming: bool, says: str) -> None:
    refusal = Refusal(action)
    refusal.confirming = confirming
    assert refused(refusal).startswith(says)
