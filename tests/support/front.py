"""The round robin of the examples, in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from examples.round_robin import RoundRobin

from .serving import TIMEOUT


@contextmanager
def running_front(front: RoundRobin, port: int = 0) -> Iterator[int]:
    """Run a front in a thread, since Playwright has the event loop of this one; return its port."""
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ends = asyncio.Event()
        async with await front.listen(port) as server:
            started.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), ends))
            await ends.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    port, loop, ends = started.result(TIMEOUT)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join(TIMEOUT)
