"""What a session has set: the level of its log, the resources that it listens to, and whether it has ended."""

import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from secrets import token_hex
from typing import TypeVar

from pydantic_core import from_json, to_json

from ..concurrency.running import running_loop
from ..concurrency.waiting import wait_until
from ..crypto.digests import digest
from ..crypto.keys import LIVE_SESSION, KeyRing
from ..crypto.place_codec import PlaceCodec, SealedRows
from ..errors import Busy, StoreUnavailable
from ..protocol.callers import Principal
from ..protocol.messages import Change, LogLevel
from ..protocol.sessions import Session, owner_of
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from ..storage.rows import Redemption

T = TypeVar("T")

DEFAULT_LEVEL: LogLevel = "info"  # for a client that has set none

KEEP = 24 * 3600.0  # of what a session has set, in seconds

LOOK_AFTER = 30.0  # how long a session is taken to be alive before the shared store is asked, in seconds

MOST_RESOURCES = 1_000  # that a session may listen to

LONGEST_RESOURCES = 100_000  # characters of their URIs together: all are written again with each that comes

MOST_PAGES = 20  # that a session waits for; of more, the newest

CLOCKS = 5.0
"""By how much the clocks of two machines may differ, in seconds; more is logged (`storage/sql/database.py`)."""

TURN = 5.0  # how long others wait for one change of a session, in seconds

LOOK_FOR_TURN = 0.01  # between two looks of a change whether it is its turn, in seconds, about

_REMEMBERED = 10_000  # sessions of which a process remembers something

MOST_CHANGES = 100  # different things that an owner may change within `WINDOW`

MOST_OF_NOBODY = 10_000  # of all callers together who are not authenticated

WINDOW = 600.0  # seconds

RETRY_AFTER = 5.0  # when an owner that has changed too many is to try again, in seconds

_OPENED, _ENDED = "opened", "ended"
_numbers = count()


@dataclass(frozen=True, slots=True)
class SessionState:
    level: LogLevel = DEFAULT_LEVEL  # the least severe log messages that it wants
    # The URIs that it listens to, with the time since when, in seconds since the epoch.
    resources: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False  # whether its client has ended it
    pages: tuple[str, ...] = ()  # the pages that it waits for


NOTHING_SET = SessionState()


class SessionStates:
    """Keeps what sessions set, in the shared store if there is one. Changes of one session are made in turn."""

    def __init__(self, ring: KeyRing, store: Store, fanout: Fanout, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._sealed = SealedRows(PlaceCodec(ring, LIVE_SESSION), "What a session has set", "of another session")
        self._store = store
        self._fanout = fanout
        self._quotas = quotas
        self._clock = clock
        self._ended: dict[str, None] = {}
        self._alive_until: dict[str, float] = {}
        self._allowance = Allowance(clock)

    async def read(self, session: str) -> SessionState:
        if not session:
            return NOTHING_SET
        found = await self._store.get(_id(session))
        if found is None:
            return NOTHING_SET
        level, resources, ended, pages = from_json(self._sealed.unseal(session, found))
        return SessionState(level, resources, ended, tuple(pages))

    async def change(
        self, session: str, principal: Principal | None, change: Callable[[SessionState], SessionState]
    ) -> None:
        """Change what a session has set, and tell its stream of notifications. Raises `StoreUnavailable`, `Busy`."""
        self._allowance.take(principal, session)
        async with self._turn(session):
            state = change(await self.read(session))
            fields = [state.level, state.resources, state.ended, state.pages]
            sealed = self._sealed.seal(session, to_json(fields)).encode()
            await self._store.replace(_id(session), sealed, keep=KEEP, quota=self._quotas.of(principal))
        if state.ended:
            _remember(self._ended, session, None)
        self._fanout.publish(changed(session))

    @asynccontextmanager
    async def _turn(self, session: str) -> AsyncIterator[None]:
        """Wait for the turn of a change: none may overwrite what another has been acknowledged for."""
        if not self._store.shared:  # nothing there waits between a read and the write that follows
            yield
            return
        name = digest(["live session, in turn", session])

        async def look(heard: object) -> Redemption | None:
            turn = await self._store.redeem(name, "", lease=TURN, keep=2 * TURN)
            return turn if turn.verdict == "granted" else None

        pauses = (LOOK_FOR_TURN * random.uniform(0.5, 1.5) for _ in repeat(0))  # noqa: S311  so that not all look at once
        turn = await wait_until(look, deadline=running_loop().time() + TURN, pauses=pauses)
        if turn is None:
            raise StoreUnavailable("Other changes of the session take too long")
        try:
            yield
        finally:
            with suppress(StoreUnavailable):  # then it ends with its lease
                await self._store.release(name, turn.token)

    def updated_between(self, resources: Mapping[str, float], after: float, until: float) -> list[Change]:
        """Return changes of resources that have come to this process since these times, or may have."""
        updated = getattr(self._fanout, "updated_at", None)
        if updated is None:  # a fan-out of the application's own: one look too many does no harm
            return [Change("resource", uri) for uri in resources]
        allowed = CLOCKS if self._store.shared and not self._store.one_machine else 0.0
        return [
            Change("resource", uri)
            for uri, since in resources.items()
            if max(since - allowed, after) <= updated(uri) <= until
        ]

    @property
    def is_shared(self) -> bool:
        return self._store.shared

    async def reported(self, pages: tuple[str, ...]) -> list[Change]:
        return [Change("page", page) for page in pages if await self._store.get(page) is not None]

    def stream_of(self, session: str) -> "NewestStream":
        return NewestStream(session, self._fanout.publish)

    async def listen_to_pages(self, session: str, principal: Principal | None, pages: tuple[str, ...]) -> None:
        def add(state: SessionState) -> SessionState:
            return replace(state, pages=(*(page for page in state.pages if page not in pages), *pages)[-MOST_PAGES:])

        await self.change(session, principal, add)

    def has_surely_not_ended(self, session: Session) -> bool:
        """Return whether nothing need be asked to know that a session has not ended.

        A session that is ended elsewhere is refused here within `LOOK_AFTER`: it grants nothing.
        """
        key = session.key
        if not key or not self._store.shared:  # without a shared store, none can be ended
            return True
        if key in self._ended:
            return False
        until = max(session.issued + LOOK_AFTER, self._alive_until.get(key, 0.0))
        return self._clock() < until

    async def has_ended(self, session: Session) -> bool:
        """Return whether a session has ended. While the store is unavailable, none has."""
        if session.key in self._ended:
            return True
        try:
            state = await self.read(session.key)
        except StoreUnavailable:
            return False
        if state.ended:
            _remember(self._ended, session.key, None)
        else:
            _remember(self._alive_until, session.key, self._clock() + LOOK_AFTER)
        return state.ended


def changed(session: str) -> Change:
    return Change("session", session)


def _remember(remembered: dict[str, T], session: str, what: T) -> None:
    remembered.pop(session, None)
    remembered[session] = what
    if len(remembered) > _REMEMBERED:
        with suppress(RuntimeError, KeyError):  # another thread is at it
            del remembered[next(iter(remembered))]


def _id(session: str) -> str:
    return digest(["live session", session])


class Allowance:
    """Counts what each owner changes, in this process. To change the same thing again is free."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed: dict[tuple[str, int], set[str]] = {}

    def take(self, principal: Principal | None, what: str) -> None:
        owner, window = owner_of(principal), int(self._clock() // WINDOW)
        counted = self._changed.get((owner, window))
        if counted is None:
            self._changed = {each: changed for each, changed in self._changed.items() if each[1] == window}
            counted = self._changed[owner, window] = set()
        counted.add(what)
        if len(counted) > (MOST_CHANGES if owner else MOST_OF_NOBODY):
            counted.discard(what)
            raise Busy(RETRY_AFTER)


class NewestStream:
    """Knows whether one stream of a session's notifications is its newest (Transports, Multiple Connections).

    A stream announces itself when it opens, and its end. One that hears of a newer stream is silent from then on. One
    that hears anything else announces itself again. So all agree on the newest as soon as the last announcement has
    arrived, whatever was missed or came late before.
    """

    def __init__(self, session: str, publish: Callable[[Change], None]) -> None:
        self.topic = Change("stream", session)
        self._publish = publish
        self._order = f"{time.time():.6f} {next(_numbers):012} {token_hex(8)}"
        self._has_newer = False

    @property
    def is_newest(self) -> bool:
        return not self._has_newer

    def open(self) -> None:
        """Announce the stream, which listens to its topic already."""
        self._announce(_OPENED)

    def end(self) -> None:
        """Announce that the stream has ended; to be called once."""
        if self.is_newest:
            self._announce(_ENDED)

    def on_announcement(self, note: str) -> None:
        happened, _, order = note.partition(" ")
        if order == self._order:
            return
        self._has_newer = happened == _OPENED and order > self._order
        if self.is_newest:
            self._announce(_OPENED)

    def _announce(self, happened: str) -> None:
        self._publish(Change("stream", self.topic.uri, note=f"{happened} {self._order}"))
