"""Change notifications: from whoever publishes a change to whoever listens."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Protocol

from ..concurrency.running import running_loop, runs_here
from ..crypto.digests import digest_bytes
from ..protocol.messages import Change, Subscription


class Fanout(Protocol):
    """Carries changes to all listeners.

    The in-process one below reaches the listeners of one process. One that reaches every replica has the same two
    methods.
    """

    def publish(self, change: Change) -> None:
        """Notify every listener that wants a change. Never waits, and may be called from any thread.

        Args:
            change: what has changed.
        """
        ...

    def subscribe(self, wanted: frozenset[Change]) -> Subscription:
        """Start listening. Nothing that is published after this returns is missed.

        Args:
            wanted: the changes to be notified of.

        Returns:
            The subscription, which is to be closed.
        """
        ...


LONG_URI = 600
"""Characters beyond which a URI is known by its digest: notices between processes are short."""

Topic = tuple[str, str]
"""What a change is known by among listeners."""


def topic_of(change: Change) -> Topic:
    """Return what a change is known by among listeners: its kind, and its URI, or the digest of one that is long."""
    uri = change.uri
    return change.kind, uri if len(uri) <= LONG_URI else digest_of(uri)


def digest_of(uri: str) -> str:
    """Return the digest of a URI, which no URI of a listener can be mistaken for."""
    return "\0" + digest_bytes(uri.encode(errors="surrogatepass"))


class InProcessFanout:
    """The fan-out within one process."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._listeners_to: dict[Topic, dict[Listener, Change]] = {}
        """The same by topic, so that a change costs what its own listeners take, however many others wait."""
        self._guard = RLock()

    def publish(self, change: Change) -> None:
        """Notify every listener that wants a change; see `Fanout.publish`."""
        self._publish_topic(topic_of(change), change.note)

    def _publish_topic(self, topic: Topic, note: str = "") -> None:
        with self._guard:  # so that who subscribes knows that what its earlier subscription lacks will come to this one
            listeners = self._listeners_to.get(topic)
            if listeners is not None:
                for listener, change in tuple(listeners.items()):
                    listener.notify(Change(change.kind, change.uri, change.task, note) if note else change)

    def subscribe(self, wanted: frozenset[Change]) -> Subscription:
        """Start listening, on the event loop that waits for the changes; see `Fanout.subscribe`."""
        listener = Listener(wanted, self._forget)
        with self._guard:
            self._listeners.add(listener)
            for topic, change in listener.topics.items():
                listeners = self._listeners_to.get(topic)
                if listeners is None:
                    self._listeners_to[topic] = {listener: change}
                else:
                    listeners[listener] = change
        return listener

    def _forget(self, listener: "Listener") -> bool:
        """End a subscription; return whether it had not ended before."""
        with self._guard:
            if listener not in self._listeners:
                return False
            self._listeners.remove(listener)
            for topic in listener.topics:
                listeners = self._listeners_to[topic]
                del listeners[listener]
                if not listeners:
                    del self._listeners_to[topic]
            return True


class Listener:
    """One subscription. It holds each change once, so a listener that never reads costs no more than its filter."""

    def __init__(self, wanted: frozenset[Change], forget: "Callable[[Listener], object]") -> None:
        self.wanted = wanted
        self.topics = {topic_of(change): change for change in wanted}
        self._forget = forget
        self._loop = running_loop()
        self._changes: dict[Topic, Change] = {}
        self._waiter: asyncio.Future[None] | None = None
        """Made when there is nothing to return yet; a listener waits in one place at a time."""
        self._closed = False

    def notify(self, change: Change) -> None:
        """Note a change. May be called from any thread."""
        if runs_here(self._loop):  # without a wake-up through the kernel
            self._add(change)
            return
        try:
            self._loop.call_soon_threadsafe(self._add, change)
        except RuntimeError:  # its loop has ended without closing it
            self._forget(self)

    def _add(self, change: Change) -> None:
        self._changes[change.kind, change.uri] = change  # the newest note counts
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the subscription has ended."""
        while not (self._changes or self._closed):
            self._waiter = self._loop.create_future()
            await self._waiter
        changes = list(self._changes.values())
        self._changes.clear()
        return changes

    def close(self) -> None:
        """End the subscription."""
        self._closed = True
        self._forget(self)
        if runs_here(self._loop):
            self._wake()
            return
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._wake)
