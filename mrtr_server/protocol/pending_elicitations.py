"""Non-blocking elicitations (#1869): a task asks in its `_meta`, and `tasks/get` brings the answers in its own.

No version of the protocol has them, and none forbids them. So they are there for clients of the drafts, and for those
of 2025-11-25 that call a tool with an empty `task`.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidParams
from .ask_kinds import ask_kind
from .callers import ClientInfo, lacking
from .dialect import read_answers
from .messages import JSON, Question, Task

_PREFIX = "io.modelcontextprotocol/"
_PENDING = _PREFIX + "pending-elicitations"
_RESPONSE = _PREFIX + "elicitation-response"

IMMEDIATE = _PREFIX + "model-immediate-response"
"""The member of `_meta` that has a word for the model while a task works (Tasks, Model Immediate Response)."""


def with_mode(question: Question) -> JSON:
    """Return the parameters of an ask; those of a form say that they are, as the drafts print it for tasks."""
    mode = ask_kind(question).mode
    return {"mode": mode, **question.params} if mode else question.params


def pending_of(task: Task, client: ClientInfo) -> JSON:
    """Return the member of `_meta` that lists what a task asks, if a client can be asked that; empty for nothing."""
    pending = [
        _pending(key, question) for key, question in task.questions.items() if not lacking(client, question.needs)
    ]
    return {_PENDING: pending} if pending else {}


def _pending(key: str, question: Question) -> JSON:
    """Return what is asked as #1869 lists it: an elicitation as printed, all else as the request that it is."""
    if ask_kind(question).mode:
        return {**with_mode(question), "elicitationId": key}
    return {"elicitationId": key, "method": question.method, "params": question.params}


def read_elicitation_response(method: str, params: Mapping[str, Any]) -> dict[str, JSON] | None:
    """Return the answer in the `_meta` of a request about a task, by the key of its question; None if there is none.

    Raises `InvalidParams`.
    """
    meta = params.get("_meta")
    if not isinstance(meta, dict) or _RESPONSE not in meta:
        return None
    answer = meta[_RESPONSE]
    if method != "tasks/get":
        raise InvalidParams(f"_meta.{_RESPONSE} goes with tasks/get, and not with {method}")
    if not isinstance(answer, dict) or not isinstance(answer.get("elicitationId"), str):
        raise InvalidParams(f"_meta.{_RESPONSE} must be an object with an elicitationId, a string")
    return read_answers({answer["elicitationId"]: answer})
