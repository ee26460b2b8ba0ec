"""What a task's row holds, sealed: its call, its journal, and what it asks."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest, digest
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.keys import TASK, KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import InvalidParams, InvalidRequestState, OverBudget, ProtocolError, RequestError
from ..flow.journal import Journal
from ..flow.outcome_codec import dump_outcome, load_outcome
from ..limits import LARGEST_META, Limits
from ..protocol.ask_kinds import WAIT, ask_kind
from ..protocol.callers import CAPABILITIES_FIELD, CLIENT_FIELD, ClientInfo, Principal, dump_user, load_user
from ..protocol.messages import FIRST, JSON, UNNAMED, Call, Complete, Progress, Question
from ..storage.rows import TaskRow, in_epoch
from ..well_formed import write_json

ID_BYTES = 24  # random bytes in the id of a task: the id may be all that protects it
_LONGEST_WAIT = 2048  # characters of a state that says which task a client waits for

_BOUND_TO = ["task"]
_NO_END = 1e10
"""Seconds: so far ahead that a task's journal never expires by itself. It ends with its task."""

_NUMBER = re.compile("[2-9]|[1-9][0-9]{1,8}")  # suffix of repeated keys: the second key of a name ends with 2

_SINCE_0_2 = "\n"
"""The place of new fields among the numbers of the keys, so that servers of 0.1.0 read the rest. It is no name."""


class RowBinding(NamedTuple):
    """Where something sealed belongs, so that a writer to the database can't put one task's into another's."""

    id: str
    owner: str


Bound = RowBinding | TaskRow  # the task itself, or its id and owner where there is no row, or not yet


class SealedTasks:
    """Seals what tasks hold, each bound to its task, column and principal. Opening raises `InvalidRequestState`."""

    def __init__(self, ring: KeyRing, limits: Limits, audience: str = "") -> None:
        self._audience = audience
        self._codec = PlaceCodec(ring, TASK)
        self._id_keys = [key for _, key in ring.derive("task id")]
        self._limits = replace(limits, flow_seconds=_NO_END)

    def ids_of(self, flow: str, epoch: str) -> list[str]:
        """Return the ids of the one task that a flow may become, by each key; the first is for a new one."""
        # Without a key, nobody can guess it.
        digits = [digest(key, flow.encode(), "sha256")[:ID_BYTES].hex() for key in self._id_keys]
        return [*(in_epoch(epoch, each) for each in digits), *(digits if epoch else ())]

    def seal_call(self, binding: Bound, call: Call) -> bytes:
        """Seal the request that a task comes from: what its handler may need of it. Raises `OverBudget`."""
        return self._seal(binding, "call", _dump_call(call, self._audience))

    def unseal_call(self, row: TaskRow) -> Call:
        """Return the request that a task came from, unless it came to another server that has the same keys."""
        fields = from_json(self._unseal(row, "call", row.call))
        server = fields.get("audience", self._audience)  # earlier releases did not keep it
        if self._audience and not compare_digest(server.encode(), self._audience.encode()):
            raise InvalidRequestState(f"it is of the server {server!r}. Give each server a database of its own")
        return _load_call(fields)

    def copy_call(self, row: TaskRow, binding: Bound) -> bytes:
        """Return the request that a task came from, sealed for another one."""
        return self._seal(binding, "call", self._unseal(row, "call", row.call))

    def seal_journal(self, binding: Bound, journal: Journal, now: float) -> bytes:
        """Seal what a flow remembers. Raises `OverBudget` if that is too much."""
        return self._seal(binding, "journal", journal.dump(_BOUND_TO, now, _NO_END, self._limits))

    def unseal_journal(self, row: TaskRow, now: float) -> Journal:
        """Return what a task's flow remembers."""
        return Journal.load(self._unseal(row, "journal", row.journal), _BOUND_TO, now)

    def is_same_journal(self, row: TaskRow, journal: bytes, other: bytes) -> bool:
        """Return whether two sealed journals of a task hold the same: each may be sealed under a key of its own."""
        if journal == other:
            return True
        try:
            return self._unseal(row, "journal", journal) == self._unseal(row, "journal", other)
        except InvalidRequestState:
            return False

    def seal_questions(self, binding: Bound, written: bytes) -> bytes:
        """Seal what a task has asked, as `Questions.dump` returns it."""
        return self._seal(binding, "questions", written)

    def unseal_questions(self, row: TaskRow) -> "Questions":
        """Return what a task has asked."""
        return Questions.load(self._unseal(row, "questions", row.questions)) if row.questions else Questions()

    def seal_outcome(self, binding: Bound, outcome: Complete | RequestError) -> bytes:
        """Seal the outcome of a task. Raises `ValueError` if there is something in it that is not JSON."""
        return self._seal(binding, "outcome", dump_outcome(outcome))

    def unseal_outcome(self, row: TaskRow) -> Complete | RequestError | None:
        """Return the outcome of a task; None if it has none yet."""
        if row.status not in ("completed", "failed"):
            return None
        if row.status == "failed" and not row.outcome:
            return ProtocolError(row.message)  # it was failed without the keys, as another epoch of the store began
        found = load_outcome(self._unseal(row, "outcome", row.outcome))
        return found if isinstance(found, Complete | RequestError) else None

    def seal_progress(self, binding: Bound, progress: Progress) -> str:
        """Seal how far a task has come."""
        # Any float may be in it: it is compared with others.
        fields = write_json([progress.token, progress.progress, progress.total, progress.message])
        return self._codec.seal(_bound(binding, "progress"), fields)

    def unseal_progress(self, binding: Bound, sealed: str) -> Progress:
        """Return how far a task has come, as `seal_progress` sealed it."""
        moved = "the progress belongs to another task or principal"
        token, progress, total, message = from_json(self._codec.unseal(_bound(binding, "progress"), sealed, moved))
        return Progress(token, progress, total, message, binding.id)

    def seal_wait(self, binding: Bound, pieces: int = 0) -> str:
        """Seal a state for a client that is to come again for a result. It grants nothing."""
        return self._codec.seal(_bound(binding, "wait"), b"%d" % pieces if pieces else b"")

    def check_wait(self, binding: Bound, state: Any) -> int:
        """Return how many pieces its client has, by a state of `seal_wait` for this task and principal."""
        # Raises `InvalidRequestState` for any other state.
        if not isinstance(state, str):
            raise InvalidRequestState("not a string")
        if len(state) > _LONGEST_WAIT:
            raise InvalidRequestState("too large")
        return int(self._codec.unseal(_bound(binding, "wait"), state, "it belongs to another task or principal") or 0)

    def _seal(self, binding: Bound, column: str, payload: bytes) -> bytes:
        return self._codec.seal(_bound(binding, column), payload).encode()

    def _unseal(self, row: TaskRow, column: str, sealed: bytes) -> bytes:
        moved = f"the {column} belongs to another task, column or principal"
        return self._codec.unseal(_bound(row, column), sealed, moved)


def _bound(binding: Bound, column: str) -> bytes:
    return to_json([binding.id, binding.owner, column]) + b"\n"


_ABOUT_CLIENT = CLIENT_FIELD, CAPABILITIES_FIELD
"""The members of `_meta` that say what is known of the client, in that order. A row has that once."""


def _dump_call(call: Call, audience: str) -> bytes:
    who, meta = call.principal, call.params.get("_meta")
    known = call.client.info, call.client.capabilities
    told_twice = [n for n, name in enumerate(_ABOUT_CLIENT) if meta and name in meta and meta[name] == known[n]]
    about: JSON = {
        "method": call.method,
        "target": call.target,
        "meta": meta,
        "client": [call.client.info, call.client.capabilities],
        "principal": None if who is None else [who.subject, who.issuer, who.client_id],
        "user": dump_user(call.user),
        "scopes": sorted(call.scopes),
        "host": call.headers.get(b"host", b"").decode("latin-1"),
        "root": call.root,
        "audience": audience,
    }
    if who is not None and who.tenant:
        about["tenant"] = who.tenant  # beside the principal, of which older releases expect three parts
    if login := getattr(call.user, "login", ""):
        about["login"] = str(login)
    if meta and told_twice:  # 0.1.0 runs such a task, too; its handler finds them in `ctx.client` alone
        left_out = {_ABOUT_CLIENT[n] for n in told_twice}
        about["meta"] = {name: value for name, value in meta.items() if name not in left_out}
        about["told"] = told_twice
    if call.task is not None and call.task.at_once and call.progress_token is not None:
        about["progress"] = call.progress_token  # it stays valid (Tasks, Task Progress Notifications)
    if len(write_json(about)) > LARGEST_META:
        message = f"Besides the arguments, a task keeps at most {LARGEST_META} bytes of its request"
        raise OverBudget(message, "_meta", LARGEST_META)
    return write_json({**about, "arguments": call.arguments})


def _load_call(fields: JSON) -> Call:
    who = fields["principal"]
    user = fields["user"] if "user" in fields else who and [who[0], "", who[1], who[2], True]  # older releases had none
    meta = fields["meta"]
    if told_twice := fields.get("told"):
        meta |= {_ABOUT_CLIENT[n]: fields["client"][n] for n in told_twice}
    return Call(
        method=fields["method"],
        params={} if meta is None else {"_meta": meta},
        target=fields["target"],
        arguments=fields["arguments"],
        client=ClientInfo(*fields["client"]),
        principal=None if who is None else Principal(*(*who, fields.get("tenant", ""))),
        user=load_user(user, fields.get("login", "")),
        scopes=frozenset(fields.get("scopes", ())),
        headers={b"host": fields["host"].encode("latin-1")},
        root=fields["root"],
        progress_token=fields.get("progress"),
    )


@dataclass(slots=True)
class Questions:
    """What a task has asked, and what was answered."""

    open: dict[str, Question] = field(default_factory=dict)  # that wait, by a key never used again
    names: dict[str, str] = field(default_factory=dict)  # the key that the handler knows each by
    answers: dict[str, JSON] = field(default_factory=dict)  # those since the handler was last run, by that key
    used: dict[str, int] = field(default_factory=dict)
    """The number of each name's last key. Keys are not kept, so that asking again and again does not make the task
    grow."""
    until: dict[str, float] = field(
        default_factory=dict
    )  # when the time for an answer ends, in seconds since the epoch
    together: bool = False  # whether the handler runs again only when all are answered

    @property
    def waits(self) -> dict[str, Question]:
        """Those that somebody else answers, by key."""
        return {key: question for key, question in self.open.items() if question.kind == WAIT.name}

    @property
    def of_client(self) -> "Questions":
        """The same without those that somebody else answers: all that the task's client may see and answer."""
        if not (waits := self.waits):
            return self
        open_ = {key: each for key, each in self.open.items() if key not in waits}
        return replace(self, open=open_, names={key: self.names[key] for key in open_})

    def ask(self, questions: Mapping[str, Question], until: float) -> None:
        """Ask these as well, under keys that have not been used; one whose name is open stays as it is."""
        open_ = set(self.names.values())
        for name, question in questions.items():
            if name not in open_:
                key = self._unused(name)
                self.open[key], self.names[key], self.until[key] = question, name, until

    def withdraw(self, names: Container[str]) -> None:
        """Withdraw the questions with these names. Later answers to them are ignored."""
        for key in [key for key, name in self.names.items() if name in names]:
            self._close(key)

    def _close(self, key: str) -> str:
        del self.open[key]
        self.until.pop(key, None)
        return self.names.pop(key)

    def ends(self, otherwise: float) -> float:
        """Return when the time for the first of the answers ends, in seconds since the epoch."""
        return min(otherwise, *self.until.values()) if self.until else otherwise

    def _unused(self, name: str) -> str:
        key, number = name, 1
        while self._was_used(key):
            number = max(number, self.used.get(name, 0)) + 1
            key = f"{name}_{number}"
        self.used[name] = number
        return key

    def _was_used(self, key: str) -> bool:
        name, _, number = key.rpartition("_")
        return key in self.used or (_NUMBER.fullmatch(number) is not None and int(number) <= self.used.get(name, 0))

    def take(self, answers: Mapping[str, JSON]) -> bool:
        """Keep the answers to open questions, by key; return whether there were any."""
        taken = [key for key in answers if key in self.open]
        for key in taken:
            self.answers[self._close(key)] = dict(answers[key])
        return bool(taken)

    def shown(self) -> dict[str, str]:
        """Return the names of the open questions, by key, for clients that answer by names."""
        # A name is the author's, and may be used again. What approves something has its key, which is used once.
        return {key: name if self._approves_nothing(key) else key for key, name in self.names.items()}

    def needs_names(self) -> bool:
        """Return whether an answer without a name could be meant for another question; see `answered_by`."""
        return len(self.open) > 1 or (self._has_asked_before() and not all(map(self._approves_nothing, self.open)))

    def _approves_nothing(self, key: str) -> bool:
        return not ask_kind(self.open[key]).approves

    def _has_asked_before(self) -> bool:
        return sum(self.used.values()) > 1

    def by_name(self, answers: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return answers by the task's keys instead of the shown names; those alone that fit their question."""
        return {
            key: answers[name]
            for key, name in self.shown().items()
            if name in answers and _fits(self.open[key], answers[name])
        }

    def answered_by(self, name: str, response: JSON) -> str | None:
        """Return the key of the question that a response answers; None if that is closed. Raises `InvalidParams`."""
        if name not in (UNNAMED, FIRST):
            return next((key for key, known in self.shown().items() if known == name), None)
        if not self.open:
            return None
        is_only = len(self.open) == 1
        likely = [key for key, question in self.open.items() if is_only or _is_of_kind(question, response)]
        is_clear = len(likely) == 1 or (name == FIRST and likely[:1] == list(self.open)[:1])
        if is_clear and likely and (self._approves_nothing(likely[0]) or not self._has_asked_before()):
            return likely[0]
        if is_only:  # a second delivery of an earlier answer must not be a yes to this
            why = "The task has asked before, so an answer to a confirmation or a page must name its question"
        else:
            why = f"The task has {len(self.open)} questions open, so an answer must name the one that it answers"
        raise InvalidParams(f"{why}. tasks/result shows each name, and tasks/input_response takes answers by it")

    def dump(self) -> bytes:
        """Return all of them as JSON."""
        own = self.of_client  # or 0.1.0 would take its client's answer to what somebody else is to answer
        open_ = {key: q.dump()[:5] for key, q in own.open.items()}  # as 0.1.0 reads it
        pages = {key: q.page for key, q in own.open.items() if q.page}
        waits = {key: [self.names[key], *q.dump()] for key, q in self.waits.items()}
        since_0_2 = [self.until, self.together, pages, waits]
        return write_json([open_, own.names, self.answers, {**self.used, _SINCE_0_2: since_0_2}])

    @classmethod
    def load(cls, written: bytes) -> "Questions":
        """Read what `dump` returned."""
        open_, names, answers, used = from_json(written)
        until, together, pages, waits = used.pop(_SINCE_0_2, ({}, True, {}, {}))  # they wait for all answers
        questions = {key: Question.load(*parts) for key, parts in open_.items()}
        for key, page in pages.items():
            questions[key].page = page
        for key, (name, *parts) in waits.items():
            names[key], questions[key] = name, Question.load(*parts)
        return cls(questions, names, answers, used, until, together)


def _is_of_kind(question: Question, response: JSON) -> bool:
    """Return whether a response may answer a question, by its kind; an error may answer any."""
    result = response.get("result")
    if not isinstance(result, dict):
        return True
    if "action" in result:  # a form's answer has `content`, too
        return ask_kind(question).has_action
    return ask_kind(question).required in result


def _fits(question: Question, answer: JSON) -> bool:
    """Check whether an answer has what its question requires. The handler that reads it checks the rest."""
    kind = ask_kind(question)
    if not kind.has_action:
        return kind.required in answer
    if answer.get("action") != "accept":
        return answer.get("action") in ("decline", "cancel")
    content, required = answer.get("content", {}), question.params.get("requestedSchema", {}).get("required", ())
    return not required or (isinstance(content, dict) and all(name in content for name in required))
