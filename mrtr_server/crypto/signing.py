"""Signed but readable tokens, with itsdangerous: links to callbacks, and a codec for debugging."""

from hashlib import sha256
from hmac import compare_digest

from itsdangerous import BadData
from itsdangerous.encoding import base64_decode, base64_encode
from itsdangerous.signer import Signer

from ..errors import InvalidRequestState, LinkRefused
from .keys import KeyRing


def _keys(ring: KeyRing, purpose: str) -> list[bytes]:
    # itsdangerous signs with the last key of its list, a ring with its first.
    return [key for _, key in reversed(ring.derive(purpose))]


class SignedCodec:
    """A codec whose states the client can read but not change. For debugging: never keep a secret in such a state.

    Args:
        ring: the first key signs, every key verifies.
        purpose: what the tokens are for.
    """

    def __init__(self, ring: KeyRing, purpose: str = "signed-state") -> None:
        self._signer = Signer(_keys(ring, purpose), salt=b"mrtr_server", key_derivation="hmac", digest_method=sha256)

    def seal(self, payload: bytes) -> str:
        """Sign a payload; the token shows it in Base64."""
        return self._signer.sign(base64_encode(payload)).decode("ascii")

    def unseal(self, token: str) -> bytes:
        """Give the payload of a token that this ring signed, or raise `InvalidRequestState`."""
        try:
            encoded = self._signer.unsign(token)
            payload = base64_decode(encoded)
            signature = token.encode("ascii").rpartition(b".")[2]
            canonical = base64_encode(payload) == encoded and base64_encode(base64_decode(signature)) == signature
        except (BadData, UnicodeError):
            raise InvalidRequestState("forged or damaged") from None
        if not canonical:
            raise InvalidRequestState("not canonical Base64")
        return payload


class Links:
    """Signs the way back from a page: whoever has a link can say that it is back, and for what, but change nothing.

    A token is `id.expires.owner.signature`. Its owner is in it under the key, so that it says nothing of a person. It
    is the same each time that it is made, while the first key of the ring stays.

    Args:
        ring: the first key signs, every key verifies.
        audience: what the links belong to; those of another audience don't open.
    """

    _MAX_CHARACTERS = 512

    def __init__(self, ring: KeyRing, audience: str) -> None:
        self._signers = [
            Signer(key, salt=b"mrtr_server", key_derivation="hmac", digest_method=sha256)
            for _, key in ring.derive(f"callback of {audience}")
        ]

    def seal(self, callback: str, id: str, owner: str, expires: int) -> "Link":
        """Make a link.

        Args:
            callback: the callback's name.
            id: names what the callback reports on; hex digits.
            owner: digest of who may open the link; empty where nobody is known.
            expires: when it ends, in seconds since the epoch.
        """
        signer = self._signers[0]
        signed = f"{id}.{expires}.{_sign(signer, 'owner', id, owner)}"
        return Link(f"{signed}.{_sign(signer, 'link', callback, signed)}", signer)

    def unseal(self, callback: str, token: str) -> "Link":
        """Read a link's token.

        Raises:
            LinkRefused: it was not made here for this callback.
        """
        if len(token) > self._MAX_CHARACTERS or not token.isascii():
            raise LinkRefused("too large, or not ASCII")
        signed, _, signature = token.rpartition(".")
        for signer in self._signers:
            # Written anew, not decoded: Base64 has several ways to write the same signature.
            if compare_digest(_sign(signer, "link", callback, signed), signature):
                return Link(token, signer)
        raise LinkRefused("forged or damaged, or of another callback, server or key")


class Link:
    """A link whose signature is good.

    Args:
        token: as it is in the link.
        signer: has the key that it is signed under.
    """

    __slots__ = ("_owner", "_signer", "expires", "id", "token")

    def __init__(self, token: str, signer: Signer) -> None:
        self.token = token
        self.id, expires, self._owner, _ = token.split(".")
        self.expires = int(expires)
        self._signer = signer

    def belongs_to(self, owner: str) -> bool:
        """Say whether it was made for this owner."""
        return compare_digest(_sign(self._signer, "owner", self.id, owner), self._owner)

    @property
    def secret(self) -> str:
        """43 characters that only the server knows, and that are always the same for this link."""
        return _sign(self._signer, "secret", self.id)


def _sign(signer: Signer, purpose: str, *parts: str) -> str:
    return signer.get_signature(".".join((purpose, *parts))).decode("ascii")
