"""Servers to test against: the same handlers under other settings, and a clock that a test moves."""

import time
from typing import Any, TypeVar

from ..server import MRTRServer

S = TypeVar("S", bound=MRTRServer)


class Clock:
    """A clock that stands still until it is moved: `replica(app, clock=clock)`.

    Args:
        now: where it stands, in seconds since the epoch; the present time if left out.
    """

    def __init__(self, now: float | None = None) -> None:
        self.now = time.time() if now is None else now

    def __call__(self) -> float:
        """Give the time, in seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: by how much; negative for a clock that is set back.
        """
        self.now += seconds


def replica(app: S, /, **settings: Any) -> S:
    """Make another server with the handlers of an application, as if it ran in another process.

    It has the same keys and settings, but for those that are given. What a server makes for itself when it is given
    nothing, it makes for itself, too; what is given to it, such as a store, it shares. Handlers that are registered
    later, on either, are on both.

    Args:
        app: the application; it stays as it is.
        settings: keywords of `MRTRServer`, such as `keys=`, `clock=`, `limits=`, `auth=`.
    """
    return app._replica(settings)


def replicas(app: S, count: int, /, **settings: Any) -> list[S]:
    """Make several servers with the handlers of an application; see `replica`.

    Args:
        app: the application.
        count: how many.
        settings: keywords of `MRTRServer`, the same for all.
    """
    return [replica(app, **settings) for _ in range(count)]
