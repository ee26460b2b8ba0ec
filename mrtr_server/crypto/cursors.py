"""The position in a list that a client pages through, sealed."""

from typing import Any

from pydantic_core import to_json

from ..errors import InvalidRequestState
from .bound import BoundCodec
from .keys import KeyRing

_MOST_CHARACTERS = 512


class Cursors:
    """Seals positions in lists.

    A position counts what the client may not see, too. So it is encrypted, and as long as any other.

    Args:
        ring: cursors of one replica work on every other that has the ring.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._codec = BoundCodec(ring, "position in a list")

    def seal(self, listing: str, offset: int) -> str:
        """Make the cursor of a position: the list's name and how many entries come before."""
        return self._codec.seal(to_json(listing), f"{offset:012d}".encode())

    def unseal(self, listing: str, cursor: Any) -> int | None:
        """Return the offset that a cursor of this list stands for, or None if it is none of ours."""
        if not isinstance(cursor, str) or len(cursor) > _MOST_CHARACTERS:
            return None
        try:
            return int(self._codec.unseal(to_json(listing), cursor, "it belongs to another list"))
        except InvalidRequestState:
            return None
