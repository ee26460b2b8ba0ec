"""The context of a round: what runs, for which request, and what belongs to this one round of its flow."""

from dataclasses import dataclass, field

from ..protocol.messages import JSON, Call, Outlet
from ..storage.base import Lease
from .background import Background
from .handler import Handler
from .journal import Journal


@dataclass(slots=True, eq=False, repr=False)
class RoundContext:
    """One round of a flow. It is open once its journal is there: a new one, or that of the state that came.

    Args:
        handler: what runs.
        call: the request.
        outlet: takes the notes that the handler sends on its way.
        arguments: what the client fills, validated.
        may_become_task: whether the flow may become a task.
        task: the task whose round it is; None of a call.
        lease: of a round whose state is redeemed once: while it is in doubt, nothing new begins.
        binding: what its states are bound to, once that is known.
    """

    handler: Handler
    call: Call
    outlet: Outlet
    arguments: JSON
    may_become_task: bool = False
    task: Background | None = None
    lease: Lease | None = None
    binding: list[str] | None = None
    is_open: bool = field(default=False, init=False)
    journal: Journal = field(init=False)
    """What the flow remembers."""
