"""Connections to a PostgreSQL server that stay open, each for one statement at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ...concurrency.running import running_loop


class Connections:
    """At most so many connections of one event loop, which are opened when they are needed.

    Not asyncpg's pool: for each statement, that makes a task, a timer and a proxy, which cost as much as the statement.

    `open`: connects.
    `most`: how many there are at once. Who comes when all are in use waits, and gets the next one in turn.
    `idle_life`: how many seconds a connection stays open without use.
    """

    def __init__(self, open: Callable[[], Awaitable[Any]], most: int, idle_life: float) -> None:
        self._open = open
        self._most = most
        self._idle_life = idle_life
        self._idle: list[tuple[Any, float]] = []  # each since when by the loop's clock, the one used last at the end
        self._used: set[Any] = set()
        self._taken = 0  # those in use, and those that are being opened
        self._expired: set[Any] = set()  # of those in use
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self) -> Any:
        """Return a connection for the caller alone, until it is given to `release`. Raises what `open` raises."""
        connection: Any = None
        while self._idle and connection is None:
            connection, _ = self._idle.pop()
            if connection.is_closed():  # by its server
                connection.terminate()
                connection = None
        if connection is not None or self._taken < self._most:
            self._taken += 1
        else:
            connection = await self._wait()
        if connection is None:
            try:
                connection = await self._open()
            except BaseException:
                self._pass_on(None)
                raise
        self._used.add(connection)
        return connection

    async def _wait(self) -> Any:
        """Wait for a connection, or for None: the place of one."""
        waiter: asyncio.Future[Any] = running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._pass_on(waiter.result())
            raise

    def release(self, connection: Any) -> None:
        """Return a connection to those that are free."""
        self._used.discard(connection)
        if connection in self._expired or connection.is_closed():
            self._expired.discard(connection)
            connection.terminate()
            connection = None
        self._pass_on(connection)

    def _pass_on(self, connection: Any) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._taken -= 1
        if connection is not None:
            loop = running_loop()
            self._idle.append((connection, loop.time()))
            if self._timer is None:
                self._timer = loop.call_later(self._idle_life, self._close_idle)

    def expire(self) -> None:
        """Use no present connection again."""
        self._expired |= self._used
        self._cut_idle()

    def _close_idle(self) -> None:
        loop, self._timer = running_loop(), None
        while self._idle and self._idle[0][1] + self._idle_life <= loop.time():
            closing = loop.create_task(_close(self._idle.pop(0)[0]))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        if self._idle:
            self._timer = loop.call_at(self._idle[0][1] + self._idle_life, self._close_idle)

    async def close(self) -> None:
        """Close those that nobody uses. `cut_off` ends what is left then."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*self._closing, *(_close(connection) for connection, _ in idle))

    def cut_off(self) -> None:
        """End all connections at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._cut_idle()
        for connection in tuple(self._used):
            connection.terminate()

    def _cut_idle(self) -> None:
        for connection, _ in self._idle:
            connection.terminate()
        self._idle.clear()


async def _close(connection: Any) -> None:
    with suppress(Exception):  # its server is gone, and the connection with it
        try:
            await connection.close()
        finally:
            connection.terminate()
