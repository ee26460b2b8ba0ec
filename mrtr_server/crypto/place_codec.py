"""Sealing together with a place: a token that is moved to another row, list or id does not open there.

Not for `requestState`: `flow/journal.py` writes what a state is bound to into its payload, and checks it.
"""

from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest, digest
from typing import Any, NamedTuple

from pydantic_core import to_json

from ..errors import InvalidRequestState, StoreUnavailable
from .codec import SealedCodec
from .digests import canonical
from .keys import KeyRing


class PlainCodec:
    """Stands in for a `PlaceCodec` where what is kept never leaves the memory of the process that has the keys."""

    def seal(self, place: bytes, payload: bytes) -> str:
        return payload.decode()

    def unseal(self, place: bytes, sealed: str | bytes, moved: str) -> bytes:
        return sealed if isinstance(sealed, bytes) else sealed.encode()


class PlaceCodec:
    """Seals what belongs to one place: somebody who can write to a store could put one token in another's place."""

    def __init__(self, ring: KeyRing, purpose: str) -> None:
        self._codec = SealedCodec(ring, purpose)

    def seal(self, place: bytes, payload: bytes) -> str:
        """Seal a payload with its place. No place may begin with another one, so end it with what is not within it."""
        return self._codec.seal(place + payload)

    def unseal(self, place: bytes, sealed: str | bytes, moved: str) -> bytes:
        """Return the payload. Raises `InvalidRequestState`, for the reason `moved` where it is of another place."""
        opened = self._codec.unseal(sealed if isinstance(sealed, str) else sealed.decode("ascii", "replace"))
        if not compare_digest(opened[: len(place)], place):
            raise InvalidRequestState(moved)
        return opened[len(place) :]

    def reseal(self, sealed: bytes) -> str | None:
        """Seal what a token holds under the first key; None if it is. Raises `InvalidRequestState`."""
        return self._codec.reseal(sealed.decode("ascii", "replace"))


RowCodec = PlaceCodec | PlainCodec


def row_codec(ring: KeyRing, purpose: str, *, in_memory: bool) -> RowCodec:
    return PlainCodec() if in_memory else PlaceCodec(ring, purpose)


class SealedRows:
    """Values of a store, each sealed for the key that it is kept under.

    `what` completes "... can't be unsealed", and `moved` says why where the value belongs to another key.
    """

    def __init__(self, codec: RowCodec, what: str, moved: str) -> None:
        self._codec = codec
        self._what = what
        self._moved = moved

    def seal(self, key: str, payload: bytes) -> str:
        return self._codec.seal(_of_key(key), payload)

    def unseal(self, key: str, sealed: str | bytes) -> bytes:
        try:
            return self._codec.unseal(_of_key(key), sealed, self._moved)
        except InvalidRequestState as refused:
            raise StoreUnavailable(f"{self._what} can't be unsealed: {refused.reason}") from None


def _of_key(key: str) -> bytes:
    return f"{key} ".encode()


class RowNames:
    """Names rows of a store by what is known of them, with a key: a reader of the store could otherwise guess it."""

    def __init__(self, ring: KeyRing, purpose: str) -> None:
        self._keys = [key for _, key in ring.derive(f"{purpose}, by name")]

    def of(self, known: list[Any]) -> list[str]:
        """Return the name that each key of the ring makes, the one to write under first."""
        named = canonical(known)
        return [digest(key, named, "sha256")[:16].hex() for key in self._keys]


# Pagination cursors: the client's position in a list, sealed


_MOST_CHARACTERS = 512

_DIGITS = 12


@lru_cache(maxsize=4096)
def named_in_cursor(key: str) -> str:
    """Return what stands for a name or URI in a cursor: all of one length, so that cursors have one, too."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=12).hexdigest()


class Position(NamedTuple):
    """How many entries come before, and what names the last of them: nothing in a cursor of an earlier release."""

    offset: int
    last: str


class Cursors:
    """Seals positions in lists (Pagination), for all replicas with the same ring.

    A position also counts entries that the client may not see. So it is encrypted, and all cursors have one length.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = PlaceCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int, last: str = "") -> str:
        """Return the cursor of a position. `last` names its last entry, in as many characters as any other."""
        return self.seal_place(listing, f"{offset:0{_DIGITS}d}{last}")

    def seal_place(self, listing: str, place: str) -> str:
        """Return the cursor of a place in a list that changes, where to count entries would not do."""
        return self._codec.seal(to_json(listing), place.encode())

    def unseal(self, listing: str, cursor: Any) -> Position | None:
        """Return the position behind a cursor, which may be anything; None if it is not a cursor of this list."""
        place = self.unseal_place(listing, cursor)
        return None if place is None else Position(int(place[:_DIGITS]), place[_DIGITS:])

    def unseal_place(self, listing: str, cursor: Any) -> str | None:
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            return self._codec.unseal(to_json(listing), cursor, "it belongs to another list").decode()
        except InvalidRequestState:
            return None
