"""Responses that are ready shortly after one another go out together.

A write to a client that waits wakes its process, which in a virtual machine costs the server as much as the rest of the
response. So a response that is ready within a moment of the one before waits until there are four, or until the event
loop has run what was ready. A server with little to do, or with slow handlers, writes each at once.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from ..concurrency.running import PerLoop, running_loop

LARGEST_GROUP = 4  # responses

SHORTLY = 0.001  # seconds after the response before


class Group:
    __slots__ = ("_last", "_waiting")

    def __init__(self) -> None:
        self._last = 0.0
        self._waiting: list[GroupedTransport] = []

    def holds(self, transport: "GroupedTransport") -> bool:
        """Note that a response is ready; return whether it waits until the transport's `flush`."""
        now = monotonic()
        last, self._last = self._last, now
        waiting = self._waiting
        if now - last > SHORTLY or len(waiting) >= LARGEST_GROUP - 1:
            if waiting:
                self._flush()
            return False
        if not waiting:
            running_loop().call_soon(self._flush)
        waiting.append(transport)
        return True

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush()


_groups = PerLoop[Group]()


def group_here() -> Group:
    return _groups.here(Group)


class GroupedTransport:
    """A transport that may hold back a response until others can go out with it. Later writes go behind it."""

    __slots__ = ("_group", "held", "is_closing", "transport", "write_now")

    held: bytes
    write_now: Callable[[bytes], None]  # past what is held back, of which there must be nothing

    def __init__(self, transport: asyncio.Transport, group: Group) -> None:
        self.transport = transport
        self.is_closing = transport.is_closing
        self.write_now = transport.write
        self.held = b""
        self._group = group

    def write(self, data: bytes) -> None:
        if self.held:
            data, self.held = self.held + data, b""
        self.write_now(data)

    def write_response(self, data: bytes) -> None:
        if self.held:
            self.write(data)
        elif self._group.holds(self):
            self.held = data
        else:
            self.write_now(data)

    def flush(self) -> None:
        if self.held:
            held, self.held = self.held, b""
            if not self.is_closing():
                self.write_now(held)

    def close(self) -> None:
        self.flush()
        self.transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)
