"""Tasks as rows: what a store keeps of a flow that goes on in the background."""

from dataclasses import dataclass

from ..protocol.messages import TaskStatus

_REFERENCE_DIGITS = 8
"""How much of a task's id goes to the log, of 48 hex digits."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is stored. What its flow holds is sealed before it comes here.

    Args:
        id: names it.
        owner: digest of the principal that it belongs to; empty for nobody's.
        name: the tool.
        status: where it is.
        message: what it is doing, in words.
        created, updated: in seconds since the epoch.
        ttl: how long it is kept, from its creation, in seconds.
        poll: how often its client should ask for it, in seconds.
        deadline: when it fails unless it has ended by then, in seconds since the epoch.
        expires: when it is deleted, in seconds since the epoch.
        call, journal, questions, outcome: the request, the flow, what is asked, and what came of it; sealed.
        version: counts the changes; a change of another version than the present one does not happen.
        lease: names the worker's right to run it; empty if nobody runs it.
        leased_until: when that right ends, in seconds since the epoch.
        attempts: how many workers have had it since anything of it was last kept, with the one that has it now.
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

    @property
    def reference(self) -> str:
        """What the log calls it: the first digits of its id. They find it, and are too few to ask for it."""
        return self.id.rpartition("-")[2][:_REFERENCE_DIGITS]


ENDED = frozenset({"completed", "failed", "cancelled"})
"""The statuses that no task leaves."""
