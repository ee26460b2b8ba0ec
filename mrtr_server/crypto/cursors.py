"""Pagination cursors: the client's position in a list, sealed."""

from typing import Any, NamedTuple

from pydantic_core import to_json

from ..errors import InvalidRequestState
from .keys import KeyRing
from .place_codec import PlaceCodec

_MOST_CHARACTERS = 512
_DIGITS = 12


class Position(NamedTuple):
    """A position in a list.

    Args:
        offset: how many entries come before.
        last: names the last of them; empty in a cursor of an earlier release.
    """

    offset: int
    last: str


class Cursors:
    """Seals positions in lists (Pagination).

    A position also counts entries that the client may not see. So it is encrypted, and all cursors have one length.

    Args:
        ring: the cursors of one replica work on every other replica with the same ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = PlaceCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int, last: str = "") -> str:
        """Return the cursor of a position.

        Args:
            listing: the list's name.
            offset: how many entries come before.
            last: names the last of them, in as many characters as any other.

        Returns:
            The cursor.
        """
        return self.seal_place(listing, f"{offset:0{_DIGITS}d}{last}")

    def seal_place(self, listing: str, place: str) -> str:
        """Return the cursor of a place in a list that changes, where to count entries would not do.

        Args:
            listing: the list's name.
            place: what says where the next page begins.
        """
        return self._codec.seal(to_json(listing), place.encode())

    def unseal(self, listing: str, cursor: Any) -> Position | None:
        """Return the position behind a cursor.

        Args:
            listing: the list's name.
            cursor: what the client sent; it may be anything.

        Returns:
            The position; None if it is not a cursor of this list.
        """
        place = self.unseal_place(listing, cursor)
        return None if place is None else Position(int(place[:_DIGITS]), place[_DIGITS:])

    def unseal_place(self, listing: str, cursor: Any) -> str | None:
        """Return the place behind a cursor, as `unseal` returns the position."""
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            return self._codec.unseal(to_json(listing), cursor, "it belongs to another list").decode()
        except InvalidRequestState:
            return None
