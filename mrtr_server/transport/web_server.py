"""What the web server does for us beyond ASGI, if it is a uvicorn that we know; and SIGTERM, which comes to us first.

A request is known by the `receive` or `send` that it gave the application. Where middleware has put another one in its
place, there is no shortcut: it wants to see the messages. A web server tells its application of the end after the last
connection has closed, which is too late to hand calls over. So the application drains before the web server's own
signal handler, and passes the signal on a moment later.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from ..flow.admission import Admission
from ..uvicorn_http import Shortcuts

logger = logging.getLogger("mrtr_server")

Handler = Callable[[int, FrameType | None], Any]


@lru_cache(maxsize=16)
def find_shortcuts(request: Any) -> Shortcuts | None:
    if "RequestResponseCycle" not in [each.__name__ for each in request.__mro__]:
        return None
    try:
        from ..uvicorn_http.whole_responses import shortcuts_of
    except ImportError:  # there is no httptools, or uvicorn is another one
        return None
    return shortcuts_of(request)


def drain_on_sigterm(admission: Admission, lame_duck: float) -> None:
    """Drain on SIGTERM, and call the handler that is installed now `lame_duck` seconds later, or at a second signal.

    The admission is held weakly. Nothing happens if there is no handler, and outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    current = signal.getsignal(signal.SIGTERM)
    if isinstance(current, _Chain):
        current.add(admission, lame_duck, loop)
    elif callable(current) and not _is_dispatched_by_the_loop(current):
        chain = _Chain(current)
        chain.add(admission, lame_duck, loop)
        signal.signal(signal.SIGTERM, chain)


def forget_sigterm(admission: Admission) -> None:
    current = signal.getsignal(signal.SIGTERM)
    if not isinstance(current, _Chain) or threading.current_thread() is not threading.main_thread():
        return
    if current.discard(admission):
        signal.signal(signal.SIGTERM, current.following)


def _is_dispatched_by_the_loop(handler: Handler) -> bool:
    """Return whether it stands for `loop.add_signal_handler`: that one is called whatever handler is there."""
    return (getattr(handler, "__module__", None) or type(handler).__module__).partition(".")[0] in ("asyncio", "uvloop")


class _Chain:
    def __init__(self, following: Handler) -> None:
        self.following = following
        self._draining: WeakKeyDictionary[Admission, float] = WeakKeyDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._signalled = False
        self._followed = False

    def add(self, admission: Admission, lame_duck: float, loop: asyncio.AbstractEventLoop) -> None:
        self._draining[admission] = lame_duck
        self._loop = loop

    def discard(self, admission: Admission) -> bool:
        self._draining.pop(admission, None)
        return not self._draining

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # A signal cuts in anywhere. What follows it, such as accepting connections, is not part of what it interrupts.
        Context().run(self._drain, number, frame)

    def _drain(self, number: int, frame: FrameType | None) -> None:
        waits = not self._signalled and not self._reloads()
        self._signalled = True
        longest = max(self._draining.values(), default=0.0)
        for admission in tuple(self._draining):
            admission.shut_down()
        if waits and self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(_log_draining, longest)
        if waits and longest > 0 and self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._follow_after, longest, number, frame)
        else:
            self._follow(number, frame)

    def _follow_after(self, seconds: float, number: int, frame: FrameType | None) -> None:
        if not self._followed and self._loop is not None:  # a second signal may have come before this turn of the loop
            self._timer = self._loop.call_later(seconds, self._close_and_follow, number, frame)

    def _close_and_follow(self, number: int, frame: FrameType | None) -> None:
        async def close() -> None:
            try:
                from ..uvicorn_http.accept_queue import close_listeners  # which only the end of a server needs

                await close_listeners(getattr(self.following, "__self__", None))
            except Exception:
                logger.exception("The connections that wait for this server can't be taken")
            self.following(number, frame)

        if self._loop is not None:
            self._closing = self._loop.create_task(close())

    def _follow(self, number: int, frame: FrameType | None) -> None:
        self._followed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._closing is not None:
            self._closing.cancel()
        self.following(number, frame)

    def _reloads(self) -> bool:
        """Return whether uvicorn only makes way for the next version of the code, for which its author waits."""
        server = getattr(self.following, "__self__", None)
        return bool(getattr(getattr(server, "config", None), "reload", False))


def _log_draining(seconds: float) -> None:
    # On the event loop and not in the handler, which may have cut in while another line was being logged.
    logger.info(
        "Draining: calls continue in other replicas. In %g s no more connections are accepted.",
        seconds,
        extra={"fields": {"event": "drain", "seconds": seconds}},
    )
