"""A process that serves the client which started it: its startup, its signals and its end."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..concurrency.shutdown import ShutdownDeadline, end_process_in_time
from ..errors import SetupError
from ..transport.standard_streams import StandardStreams, take_standard_streams
from .wiring import ServerParts

_HINT = "Waiting for an MCP client on standard input: clients start this command by themselves. Ctrl-D ends it"


def run_stdio(parts: ServerParts, user: Any, scopes: frozenset[str]) -> None:
    """Serve the client that started this process, until it closes standard input, on behalf of `user`."""
    streams = take_standard_streams()
    if os.isatty(streams.input):
        print(_HINT, file=sys.stderr)
    shutdown = parts.admission.shutdown
    shutdown.on_begin(lambda: end_process_in_time(shutdown.seconds))
    asyncio.run(serve_stdio(parts, streams, user, scopes))


async def serve_stdio(
    parts: ServerParts, streams: StandardStreams, user: Any = None, scopes: frozenset[str] = frozenset()
) -> None:
    """Serve a client at the other end of two streams, from the startup of the server to its end; see `run_stdio`."""
    if refusal := parts.shared.refusal or await parts.shared.check():
        raise SetupError(refusal)
    async with parts.lifecycle.run(run_tasks=parts.settings.run_tasks and parts.registry.has_tasks):
        server = parts.stdio()
        with _on_signals(parts.admission.shutdown, server.end):
            await server.serve(streams, user, scopes)


@contextmanager
def _on_signals(shutdown: ShutdownDeadline, end: Callable[[], None]) -> Iterator[None]:
    """Begin the shutdown at a signal, and call a function on this event loop at each; the third ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    heard: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            for each in numbers:
                signal.signal(each, signal.SIG_DFL)
        shutdown.begin()  # here, since the event loop may be blocked
        loop.call_soon_threadsafe(end)

    # These work on every platform, unlike the handlers of an event loop.
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if heard else handler)
