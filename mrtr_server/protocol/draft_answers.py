"""Answers that name no question, for the encodings of the drafts whose questions have no keys.

No printed message of these has a state. So two kinds of clients are served:

- One that sends back the `requestState` beside the questions continues its flow. That state begins with what was asked,
  so that names find their keys. A client that changes this changes the keys of its own answers, and no more.
- One that does not starts a new flow with each request. Its answers count for the questions of this first round: not
  for confirmations and pages, nor for tools whose states are redeemed once. A flow that asks further is refused, unless
  it asks by forms alone, and no two of their fields share a name, which could be taken for that of an earlier question.
"""

import math
from abc import abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from ..errors import InvalidParams, OverBudget
from ..limits import LONGEST_KEY, check_length
from . import messages
from .ask_kinds import ask_kind
from .dialect import WITH_ARGUMENTS, read_answers, read_arguments
from .messages import JSON, Call

_LONGEST_LOCATIONS = 64 * 1024  # characters of the part of a state that says what was asked

SEND_STATE = "send back the requestState that is beside the question"


class AnswerLocation(NamedTuple):
    """Where the answer to a question is found."""

    member: str  # the member of the message that has it; see `AskKind.member`
    names: list[str]  # the fields of the form that it fills in; none for all else


AnswerLocations = dict[str, AnswerLocation]  # by the key of a question

_LOCATIONS = TypeAdapter(AnswerLocations)


class Given:
    """The answers beside the `params` of a request, which name no question."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._items = {member: _objects(member, items) for member, items in members.items()}

    def __bool__(self) -> bool:
        return any(self._items.values())

    def named(self) -> "Given":
        """Return those that have the name of a field."""
        return Given({"elicitation": [item for item in self._items.get("elicitation", ()) if "name" in item]})

    def answers_to(self, locations: AnswerLocations) -> dict[str, JSON]:
        """Return the answers by key; a name that is not asked is ignored. Raises `InvalidParams`."""
        answers = self._filled(locations) if "elicitation" in self._items else {}
        for member, items in self._items.items():
            if member == "elicitation":
                continue
            keys = [key for key, location in locations.items() if location.member == member]
            if items and keys and len(items) != len(keys):
                raise InvalidParams(f"{member} has {len(items)} answers, and {len(keys)} were asked for; send them all")
            answers.update(zip(keys, items, strict=False))
        return read_answers(answers)

    def _filled(self, locations: AnswerLocations) -> dict[str, JSON]:
        forms = {key: location.names for key, location in locations.items() if location.member == "elicitation"}
        by_name: dict[str, list[JSON]] = defaultdict(list)
        answers: dict[str, JSON] = {}
        for item in self._items["elicitation"]:
            if "name" in item:
                by_name[_name_of(item)].append(item)
            elif len(forms) > 1:
                raise InvalidParams("elicitation answers several questions, so each answer needs the name of a field")
            else:  # an `ElicitResult`
                answers.update(dict.fromkeys(forms, item))
        asking: dict[str, list[str]] = defaultdict(list)
        for key, names in forms.items():
            for name in dict.fromkeys(names):
                asking[name].append(key)
        for name, items in by_name.items():
            keys = asking.get(name, ())
            if keys and len(items) != len(keys):
                what = f"{len(items)} answers with the name {name!r}, and {len(keys)} were asked for"
                raise InvalidParams(f"elicitation has {what}; send each, in the order in which they were asked")
            for key, item in zip(keys, items, strict=False):
                _fill_in(answers.setdefault(key, {"action": "accept", "content": {}}), name, item)
        return answers


def _objects(member: str, items: Any) -> list[JSON]:
    given: list[JSON] = items if isinstance(items, list) else [items]
    if not all(isinstance(item, dict) for item in given):
        raise InvalidParams(f"{member} must be an object, or a list of objects")
    return given


def _name_of(item: JSON) -> str:
    name = item["name"]
    if not isinstance(name, str):
        raise InvalidParams("The name of an answer in elicitation must be a string")
    check_length(name, LONGEST_KEY, "elicitation")
    return name


def _fill_in(answer: JSON, name: str, item: JSON) -> None:
    """Put the value of a field into the answer to a form; a no to one field is a no to its form."""
    if item.get("action", "accept") != "accept":
        answer["action"] = item["action"]
    elif "value" in item and isinstance(content := answer.get("content"), dict):
        content[name] = item["value"]


def _names_of(question: messages.Question) -> list[str]:
    return list(question.params.get("requestedSchema", {}).get("properties", ()))


def _locations(questions: Mapping[str, messages.Question]) -> AnswerLocations:
    return {key: AnswerLocation(ask_kind(each).member, _names_of(each)) for key, each in questions.items()}


def with_locations(state: str, questions: Mapping[str, messages.Question]) -> str:
    """Return a state that begins with what was asked."""
    locations = urlsafe_b64encode(to_json(_locations(questions))).decode()
    if len(locations) > _LONGEST_LOCATIONS:
        message = f"The names of what is asked are longer than {_LONGEST_LOCATIONS} characters"
        raise OverBudget(message, "requestState", _LONGEST_LOCATIONS)
    return f"{locations}.{state}"


def open_locations(state: Any) -> tuple[AnswerLocations, Any]:
    """Return what was asked by a state, and the sealed state; a state that is not ours stays as it is."""
    if not isinstance(state, str):
        return {}, state
    written, dot, sealed = state.partition(".")
    if not dot or len(written) > _LONGEST_LOCATIONS:
        return {}, state
    try:
        return _LOCATIONS.validate_json(urlsafe_b64decode(written)), sealed
    except ValueError:
        return {}, state


_FIELDS = tuple(each.name for each in fields(Call))


@messages.request
class Followed(Call):
    """A call that the dialect dispatches in a way of its own."""

    @abstractmethod
    def follow(self, dispatch: messages.Dispatch, outlet: messages.Outlet) -> Awaitable[messages.Outcome]:
        """Return the outcome of the call. Raises `RequestError`."""

    @classmethod
    def fields_of(cls, call: Call) -> dict[str, Any]:
        """Return the fields of a call that is to be one."""
        return {name: getattr(call, name) for name in _FIELDS}


@messages.request
class BegunAnew(Followed):
    """A call without a state, whose answers count for what its first round asks."""

    given: Given = field(kw_only=True)
    sent: bytes = field(kw_only=True, repr=False)  # its parameters as JSON, since a handler may change them
    is_single_use: bool = False  # whether its states are redeemed once
    one_by_one: bool = False  # whether its client is shown one question at a time

    async def follow(self, dispatch: messages.Dispatch, outlet: messages.Outlet) -> messages.Outcome:
        """Run the first round, and the rounds that its answers are for. Raises `RequestError`."""
        if self.progress_token is not None:
            outlet = _Growing(outlet)
        outcome = await dispatch(self, outlet)
        known: dict[tuple[str, str], messages.Question] = {}
        while isinstance(outcome, messages.Unfinished):
            answers = None
            if isinstance(outcome, messages.NeedsInput):
                answers = self._answers_to(outcome, known)
                known.update({(key, question.digest): question for key, question in outcome.questions.items()})
                if not answers:
                    break
            elif self.is_single_use:  # each effect must belong to a flow that a retry can name
                break
            outcome = await dispatch(self._again(outcome.state, answers), outlet)
        return outcome

    @classmethod
    def of(cls, call: Call, given: Given, *, is_single_use: bool, one_by_one: bool) -> "BegunAnew":
        """Return a call as one that starts a new flow; see the class."""
        sent = to_json(call.params)
        return cls(**cls.fields_of(call), given=given, sent=sent, is_single_use=is_single_use, one_by_one=one_by_one)

    def _answers_to(
        self, outcome: messages.NeedsInput, known: Mapping[tuple[str, str], messages.Question]
    ) -> dict[str, JSON]:
        asked = outcome.questions
        new = {key: question for key, question in asked.items() if (key, question.digest) not in known}
        if not self.given or not new:
            return {}
        given = self.given
        if known or (self.one_by_one and len(asked) > 1):  # the client has not been shown all of this
            if not _have_names_of_their_own(known.values(), new.values()):
                if not known:
                    raise InvalidParams(f"This request asks several questions, one at a time: {SEND_STATE}")
                message = "This request asks more than once: continue with the requestState that is here"
                # With the state, so that what was done is not lost.
                raise InvalidParams(message, {"requestState": with_locations(outcome.state, {})})
            given = given.named()
        answers = given.answers_to(_locations(new))
        if any(ask_kind(new[key]).approves for key in answers):  # which nobody need have seen
            raise InvalidParams(f"A confirmation, or a page, takes an answer only with its state: {SEND_STATE}")
        return answers

    def _again(self, state: str, answers: dict[str, JSON] | None) -> Call:
        params, trace = from_json(self.sent), self.trace.again()
        arguments = read_arguments(params) if self.method in WITH_ARGUMENTS else self.arguments
        return replace(self, state=state, answers=answers, params=params, arguments=arguments, trace=trace)


class _Growing:
    """An outlet that leaves out what an earlier round of the same request has sent: progress grows (Progress)."""

    def __init__(self, outlet: messages.Outlet) -> None:
        self._outlet = outlet
        self._highest = -math.inf

    def send(self, note: messages.Note) -> Awaitable[None]:
        if isinstance(note, messages.Progress):
            if note.progress <= self._highest:
                return messages.NOTHING
            self._highest = note.progress
        return self._outlet.send(note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outlet, name)


def _have_names_of_their_own(known: Iterable[messages.Question], new: Iterable[messages.Question]) -> bool:
    """Return whether new questions are all forms, and each of their fields has a name that no other question has."""
    taken = {name for question in known for name in _names_of(question)}
    for question in new:
        names = _names_of(question)
        if question.kind != "form" or not taken.isdisjoint(names):
            return False
        taken.update(names)
    return True


def following(dispatch: messages.Dispatch) -> messages.Dispatch:
    """Return what answers calls as `dispatch` does, and those that are dispatched otherwise in their way."""

    def follow(call: Call, outlet: messages.Outlet) -> Awaitable[messages.Outcome]:
        return call.follow(dispatch, outlet) if isinstance(call, Followed) else dispatch(call, outlet)

    return follow
