"""How much one caller may keep in a store, how much all callers of one tenant, and how much all callers together."""

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
    """What may be stored in all before a store refuses more of a caller.

    Args:
        caller: keyed digest of the caller that it is stored for; empty for whoever is not authenticated.
        tasks: how many tasks of all callers.
        states: how many redeemed states, and values, of all callers.
        bytes: how large all of that may be together, in bytes.
        share: which part of each one authenticated caller may use.
        begun: when the flow began for which it is stored, in seconds since the epoch: nothing is, if its caller was
            forgotten since. Infinity where no flow is known.
        tenant: keyed digest of the tenant that the caller belongs to; empty for none. It is never that of a caller, so
            that both may be counted in one place.
        tenant_share: which part of each all callers of one tenant may use together.
    """

    caller: str = NOBODY
    tasks: int = UNLIMITED
    states: int = UNLIMITED
    bytes: int = UNLIMITED
    share: float = 1.0
    begun: float = math.inf
    tenant: str = NOBODY
    tenant_share: float = 1.0

    def share_of(self, total: int) -> int:
        """Return how much of a total this caller may use.

        Args:
            total: one of the totals, in its unit.

        Returns:
            The share, at least 1; the total for whoever is not authenticated.
        """
        return share_of(total, self.share) if self.caller else total

    def tenant_share_of(self, total: int) -> int:
        """Return how much of a total all callers of the tenant may use together.

        Args:
            total: one of the totals, in its unit.

        Returns:
            The share, at least 1; the total for a caller without a tenant.
        """
        return share_of(total, self.tenant_share) if self.tenant else total


class UsageByCaller:
    """What is stored, counted as it comes and goes: in all, and of each caller and tenant that stores anything."""

    def __init__(self) -> None:
        self.all = Usage()
        self._own: dict[str, Usage] = {}
        self._guard = Lock()

    def of(self, whose: str) -> Usage:
        """Return what is stored of a caller, or of a tenant."""
        return self._own.get(whose, NOTHING)

    def set(self, whose: str, usage: Usage) -> None:
        """Note what is stored of a caller, or of a tenant, as it was found."""
        self._own[whose] = usage

    def add(self, caller: str, tasks: int, states: int, bytes: int, tenant: str = NOBODY) -> None:
        """Count what was added, or with negative numbers what was removed."""
        all_ = self.all
        with self._guard:
            all_.tasks += tasks
            all_.states += states
            all_.bytes += bytes
            for whose in (caller, tenant):
                if whose:  # of nobody there is no share to compare it with
                    own = self._own.setdefault(whose, Usage())
                    own.tasks += tasks
                    own.states += states
                    own.bytes += bytes
                    if own.is_nothing:
                        del self._own[whose]

    def check_task(self, quota: Quota, room: Usage) -> None:
        """Check that one more task may be stored. Raises `OverShare` or `Full`."""
        # Where the store's own room is less than the totals, the shares are parts of it.
        all_, own, tenants = self.all, self.of(quota.caller), self.of(quota.tenant)
        _check(quota, "stored_tasks", quota.tasks, all_.tasks, own.tasks, tenants.tasks, room.tasks)
        _check(quota, "stored_bytes", quota.bytes, all_.bytes, own.bytes, tenants.bytes, room.bytes)

    def check_state(self, quota: Quota, room: Usage) -> None:
        """Check that one more redeemed state, or report, may be stored; as `check_task`."""
        all_ = self.all
        if not quota.caller and all_.states < quota.states and all_.bytes < quota.bytes:  # as nearly always
            return
        own, tenants = self.of(quota.caller), self.of(quota.tenant)
        _check(quota, "stored_states", quota.states, all_.states, own.states, tenants.states, room.states)
        _check(quota, "stored_bytes", quota.bytes, all_.bytes, own.bytes, tenants.bytes, room.bytes)


def _check(quota: Quota, limit: str, total: int, all_: int, own: int, tenants: int, room: int) -> None:
    most = min(total, room)
    if quota.caller and own >= (share := quota.share_of(most)):
        raise OverShare(limit, share)
    if quota.tenant and tenants >= (share := quota.tenant_share_of(most)):
        raise OverShare(limit, share, quota.tenant)
    if all_ >= total:
        raise Full(limit, total)


NOTHING = Usage()
ENDLESS = Usage(UNLIMITED, UNLIMITED, UNLIMITED)
ANY = Quota()  # no limits


class Callers:
    """The keyed digests of callers and tenants, so that nobody who reads the store can tell who they are."""

    def __init__(self, ring: KeyRing) -> None:
        self._keys = [key for _, key in ring.derive("caller")]

    def of(self, person: tuple[str, str]) -> str:
        """Return the digest under which a person's rows are stored."""
        return _digest(self._keys[0], person)

    def all_of(self, person: tuple[str, str]) -> list[str]:
        """Return the digests of a person by each key: another one may have been the first before."""
        return [_digest(key, person) for key in self._keys]

    def of_tenant(self, issuer: str, tenant: str) -> str:
        """Return the digest of a tenant, as its issuer names it; that of no person."""
        return _digest(self._keys[0], (issuer, "", tenant))


def _digest(key: bytes, names: Sequence[str]) -> str:
    return hmac.digest(key, canonical(list(names)), "sha256")[:16].hex()


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
        caller, tenant = self._callers.of(principal.person), NOBODY
        if principal.tenant:
            tenant = self._callers.of_tenant(principal.issuer, principal.tenant)
        return self._quota(caller, begun, tenant)

    @cached_property
    def of_strangers(self) -> Quota:
        """The quota of all who have not said yet who they are: they have one share together, as a caller has one."""
        return self._quota(self._callers.of(("", "")))

    def without_bounds(self, principal: Principal) -> Quota:
        """Return that of what a caller needs to end something, which no lack of room may prevent."""
        return Quota(self._callers.of(principal.person))

    def _quota(self, caller: str, begun: float = math.inf, tenant: str = NOBODY) -> Quota:
        limits = self._limits
        totals = limits.stored_tasks, limits.stored_states, limits.stored_bytes
        if not tenant:
            return Quota(caller, *totals, limits.caller_share, begun)
        share = limits.caller_share * limits.tenant_share  # of what its tenant may have
        return Quota(caller, *totals, share, begun, tenant, limits.tenant_share)
