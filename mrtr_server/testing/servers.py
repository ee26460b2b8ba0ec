"""Servers to test against: the same handlers under other settings, and what a request did inside."""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from typing_extensions import override

from ..limits import Limits
from ..protocol.trace import Event
from ..server import MRTRServer
from ..storage.memory import InProcessStore
from ..storage.pubsub import Fanout, InProcessFanout

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
    """Keep what is logged in the block, and in the tasks and threads that it starts."""
    listener = _Listener(seen)
    _LOGGER.addHandler(listener)
    token = _current.set(seen)
    try:
        yield
    finally:
        _current.reset(token)
        _LOGGER.removeHandler(listener)


S = TypeVar("S", bound=MRTRServer)


class Clock:
    """A clock that stands still until the test moves it: `replica(app, clock=clock)`.

    Args:
        now: its time, in seconds since the epoch; the present time if left out.
    """

    def __init__(self, now: float | None = None) -> None:
        self.now = time.time() if now is None else now

    def __call__(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: by how much, in seconds; negative for a clock that is set back.
        """
        self.now += seconds


class SharedStore(InProcessStore):
    """A store in memory that replicas in one process share, as they would share a database.

    replicas(app, 3, store=SharedStore())
    """

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self._fanout = InProcessFanout()

    @override
    def fanout(self) -> Fanout:
        return self._fanout


def replica(app: S, /, **settings: Any) -> S:
    """Make another server with the handlers of an application, as if it ran in another process.

    It has the same keys and settings, except those in `settings`. What a server makes for itself by default, the
    replica makes for itself, too; what was passed to the application, such as a store, both share. A handler that is
    registered later, on either, is on both.

    Args:
        app: the application; it does not change.
        settings: keywords of `MRTRServer`, such as `keys=`, `limits=`, `auth=`; and `clock=`, a function that returns
            the time, in seconds since the epoch.

    Returns:
        The replica.
    """
    return app.__replace__(**settings)


def replicas(app: S, count: int, /, **settings: Any) -> list[S]:
    """Make several servers with the handlers of an application; see `replica`.

    Args:
        app: the application.
        count: how many.
        settings: keywords of `MRTRServer`, the same for all.

    Returns:
        The replicas.
    """
    return [replica(app, **settings) for _ in range(count)]


class _LooseLimits(Limits):
    _SHORTEST_LEASE = 0.0


def short_lease(seconds: float, limits: Limits | None = None) -> Limits:
    """Return limits with a lease that a server refuses elsewhere: `replica(app, limits=short_lease(0.2))`.

    So a test of what happens when a lease ends takes no three seconds.

    Args:
        seconds: the lease, in seconds.
        limits: the other limits; the defaults if left out.

    Returns:
        The limits, for `limits=`.
    """
    given = {} if limits is None else {name: getattr(limits, name) for name in limits.given}
    return _LooseLimits(**{**given, "lease_seconds": seconds})
