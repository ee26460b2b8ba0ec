"""Ids of what goes out on the stream of an open call: any replica can continue from one."""

import math
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_bytes, digest_twice
from ..crypto.keys import LIVE_EVENT, KeyRing
from ..crypto.place_codec import PlaceCodec, SealedRows, row_codec
from ..errors import InvalidRequestState, ProtocolError
from ..protocol.callers import Principal
from ..protocol.messages import JSON, HandedOver, NeedsInput, Question
from ..protocol.sessions import OwnerPlaces, Session
from ..storage.base import Store
from ..storage.quotas import ANY, Quota, Quotas
from ..well_formed import write_json

LONGEST_ID = 2_500
"""Characters of a sealed event id. nginx refuses headers of more than 8 KB, so what is longer goes to the store."""

MOST_PARTS = 64
"""How many arrays and objects an event may have to be kept as it is: of few, none is much larger than its bytes."""

KEPT_AFTER = 300.0
"""How long what belongs to a question is kept after it has expired, in seconds: for so long may the round run that its
answer began, for a client that is away, or when replicas have died."""

NONE_YET = -math.inf  # of what has sent none

TOO_LATE_TO_CONTINUE = "It is too late to continue this call; call again"

ENDED = "end."  # how the id of a stream's last event begins: there is nothing after it

_OF = "of"
"""Stands between the number of questions that were sent and that of all: a reader sees when a round has asked all."""

_MOST_DIGITS = 4  # of either number


_PROCESS = token_hex(6)
_numbers = count()


@dataclass(slots=True)
class Origin:
    """The request that opened a call, so that another replica can load it."""

    method: str
    params: JSON
    request_id: str | int
    session: Session  # its session, with the version that the client speaks

    def params_to_use(self) -> JSON:
        """Return the parameters for one round, whose handler may change what is within its arguments."""
        arguments = self.params.get("arguments")
        if not (isinstance(arguments, dict) and any(isinstance(each, dict | list) for each in arguments.values())):
            return self.params
        return {**self.params, "arguments": deepcopy(arguments)}


@dataclass(slots=True)
class StreamEvent:
    """Where a stream stands. It moves on with the stream."""

    origin: Origin  # the request that opened it
    run: str = ""  # names the first round of a call while it runs; empty once it has ended
    state: str = ""  # the sealed journal of the round that ended with questions
    questions: dict[str, Question] = field(default_factory=dict)  # by key
    expires: float = 0.0  # when they expire, in seconds since the epoch
    progress: float = NONE_YET  # the progress that was sent last
    sent: int = 0  # how many of the questions were sent before
    is_lost: bool = False  # whether the store has it no more, so that only the method, the id and the version are known
    # Of a request for the result of a task, the questions that were sent before and are open, or whose page has not
    # reported yet: the name of that page, or nothing, by their keys.
    seen: Mapping[str, str] = field(default_factory=dict)
    size: int = 0  # how large it is, in bytes, once it was sealed or read from its id
    epoch: str = ""  # the epoch of the store that the state names; empty where it names none

    def move_on(self, outcome: NeedsInput | HandedOver, progress: float) -> None:
        self.run, self.sent, self.progress = "", 0, progress
        self.state, self.expires, self.epoch = outcome.state, outcome.expires, outcome.epoch
        self.questions = outcome.questions if isinstance(outcome, NeedsInput) else {}

    def let_go(self) -> None:
        """Hold nothing of what the client sent, and of what the round has left: its id has that, see `take_back`."""
        self.origin.params, self.state, self.questions = {}, "", {}

    def take_back(self, kept: "StreamEvent") -> None:
        self.origin.params, self.state, self.questions = kept.origin.params, kept.state, kept.questions

    @property
    def ends(self) -> float:
        """When the round after the questions can run no more, though they were answered in time."""
        return self.expires + KEPT_AFTER

    @property
    def round(self) -> str:
        return digest_bytes(self.state.encode())


@dataclass(slots=True)
class SealedEvent:
    """An event's id, still without the number of questions that were sent."""

    id: str
    questions: int = 0  # how many the event has
    payload: bytes = b""  # the event, if the id holds it
    row: str = ""  # the key of the row that holds it, if it is too long for a header; empty otherwise
    sealed: bytes = b""  # what that row is to hold, until it does
    keep: float = 0.0  # how long it is kept, in seconds
    quota: Quota = ANY  # how much its caller may keep

    @property
    def is_smaller(self) -> bool:
        """Whether it takes less memory than the event: that has a row, or many arrays and objects."""
        return bool(self.row) or self.payload.count(b"[") + self.payload.count(b"{") > MOST_PARTS

    def after(self, sent: int) -> str:
        """Return the id of the event after so many questions, of so many."""
        return f"{self.id}.{sent}{_OF}{self.questions}"


class EventIds:
    def __init__(self, ring: KeyRing, audience: str, store: Store, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._codec = PlaceCodec(ring, "live event")
        codec = row_codec(ring, LIVE_EVENT, in_memory=store.in_memory)
        self._rows = SealedRows(codec, "An event of a stream", "kept for another event")
        self._places = OwnerPlaces(audience)
        self._store = store
        self._quotas = quotas
        self._clock = clock

    def seal(self, event: StreamEvent, principal: Principal | None) -> SealedEvent:
        """Return the id of an event. One that is too long for a header is valid when it is kept; see `keep`."""
        payload, place = dump_event(event), self._places.of(principal)
        event.size = len(payload)
        asked, id = len(event.questions), self._codec.seal(place, payload) if len(payload) <= LONGEST_ID else ""
        if 0 < len(id) <= LONGEST_ID:
            return SealedEvent(id, asked, payload)
        # The same each time, so that a client that comes back to a stream often has only one row. Nobody else
        # can know it: a state is in it, or the name of a round.
        (_, row), origin = digest_twice(place, payload), event.origin
        short = to_json(["row", row, origin.method, origin.request_id, origin.session.version])
        sealed = self._rows.seal(_key(place, row), payload).encode()
        now = self._clock()
        keep, quota = max(event.expires - now, 0.0) + KEPT_AFTER, self._quotas.of(principal, now)
        return SealedEvent(self._codec.seal(place, short), asked, b"", row, sealed, keep, quota)

    async def keep(self, event: SealedEvent) -> None:
        """Keep what an id does not hold itself; the store alone holds it then. Raises `StoreUnavailable` and `Full`."""
        if event.sealed:
            await self._store.put(event.row, event.sealed, keep=event.keep, quota=event.quota)
            event.sealed = b""

    async def take_back(self, event: StreamEvent, sealed: SealedEvent, principal: Principal | None) -> None:
        payload = sealed.payload or await self._find(sealed.row, self._places.of(principal))
        if payload is None:
            raise ProtocolError(TOO_LATE_TO_CONTINUE)
        _, *parts = from_json(payload)
        event.take_back(load_event(parts))

    async def _find(self, row: str, place: bytes) -> bytes | None:
        found = await self._store.get(row)
        return None if found is None else self._rows.unseal(_key(place, row), found)

    async def unseal(self, id: str, principal: Principal | None) -> StreamEvent | None:
        sealed, _, place_in_round = id.rpartition(".")
        sent, _, questions = place_in_round.partition(_OF)
        if len(sealed) > LONGEST_ID or not (_is_number(sent) and _is_number(questions)):
            return None
        place = self._places.of(principal)
        try:
            payload = self._codec.unseal(place, sealed, "belongs to another principal")
        except InvalidRequestState:
            return None
        kind, *parts = from_json(payload)
        if kind == "row":
            row, method, request_id, version = parts
            found = await self._find(row, place)
            if found is None:
                return StreamEvent(Origin(method, {}, request_id, Session(version)), is_lost=True)
            payload = found
            _, *parts = from_json(payload)
        event = load_event(parts)
        event.sent, event.size = int(sent), len(payload)
        return event


def last_id() -> str:
    """Return an id for the last event of a stream. None is like another, since clients may drop what they have seen."""
    return f"{ENDED}{_PROCESS}{os.getpid():x}.{next(_numbers):x}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _key(place: bytes, row: str) -> str:
    return f"{place.decode()} {row}"


def dump_event(event: StreamEvent) -> bytes:
    """Write an event down, put together from what may have been written down before: its questions and its session."""
    origin = event.origin
    began = to_json(["event", [origin.method, origin.params, origin.request_id]], inf_nan_mode="constants")
    ran = to_json((event.run, event.state))
    asked = b",".join([_dump_question(key, question) for key, question in event.questions.items()])
    named = (event.epoch,) if event.epoch else ()
    rest = to_json((event.expires, event.progress, event.seen, *named), inf_nan_mode="constants")
    # The first part has the request, which may be large: it is not copied once more without its last bracket.
    return b",".join((memoryview(began)[:-1], origin.session.dump(), ran[1:-1], b"[%b]" % asked, rest[1:]))


def _dump_question(key: str, question: Question) -> bytes:
    if not question.dumped:
        question.dumped = write_json(question.dump(), inf_nan_mode="constants")
    return b"[%b,%b" % (to_json(key), question.dumped[1:])


def load_event(parts: list[Any]) -> StreamEvent:
    (method, params, request_id), session, run, state, asked, expires, progress, seen, *named = parts
    origin = Origin(method, params, request_id, Session.load(session))
    questions = {key: Question.load(*rest) for key, *rest in asked}
    return StreamEvent(origin, run, state, questions, expires, progress, seen=seen, epoch=named[0] if named else "")
