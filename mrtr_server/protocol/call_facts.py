"""What comes to be known of a call while it is served, for those who observe it."""

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

    __slots__ = ("asked", "declined", "first", "journal", "origin", "reference", "rounds", "task", "tool", "yielded")

    def __init__(self) -> None:
        self.origin = ""
        """Where it is traced, for the rounds that follow; empty if it is not."""
        self.first = ""
        """Where the first round of its flow was traced."""
        self.journal: Remembered | None = None
        self.rounds = 0
        """How many rounds of its flow had ended before it."""
        self.asked: dict[str, str] = {}
        """The digests of the questions that it may answer, by key."""
        self.yielded: object = None
        """Why the flow was handed over."""
        self.declined = False
        """Whether the person said no to what it could not do without."""
        self.reference = ""
        """Names what went wrong in the log; its client has it, too."""
        self.task = ""
        """What the log calls the task that it makes or is about, if there is such a task for its caller."""
        self.tool = ""
        """The tool that this is a call of."""

    def begin(self, journal: Remembered) -> None:
        """Note that a flow begins."""
        self.journal = journal
        journal.origin = self.origin

    def resume(self, journal: Remembered) -> None:
        """Note that a flow continues, before the answers are taken."""
        self.journal = journal
        self.rounds, self.first, self.asked = journal.rounds, journal.origin, dict(journal.asked)

    @property
    def flow(self) -> str:
        """The id of the flow; empty as long as it needs none."""
        return "" if self.journal is None else self.journal.flow_id
