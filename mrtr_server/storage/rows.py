"""What a store keeps, grants and tells: rows of tasks, leases, verdicts on deliveries, and how full it is."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..protocol.messages import TaskStatus
from .quotas import ENDLESS, Usage

FIRST_ASK = "task-"  # begins the ids of tasks whose clients see the first ask at once, and no other ids
EVENT_BYTES = 256  # that an event takes besides its body, about
_REFERENCE_DIGITS = 8  # hex digits of a task's id in the log, of 48


class TaskRow(NamedTuple):
    """A task as it is stored. The contents of its flow are sealed before they come here.

    Args:
        id: names it, and the epoch of the store in which it was begun, if that has epochs.
        owner: digest of the principal that it belongs to; empty for nobody's.
        name: the tool.
        status: where it is.
        message: what it is doing, in words.
        created: when, in seconds since the epoch.
        updated: when it was last changed, in seconds since the epoch.
        ttl: how long it is kept, from its creation, in seconds.
        poll: how often its client should ask for it, in seconds.
        deadline: when it fails unless it has ended by then, in seconds since the epoch.
        expires: when it is deleted, in seconds since the epoch.
        call: the request, sealed.
        journal: what its flow remembers, sealed.
        questions: what it asks, sealed.
        outcome: its outcome, sealed.
        version: counts the changes; a change of another version than the present one does not happen.
        lease: names the worker's right to run it; empty if nobody runs it.
        leased_until: when that right ends, in seconds since the epoch.
        attempts: how many workers have had it since anything of it was last kept, or a worker that ran it handed it
            back; with the one that has it now.
        caller: keyed digest of the person that it counts for; empty for callers who are not authenticated.
    """

    id: str
    owner: str
    name: str
    status: TaskStatus
    message: str
    created: float
    updated: float
    ttl: float
    poll: float
    deadline: float
    expires: float
    call: bytes
    journal: bytes
    questions: bytes = b""
    outcome: bytes = b""
    version: int = 0
    lease: str = ""
    leased_until: float = 0.0
    attempts: int = 0
    caller: str = ""

    @property
    def visible_bytes(self) -> int:
        """About how many bytes its client may see of it."""
        return len(self.questions) + len(self.outcome) + len(self.message)

    @property
    def epoch(self) -> str:
        """The epoch of the store in which it was begun; empty where its id names none."""
        return epoch_of(self.id)

    @property
    def reference(self) -> str:
        """What the log calls it: the first digits of its id. They find it, and are too few to ask for it."""
        return self.id.removeprefix(FIRST_ASK)[:_REFERENCE_DIGITS]


def in_epoch(epoch: str, digits: str) -> str:
    """Return the id of a task, of digits that nobody can guess, with the store's epoch, if it has one."""
    return f"{digits[:_REFERENCE_DIGITS]}-{epoch}-{digits[_REFERENCE_DIGITS:]}" if epoch else digits


def epoch_of(id: str) -> str:
    """Return the epoch that the id of a task names; empty where it names none."""
    parts = id.removeprefix(FIRST_ASK).split("-")
    return parts[1] if len(parts) == 3 else ""


class WaitRow(NamedTuple):
    """A wait for somebody else, by which those find it who may answer. What it is about is in the row of its task.

    Args:
        id: names it: a digest.
        task: the id of the task that waits.
        name: what `app.wait` called it.
        who: keyed digest of the one person who may answer; empty where scopes decide.
        created: when it began, in seconds since the epoch.
        expires: when it is deleted, in seconds since the epoch.
        caller: keyed digest of the person whose task waits; empty for callers who are not authenticated.
    """

    id: str
    task: str
    name: str
    who: str
    created: float
    expires: float
    caller: str = ""


class Position(NamedTuple):
    """Where an event is in the log of a store: positions grow in the order in which events can be read.

    Args:
        transaction: the number of the transaction that stored it, where transactions overlap; otherwise 0.
        number: its own number.
    """

    transaction: int = 0
    number: int = 0

    @property
    def before(self) -> "Position":
        """The place right before an event that is here."""
        return self._replace(number=self.number - 1)


class EventRow(NamedTuple):
    """An event as it is stored. What happened is sealed before it comes here.

    Args:
        id: digest of its name and id, by which it is stored once.
        name: of its type.
        audience: keyed digest of whom it is for alone: a person, or subscribers with some arguments; empty for all.
        body: what happened, sealed.
        created: when, in seconds since the epoch.
        expires: when it is deleted, in seconds since the epoch.
        position: where it is in the log; the store sets it.
    """

    id: str
    name: str
    audience: str
    body: bytes
    created: float
    expires: float
    position: Position = Position()

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.body) + EVENT_BYTES


class EventPage(NamedTuple):
    """What was read of the log.

    Args:
        rows: the events, in the order of their positions.
        reached: up to where the log was read. What is after it comes with the next page.
        lost: of which names some event after the position is gone, since it was removed by age or count.
        delayed: how long the oldest event has been stored that can't be read yet, in seconds; 0 for none.
        is_last: whether nothing more can be read now.
    """

    rows: Sequence[EventRow]
    reached: Position
    lost: frozenset[str] = frozenset()
    delayed: float = 0.0
    is_last: bool = True

    @property
    def begins(self) -> Position:
        """Right before its first event; where it was read to if it has none. Nothing is gone after that."""
        return self.rows[0].position.before if self.rows else self.reached


class SubscriptionRow(NamedTuple):
    """Who is told of events: somebody's webhook, or what is kept for whoever polls. The contents are sealed.

    Args:
        id: names it: a digest of all that makes it another one.
        kind: `"webhook"`; `"source"` of events that are read elsewhere, as far as they were read; `"poll"` of somebody
            who polls; `"reminder"` of a wait that is brought to mind.
        name: of the type of event.
        caller: keyed digest of the person it is for; empty for nobody in particular.
        body: what it asks for, sealed. Whoever subscribes changes it.
        progress: how far its delivery is. Whoever delivers changes it.
        created: when it began, in seconds since the epoch.
        updated: when `body` was last changed, in seconds since the epoch.
        expires: when it ends, in seconds since the epoch; infinity for never.
    """

    id: str
    kind: Literal["webhook", "source", "poll", "reminder"]
    name: str
    caller: str
    body: bytes
    progress: str
    created: float
    updated: float
    expires: float


ENDED_SECONDS = 3600.0
"""A subscription that has ended is still listed for so long, so that whoever delivers can say so to its source."""


class Places(NamedTuple):
    """How the places of a worker are divided among callers. Nobody's tasks have no share.

    Args:
        held: how many tasks run here, by caller.
        share: how many places one caller has a right to.
        spare: how many more places callers may have that have their share; the others are kept for those that have not.
    """

    held: Mapping[str, int]
    share: int
    spare: int

    def has_share(self, caller: str) -> bool:
        """Return whether a caller runs as many tasks as it may while others wait.

        Args:
            caller: of the tasks.

        Returns:
            True if so; False for nobody.
        """
        return caller != "" and self.held.get(caller, 0) >= self.share


_MOST_PLACES = 2_147_483_647

FREE = Places({}, _MOST_PLACES, _MOST_PLACES)  # places that nobody has yet, and that one caller may have all of
ENDED = frozenset({"completed", "failed", "cancelled"})  # no task leaves these
RECONNECT_SECONDS = 1.0  # a holder tries a store again, that it could not reach, after so many seconds at most

GRACE_SECONDS = RECONNECT_SECONDS + 2.0
"""A holder whose lease ended while the store was away has so many seconds at least to come back and record its work."""


class Lease:
    """A replica's right to run a round that is redeemed once, or a worker's to run a task, for some seconds."""

    __slots__ = ("_until", "lost", "seconds")

    def __init__(self, seconds: float, since: float) -> None:
        self.seconds = seconds
        self.lost = False  # whether somebody else has it for certain
        self.hold(since)

    def hold(self, since: float) -> None:
        """Note that it was renewed at that time, by the monotonic clock."""
        self._until = since + self.seconds

    @property
    def in_doubt(self) -> bool:
        """Whether somebody else may have it by now, so that nothing new should begin here."""
        return self.lost or time.monotonic() > self._until


MOST_COUNTED = 10_000  # waiting tasks of a tool that are counted: a look must cost little, however many there are


class Waiting(NamedTuple):
    """The tasks of a tool that wait for a worker."""

    tasks: int = 0  # up to `MOST_COUNTED`
    seconds: float = 0.0  # the longest wait of those that were counted


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a look at a store has found."""

    usage: Usage = field(default_factory=Usage)
    room: Usage = field(default_factory=lambda: ENDLESS)  # of the store itself
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    connection_wait: float = 0.0  # the longest wait for a free connection since the last look, in seconds
    notices_away: bool = False  # those of other processes do not arrive
    clock_difference: float = 0.0  # from this machine's, in seconds
    event_delay: float = 0.0  # how long the oldest event has been stored that can't be read yet, in seconds
    event_blocker: str = ""  # whose transaction it waits for, as far as the store may know


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Redemption:
    """What a store says about the delivery of a sealed state.

    Args:
        verdict: `"granted"`: this delivery runs, and no other may until its lease ends. `"running"`: another delivery
            runs now. `"recorded"`: it has been run; `outcome` has its outcome. `"spent"`: it was redeemed with
            other answers. `"other_epoch"`: it names another epoch. `"forgotten"`: its caller was forgotten.
        token: of a granted one: names the lease. No two grants share one.
        outcome: of a recorded one.
        attempt: of a granted one: 1, or more where earlier deliveries lost their lease without an outcome.
    """

    verdict: Literal["granted", "running", "recorded", "spent", "other_epoch", "forgotten"]
    token: str = ""
    outcome: bytes = b""
    attempt: int = 1
