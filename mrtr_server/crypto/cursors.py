"""The position in a list that a client pages through, sealed."""

from typing import Any

from pydantic_core import from_json, to_json

from ..errors import InvalidRequestState
from .codec import SealedCodec
from .keys import KeyRing

_MOST_CHARACTERS = 512


class Cursors:
    """Seals positions in lists.

    A position counts what the client may not see, too. So it is encrypted, and as long as any other.

    Args:
        ring: cursors of one replica work on every other that has the ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = SealedCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int) -> str:
        """Make the cursor of a position: the list's name and how many entries come before."""
        return self._codec.seal(to_json([listing, f"{offset:012d}"]))

    def unseal(self, listing: str, cursor: Any) -> int | None:
        """Return the offset that a cursor of this list stands for, or None if it is none of ours."""
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            owner, offset = from_json(self._codec.unseal(cursor))
        except InvalidRequestState:
            return None
        return int(offset) if owner == listing else None
