"""How events and subscriptions are sealed in their rows: what is moved to another one does not open there."""

from ..crypto import keys
from ..crypto.keys import KeyRing
from ..crypto.place_codec import SealedRows, row_codec


class SealedEvents:
    """Seals the bodies of rows for the keys of those rows."""

    def __init__(self, ring: KeyRing, *, in_memory: bool) -> None:
        events = row_codec(ring, keys.EVENT, in_memory=in_memory)
        subscriptions = row_codec(ring, keys.SUBSCRIPTION, in_memory=in_memory)
        self._events = SealedRows(events, "an event", "it belongs to another event")
        self._subscriptions = SealedRows(subscriptions, "a subscription", "it belongs to another subscription")

    def seal_event(self, name: str, id: str, payload: bytes) -> bytes:
        """Return the body of the event of a name and an id."""
        return self._events.seal(_of_event(name, id), payload).encode()

    def unseal_event(self, name: str, id: str, body: bytes) -> bytes:
        """Return what an event holds. Raises `StoreUnavailable` for what does not open."""
        return self._events.unseal(_of_event(name, id), body)

    def seal_subscription(self, id: str, payload: bytes) -> bytes:
        """Return the body of the subscription of an id."""
        return self._subscriptions.seal(id, payload).encode()

    def unseal_subscription(self, id: str, body: bytes) -> bytes:
        """Return what a subscription holds. Raises `StoreUnavailable` for what does not open."""
        return self._subscriptions.unseal(id, body)


def _of_event(name: str, id: str) -> str:
    return f"{name} {id}"
