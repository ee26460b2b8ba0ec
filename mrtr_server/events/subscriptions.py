"""Subscriptions as they are stored: what they ask for, sealed, and how far their delivery is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.digests import canonical, digest
from ..crypto.keys import KeyRing
from ..flow.events import EventType
from ..protocol.callers import Caller
from ..protocol.messages import JSON
from ..storage.base import Store
from ..storage.quotas import Callers
from ..storage.rows import Position, SubscriptionRow
from ..storage.sealed_events import SealedEvents
from .subscribers import Subscriber, dump_caller, load_caller

MOST_FAILED = 100
"""Events that are tried again at once for one subscription; no later one is sent before there are fewer."""


class Asked(NamedTuple):
    """What a webhook's subscription asks for, besides its key."""

    url: str
    secrets: tuple[bytes, ...]  # the newest first
    old_until: float = 0.0  # until when all of them sign, and not the first alone
    said: int = 0  # how many gaps its client was told of when it subscribed last
    ttl: float | None = None  # as granted, in seconds; None for one without an end
    is_declared: bool = False  # whether its client knows the codes of the extension, and not those of the sketch

    def signing(self, now: float) -> tuple[bytes, ...]:
        """Return the secrets that sign now."""
        return self.secrets if now < self.old_until else self.secrets[:1]


class Reminding(NamedTuple):
    """A wait that is brought to mind again and again."""

    payload: JSON
    id: str  # of the first event
    every: float  # in seconds


@dataclass(slots=True)
class Retry:
    attempts: int
    due: float


@dataclass(slots=True)
class Progress:
    """How far the delivery of one subscription is."""

    epoch: str
    at: Position
    """All events up to it were acknowledged or abandoned, but for those in `failed`."""
    failed: dict[Position, Retry] = field(default_factory=dict)
    delivered: float = 0.0
    """When the last one was acknowledged, in seconds since the epoch; 0 for never."""
    error: str = ""
    failing: float = 0.0
    """Since when nothing was acknowledged, in seconds since the epoch; 0 while it works."""
    suspended: float = 0.0
    """When the delivery was suspended; 0 while it is not."""
    gaps: int = 0
    """How often events were abandoned, or gone before they were delivered."""
    takes_control: bool = True
    """Whether it may take messages that are no events."""

    @property
    def watermark(self) -> Position:
        """Up to where everything was acknowledged or abandoned."""
        return min(self.failed).before if self.failed else self.at

    def dump(self) -> str:
        failed = [[*position, each.attempts, each.due] for position, each in self.failed.items()]
        return to_json(
            [
                self.epoch,
                self.at,
                failed,
                self.delivered,
                self.error,
                self.failing,
                self.suspended,
                self.gaps,
                self.takes_control,
            ]
        ).decode()

    @classmethod
    def load(cls, text: str) -> "Progress":
        epoch, at, failed, *rest = from_json(text)
        retries = {Position(*each[:2]): Retry(*each[2:]) for each in failed}
        return cls(epoch, Position(*at), retries, *rest)


WANTED_SECONDS = 300.0
"""How long somebody counts as interested after a poll, or while a stream is open; then it is noted again."""


def subscription_id(owner: str, url: str, name: str, arguments: JSON) -> str:
    """Return the id of a webhook's subscription: the same for all that is the same (Subscription Identity)."""
    return "sub_" + digest([owner, url, name, canonical(arguments).decode()])


def source_id(name: str, arguments: JSON) -> str:
    """Return the id of what is read at a source for some arguments."""
    return "src_" + digest([name, canonical(arguments).decode()])


def reminder_id(wait: str) -> str:
    """Return the id of what brings a wait to mind."""
    return "rem_" + wait


def poll_id(owner: str, name: str, arguments: JSON) -> str:
    """Return the id of somebody who polls."""
    return "poll_" + digest([owner, name, canonical(arguments).decode()])


class Subscriptions:
    """Reads and writes rows of subscriptions; `types` are those of the server, by name."""

    def __init__(self, store: Store, ring: KeyRing, types: Mapping[str, EventType[Any, Any]], callers: Callers) -> None:
        self.store = store
        self.types = types
        self._callers = callers
        self._sealed = SealedEvents(ring, in_memory=store.in_memory)

    def seal(self, id: str, caller: Caller, arguments: JSON, asked: Asked | None) -> bytes:
        kept: list[Any] = [dump_caller(caller), arguments]
        if asked is not None:
            url, secrets, *rest = asked
            kept.append([url, [each.hex() for each in secrets], *rest])
        return self._sealed.seal_subscription(id, to_json(kept))

    def open(self, row: SubscriptionRow) -> tuple[Subscriber | None, Asked | None]:
        """Return who subscribes, and what for; no subscriber where the type is not of this server.

        Raises `StoreUnavailable`, `InvalidParams` where the arguments do not fit any more.
        """
        caller, arguments, *asked = from_json(self._sealed.unseal_subscription(row.id, row.body))
        type = self.types.get(row.name)
        subscriber = None if type is None else Subscriber.of(type, load_caller(caller), arguments, self._callers)
        if not asked:
            return subscriber, None
        url, secrets, *rest = asked[0]
        return subscriber, Asked(url, tuple(map(bytes.fromhex, secrets)), *rest)

    def reminding(self, row: SubscriptionRow) -> Reminding:
        """Return what a row brings to mind. Raises `StoreUnavailable`."""
        _, kept = from_json(self._sealed.unseal_subscription(row.id, row.body))
        return Reminding(**kept)

    def seal_since(self, id: str, since: str | None) -> str:
        """Return how far a source was read, as it is kept."""
        return "" if since is None else self._sealed.seal_subscription(f"{id} since", since.encode()).decode()

    def open_since(self, row: SubscriptionRow) -> str | None:
        """Return how far a source was read; None for not yet. Raises `StoreUnavailable`."""
        return (
            self._sealed.unseal_subscription(f"{row.id} since", row.progress.encode()).decode()
            if row.progress
            else None
        )


def ended(row: SubscriptionRow, now: float) -> SubscriptionRow:
    """Return a subscription that ends now. Whoever delivers removes it."""
    return row._replace(updated=now, expires=now)
