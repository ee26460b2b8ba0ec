"""What comes to be known of a call while it is served, for those who observe it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol


class Remembered(Protocol):
    """A journal, as far as it is of interest to those who observe a call."""

    flow_id: str
    rounds: int
    asked: dict[str, str]
    origin: str


class CallFacts:
    """What comes to be known of a call while it is served, for those who observe it.

    All that it holds is ours: no answer, no argument and no state.
    """

    trace_parent: Callable[[], str] = str
    """Returns the span that it is traced in, for the rounds that follow; an empty text (`str()`) if it is not."""
    is_traced = False
    """Whether that span is recorded, so that it is worth knowing more."""
    first = ""
    """Where the first round of its flow was traced."""
    journal: Remembered | None = None
    rounds = 0
    """How many rounds of its flow had ended before it."""
    asked: Mapping[str, str] = MappingProxyType({})
    """The digests of the questions that it may answer, by key."""
    declined = False
    """Whether the person said no to what it could not do without."""
    reference = ""
    """Names what went wrong in the log; its client has it, too."""
    task = ""
    """What the log calls the task that it makes or is about, if there is such a task for its caller."""
    task_flow = ""
    """The flow of the task that it is about, where it is traced."""
    tool = ""
    """The tool that this is a call of."""

    def begin(self, journal: Remembered) -> None:
        """Note that a flow begins."""
        self.journal = journal
        journal.origin = self.trace_parent()

    def resume(self, journal: Remembered) -> None:
        """Note that a flow continues, before the answers are taken."""
        self.journal = journal
        self.rounds, self.first, self.asked = journal.rounds, journal.origin, dict(journal.asked)

    @property
    def flow(self) -> str:
        """The id of the flow; empty as long as it needs none."""
        return "" if self.journal is None else self.journal.flow_id
