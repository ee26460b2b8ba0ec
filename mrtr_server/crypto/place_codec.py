"""Sealing together with a place: a token that is moved to another row, list or id does not open there.

Not for `requestState`: `flow/journal.py` writes what a state is bound to into its payload, and checks it.
"""

from hmac import compare_digest

from ..errors import InvalidRequestState
from .codec import SealedCodec
from .keys import KeyRing


class PlainCodec:
    """Stands in for a `PlaceCodec` where what is kept never leaves the memory of the process that has the keys."""

    def seal(self, place: bytes, payload: bytes) -> str:
        """Return a payload, which is UTF-8, as text."""
        return payload.decode()

    def unseal(self, place: bytes, sealed: str | bytes, moved: str) -> bytes:
        """Return the payload again."""
        return sealed if isinstance(sealed, bytes) else sealed.encode()


class PlaceCodec:
    """Seals what belongs to one place: a row of a store, a list, a request.

    Somebody who can write to a store, or has several tokens, could put one in the place of another. Each is sealed
    together with the place that it belongs to, and opens for that place alone.

    Args:
        ring: the first key seals, every key opens.
        purpose: what the tokens are for; a token of one purpose does not open for another.
    """

    def __init__(self, ring: KeyRing, purpose: str) -> None:
        self._codec = SealedCodec(ring, purpose)

    def seal(self, place: bytes, payload: bytes) -> str:
        """Encrypt and authenticate a payload together with its place.

        Args:
            place: where it belongs. No place may begin with another one, so end it with what is not within it.
            payload: at least 0 bytes.

        Returns:
            A token; see `SealedCodec.seal`.
        """
        return self._codec.seal(place + payload)

    def unseal(self, place: bytes, sealed: str | bytes, moved: str) -> bytes:
        """Return the payload that was sealed for a place.

        Args:
            place: where the token was found.
            sealed: the token.
            moved: the reason for the log where it belongs to another place.

        Raises:
            InvalidRequestState: it was sealed for another place, or not under this ring and for this purpose.
        """
        opened = self._codec.unseal(sealed if isinstance(sealed, str) else sealed.decode("ascii", "replace"))
        if not compare_digest(opened[: len(place)], place):
            raise InvalidRequestState(moved)
        return opened[len(place) :]

    def reseal(self, sealed: bytes) -> str | None:
        """Seal what a token holds under the first key, for the place that it was sealed for.

        Args:
            sealed: the token.

        Returns:
            Another token; None if this one is sealed under the first key.

        Raises:
            InvalidRequestState: it was not sealed under this ring and for this purpose.
        """
        return self._codec.reseal(sealed.decode("ascii", "replace"))


RowCodec = PlaceCodec | PlainCodec
"""Protects what is kept in rows of a store."""


def row_codec(ring: KeyRing, purpose: str, *, in_memory: bool) -> RowCodec:
    """Return what protects rows.

    Args:
        ring: as for `PlaceCodec`.
        purpose: likewise.
        in_memory: whether the store keeps them in the memory of this process alone.
    """
    return PlainCodec() if in_memory else PlaceCodec(ring, purpose)
