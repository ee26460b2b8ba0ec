"""Plain functions beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any


class Threads:
    """Runs plain functions in threads, so that they don't stall the loop.

    Parameters:
        limit: how many run at once; the others wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, function: Callable[..., Any]) -> Any:
        """Run a function in a thread, with the context variables of the caller."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._limit, thread_name_prefix="mrtr_server")
        return await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, _contained, function)

    def close(self) -> None:
        """Let the threads end when they are done. The next call starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


def _contained(function: Callable[..., Any]) -> Any:
    try:
        return function()
    except StopIteration as error:  # a future can't hold one, and whoever waits for it would wait for ever
        raise RuntimeError("the function raised StopIteration") from error
