"""Tasks as rows: what a store keeps of a flow that continues in the background."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..protocol.messages import TaskStatus

FIRST_ASK = "task-"
"""What the ids of tasks begin with whose clients see the first ask at once; no other id does."""

_REFERENCE_DIGITS = 8
"""How much of a task's id goes to the log, of 48 hex digits."""


@dataclass(frozen=True, slots=True)
class TaskRow:
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
    """Return the id of a task that is begun in an epoch of the store: it names both.

    Args:
        epoch: the epoch; empty where the store has none.
        digits: what nobody can guess, in hexadecimal.
    """
    return f"{digits[:_REFERENCE_DIGITS]}-{epoch}-{digits[_REFERENCE_DIGITS:]}" if epoch else digits


def epoch_of(id: str) -> str:
    """Return the epoch that the id of a task names; empty where it names none."""
    parts = id.removeprefix(FIRST_ASK).split("-")
    return parts[1] if len(parts) == 3 else ""


@dataclass(frozen=True, slots=True)
class Places:
    """How the places of a worker are divided among callers.

    Args:
        held: how many tasks of each caller it runs.
        share: how many of one caller it runs before that caller has its share.
        spare: how many more places callers may get that have their share; the others are kept for those that have not.
            Tasks without an authenticated caller have no share.
    """

    held: Mapping[str, int]
    share: int
    spare: int

    def has_share(self, caller: str) -> bool:
        """Whether a caller runs as many tasks as it may while others wait."""
        return caller != "" and self.held.get(caller, 0) >= self.share


_MOST_PLACES = 2_147_483_647
FREE = Places({}, _MOST_PLACES, _MOST_PLACES)
"""Places that nobody has yet, and that one caller may have all of."""


ENDED = frozenset({"completed", "failed", "cancelled"})
"""The statuses that no task leaves."""
