"""Answers to the questions of open calls: kept before they are acknowledged, then told to who waits for them."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex

from pydantic_core import from_json, to_json

from ..crypto.bound_codec import BoundCodec
from ..crypto.digests import digest
from ..crypto.keys import KeyRing
from ..crypto.purposes import LIVE_ANSWER
from ..errors import AnswerNotShared, InvalidRequestState, StoreUnavailable
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Change, Question, Subscription
from ..protocol.sessions import owner_of
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from .events import KEPT_AFTER

_LONGEST_ID = 2_048
"""Characters of the id of a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that went out.

    Args:
        round: names the round that asked.
        key: of the question within it.
        expires: when it expires, in seconds since the epoch.
        asker: names the process that asked, where it shares no store with others.
        at: when it asked, in seconds since the epoch; likewise.
    """

    round: str
    key: str
    expires: float
    asker: str = field(default="", compare=False)
    at: float = field(default=0.0, compare=False)


class Answers:
    """Keeps answers, the first one to each question, and finds them.

    Args:
        ring: seals the ids of questions, and what is kept.
        audience: the server that they belong to.
        store: keeps them.
        fanout: tells who waits.
        quotas: how much each caller may keep.
        clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        ring: KeyRing,
        audience: str,
        store: Store,
        fanout: Fanout,
        quotas: Quotas,
        clock: Callable[[], float],
    ) -> None:
        self._ids = BoundCodec(ring, "live ask")
        self._codec = BoundCodec(ring, LIVE_ANSWER)
        self._audience = audience
        self._store = store
        self._fanout = fanout
        self._quotas = quotas
        self._clock = clock
        self._name = token_hex(8)
        self._began = clock()
        self._awaited: Counter[str] = Counter()
        """How many open calls wait here, by round."""
        self._guard = threading.Lock()

    # The ids of questions

    def seal(self, asked: Asked, principal: Principal | None) -> str:
        """Return the id of the request that asks. It begins with the question's key, for who reads the messages."""
        fields = [asked.round, asked.key, asked.expires]
        if not self._store.shared:
            fields += [self._asker, self._clock()]
        return f"{asked.key}.{self._ids.seal(self._place(principal), to_json(fields))}"

    def open(self, id: str, principal: Principal | None) -> Asked | None:
        """Return what was asked.

        Args:
            id: what a client sent; it may be anything.
            principal: on whose behalf.

        Returns:
            The question; None if the id does not open for this principal.
        """
        if len(id) > _LONGEST_ID:
            return None
        key, _, sealed = id.rpartition(".")
        try:
            asked = Asked(*from_json(self._ids.unseal(self._place(principal), sealed, "belongs to another principal")))
        except InvalidRequestState:
            return None
        return asked if asked.key == key else None

    def elicitation(self, round: str, key: str, question: Question) -> str:
        """Return what names a question that is a page; it opens nothing."""
        return question.page or digest(["elicitation", self._audience, round, key])

    # What was answered

    async def keep(self, asked: Asked, answer: JSON, principal: Principal | None) -> None:
        """Keep an answer, unless there is one, and tell who waits.

        Args:
            asked: the question.
            answer: in one of the forms that `read` of `questions.py` takes.
            principal: who was asked.

        Raises:
            AnswerNotShared: the call waits in another process, and shares no store with this one.
            StoreUnavailable: it could not be kept.
            Full: likewise, since too much is kept.
        """
        if not self._may_be_read(asked):
            raise AnswerNotShared
        id = self._id(asked)
        left = asked.expires - self._clock()
        if left <= -KEPT_AFTER:
            return  # the round can't run any more
        sealed = self._codec.seal(_answer_place(id), to_json(answer))
        keep, quota = max(left, 0.0) + KEPT_AFTER, self._quotas.of(principal)
        if await self._store.put(id, sealed.encode(), keep=keep, quota=quota):
            self._fanout.publish(Change("answer", id, note=sealed))
        else:
            self._fanout.publish(Change("answer", id))

    async def find(self, asked: Asked) -> JSON | None:
        """Return the answer to a question; None if there is none. Raises `StoreUnavailable`."""
        id = self._id(asked)
        found = await self._store.get(id)
        return None if found is None else self._read(id, found.decode("ascii", "replace"))

    @contextmanager
    def await_round(self, round: str) -> Iterator[None]:
        """Note that a call waits here for the answers of a round, for as long as the block lasts."""
        with self._guard:
            self._awaited[round] += 1
        try:
            yield
        finally:
            with self._guard:
                self._awaited[round] -= 1
                if not self._awaited[round]:
                    del self._awaited[round]

    def _may_be_read(self, asked: Asked) -> bool:
        """Return whether a call that waits for an answer, or one that its client comes back to, finds it here.

        A question of before this process began may be that of its predecessor, and its client may come back to here.
        """
        return (
            self._store.shared or asked.asker == self._asker or asked.at < self._began or asked.round in self._awaited
        )

    @property
    def _asker(self) -> str:
        return f"{self._name}.{os.getpid()}"  # the process may have been forked since

    def publish(self, change: Change) -> None:
        """Notify who listens of a change."""
        self._fanout.publish(change)

    def listen(self, asked: Iterable[Asked], *others: Change) -> Subscription:
        """Begin to listen for the answers to questions, and for other changes."""
        return self._fanout.subscribe(frozenset([*(Change("answer", self._id(each)) for each in asked), *others]))

    async def heard(self, changes: Iterable[Change], asked: Iterable[Asked]) -> dict[str, JSON]:
        """Return the answers, by key, that changes tell of.

        Raises:
            StoreUnavailable: one could not be found.
        """
        notes = {change.uri: change.note for change in changes if change.kind == "answer"}
        found: dict[str, JSON] = {}
        for each in asked:
            id = self._id(each)
            if id in notes:
                answer = self._read(id, notes[id]) if notes[id] else await self.find(each)
                if answer is not None:
                    found[each.key] = answer
        return found

    def _read(self, id: str, sealed: str) -> JSON:
        try:
            answer: JSON = from_json(self._codec.unseal(_answer_place(id), sealed, "kept for another question"))
        except InvalidRequestState as refused:
            raise StoreUnavailable(f"The answer to a question can't be unsealed: {refused.reason}") from None
        return answer

    def _id(self, asked: Asked) -> str:
        return digest(["live answer", self._audience, asked.round, asked.key])

    def _place(self, principal: Principal | None) -> bytes:
        return to_json([self._audience, owner_of(principal)])


def _answer_place(id: str) -> bytes:
    return f"{id} ".encode()
