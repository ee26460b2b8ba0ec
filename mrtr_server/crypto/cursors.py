"""Pagination cursors: the client's position in a list, sealed."""

from typing import Any

from pydantic_core import to_json

from ..errors import InvalidRequestState
from .keys import KeyRing
from .place_codec import PlaceCodec

_MOST_CHARACTERS = 512


class Cursors:
    """Seals positions in lists (Pagination).

    A position also counts entries that the client may not see. So it is encrypted, and all cursors have one length.

    Args:
        ring: the cursors of one replica work on every other replica with the same ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = PlaceCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int) -> str:
        """Return the cursor of a position.

        Args:
            listing: the list's name.
            offset: how many entries come before.

        Returns:
            The cursor.
        """
        return self.seal_place(listing, f"{offset:012d}")

    def seal_place(self, listing: str, place: str) -> str:
        """Return the cursor of a place in a list that changes, where to count entries would not do.

        Args:
            listing: the list's name.
            place: what says where the next page begins.
        """
        return self._codec.seal(to_json(listing), place.encode())

    def unseal(self, listing: str, cursor: Any) -> int | None:
        """Return the offset behind a cursor.

        Args:
            listing: the list's name.
            cursor: what the client sent; it may be anything.

        Returns:
            How many entries come before; None if it is not a cursor of this list.
        """
        place = self.unseal_place(listing, cursor)
        return None if place is None else int(place)

    def unseal_place(self, listing: str, cursor: Any) -> str | None:
        """Return the place behind a cursor, as `unseal` returns the offset."""
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            return self._codec.unseal(to_json(listing), cursor, "it belongs to another list").decode()
        except InvalidRequestState:
            return None
