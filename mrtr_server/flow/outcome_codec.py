"""The outcome of a round as bytes, so that any replica can send it."""

import dataclasses
from typing import Any

from pydantic_core import from_json

from .. import errors
from ..errors import RequestError
from ..protocol.messages import JSON, Complete, HandedOver, NeedsInput, Outcome, Question, Task, TaskCreated
from ..well_formed import write_json


def dump_outcome(outcome: Outcome | RequestError) -> bytes:
    """Write an outcome down. Raises `ValueError` if it is not JSON, so that no reply can be made of it either."""
    if type(outcome) is Complete:  # as nearly always
        return write_json(["complete", outcome.body, outcome.ttl, outcome.scope], inf_nan_mode="null")
    return write_json(_fields(outcome), inf_nan_mode="null")


def load_outcome(written: bytes) -> Outcome | RequestError:
    """Read what `dump_outcome` wrote, in this release or another. Raises `ValueError`."""
    try:
        fields = from_json(written)
        kind, rest = fields[0], fields[1:]
        if kind == "complete":
            return Complete(*rest)
        if kind == "input":
            asked = _questions(rest[0])
            given = dict(zip(("state", "expires", "epoch"), rest[1:], strict=False))  # earlier releases wrote no expiry
            return NeedsInput(asked, **given) if asked else HandedOver(**given)
        if kind == "task":
            questions = _questions(rest[0].pop("questions"))
            return TaskCreated(Task(**rest[0], questions=questions))
        return _error(*rest)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("not an outcome") from error


def _fields(outcome: Outcome | RequestError) -> list[Any]:
    match outcome:
        case NeedsInput(questions, state, expires, epoch):
            return ["input", _parts(questions), state, expires, *([epoch] if epoch else [])]
        case HandedOver(state, expires):
            return ["input", {}, state, expires, *([outcome.epoch] if outcome.epoch else [])]
        case TaskCreated(task):
            # As it was when it began; a client that asks for the task gets its outcome.
            # Its tool is that of the call.
            fields = {
                each.name: getattr(task, each.name)
                for each in dataclasses.fields(task)
                if each.name not in ("outcome", "tool")
            }
            return ["task", {**fields, "questions": _parts(task.questions)}]
        case RequestError():
            return ["error", type(outcome).__name__, outcome.message, outcome.data]
        case _:
            raise ValueError(f"{type(outcome).__name__} is not an outcome of a flow")


def _parts(questions: dict[str, Question]) -> JSON:
    return {key: question.dump() for key, question in questions.items()}


def _questions(parts: JSON) -> dict[str, Question]:
    return {key: Question.load(*each) for key, each in parts.items()}


_MERGED = {"NotInVersion": "MissingCapability", "NotAsTask": "UnknownMethod"}


def _error(name: str, message: str, data: JSON | None) -> RequestError:
    kind = getattr(errors, _MERGED.get(name, name), None)
    if not (isinstance(kind, type) and issubclass(kind, RequestError)):
        kind = RequestError
    # Each class makes its own message of its own arguments; the message is there already.
    error = kind.__new__(kind)
    RequestError.__init__(error, message, data)
    return error
