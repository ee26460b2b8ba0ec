"""The trace of a round: facts that are found while it is served, for those who watch it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, Protocol

Event = Literal["ran", "replayed", "rolled_back"]
"""A step ran, or an earlier round had run it; a dependency was left by `FlowContinues`."""

Hear = Callable[[Event, str], object]  # receives an event as it happens, with the name of the step or of the dependency

HEARD = "mrtr_server.heard"
"""In an ASGI scope, a `Hear` of whoever calls the application, for the rounds of that request."""

End = Literal["completed", "asked", "handed_over", "task", "listening", "declined", "tool_error", "error", "cancelled"]
"""How a round, or a request without rounds, ended. All that is shown of an end is looked up by this word."""


class Remembered(Protocol):
    """A journal, as far as it is of interest to those who watch a round."""

    flow_id: str
    rounds: int
    asked: dict[str, str]
    origin: str


class Trace:
    """Facts about a round, or about a request without rounds; no answer or argument but in the journal."""

    # Defaults of the class, so that to make one costs next to nothing.
    heard: Hear | None = None
    _events: list[tuple[Event, str]] | None = None
    trace_parent: Callable[[], str] = str
    """Returns the span that it is traced in, for later rounds; an empty text (`str()`) if it is not."""
    is_traced = False  # whether that span is recorded, so that it is worth knowing more
    first = ""  # where the first round of its flow was traced
    journal: Remembered | None = None
    rounds = 0  # how many rounds of its flow had ended before this one
    asked: Mapping[str, str] = MappingProxyType({})  # digests of the questions that it may answer, by key
    answered: dict[str, str] | None = None  # the texts of the questions whose answers it has read, by key
    declined = False  # the person said no to what it could not do without
    reference = ""  # names what went wrong in the log; its client has it, too
    task = ""  # the log's name of the task that it makes or is about, if there is such a task for its caller
    task_flow = ""  # the flow of the task that it is about, where it is traced
    is_whole = False  # no piece of its result may go out before all of it, since a hook may change that
    tool = ""  # the tool that this is a call of
    end: End = "completed"  # how it ended, for a watcher that looks when it has ended
    seconds = 0.0  # how long it took

    def again(self) -> "Trace":
        """Return the trace of another round of the same request."""
        again = Trace()
        again.heard = self.heard
        return again

    def begin(self, journal: Remembered) -> None:
        """Note that a flow begins."""
        self.journal = journal
        journal.origin = self.trace_parent()

    def resume(self, journal: Remembered) -> None:
        """Note that a flow continues, before the answers are taken."""
        self.journal = journal
        self.rounds, self.first, self.asked = journal.rounds, journal.origin, dict(journal.asked)

    def note_answered(self, key: str, text: str) -> None:
        """Note that the answer to a question is read. It is an answer to this very text, which the person has read."""
        if self.answered is None:
            self.answered = {}
        self.answered[key] = text

    def note(self, event: Event, name: str) -> None:
        """Note what has just happened in the round."""
        if self._events is None:
            self._events = []
        self._events.append((event, name))
        if self.heard is not None:
            self.heard(event, name)

    @property
    def flow(self) -> str:
        """The id of the flow; empty as long as it needs none."""
        return "" if self.journal is None else self.journal.flow_id

    def names(self, event: Event) -> list[str]:
        """Return the names of the steps or dependencies that an event happened to, in their order."""
        return [name for happened, name in self._events or () if happened == event]

    def let_go(self) -> None:
        """Hold nothing large, since the round has ended and its call stays open."""
        self.journal = None
        self.answered = None
