"""Other encodings of the drafts, for clients that name no version; each is to be switched on in place of `sep-draft`.

Where `sep-draft` asks by `inputRequests`, these ask as the earlier documents print it: by an `elicitation/create` in
place of a result, by `AdditionalInfoRequested`, or by content of the type `elicitation`. Their questions have no keys.
A client answers with `elicitation: {"name": ..., "value": ...}` beside `params`, where the name is that of a field of a
form; and with `sampling`, in the order in which it was asked.

No printed message has a state. So two kinds of clients are served:

- One that sends back the `requestState` beside the questions continues its flow. That state begins with what was asked,
  so that names find their keys. Whoever changes this changes the keys of their own answers, and no more.
- One that does not begins anew with each request. Its answers count for the questions that this first round asks: not
  for confirmations and pages, nor for tools whose states are redeemed once. A flow that asks further is refused.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..errors import InvalidParams, OverBudget
from ..limits import LONGEST_KEY, check_length
from .callers import Principal
from .dialect import WITH_ARGUMENTS, read_answers, read_arguments, result
from .drafts import SepDraftDialect, either, meta_of, related_to, with_mode
from .jsonrpc import Envelope
from .messages import ASKING_METHODS, JSON, Call, NeedsInput, Outcome, Outlet, Question, Task, TaskResult

Dispatch = Callable[[Call, Outlet], Awaitable[Outcome]]
"""Answers a call, or says what it needs."""

KEY = "mrtr-server/key"
"""Where a question of a task has its key in `_meta`, if there are several; its answer names it there, too."""

_Member = Literal["elicitation", "sampling", "roots"]

_MEMBERS: Mapping[str, _Member] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What holds the requests of each method, and their answers."""

_WITHOUT_STATE = frozenset({"form", "sample", "roots"})
"""The kinds of questions that may be answered without the state that asked: nobody need have seen the others."""

_LONGEST_PLACES = 64 * 1024
"""How long that part of a state may be that says what was asked, in characters."""

_SEND_STATE = "send back the requestState that is beside the question"

_CAPITALS = {
    "working": ("Working", "The task is being worked on."),
    "input_required": ("input_required", "Input Required to Proceed call tasks/result"),
    "completed": ("Completed", "Task has been completed successfully, call get/result"),
    "failed": ("Failed", "The task has failed."),
    "cancelled": ("Cancelled", "The task was cancelled."),
}


class Place(NamedTuple):
    """Where the answer to a question is found.

    Args:
        member: the member of the message that has it.
        names: the fields of the form that it fills in; none for all else.
    """

    member: _Member
    names: list[str]


Places = dict[str, Place]
"""Where the answers to questions are found, by key."""

_PLACES = TypeAdapter(Places)


class Given:
    """The answers beside the `params` of a request, which name no question.

    Args:
        envelope: the request.

    Raises:
        InvalidParams: an answer is no object.
    """

    def __init__(self, envelope: Envelope) -> None:
        self._items: dict[str, list[JSON]] = {}
        for member in _MEMBERS.values():
            items = either(envelope, member)
            if items is not None:
                self._items[member] = _objects(member, items)

    def __bool__(self) -> bool:
        return any(self._items.values())

    def answers_to(self, places: Places) -> dict[str, JSON]:
        """Return the answers by key; a name that is not asked is ignored.

        Raises:
            InvalidParams: it can't be told which question an answer is for.
        """
        answers = self._filled(places) if "elicitation" in self._items else {}
        for member in ("sampling", "roots"):
            items = self._items.get(member, ())
            keys = [key for key, place in places.items() if place.member == member]
            if items and keys and len(items) != len(keys):
                raise InvalidParams(f"{member} has {len(items)} answers, and {len(keys)} were asked for; send them all")
            answers.update(zip(keys, items, strict=False))
        return read_answers(answers)

    def _filled(self, places: Places) -> dict[str, JSON]:
        forms = {key: place.names for key, place in places.items() if place.member == "elicitation"}
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


def _places(questions: Mapping[str, Question]) -> Places:
    return {
        key: Place(_MEMBERS[question.method], list(question.params.get("requestedSchema", {}).get("properties", ())))
        for key, question in questions.items()
    }


def _with_places(state: str, questions: Mapping[str, Question]) -> str:
    """Return a state that begins with what was asked."""
    places = urlsafe_b64encode(to_json(_places(questions))).decode()
    if len(places) > _LONGEST_PLACES:
        message = f"The names of what is asked are longer than {_LONGEST_PLACES} characters"
        raise OverBudget(message, "requestState", _LONGEST_PLACES)
    return f"{places}.{state}"


def _open_places(state: Any) -> tuple[Places, Any]:
    """Return what was asked by a state, and the sealed state; what is no state of ours is left as it is."""
    if not isinstance(state, str):
        return {}, state
    written, dot, sealed = state.partition(".")
    if not dot or len(written) > _LONGEST_PLACES:
        return {}, state
    try:
        return _PLACES.validate_json(urlsafe_b64decode(written)), sealed
    except ValueError:
        return {}, state


_FIELDS = tuple(each.name for each in fields(Call))


@dataclass(slots=True)
class BegunAnew(Call):
    """A call without a state, whose answers count for what its first round asks.

    Args:
        given: the answers.
        sent: its parameters as JSON, since a handler may change them.
        is_single_use: whether its states are redeemed once.
        one_by_one: whether its client is shown one question at a time.
    """

    given: Given = field(kw_only=True)
    sent: bytes = field(kw_only=True, repr=False)
    is_single_use: bool = False
    one_by_one: bool = False

    async def follow(self, dispatch: Dispatch, outlet: Outlet) -> Outcome:
        """Run the first round, and the rounds that its answers are for.

        Args:
            dispatch: runs a round.
            outlet: takes the notes that the handler sends on its way.

        Raises:
            RequestError: a round had no outcome; or an answer could not count without a state.
        """
        outcome = await dispatch(self, outlet)
        first: Mapping[str, Question] = {}
        while isinstance(outcome, NeedsInput):
            answers = None
            if outcome.questions:
                if first:
                    _check_known(first, outcome.questions)
                    break
                first, answers = outcome.questions, self._answers_to(outcome.questions)
                if not answers:
                    break
            elif self.is_single_use:  # each effect must belong to a flow that a retry can name
                break
            outcome = await dispatch(self._again(outcome.state, answers), outlet)
        return outcome

    def _answers_to(self, questions: Mapping[str, Question]) -> dict[str, JSON]:
        if not self.given:
            return {}
        if self.one_by_one and len(questions) > 1:
            raise InvalidParams(f"This request asks several questions, one at a time: {_SEND_STATE}")
        answers = self.given.answers_to(_places(questions))
        if any(questions[key].kind not in _WITHOUT_STATE for key in answers):
            raise InvalidParams(f"A confirmation, or a page, takes an answer only with its state: {_SEND_STATE}")
        return answers

    def _again(self, state: str, answers: dict[str, JSON] | None) -> Call:
        again = replace(self, state=state, answers=answers, params=from_json(self.sent))
        if again.method in WITH_ARGUMENTS:
            again.arguments = read_arguments(again.params)
        return again


def _check_known(first: Mapping[str, Question], further: Mapping[str, Question]) -> None:
    """Check that a flow asks nothing but what it has asked first: by its name, an answer might go to another question.

    Raises:
        InvalidParams: it asks something else.
    """
    known = {(key, question.digest) for key, question in first.items()}
    if any((key, question.digest) not in known for key, question in further.items()):
        raise InvalidParams(f"This request asks more than once: {_SEND_STATE}")


def following(dispatch: Dispatch) -> Dispatch:
    """Return what answers calls as `dispatch` does, and follows those that begin anew."""

    def follow(call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        return call.follow(dispatch, outlet) if isinstance(call, BegunAnew) else dispatch(call, outlet)

    return follow


class Encoding(SepDraftDialect):
    """What the encodings share whose questions have no keys."""

    one_by_one: ClassVar[bool] = False
    """Whether a reply can ask one question only."""

    @override
    def load_call(self, envelope: Envelope, principal: Principal | None, user: Any) -> Call:
        """Return the call in a request; its answers may be beside its `params`."""
        call = super().load_call(envelope, principal, user)
        if call.method not in ASKING_METHODS:
            return call
        given = Given(envelope)
        if given and call.answers is not None:
            raise InvalidParams("Send either inputResponses, or elicitation, sampling and roots")
        if call.state is not None:
            places, call.state = _open_places(call.state)
            if given:
                call.answers = given.answers_to(places)
            return call
        if call.answers is not None:
            return call
        call.can_retry = False
        is_single_use = call.method == "tools/call" and self.surface.single_use(call.target)
        if given and is_single_use and call.mismatch is None:
            call.mismatch = InvalidParams(f"Each state of this tool is redeemed once: {_SEND_STATE}")
        shared = {name: getattr(call, name) for name in _FIELDS}
        sent = to_json(call.params)
        return BegunAnew(**shared, given=given, sent=sent, is_single_use=is_single_use, one_by_one=self.one_by_one)

    @override
    def _read_response(self, envelope: Envelope, principal: Principal | None, user: Any) -> Call:
        call = super()._read_response(envelope, principal, user)
        for holder in (envelope.message["result"], envelope.message):
            if isinstance(key := meta_of(holder).get(KEY), str):
                call.answers = read_answers({key: envelope.message["result"]})
        return call

    @override
    def dump_outcome(self, call: Call, outcome: Outcome) -> bytes:
        """Return the response that carries an outcome; see `SepDraftDialect.dump_outcome`."""
        if isinstance(outcome, NeedsInput):
            questions = self._shown(outcome.questions)
            state = _with_places(outcome.state, questions)
            if not questions:
                return super().dump_outcome(call, replace(outcome, state=state))
            return self.dump_questions(call, list(questions.values()), [{} for _ in questions], {"requestState": state})
        if isinstance(outcome, TaskResult) and outcome.task.questions:
            asked = outcome.task.questions
            named = [{"_meta": {KEY: outcome.task.names[key]}} if len(asked) > 1 else {} for key in asked]
            return self.dump_questions(call, list(asked.values()), named, related_to(outcome.task.id))
        return super().dump_outcome(call, outcome)

    def _shown(self, questions: Mapping[str, Question]) -> Mapping[str, Question]:
        if self.one_by_one and len(questions) > 1:
            return dict([next(iter(questions.items()))])
        return questions

    def dump_questions(self, call: Call, questions: list[Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the response that asks.

        Args:
            call: the request.
            questions: what is asked; the first is enough where only one can be asked at a time.
            named: the `_meta` of each, where it has one.
            beside: what the response has besides.
        """
        raise NotImplementedError

    @override
    def _task(self, task: Task, message: str) -> JSON:
        body = super()._task(task, message)
        del body["lastUpdatedAt"]  # which only revision 2 prints
        return body


class BareRequests(Encoding):
    """Option 1 of the response types, and option one of the message structure: a request in place of a result."""

    name = "draft-bare-requests"
    one_by_one = True
    statuses: ClassVar = {**_CAPITALS, "input_required": ("input_require", _CAPITALS["input_required"][1])}

    @override
    def dump_questions(self, call: Call, questions: list[Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the first question, as a request with the id of the client's."""
        question = questions[0]
        asking = {"method": question.method, "params": with_mode(question)}
        if "_meta" in named[0]:
            beside = {**beside, "_meta": {**beside["_meta"], **named[0]["_meta"]}}
        return to_json({"jsonrpc": "2.0", "id": call.request_id, **asking, **beside}, inf_nan_mode="null")


class AdditionalInfo(Encoding):
    """Option 2 of the response types: a result with `AdditionalInfoRequested`."""

    name = "draft-additional-info"
    created = "The operation is now in progress."

    @override
    def dump_questions(self, call: Call, questions: list[Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the questions in a list for each kind; the draft has lists of elicitations and of samplings."""
        asked: dict[str, list[JSON]] = {"elicitation": [], "sampling": []}
        for question, name in zip(questions, named, strict=True):
            asked.setdefault(_MEMBERS[question.method], []).append({"params": with_mode(question), **name})
        return result(call, {"AdditionalInfoRequested": asked, "isError": False, **beside})


class ElicitationContent(Encoding):
    """Option two of the message structure: a result whose content is what is asked."""

    name = "draft-content"
    statuses = BareRequests.statuses

    @override
    def dump_questions(self, call: Call, questions: list[Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the questions as blocks of content."""
        blocks = [
            {"type": _MEMBERS[question.method], **with_mode(question), **name}
            for question, name in zip(questions, named, strict=True)
        ]
        return result(call, {"content": blocks, "isError": False, **beside})


class RevisionOne(SepDraftDialect):
    """Revision 1 of the SEP in its own words for tasks; all else is as in `sep-draft`."""

    name = "draft-revision-1"
    statuses = _CAPITALS

    @override
    def _task(self, task: Task, message: str) -> JSON:
        body = super()._task(task, message)
        del body["lastUpdatedAt"]
        return body


ENCODINGS: dict[str, type[SepDraftDialect]] = {
    each.name: each for each in (BareRequests, AdditionalInfo, ElicitationContent, RevisionOne)
}
"""Every encoding by its name."""
