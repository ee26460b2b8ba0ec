"""What a request did inside a server of the same process: the steps it ran, what it rolled back, and what it logged."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..flow.steps import step_watcher
from ..flow.teardown import rollback_watcher

_LOGGER = logging.getLogger("mrtr_server")
_current: ContextVar["Observed | None"] = ContextVar("mrtr_server_testing_seen", default=None)


class Log:
    """What the server logged; `"refused" in reply.log` searches for text in it.

    Args:
        records: the records, in their order.
    """

    def __init__(self, records: Iterable[logging.LogRecord] = ()) -> None:
        self.records = list(records)

    @property
    def text(self) -> str:
        """All of it: a line for each record, with its traceback if it has one."""
        return "\n".join(map(_FORMATTER.format, self.records))

    def __contains__(self, text: str) -> bool:
        return text in self.text

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<Log: {self.text or 'nothing'}>"


_FORMATTER = logging.Formatter("%(levelname)s %(message)s")


class Observed:
    """What was observed of one request, or of several.

    Args:
        parts: what was observed of each, to be combined.
    """

    def __init__(self, *parts: "Observed") -> None:
        self.ran: list[str] = [step for part in parts for step in part.ran]
        self.replayed: list[str] = [step for part in parts for step in part.replayed]
        self.rolled_back: list[str] = [name for part in parts for name in part.rolled_back]
        self.records: list[logging.LogRecord] = [record for part in parts for record in part.records]

    def take(self) -> "Observed":
        """Return what was observed since the last time, and forget it."""
        taken = Observed(self)
        self.ran, self.replayed, self.rolled_back, self.records = [], [], [], []
        return taken

    def note_step(self, step: str, runs: bool) -> None:
        """Note that a step was called."""
        (self.ran if runs else self.replayed).append(step)

    def note_rollback(self, dependency: str) -> None:
        """Note that a dependency was left by `FlowContinues`."""
        self.rolled_back.append(dependency)


class _Listener(logging.Handler):
    """Takes what is logged on behalf of one request, in whatever task or thread; others may run beside it."""

    def __init__(self, seen: Observed) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        if _current.get() is self._seen:
            self._seen.records.append(record)


@contextmanager
def watching(seen: Observed) -> Iterator[None]:
    """Observe what the code in the block does, and the tasks and threads that it starts.

    Args:
        seen: takes what is observed.
    """
    listener = _Listener(seen)
    _LOGGER.addHandler(listener)
    tokens = _current.set(seen), step_watcher.set(seen.note_step), rollback_watcher.set(seen.note_rollback)
    try:
        yield
    finally:
        _current.reset(tokens[0])
        step_watcher.reset(tokens[1])
        rollback_watcher.reset(tokens[2])
        _LOGGER.removeHandler(listener)
