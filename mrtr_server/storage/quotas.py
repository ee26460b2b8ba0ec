"""How much one caller may keep in a store, and how much all callers together."""

import hmac
import math
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from ..crypto.digests import canonical
from ..crypto.keys import KeyRing
from ..errors import Full, OverShare
from ..limits import Limits, share_of
from ..protocol.callers import Principal

UNLIMITED = 2**53  # more than any store holds
NOBODY = ""  # whoever is not authenticated; all of them together may use the whole


@dataclass(slots=True)
class Usage:
    """What is stored: of one caller, or in all."""

    tasks: int = 0
    states: int = 0  # with reports
    bytes: int = 0  # of both; a store may count in coarser steps

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is stored."""
        return not (self.tasks or self.states or self.bytes)


class Quota(NamedTuple):
    """What may be stored in all before a store refuses more of a caller, by a keyed digest."""

    caller: str = NOBODY
    tasks: int = UNLIMITED
    states: int = UNLIMITED
    bytes: int = UNLIMITED
    share: float = 1.0  # of each, for one authenticated caller
    begun: float = math.inf
    """When the flow began for which it is stored, in seconds since the epoch: nothing is, if its caller was forgotten
    since. Infinity where no flow is known."""

    def share_of(self, total: int) -> int:
        """Return how much of a total this caller may use."""
        return share_of(total, self.share) if self.caller else total

    def check_task(self, usage: "UsageByCaller", room: Usage) -> None:
        """Check that one more task may be stored. Raises `OverShare` or `Full`."""
        # Where the store's own room is less than the totals, the shares are parts of it.
        own = usage.of(self.caller)
        self._check("stored_tasks", self.tasks, usage.all.tasks, own.tasks, room.tasks)
        self._check("stored_bytes", self.bytes, usage.all.bytes, own.bytes, room.bytes)

    def check_state(self, usage: "UsageByCaller", room: Usage) -> None:
        """Check that one more redeemed state, or report, may be stored; as `check_task`."""
        all_ = usage.all
        if not self.caller and all_.states < self.states and all_.bytes < self.bytes:  # as nearly always
            return
        own = usage.of(self.caller)
        self._check("stored_states", self.states, all_.states, own.states, room.states)
        self._check("stored_bytes", self.bytes, all_.bytes, own.bytes, room.bytes)

    def _check(self, limit: str, total: int, all_: int, own: int, room: int) -> None:
        share = self.share_of(min(total, room))
        if self.caller and own >= share:
            raise OverShare(limit, share)
        if all_ >= total:
            raise Full(limit, total)


class UsageByCaller:
    """What is stored, counted as it comes and goes: in all, and of each caller that stores anything."""

    def __init__(self) -> None:
        self.all = Usage()
        self._own: dict[str, Usage] = {}
        self._guard = Lock()

    def of(self, caller: str) -> Usage:
        """Return what is stored of a caller."""
        return self._own.get(caller, NOTHING)

    def set(self, caller: str, usage: Usage) -> None:
        """Note what is stored of a caller, as it was found."""
        self._own[caller] = usage

    def add(self, caller: str, tasks: int, states: int, bytes: int) -> None:
        """Count what has come, or with negative numbers what has gone."""
        all_ = self.all
        with self._guard:
            all_.tasks += tasks
            all_.states += states
            all_.bytes += bytes
            if caller:  # of nobody there is no share to compare it with
                own = self._own.setdefault(caller, Usage())
                own.tasks += tasks
                own.states += states
                own.bytes += bytes
                if own.is_nothing:
                    del self._own[caller]


NOTHING = Usage()
ENDLESS = Usage(UNLIMITED, UNLIMITED, UNLIMITED)
ANY = Quota()  # no limits


class Callers:
    """The keyed digests of callers, so that nobody who reads the store can tell who they are."""

    def __init__(self, ring: KeyRing) -> None:
        self._keys = [key for _, key in ring.derive("caller")]

    def of(self, person: tuple[str, str]) -> str:
        """Return the digest under which a person's rows are stored."""
        return _digest(self._keys[0], person)

    def all_of(self, person: tuple[str, str]) -> list[str]:
        """Return the digests of a person by each key: another one may have been the first before."""
        return [_digest(key, person) for key in self._keys]


def _digest(key: bytes, person: tuple[str, str]) -> str:
    return hmac.digest(key, canonical(list(person)), "sha256")[:16].hex()


class Quotas:
    """The quota of each caller, by a keyed digest."""

    def __init__(self, ring: KeyRing, limits: Limits) -> None:
        self._callers = Callers(ring)
        self._limits = limits
        self._nobody = self._quota(NOBODY)

    def of(self, principal: Principal | None, begun: float = math.inf) -> Quota:
        """Return what a caller may store, whatever application acts for them; of a flow, if `begun` says when."""
        if principal is None:
            return self._nobody
        return self._quota(self._callers.of(principal.person), begun)

    def of_caller(self, caller: str) -> Quota:
        """Return what a caller may store, by the keyed digest in a `Quota`; empty for nobody."""
        return self._quota(caller) if caller else self._nobody

    def _quota(self, caller: str, begun: float = math.inf) -> Quota:
        limits = self._limits
        totals = limits.stored_tasks, limits.stored_states, limits.stored_bytes
        return Quota(caller, *totals, limits.caller_share, begun)
