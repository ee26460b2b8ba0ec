"""Signed but readable tokens, with itsdangerous: list cursors, and a codec for debugging."""

from hashlib import sha256
from typing import Any

from itsdangerous import BadData, URLSafeSerializer
from itsdangerous.encoding import base64_decode, base64_encode
from itsdangerous.signer import Signer

from .errors import StateRefused
from .keys import KeyRing


def _keys(ring: KeyRing, purpose: str) -> list[bytes]:
    # itsdangerous signs with the last key of its list, a ring with its first.
    return [key for _, key in reversed(ring.derive(purpose))]


class SignedCodec:
    """A codec whose states the client can read but not change. For debugging: never keep a secret in such a state.

    Parameters:
        ring: the first key signs, every key verifies.
        purpose: what the tokens are for.
    """

    def __init__(self, ring: KeyRing, purpose: str = "signed-state") -> None:
        self._signer = Signer(_keys(ring, purpose), salt=b"mrtr_server", key_derivation="hmac", digest_method=sha256)

    def seal(self, payload: bytes) -> str:
        """Sign a payload; the token shows it in Base64."""
        return self._signer.sign(base64_encode(payload)).decode("ascii")

    def open(self, token: str) -> bytes:
        """Give the payload of a token that this ring signed, or raise `StateRefused`."""
        try:
            encoded = self._signer.unsign(token)
            payload = base64_decode(encoded)
            signature = token.encode("ascii").rpartition(b".")[2]
            canonical = base64_encode(payload) == encoded and base64_encode(base64_decode(signature)) == signature
        except (BadData, UnicodeError):
            raise StateRefused("forged or damaged") from None
        if not canonical:
            raise StateRefused("not canonical Base64")
        return payload


class Cursors:
    """Signs the position in a list that a client pages through.

    Parameters:
        ring: cursors of one replica work on every other that has the ring.
    """

    _MAX_CHARACTERS = 512

    def __init__(self, ring: KeyRing) -> None:
        self._serializer = URLSafeSerializer(
            _keys(ring, "cursor"),
            salt=b"mrtr_server",
            signer_kwargs={"key_derivation": "hmac", "digest_method": sha256},
        )

    def make(self, listing: str, offset: int) -> str:
        """Make the cursor of a position: the list's name and how many entries come before."""
        return str(self._serializer.dumps([listing, offset]))

    def read(self, listing: str, cursor: Any) -> int | None:
        """Give the offset that a cursor of this list stands for, or None if it is none of ours."""
        if not isinstance(cursor, str) or len(cursor) > self._MAX_CHARACTERS:
            return None
        try:
            owner, offset = self._serializer.loads(cursor)
        except (BadData, UnicodeError, ValueError):
            return None
        return offset if owner == listing else None
