"""What the answer to a question of an open call means for the call."""

from collections.abc import Mapping

from ..errors import MissingCapability, ProtocolError
from ..protocol.ask_kinds import ask_kind
from ..protocol.callers import nested
from ..protocol.messages import JSON, Question

DISMISSED: JSON = {"result": {"action": "cancel"}}
"""The answer of a person who does not answer."""

WITHDRAWN: JSON = {"failed": "the call was cancelled"}
"""The answer to a question that counts no more."""

TOO_LATE = "There was no answer in time"
CALL_CANCELLED = "The call was cancelled"
TASK_CANCELLED = "The task was cancelled"
ANSWERED_ELSEWHERE = "It was answered elsewhere"


def read_answers(questions: Mapping[str, Question], answers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return answers as a round takes them.

    Raises `MissingCapability` if the client can't be asked that, and `ProtocolError` if it could not do it.
    """
    return {key: read_answer(question, answers[key]) for key, question in questions.items()}


def no_answer(question: Question) -> JSON:
    """Return the answer that counts when nobody has answered in time."""
    return DISMISSED if ask_kind(question).mode else {"failed": "there was no answer in time"}


def read_answer(question: Question, answer: JSON) -> JSON:
    """Return an answer as a round takes it. Raises as `read_answers`.

    It came as `{"result": ...}`, `{"failed": "why"}`, or `{"lacks": true}` where the client knows no such questions.
    """
    if "result" in answer:
        result = answer["result"]
        return result if isinstance(result, dict) else {}  # which is no answer, so the question comes again
    if "lacks" in answer:
        raise MissingCapability(nested(question.needs[:1]))
    if ask_kind(question).mode:
        return dict(DISMISSED["result"])
    raise ProtocolError(f"The client did not fulfil {question.method}: {answer.get('failed')}")
