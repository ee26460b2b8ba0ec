"""Plain functions beside the event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol

RunInThread = Callable[[Callable[..., Any]], Awaitable[Any]]
"""Runs a plain function in a thread."""


class Threads:
    """Runs plain functions in threads, so that they don't stall the loop.

    Parameters:
        limit: how many run at once; the others wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pool: ThreadPoolExecutor | None = None
        self._guard = threading.Lock()

    async def __call__(self, function: Callable[..., Any]) -> Any:
        """Run a function in a thread, with the context variables of the caller."""
        loop, context = asyncio.get_running_loop(), copy_context()
        with self._guard:  # or another event loop, on which the server ends, closes the pool in between
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._limit, thread_name_prefix="mrtr_server")
            result = loop.run_in_executor(self._pool, context.run, _contained, function)
        return await result

    def close(self) -> None:
        """Let the threads end when they are done. The next call starts new ones."""
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


class Callee(Protocol):
    """A function of the author's: what a handler is, and a dependency."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""
        ...

    @property
    def name(self) -> str:
        """What it is called in errors."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether it is, or wraps, an `async def`."""
        ...


async def call_function(callee: Callee, keywords: Mapping[str, Any], threads: RunInThread) -> Any:
    """Call a function: on the loop if it is an `async def`, otherwise in a thread."""
    try:
        call = partial(callee.function, **keywords)
        result = call() if callee.is_async else await threads(call)
        return await result if isawaitable(result) else result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"{callee.name!r} raised CancelledError, but nobody had cancelled it") from error
    except SystemExit as error:  # would end the whole server
        raise RuntimeError(f"{callee.name!r} called sys.exit()") from error


def _contained(function: Callable[..., Any]) -> Any:
    try:
        return function()
    except StopIteration as error:  # a future can't hold one, and whoever waits for it would wait for ever
        raise RuntimeError("the function raised StopIteration") from error
