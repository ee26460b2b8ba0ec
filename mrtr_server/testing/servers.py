"""Servers to test against: the same handlers under other settings, and a clock that a test moves."""

import time
from typing import Any, TypeVar

from ..server import MRTRServer

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


def replica(app: S, /, **settings: Any) -> S:
    """Make another server with the handlers of an application, as if it ran in another process.

    It has the same keys and settings, except those in `settings`. What a server makes for itself by default, the
    replica makes for itself, too; what was passed to the application, such as a store, both share. A handler that is
    registered later, on either, is on both.

    Args:
        app: the application; it does not change.
        settings: keywords of `MRTRServer`, such as `keys=`, `clock=`, `limits=`, `auth=`.

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
