"""Changes on one replica reach the listeners on all of them, through the database that they share."""

import json
import time
from collections.abc import Sequence, Set

from ...protocol.messages import Change, Subscription
from ..pubsub import InProcessFanout, Listener, topic_of
from .notify import LONGEST, Notices

CHANGED = "changed "
"""How a notice of a change begins."""
CARRIED = "carried "
"""How a notice of a change begins that carries something; earlier releases do not know it."""
URGENT = frozenset({"answer", "cancelled", "page"})
"""The kinds of changes that somebody waits for: a call that is open, or held."""


class SQLFanout(InProcessFanout):
    """The fan-out of a fleet.

    The listeners of this process are notified at once, those of others within a fraction of a second. When the
    connection was lost, and changes with it, listeners are notified of all that they want: one look too many does no
    harm.

    Args:
        notices: carries the changes.
    """

    def __init__(self, notices: Notices) -> None:
        super().__init__()
        self._notices = notices
        notices.subscribe(self._on_notice, self._on_gap)

    def publish(self, change: Change) -> None:
        """Notify every listener on every replica that wants a change; see `Fanout`."""
        super().publish(change)
        self._notices.publish(_written(change), urgent=change.kind in URGENT)

    def subscribe(self, wanted: frozenset[Change]) -> Subscription:
        """Start listening; see `Fanout`."""
        subscription = super().subscribe(wanted)
        if _hurries({change.kind for change in wanted}):
            self._notices.hurry(1)
        if wanted:
            self._notices.start()
        return subscription

    def _forget(self, listener: Listener) -> bool:
        forgotten = super()._forget(listener)
        if forgotten and _hurries(listener.topics.keys()):
            self._notices.hurry(-1)
        return forgotten

    def _on_notice(self, notices: Sequence[str]) -> None:
        if not self._listeners:
            return
        for notice in notices:
            if notice.startswith(CHANGED):
                self._publish_here(notice.removeprefix(CHANGED))
            elif notice.startswith(CARRIED):
                kind, uri, note = json.loads(notice.removeprefix(CARRIED))
                super().publish(Change(kind, uri, note=note))

    def _publish_here(self, written: str) -> None:
        kind, uri, digest = json.loads(written)
        self._publish_topic((kind, digest) if digest else topic_of(Change(kind, uri)))

    def _on_gap(self) -> None:
        self._updated_all = time.time()
        for listener in tuple(self._listeners):
            listener.notify_of_all()


def _hurries(kinds: Set[str]) -> bool:
    """Return whether a listener waits for what a person does; the stream of a session, which stays, is in no hurry."""
    return not URGENT.isdisjoint(kinds) and "session" not in kinds


def _written(change: Change) -> str:
    if change.note and len(written := CARRIED + json.dumps([change.kind, change.uri, change.note])) <= LONGEST:
        return written
    written = json.dumps([change.kind, change.uri, ""])
    # A URI that is too long for a notice is recognized by those who wait for it.
    return CHANGED + (written if len(written) <= LONGEST else json.dumps([change.kind, "", topic_of(change)[1]]))
