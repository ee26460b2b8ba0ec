"""Change notifications: from whoever publishes a change to whoever listens."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, Protocol

from ..concurrency.running import running_loop, runs_here
from ..crypto.digests import digest_bytes
from ..protocol.messages import Change, Subscription
from ..schema.uri_templates import normal


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
"""In characters. Longer ones are known by their digests: notices between processes are short."""

MOST_UPDATED = 1_000  # resources whose last update a process remembers
Topic = tuple[str, str]  # the kind and name of a change among listeners
_DIGEST = "\0"  # begins digests; no listener's URI begins so


def topic_of(change: Change) -> Topic:
    """Return the kind of a change, and its URI; or the digest of a long URI."""
    # The URI as all equivalent ones are written; each listener hears of it by its own.
    uri = normal(change.uri) if change.kind == "resource" else change.uri
    return change.kind, uri if len(uri) <= LONG_URI else digest_of(uri)


def digest_of(uri: str) -> str:
    """Return the digest of a URI, which no URI of a listener equals."""
    return _DIGEST + digest_bytes(uri.encode(errors="surrogatepass"))


class InProcessFanout:
    """The fan-out within one process."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._listeners_to: dict[str, dict[str, Listener | set[Listener]]] = {}
        """Listeners by kind and topic, so that a change costs what its own take. Most topics have one, which costs no
        set."""
        self._updated: dict[str, float] = {}
        """When resources were updated, while there are sessions that may just have begun to listen to one."""
        self._updated_all = -math.inf  # until when any other resource may have been updated
        self._guard = RLock()

    def publish(self, change: Change) -> None:
        """Notify every listener that wants a change; see `Fanout.publish`."""
        self._publish_topic(topic_of(change), change.note)

    def _publish_topic(self, topic: Topic, note: str = "") -> None:
        kind, name = topic
        with self._guard:  # so that who subscribes knows that what its earlier subscription lacks will come to this one
            if kind == "resource" and "session" in self._listeners_to:
                self._note_update(name)
            found = self._listeners_to.get(kind, {}).get(name)
            if found is not None:
                for listener in tuple(found) if isinstance(found, set) else (found,):
                    listener.notify(topic, note)

    def _note_update(self, name: str) -> None:
        self._updated.pop(name, None)
        self._updated[name] = time.time()
        if len(self._updated) > MOST_UPDATED:
            self._updated_all = self._updated.pop(next(iter(self._updated)))

    def updated_at(self, uri: str) -> float:
        """Return when a resource was updated last, or may have been, in seconds since the epoch."""
        # For streams of sessions, which learn a moment late what their session listens to.
        with self._guard:
            return max(self._updated_all, self._updated.get(topic_of(Change("resource", uri))[1], -math.inf))

    def subscribe(self, wanted: frozenset[Change]) -> Subscription:
        """Start listening, on the event loop that waits for the changes; see `Fanout.subscribe`."""
        listener = Listener(wanted, self._forget)
        with self._guard:
            listener.began = time.time()
            self._listeners.add(listener)
            for kind, names in listener.topics.items():
                listeners = self._listeners_to.setdefault(kind, {})
                for name in names:
                    found = listeners.setdefault(name, listener)
                    if isinstance(found, set):
                        found.add(listener)
                    elif found is not listener:
                        listeners[name] = {found, listener}
        return listener

    def _forget(self, listener: "Listener") -> bool:
        with self._guard:
            if listener not in self._listeners:
                return False
            self._listeners.remove(listener)
            for kind, names in listener.topics.items():
                listeners = self._listeners_to[kind]
                for name in names:
                    found = listeners[name]
                    if isinstance(found, set) and len(found) > 1:
                        found.remove(listener)
                    else:
                        del listeners[name]
                if not listeners:
                    del self._listeners_to[kind]
            return True


class Listener:
    """One subscription. It holds each change once, so a listener that never reads costs no more than its filter."""

    # Of its filter, it holds the names: they take memory, and the index of the fan-out shares them.

    began = math.inf  # in seconds since the epoch: it hears of what is published after that, and of nothing before

    def __init__(self, wanted: frozenset[Change], forget: "Callable[[Listener], object]") -> None:
        topics: dict[str, dict[str, None]] = {}
        self._own: dict[str, str] = {}
        """The URIs whose topics have another name: their digests, or as equivalent ones are written."""
        for change in wanted:
            kind, name = topic_of(change)
            topics.setdefault(kind, {})[name] = None
            if name is not change.uri:
                self._own[name] = change.uri
        self.topics: Mapping[str, Sequence[str]] = {kind: tuple(names) for kind, names in topics.items()}
        self._forget = forget
        self._loop = running_loop()
        self._changes: dict[Topic, Change] = {}
        self._waiter: asyncio.Future[None] | None = None
        """Made when there is nothing to return yet; a listener waits in one place at a time."""
        self._closed = False

    @property
    def wanted(self) -> frozenset[Change]:
        """The changes that it listens to."""
        return frozenset(self._change((kind, name)) for kind, names in self.topics.items() for name in names)

    def _change(self, topic: Topic, note: str = "") -> Change:
        kind: Any
        kind, name = topic
        return Change(kind, self._own.get(name, name) if self._own else name, note=note)

    def notify(self, topic: Topic, note: str = "") -> None:
        """Note that one of its topics has changed. May be called from any thread."""
        change = self._change(topic, note)
        if runs_here(self._loop):  # without a wake-up through the kernel
            self._add(change)
            return
        try:
            self._loop.call_soon_threadsafe(self._add, change)
        except RuntimeError:  # its loop has ended without closing it
            self._forget(self)

    def notify_of_all(self) -> None:
        """Note that each of its topics may have changed. May be called from any thread."""
        for kind, names in self.topics.items():
            for name in names:
                self.notify((kind, name))

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
