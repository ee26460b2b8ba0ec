"""Signed but readable tokens, with itsdangerous: links to callbacks, and a codec for debugging."""

from hashlib import sha256
from hmac import compare_digest

from itsdangerous import BadData
from itsdangerous.encoding import base64_decode, base64_encode
from itsdangerous.signer import Signer

from ..errors import InvalidRequestState, LinkRefused
from .keys import KeyRing


class SignedCodec:
    """A codec whose states the client can read but not change. For debugging: never keep a secret in such a state.

    Args:
        ring: the first key signs, every key verifies.
        purpose: what the tokens are for. A token for one purpose can't be unsealed for another.
    """

    def __init__(self, ring: KeyRing, purpose: str = "signed-state") -> None:
        # itsdangerous signs with the last key of its list, a ring with its first.
        keys = [key for _, key in reversed(ring.derive(purpose))]
        self._signer = Signer(keys, salt=b"mrtr_server", key_derivation="hmac", digest_method=sha256)

    def seal(self, payload: bytes) -> str:
        """Sign a payload.

        Args:
            payload: the bytes to sign. The token shows them in Base64.

        Returns:
            The token.
        """
        return self._signer.sign(base64_encode(payload)).decode("ascii")

    def unseal(self, token: str) -> bytes:
        """Return the payload of a token that this ring signed.

        Args:
            token: what a client sent; it may be anything.

        Returns:
            The payload that was signed.

        Raises:
            InvalidRequestState: it is any other token. The reason names the check that failed, for the log.
        """
        try:
            # The payload is signed as it is spelled. The signature itself has several spellings.
            payload = base64_decode(self._signer.unsign(token))
            signature = token.encode("ascii").rpartition(b".")[2]
            canonical = base64_encode(base64_decode(signature)) == signature
        except (BadData, UnicodeError):
            raise InvalidRequestState("forged or damaged") from None
        if not canonical:
            raise InvalidRequestState("not canonical Base64")
        return payload


class Links:
    """Signs links to callbacks: whoever has a link can report for one ask, and can change nothing in the link.

    A token is `id.expires.owner.signature`. The owner is a keyed digest, so the token tells nothing about a person. The
    same arguments make the same token, as long as the first key of the ring stays. A link opens for one audience alone.
    """

    _MAX_CHARACTERS = 512

    def __init__(self, ring: KeyRing, audience: str) -> None:
        self._signers = [
            Signer(key, salt=b"mrtr_server", key_derivation="hmac", digest_method=sha256)
            for _, key in ring.derive(f"callback of {audience}")
        ]

    def seal(self, callback: str, id: str, owner: str, expires: int) -> "SignedLink":
        """Make the link for an ask. `owner` is a digest of who may open it; empty where nobody is known."""
        signer = self._signers[0]
        signed = f"{id}.{expires}.{_sign(signer, 'owner', id, owner)}"
        return SignedLink(f"{signed}.{_sign(signer, 'link', callback, signed)}", signer)

    def unseal(self, callback: str, token: str) -> "SignedLink":
        """Return the link of any token; the caller checks whether it has expired. Raises `LinkRefused`."""
        if len(token) > self._MAX_CHARACTERS or not token.isascii():
            raise LinkRefused("too large, or not ASCII")
        signed, _, signature = token.rpartition(".")
        for signer in self._signers:
            # Encoded again, not decoded: Base64 has several ways to write the same signature.
            if compare_digest(_sign(signer, "link", callback, signed), signature):
                return SignedLink(token, signer)
        raise LinkRefused("forged or damaged, or of another callback, server or key")


class SignedLink:
    __slots__ = ("_owner", "_signer", "expires", "id", "token")

    def __init__(self, token: str, signer: Signer) -> None:
        self.token = token
        self.id, expires, self._owner, _ = token.split(".")
        self.expires = int(expires)
        self._signer = signer

    def belongs_to(self, owner: str) -> bool:
        return compare_digest(_sign(self._signer, "owner", self.id, owner), self._owner)

    @property
    def secret(self) -> str:
        """43 characters that only the server knows, and that are always the same for this link."""
        return _sign(self._signer, "secret", self.id)


def _sign(signer: Signer, purpose: str, *parts: str) -> str:
    return signer.get_signature(".".join((purpose, *parts))).decode("ascii")
