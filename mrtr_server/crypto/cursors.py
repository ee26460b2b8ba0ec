"""Pagination cursors: the client's position in a list, sealed."""

from typing import Any

from pydantic_core import to_json

from ..errors import InvalidRequestState
from .bound_codec import BoundCodec
from .keys import KeyRing

_MOST_CHARACTERS = 512


class Cursors:
    """Seals positions in lists (Pagination).

    A position also counts entries that the client may not see. So it is encrypted, and all cursors have one length.

    Args:
        ring: the cursors of one replica work on every other replica with the same ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = BoundCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int) -> str:
        """Return the cursor of a position.

        Args:
            listing: the list's name.
            offset: how many entries come before.

        Returns:
            The cursor.
        """
        return self._codec.seal(to_json(listing), f"{offset:012d}".encode())

    def unseal(self, listing: str, cursor: Any) -> int | None:
        """Return the offset behind a cursor.

        Args:
            listing: the list's name.
            cursor: what the client sent; it may be anything.

        Returns:
            How many entries come before; None if it is not a cursor of this list.
        """
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            return int(self._codec.unseal(to_json(listing), cursor, "it belongs to another list"))
        except InvalidRequestState:
            return None
