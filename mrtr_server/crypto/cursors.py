"""Pagination cursors: the client's position in a list, sealed."""

from typing import Any

from pydantic_core import from_json, to_json

from ..errors import InvalidRequestState
from .codec import SealedCodec
from .keys import KeyRing

_MOST_CHARACTERS = 512


class Cursors:
    """Seals positions in lists (Pagination).

    A position also counts entries that the client may not see. So it is encrypted, and all cursors have one length.

    Args:
        ring: the cursors of one replica work on every other replica with the same ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = SealedCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int) -> str:
        """Return the cursor of a position.

        Args:
            listing: the list's name.
            offset: how many entries come before.

        Returns:
            The cursor.
        """
        return self._codec.seal(to_json([listing, f"{offset:012d}"]))

    def unseal(self, listing: str, cursor: Any) -> int | None:
        """Return the offset behind a cursor.

        Args:
            listing: the list's name.
            cursor: what the client sent; it may be anything.

        Returns:
            How many entries come before; None if it is no cursor of this list.
        """
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            owner, offset = from_json(self._codec.unseal(cursor))
        except InvalidRequestState:
            return None
        return int(offset) if owner == listing else None
