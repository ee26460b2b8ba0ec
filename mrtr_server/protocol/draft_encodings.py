"""Other encodings of the drafts, for clients that name no version; each is to be switched on in place of `sep-draft`.

They ask as the earlier documents print it: by an `elicitation/create` in place of a result, by
`AdditionalInfoRequested`, or by content of the type `elicitation`, without keys. A client answers beside `params`:
with `elicitation: {"name": ..., "value": ...}` for a field, and with `sampling` in the order of questions.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import field, replace
from typing import ClassVar

from typing_extensions import override

from ..errors import InvalidParams
from ..limits import LONGEST_KEY, check_length
from ..well_formed import write_json
from . import messages
from .ask_kinds import ASKABLE, ask_kind
from .callers import Sender
from .dialect import result, with_related
from .draft_answers import SEND_STATE, BegunAnew, Followed, Given, open_locations, with_locations
from .drafts import SepDraftDialect, either, meta_of
from .envelope import Envelope
from .handshake_versions import with_mode
from .messages import JSON, Call

KEY = "mrtr-server/key"  # in `_meta`, the name of a task's question, if it needs one; its answer names it there, too

_CAPITALS = {
    "working": ("Working", "The task is being worked on."),
    "input_required": ("input_required", "Input Required to Proceed call tasks/result"),
    "completed": ("Completed", "Task has been completed successfully, call get/result"),
    "failed": ("Failed", "The task has failed."),
    "cancelled": ("Cancelled", "The task was cancelled."),
}


class Encoding(SepDraftDialect):
    """What the encodings share whose questions have no keys."""

    one_by_one: ClassVar[bool] = False  # whether a reply can ask one question only

    prints_updates = False

    @override
    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Return the call in a request; its answers may be beside its `params`."""
        call = super().load_call(envelope, sender)
        if call.method not in messages.ASKING_METHODS:
            return call
        beside = {member: either(envelope, member) for member in ASKABLE}
        given = Given({member: items for member, items in beside.items() if items is not None})
        if given and call.answers is not None:
            raise InvalidParams("Send either inputResponses, or elicitation, sampling and roots")
        if call.state is not None:
            locations, state = open_locations(call.state)
            return replace(call, state=state, answers=given.answers_to(locations) if given else call.answers)
        if call.answers is not None:
            return call
        refusal, is_single_use = None, call.method == "tools/call" and self.surface.single_use(call.target)
        if given and is_single_use:
            refusal = InvalidParams(f"Each state of this tool is redeemed once: {SEND_STATE}")
        call = replace(call, can_retry=False, refusal=refusal)
        return BegunAnew.of(call, given, is_single_use=is_single_use, one_by_one=self.one_by_one)

    @override
    def _answered(self, holders: list[JSON]) -> str:
        named = [key for holder in holders if isinstance(key := meta_of(holder).get(KEY), str)]
        if not named:
            return messages.FIRST if self.one_by_one else messages.UNNAMED
        check_length(named[0], LONGEST_KEY, KEY)
        return named[0]

    @override
    def dump_outcome(self, call: Call, outcome: messages.Outcome) -> bytes:
        """Return the response that carries an outcome; see `SepDraftDialect.dump_outcome`."""
        if isinstance(outcome, messages.NeedsInput):
            questions = self._shown(outcome.questions)
            state = with_locations(outcome.state, questions)
            return self.dump_questions(call, list(questions.values()), [{} for _ in questions], {"requestState": state})
        if isinstance(outcome, messages.HandedOver):
            return super().dump_outcome(call, replace(outcome, state=with_locations(outcome.state, {})))
        if isinstance(outcome, messages.TaskResult) and outcome.task.status == "working":
            waits, done = (self.statuses[status][0] for status in ("input_required", "completed"))
            raise InvalidParams(
                "The task works, and has no result yet. Send tasks/get until its status is "
                f"{waits} or {done}, and tasks/result again then",
                {"taskId": outcome.task.id},
            )
        if isinstance(outcome, messages.TaskResult) and outcome.task.questions:
            task, asked = outcome.task, outcome.task.questions
            named = [{"_meta": {KEY: task.names[key]}} if task.needs_names else {} for key in asked]
            return self.dump_questions(call, list(asked.values()), named, with_related({}, task.id))
        return super().dump_outcome(call, outcome)

    def _shown(self, questions: Mapping[str, messages.Question]) -> Mapping[str, messages.Question]:
        if self.one_by_one and len(questions) > 1:
            return dict([next(iter(questions.items()))])
        return questions

    @abstractmethod
    def dump_questions(self, call: Call, questions: list[messages.Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the response that asks."""


class BareRequests(Encoding):
    """Option 1 of the response types, and option one of the message structure: a request in place of a result."""

    name = "draft-bare-requests"
    one_by_one = True
    statuses: ClassVar = {**_CAPITALS, "input_required": ("input_require", _CAPITALS["input_required"][1])}

    @override
    def dump_questions(self, call: Call, questions: list[messages.Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the first question, as a request with the id of the client's."""
        question = questions[0]
        asking = {"method": question.method, "params": with_mode(question)}
        if "_meta" in named[0]:
            beside = {**beside, "_meta": {**beside["_meta"], **named[0]["_meta"]}}
        return write_json({"jsonrpc": "2.0", "id": call.request_id, **asking, **beside}, inf_nan_mode="null")


class AdditionalInfo(Encoding):
    """Option 2 of the response types: a result with `AdditionalInfoRequested`."""

    name = "draft-additional-info"
    created = "The operation is now in progress."

    @override
    def dump_questions(self, call: Call, questions: list[messages.Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the questions in a list for each kind; the draft has lists of elicitations and of samplings."""
        asked: dict[str, list[JSON]] = {"elicitation": [], "sampling": []}
        for question, name in zip(questions, named, strict=True):
            asked.setdefault(ask_kind(question).member, []).append({"params": with_mode(question), **name})
        return result(call, {"AdditionalInfoRequested": asked, "isError": False, **beside})


@messages.request
class PartialResult(Followed):
    """A request for the result of a task, for which a reply that asks has as much of the result as there is by then."""

    content: dict[int, JSON] = field(default_factory=dict, kw_only=True, repr=False)  # that part of it, by block

    @override
    def follow(self, dispatch: messages.Dispatch, outlet: messages.Outlet) -> Awaitable[messages.Outcome]:
        """Return what the task asks, or came to; see `Followed.follow`."""
        return dispatch(self, self)

    def send(self, note: messages.Note) -> Awaitable[None]:
        """Keep a piece of the result; see `Outlet.send`. A task has no other notes."""
        if isinstance(note, messages.Piece):
            before = self.content.get(note.block)
            block = note.content if before is None else {**before, "text": before["text"] + note.content["text"]}
            self.content[note.block] = block
        return messages.NOTHING


class ElicitationContent(Encoding):
    """Option two of the message structure: a result whose content is what is asked."""

    name = "draft-content"
    statuses = BareRequests.statuses

    @override
    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Return the call in a request; see `Encoding.load_call`."""
        call = super().load_call(envelope, sender)
        if call.method != messages.TASK_RESULT or call.takes_pieces:  # they come as they are made
            return call
        return PartialResult(**{**PartialResult.fields_of(call), "params": {**call.params, "stream": {}}})

    @override
    def dump_questions(self, call: Call, questions: list[messages.Question], named: list[JSON], beside: JSON) -> bytes:
        """Return the questions as blocks of content, after what there is of the result by then."""
        blocks = [
            {"type": ask_kind(question).member, **with_mode(question), **name}
            for question, name in zip(questions, named, strict=True)
        ]
        partial = call.content.values() if isinstance(call, PartialResult) else ()
        return result(call, {"content": [*partial, *blocks], "isError": False, **beside})


class RevisionOne(SepDraftDialect):
    """Revision 1 of the SEP in its own words for tasks; all else is as in `sep-draft`."""

    name = "draft-revision-1"
    statuses = _CAPITALS
    prints_updates = False


ENCODINGS: dict[str, type[SepDraftDialect]] = {
    each.name: each for each in (BareRequests, AdditionalInfo, ElicitationContent, RevisionOne)
}
