"""What a request did inside a server of the same process: the steps it ran, what it rolled back, and what it logged."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..protocol.trace import Event

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

    def hear(self, event: Event, name: str) -> None:
        """Note what happens in a round; see `HEARD`."""
        {"ran": self.ran, "replayed": self.replayed, "rolled_back": self.rolled_back}[event].append(name)


class _Listener(logging.Handler):
    """Takes what is logged on behalf of one request, in whatever task or thread; others may run beside it."""

    def __init__(self, seen: Observed) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        if _current.get() is self._seen:
            self._seen.records.append(record)


@contextmanager
def logging_to(seen: Observed) -> Iterator[None]:
    """Keep what is logged in the block, and in the tasks and threads that it starts.

    Args:
        seen: takes the records.
    """
    listener = _Listener(seen)
    _LOGGER.addHandler(listener)
    token = _current.set(seen)
    try:
        yield
    finally:
        _current.reset(token)
        _LOGGER.removeHandler(listener)
