"""Answers to the questions of open calls: kept before they are acknowledged, then given to the call that waits."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from secrets import token_hex
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_bytes, digest_parts
from ..crypto.keys import LIVE_ANSWER, KeyRing
from ..crypto.place_codec import PlaceCodec, SealedRows, row_codec
from ..errors import AnswerNotShared, InvalidRequestState, MissingCapability, ProtocolError
from ..protocol.ask_kinds import ask_kind
from ..protocol.callers import Principal, nested
from ..protocol.messages import JSON, Change, Question, Subscription
from ..protocol.sessions import OwnerPlaces
from ..storage.base import Store
from ..storage.pubsub import Fanout, InProcessFanout
from ..storage.quotas import Quotas
from .events import KEPT_AFTER

_LONGEST_ID = 2_048  # characters of the id of a question

DISMISSED: JSON = {"result": {"action": "cancel"}}  # of a person who does not answer

WITHDRAWN: JSON = {"failed": "the call was cancelled"}  # to a question that counts no more

TOO_LATE = "There was no answer in time"
CALL_CANCELLED = "The call was cancelled"
TASK_CANCELLED = "The task was cancelled"
ANSWERED_ELSEWHERE = "It was answered elsewhere"


@dataclass(slots=True)
class SentQuestion:
    round: str  # names the round that asked
    key: str  # of the question within it
    expires: float  # when it expires, in seconds since the epoch
    asker: str = field(default="", compare=False)  # names the process that asked, where it shares no store with others
    at: float = field(default=0.0, compare=False)  # when it asked, in seconds since the epoch; likewise
    # The key of the row that has its answer; empty where it is not known yet, see `Answers.row_of`.
    row: str = field(default="", compare=False)


class _QuestionIds:
    """Seals the ids of requests that ask, for who is asked. Each begins with the question's key, for their readers."""

    def __init__(self, ring: KeyRing, audience: str, purpose: str) -> None:
        self._codec = PlaceCodec(ring, purpose)
        self.place_of = OwnerPlaces(audience).of

    def seal(self, key: str, fields: list[Any], principal: Principal | None) -> str:
        return f"{key}.{self._codec.seal(self.place_of(principal), to_json(fields))}"

    def unseal(self, id: str, principal: Principal | None) -> list[Any] | None:
        """Return the fields; None if the id, which may be anything, does not open for this principal."""
        if len(id) > _LONGEST_ID:
            return None
        key, _, sealed = id.rpartition(".")
        try:
            fields: list[Any] = from_json(
                self._codec.unseal(self.place_of(principal), sealed, "belongs to another principal")
            )
        except InvalidRequestState:
            return None
        return fields if fields[1] == key else None


class LiveAnswers:
    """Keeps answers, the first one to each question, and finds them."""

    def __init__(
        self, ring: KeyRing, audience: str, store: Store, fanout: Fanout, quotas: Quotas, clock: Callable[[], float]
    ) -> None:
        self._ids = _QuestionIds(ring, audience, "live ask")
        codec = row_codec(ring, LIVE_ANSWER, in_memory=store.in_memory)
        self._sealed = SealedRows(codec, "The answer to a question", "kept for another question")
        self._audience = audience
        self._store = store
        self._fanout = fanout
        self._is_told_here = type(fanout) is InProcessFanout
        self._quotas = quotas
        self._clock = clock
        self._name = token_hex(8)
        self._named = 0, ""
        self._began = clock()
        self._sealed_here: dict[str, tuple[bytes, SentQuestion]] = {}
        """What the ids hold that were sealed here, and to whom they belong, while their answers are waited for."""
        self._awaited: dict[str, int] = {}  # how many open calls wait here whose clients have come back, by round
        self._guard = threading.Lock()

    # The ids of questions

    def asked(self, round: str, key: str, expires: float) -> SentQuestion:
        asker, at = ("", 0.0) if self._store.shared else (self._asker, self._clock())
        return SentQuestion(round, key, expires, asker, at, self._row(round, key))

    def seal(self, asked: SentQuestion, principal: Principal | None) -> str:
        """Return the id of the request that asks; to be forgotten when nobody waits for its answer here."""
        fields: list[Any] = [asked.round, asked.key, asked.expires]
        if asked.asker:
            fields += [asked.asker, asked.at]
        id = self._ids.seal(asked.key, fields, principal)
        self._sealed_here[id] = self._ids.place_of(principal), asked
        return id

    def forget(self, id: str) -> None:
        self._sealed_here.pop(id, None)

    def unseal(self, id: str, principal: Principal | None) -> SentQuestion | None:
        if (known := self._sealed_here.get(id)) is not None:  # as nearly always in one process
            place, asked = known
            return asked if compare_digest(place, self._ids.place_of(principal)) else None
        fields = self._ids.unseal(id, principal)
        return None if fields is None else SentQuestion(*fields)

    # What was answered

    async def keep(self, asked: SentQuestion, answer: JSON, principal: Principal | None) -> None:
        """Keep an answer, unless there is one, and notify the call that waits. Raises `AnswerNotShared`, `Full`."""
        if not self._may_be_read(asked):
            raise AnswerNotShared
        id = self.row_of(asked)
        left = asked.expires - self._clock()
        if left <= -KEPT_AFTER:
            return  # the round can't run any more
        sealed = self._sealed.seal(id, to_json(answer))
        keep, quota = max(left, 0.0) + KEPT_AFTER, self._quotas.of(principal, self._clock())
        is_first = await self._store.put(id, sealed.encode(), keep=keep, quota=quota)
        # An unsealed answer stays in this process.
        note = sealed if is_first and (not self._store.in_memory or self._is_told_here) else ""
        self._fanout.publish(Change("answer", id, note=note))

    @staticmethod
    def to(id: str, answer: JSON) -> JSON:
        """Return an answer with which request it answers: several may ask the same, each on a stream of its own."""
        return {**answer, "to": digest_bytes(id.encode())}

    @staticmethod
    def is_to(id: str, answer: JSON) -> bool:
        return "to" not in answer or answer["to"] == digest_bytes(id.encode())

    async def find(self, asked: SentQuestion) -> JSON | None:
        id = self.row_of(asked)
        found = await self._store.get(id)
        answer: JSON | None = None if found is None else from_json(self._sealed.unseal(id, found))
        return answer

    def begin_to_await(self, round: str) -> None:
        """Note that a call waits here to which its client has come back, until `end_to_await` is called as often."""
        with self._guard:
            self._awaited[round] = self._awaited.get(round, 0) + 1

    def end_to_await(self, round: str) -> None:
        with self._guard:
            left = self._awaited.pop(round) - 1
            if left:
                self._awaited[round] = left

    def _may_be_read(self, asked: SentQuestion) -> bool:
        """Return whether the call that waits for an answer finds it here, or one that its client comes back to.

        A question of before this process began may be that of its predecessor, and its client may come back to here.
        """
        return (
            self._store.shared or asked.asker == self._asker or asked.at < self._began or asked.round in self._awaited
        )

    @property
    def _asker(self) -> str:
        pid = os.getpid()  # the process may have been forked since
        if self._named[0] != pid:
            self._named = pid, f"{self._name}.{pid}"
        return self._named[1]

    def publish(self, change: Change) -> None:
        self._fanout.publish(change)

    def listen(self, rows: Iterable[str], others: Iterable[Change] = ()) -> Subscription:
        return self._fanout.subscribe(frozenset([*[Change("answer", row) for row in rows], *others]))

    def carried(self, change: Change) -> JSON | None:
        """Return the answer that a change carries, if it does; `find` has it in any case."""
        answer: JSON | None = from_json(self._sealed.unseal(change.uri, change.note)) if change.note else None
        return answer

    def row_of(self, asked: SentQuestion) -> str:
        return asked.row or self._row(asked.round, asked.key)

    def _row(self, round: str, key: str) -> str:
        return digest_parts("live answer", self._audience, round, key)


def read_answers(questions: Mapping[str, Question], answers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return answers as a round takes them. Raises `MissingCapability`, `ProtocolError`."""
    return {key: read_answer(question, answers[key]) for key, question in questions.items()}


def no_answer(question: Question) -> JSON:
    return DISMISSED if ask_kind(question).has_action else {"failed": "there was no answer in time"}


def read_answer(question: Question, answer: JSON) -> JSON:
    """Return an answer as a round takes it. Raises `MissingCapability`, `ProtocolError`."""
    if "result" in answer:
        result = answer["result"]
        return result if isinstance(result, dict) else {}  # which is no answer, so the question comes again
    if "lacks" in answer:
        raise MissingCapability(nested(question.needs[:1]))
    if ask_kind(question).has_action:
        return dict(DISMISSED["result"])
    raise ProtocolError(f"The client did not fulfil {question.method}: {answer.get('failed')}")


class AskedByTask(NamedTuple):
    task: str
    key: str  # of the question within it
    session: str  # the session that the task belongs to, where there is no principal


class TaskAsks:
    def __init__(self, ring: KeyRing, audience: str) -> None:
        self._ids = _QuestionIds(ring, audience, "live ask of a task")

    def seal(self, asked: AskedByTask, principal: Principal | None) -> str:
        return self._ids.seal(asked.key, [asked.task, asked.key, asked.session], principal)

    def unseal(self, id: str, principal: Principal | None) -> AskedByTask | None:
        fields = self._ids.unseal(id, principal)
        return None if fields is None else AskedByTask(*fields)
