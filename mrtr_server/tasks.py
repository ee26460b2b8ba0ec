"""Tasks: flows that go on in the background, with their journal in a row of a store."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from hmac import digest as hmac_digest
from secrets import token_hex
from typing import Any

from pydantic_core import from_json, to_json

from .digests import digest
from .errors import ProtocolError, RequestError, StateRefused, UnknownTarget
from .fanout import Fanout
from .handlers import TaskTerms
from .journal import Journal
from .keys import KeyRing
from .limits import Limits
from .messages import JSON, Call, Change, Client, Complete, Principal, Question, Task, TaskOffer
from .recorded import read_outcome, write_outcome
from .sealed_state import SealedCodec
from .task_store import ENDED, TaskRow, TaskStore

logger = logging.getLogger("mrtr_server")

RETENTION = 300.0
"""How long a task can still be asked for after its time to live, so that its client learns what became of it."""

FIRST_ASK_WITHIN = 10.0
"""How long a client that would rather see the first ask is kept waiting for it, in seconds."""

_ID_BYTES = 24
_LONGEST_ID = 128
_FLAT = "task-"
"""What the ids of tasks begin with whose clients see the first ask at once; no other id does."""

_BOUND_TO = ["task"]
_NO_END = 1e10
"""In seconds. A journal in a task ends with its task, and not by itself."""


@dataclass(slots=True)
class Questions:
    """What a task has asked, and what was answered.

    Parameters:
        open: the questions that wait for their answer, by a key that the task never uses again.
        names: the key that the handler knows each by.
        answers: the answers since the handler was last run, by that key.
        used: all keys so far.
    """

    open: dict[str, Question] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    answers: dict[str, JSON] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)

    def ask(self, questions: Mapping[str, Question]) -> None:
        """Ask these, under keys that have not been used."""
        self.answers = {}
        self.open, self.names = {}, {}
        for name, question in questions.items():
            key, count = name, 1
            while key in self.used:
                count += 1
                key = f"{name}_{count}"
            self.used.append(key)
            self.open[key], self.names[key] = question, name

    def take(self, answers: Mapping[str, JSON]) -> bool:
        """Take the answers to open questions, by key; say whether there were any."""
        taken = [key for key in answers if key in self.open]
        for key in taken:
            self.answers[self.names.pop(key)] = dict(answers[key])
            del self.open[key]
        return bool(taken)


class Tasks:
    """Starts tasks, and answers what clients ask about them.

    Parameters:
        store: where they are.
        ring: seals what they hold.
        fanout: tells those who listen.
        limits: what a flow may use.
        answer_within: gives how long a person has to answer a tool's questions in a task, in seconds.
        clock: gives the time in seconds since the epoch.
    """

    def __init__(
        self,
        store: TaskStore,
        ring: KeyRing,
        fanout: Fanout,
        limits: Limits,
        *,
        answer_within: Callable[[str], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.answer_within = answer_within
        self._codec = SealedCodec(ring, "task")
        self._flow_key = ring.derive("task of a flow")[0][1]
        self._fanout = fanout
        self._limits = replace(limits, flow_seconds=_NO_END)
        self._clock = self.now = clock
        self._told = False

    # What clients do

    async def start(self, terms: TaskTerms, call: Call, journal: Journal | None, *, once: bool = False) -> Task:
        """Make a task of a call. It is there for every replica when this returns.

        Parameters:
            terms: the tool's.
            call: the request.
            journal: what its rounds have left; None if there were none.
            once: whether the flow becomes one task, however often it comes here.

        Raises:
            StoreUnavailable: it could not be kept.
        """
        if call.principal is None and not self._told:
            self._told = True
            logger.warning("Tasks of callers who are not authenticated are protected by their ids alone")
        offer = call.task or TaskOffer()
        ttl = terms.ttl if offer.ttl is None else min(offer.ttl, terms.ttl)
        now = self._clock()
        token = self._token_of(journal) if once and journal is not None else token_hex(_ID_BYTES)
        id, owner = (_FLAT if offer.first_ask else "") + token, _owner(call.principal)
        row = TaskRow(
            id=id,
            owner=owner,
            name=call.target,
            status="working",
            message="",
            created=now,
            updated=now,
            ttl=ttl,
            poll=terms.poll,
            deadline=now + ttl,
            expires=now + ttl + RETENTION,
            call=self._seal(id, owner, "call", _write_call(call)),
            journal=self._seal_journal(id, owner, journal or Journal(now)),
        )
        await self.store.add_task(row)
        if offer.first_ask:
            row = await self._settled(row)
        return self.view(row)

    def _token_of(self, journal: Journal) -> str:
        """Give what nobody can guess, and each replica makes the same of a flow."""
        return hmac_digest(self._flow_key, journal.flow.encode(), "sha256")[:_ID_BYTES].hex()

    async def _settled(self, row: TaskRow) -> TaskRow:
        """Wait until a task has asked or ended, for a while."""
        deadline = time.monotonic() + min(FIRST_ASK_WITHIN, row.ttl)
        pause = 0.005
        while row.status == "working" and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.2)
            row = await self.store.find_task(row.id) or row
        return row

    async def see(self, call: Call) -> Task:
        """Give the task that a call is about. Raises `UnknownTarget`."""
        return self.view(await self._find(call.target, call.principal))

    async def peek(self, id: str, principal: Principal | None) -> Task | None:
        """Give a task; None if there is none, or none of this principal."""
        try:
            return self.view(await self._find(id, principal))
        except UnknownTarget:
            return None

    async def answer(self, call: Call, answers: Mapping[str, JSON], *, by_name: bool = False) -> None:
        """Take answers to what a task has open; others are ignored.

        Parameters:
            call: the request.
            answers: by key.
            by_name: whether the keys are those that the handler knows, so that an answer that does not fit its question
                is left alone; the empty key is that of the only question that is open.

        Raises:
            UnknownTarget: there is no such task.
            InvalidParams: there is not exactly one question for an answer without a key.
        """
        while True:
            row = await self._find(call.target, call.principal)
            if row.status in ENDED:
                return
            questions = self.questions(row)
            given = _by_key(questions, answers) if by_name else answers
            if not questions.take(given):
                return
            status = "input_required" if questions.open else "working"
            changed = await self.store.change_task(
                row,
                questions=self.seal_questions(row, questions),
                status=status,
                updated=self._clock(),
                # What is left of its life, now that nobody's answer is waited for.
                deadline=row.deadline if questions.open else row.created + row.ttl,
                lease="",
                leased_until=0.0,
                attempts=0,
            )
            if changed is not None:
                self.tell(row.id)
                return

    async def cancel(self, call: Call) -> None:
        """Cancel a task; one that has ended stays as it is. Raises `UnknownTarget`."""
        while True:
            row = await self._find(call.target, call.principal)
            if row.status in ENDED or await self.store.change_task(row, status="cancelled", updated=self._clock()):
                self.tell(row.id)
                return

    async def _find(self, id: str, principal: Principal | None) -> TaskRow:
        row = await self.store.find_task(id) if len(id) <= _LONGEST_ID else None
        # For anyone but its owner it does not exist.
        if row is None or not compare_digest(row.owner.encode(), _owner(principal).encode()):
            raise UnknownTarget("task", id)
        return row

    def tell(self, id: str) -> None:
        """Tell those who listen that a task has changed."""
        self._fanout.publish(Change("task", id))

    # Rows

    def view(self, row: TaskRow) -> Task:
        """Give a task as its client may see it."""
        questions = self.questions(row) if row.status == "input_required" else Questions()
        outcome: Complete | RequestError | None = None
        if row.status in ("completed", "failed"):
            found = read_outcome(self._open(row, "outcome", row.outcome))
            outcome = found if isinstance(found, Complete | RequestError) else None
        return Task(
            id=row.id,
            status=row.status,
            created=row.created,
            updated=row.updated,
            ttl=row.ttl,
            poll=row.poll,
            message=row.message,
            questions=questions.open,
            names=questions.names,
            outcome=outcome,
            first_ask=row.id.startswith(_FLAT),
        )

    def call(self, row: TaskRow) -> Call:
        """Give the request that a task came from. Raises `StateRefused` if it does not open."""
        return _read_call(from_json(self._open(row, "call", row.call)))

    def journal(self, row: TaskRow) -> Journal:
        """Give what a task's flow remembers. Raises `StateRefused` if it does not open."""
        return Journal.load(self._open(row, "journal", row.journal), _BOUND_TO, self._clock())

    def seal_journal(self, row: TaskRow, journal: Journal) -> bytes:
        """Seal a journal for its task."""
        return self._seal_journal(row.id, row.owner, journal)

    def _seal_journal(self, id: str, owner: str, journal: Journal) -> bytes:
        return self._seal(id, owner, "journal", journal.dump(_BOUND_TO, self._clock(), _NO_END, self._limits))

    def questions(self, row: TaskRow) -> Questions:
        """Give what a task has asked. Raises `StateRefused` if it does not open."""
        if not row.questions:
            return Questions()
        open_, names, answers, used = from_json(self._open(row, "questions", row.questions))
        return Questions({key: Question(*parts) for key, parts in open_.items()}, names, answers, used)

    def seal_questions(self, row: TaskRow, questions: Questions) -> bytes:
        """Seal what a task has asked."""
        open_ = {key: (q.kind, q.method, q.params, q.needs, q.shape) for key, q in questions.open.items()}
        return self._seal(
            row.id, row.owner, "questions", to_json([open_, questions.names, questions.answers, questions.used])
        )

    def seal_outcome(self, row: TaskRow, outcome: Complete | RequestError) -> bytes:
        """Seal what came of a task. Raises `ValueError` where that is no JSON."""
        return self._seal(row.id, row.owner, "outcome", write_outcome(outcome))

    def expired(self, row: TaskRow) -> dict[str, Any]:
        """Give the changes that fail a task whose time is over."""
        waited = row.status == "input_required"
        message = (
            "The input that the task was waiting for did not come in time" if waited else "The task did not end in time"
        )
        return self.failed(row, ProtocolError(message))

    def failed(self, row: TaskRow, error: RequestError) -> dict[str, Any]:
        """Give the changes that fail a task."""
        outcome = self.seal_outcome(row, error)
        return {"status": "failed", "outcome": outcome, "message": error.message, "updated": self._clock()}

    def _seal(self, id: str, owner: str, column: str, payload: bytes) -> bytes:
        # Bound to its place, so that who can write to the database can't put one task's into another's.
        return self._codec.seal(to_json([id, owner, column]) + b"\n" + payload).encode("ascii")

    def _open(self, row: TaskRow, column: str, sealed: bytes) -> bytes:
        place, _, payload = self._codec.open(sealed.decode("ascii", "replace")).partition(b"\n")
        if not compare_digest(place, to_json([row.id, row.owner, column])):
            raise StateRefused(f"{column} belongs to another task, column or principal")
        return payload


def _owner(principal: Principal | None) -> str:
    return "" if principal is None else digest([principal.issuer, principal.subject, principal.client_id])


def _by_key(questions: Questions, answers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Give answers by the keys of the task instead of the handler's; those that fit alone."""
    keys = {name: key for key, name in questions.names.items()}
    if "" in answers and len(keys) == 1:
        keys[""] = next(iter(keys.values()))
    return {
        keys[name]: answer
        for name, answer in answers.items()
        if name in keys and fits(questions.open[keys[name]], answer)
    }


def fits(question: Question, answer: JSON) -> bool:
    """Say whether an answer has what its question's form requires; all else is for the handler's model to check."""
    if "requestedSchema" not in question.params or answer.get("action") != "accept":
        return True
    content, required = answer.get("content"), question.params["requestedSchema"].get("required", ())
    return isinstance(content, dict) and all(name in content for name in required)


def _write_call(call: Call) -> bytes:
    who = call.principal
    return to_json(
        {
            "method": call.method,
            "target": call.target,
            "arguments": call.arguments,
            "meta": call.params.get("_meta"),
            "client": [call.client.info, call.client.capabilities],
            "principal": None if who is None else [who.subject, who.issuer, who.client_id],
            "host": call.headers.get(b"host", b"").decode("latin-1"),
            "root": call.root,
        }
    )


def _read_call(fields: JSON) -> Call:
    who = fields["principal"]
    return Call(
        method=fields["method"],
        params={} if fields["meta"] is None else {"_meta": fields["meta"]},
        target=fields["target"],
        arguments=fields["arguments"],
        client=Client(*fields["client"]),
        principal=None if who is None else Principal(*who),
        headers={b"host": fields["host"].encode("latin-1")},
        root=fields["root"],
    )
