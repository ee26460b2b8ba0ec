"""Seal and unseal states: XAES-256-GCM under a key ring. The only importer of cryptography.

XAES-256-GCM (https://c2sp.org/XAES-256-GCM) derives an AES-256-GCM key from the first half of a 192-bit random nonce,
so that no realistic number of tokens comes near a collision, as plain 96-bit nonces would at 2**32. A derived key
serves a few tokens; `_nonce` has the numbers.

A token is the canonical URL-safe Base64, without padding, of

    version (1 byte) | key id (4 bytes) | nonce (24 bytes) | ciphertext and tag

where version and key id are authenticated too. Nothing is compressed: a state holds secrets of the server beside
answers that the client chooses, and its length shows.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from pydantic_core import SchemaSerializer, SchemaValidator
from pydantic_core.core_schema import CoreConfig, bytes_schema

from ..errors import InvalidRequestState, StateFault
from .keys import KEY_ID_BYTES, KeyRing

NONCE_BYTES = 24
TOKENS_PER_KEY = 256
MOST_DERIVED = 256
"""Derived keys that are kept for each key of the ring. To derive one again takes a microsecond."""
_VERSION = b"\x01"
_HEADER_BYTES = 1 + KEY_ID_BYTES
_SEALED_AT = _HEADER_BYTES + NONCE_BYTES
_SHORTEST = _SEALED_AT + 16
# URL-safe, and several times as fast as binascii. Reading refuses unused bits that are set, but takes padding and the
# other alphabet.
_CONFIG = CoreConfig(ser_json_bytes="base64", val_json_bytes="base64")
_to_base64: Callable[..., str] = SchemaSerializer(bytes_schema(), _CONFIG).to_python
_base64: Any = SchemaValidator(bytes_schema(), _CONFIG)
_from_base64: Callable[[str], bytes] = _base64.validate_strings


_ESCAPED = b"\x02"
"""Precedes a value that is no token, and would be taken for a packed one."""


def pack(value: bytes, *, tokens: bool = True) -> bytes:
    """Return a value as it is stored. With `tokens`, a token becomes the bytes that it encodes, a quarter less."""
    if value[:1] in (_VERSION, _ESCAPED):
        return _ESCAPED + value
    try:
        raw = _from_base64(value.decode()) if tokens else b""
    except ValueError:
        return value
    return raw if raw[:1] == _VERSION and unpack(raw) == value else value


def unpack(packed: bytes) -> bytes:
    """Return the value that was packed, with tokens or without."""
    if packed[:1] == _ESCAPED:
        return packed[1:]
    return _to_base64(packed, mode="json").rstrip("=").encode() if packed[:1] == _VERSION else packed


_halves: list[bytes] = []
"""The first halves of nonces to come, each as often as it may still be used."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_halves.clear)  # or each child would use up what is left of one


def _nonce() -> bytes:
    """Return a nonce: two random halves, of which the first is that of up to `TOKENS_PER_KEY` nonces.

    A key is derived from the first half, and from each key of the ring another one. So tokens collide if they have one
    first half, and one second half of 96 bits. That is random for each token, and no counter, which a copied process or
    machine would repeat.

    - With one first half, there are 256 * 255 / 2 < 2**15 pairs of tokens. Two of them have one second half with a
      probability below 2**15 / 2**96 = 2**-81.
    - N tokens have N / 2**8 first halves, so two of them collide within one with a probability below N * 2**-89, and
      across several with one below N**2 / 2 * 2**-192. For 2**50 tokens, these are 2**-39 and 2**-93.
    - GCM with random nonces is meant for 2**32 tokens under one key (NIST SP 800-38D, 8.3): 2**24 times as many.
    """
    try:
        half = _halves.pop()  # no two threads get the same item
    except IndexError:
        half = os.urandom(NONCE_BYTES // 2)
        _halves.extend([half] * (TOKENS_PER_KEY - 1))
    return half + os.urandom(NONCE_BYTES // 2)


class UrlSafe(str):
    """A token of letters, digits, `-` and `_`, which JSON holds as it is."""

    __slots__ = ()


class Codec(Protocol):
    """Seals journals into the strings that clients carry, and unseals them (Multi Round-Trip Requests).

    A codec must unseal only what it sealed, and only in the same spelling: single use identifies a state by its
    spelling. Size, binding, budgets and expiry are checked for every codec, by `States` and `Journal`. Both
    methods may be called from any thread.
    """

    def seal(self, payload: bytes) -> str:
        """Seal a payload.

        Args:
            payload: the bytes to protect.

        Returns:
            The token: at most 4/3 of the payload's length plus 2,048 characters.
        """
        ...

    def unseal(self, token: str) -> bytes:
        """Return the payload of a token.

        Args:
            token: what a client sent; it may be anything.

        Returns:
            The payload that was sealed.

        Raises:
            InvalidRequestState: this codec did not seal the token. The reason goes to the log, and not to the client.
        """
        ...


class XAES256GCM:
    """XAES-256-GCM for one key of 32 bytes."""

    __slots__ = ("_block", "_derived", "_mask")

    def __init__(self, key: bytes) -> None:
        # One ECB encryptor, kept and fed: making one per token would cost a hundred times the derivation.
        self._block = Cipher(AES(key), ECB()).encryptor()  # noqa: S305  the block cipher is the KDF's primitive
        top = int.from_bytes(self._block.update(bytes(16)), "big")
        subkey = (top << 1) & ((1 << 128) - 1) ^ (0x87 if top >> 127 else 0)
        prefixes = (b"\x00\x01X\x00", b"\x00\x02X\x00")
        masks = (int.from_bytes(prefix + bytes(12), "big") ^ subkey for prefix in prefixes)
        self._mask = int.from_bytes(b"".join(mask.to_bytes(16, "big") for mask in masks), "big")
        self._derived: Callable[[bytes], AESGCM] = lru_cache(MOST_DERIVED)(self._derive)

    def _derive(self, first_half: bytes) -> AESGCM:
        half = int.from_bytes(first_half)
        return AESGCM(self._block.update((self._mask ^ (half << 128 | half)).to_bytes(32)))

    def encrypt(self, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
        """Return the ciphertext with its tag of 16 bytes. The nonce is 24 random bytes, and never the same again."""
        return self._derived(nonce[:12]).encrypt(nonce[12:], plaintext, associated)

    def decrypt(self, nonce: bytes, ciphertext: bytes, associated: bytes) -> bytes:
        """Return the plaintext. Raises `cryptography.exceptions.InvalidTag` where an argument was changed."""
        return self._derived(nonce[:12]).decrypt(nonce[12:], ciphertext, associated)


class SealedCodec:
    """The default codec: it encrypts and authenticates under a key ring.

    Args:
        ring: the first key seals, every key unseals.
        purpose: what the tokens are for. A token for one purpose can't be unsealed for another.
    """

    def __init__(self, ring: KeyRing, purpose: str = "state") -> None:
        ciphers = [(key_id, XAES256GCM(key)) for key_id, key in ring.derive(purpose)]
        self._header = _VERSION + ciphers[0][0]
        self._sealing = ciphers[0][1]
        self._opening = {_VERSION + key_id: cipher for key_id, cipher in ciphers}

    def seal(self, payload: bytes) -> str:
        """Encrypt and authenticate a payload.

        Args:
            payload: the bytes to protect.

        Returns:
            URL-safe Base64 without padding: about 4/3 of the payload's length plus 60 characters.
        """
        nonce = _nonce()
        # Nothing is held by a name: a payload may be as large as a request.
        sealed = _to_base64(self._header + nonce + self._sealing.encrypt(nonce, payload, self._header), mode="json")
        return UrlSafe(sealed.rstrip("="))

    def unseal(self, token: str) -> bytes:
        """Return the payload of a token that this ring sealed for this purpose.

        Args:
            token: what a client sent; it may be anything.

        Returns:
            The payload that was sealed.

        Raises:
            InvalidRequestState: it is any other token. The reason names the check that failed, for the log.
        """
        raw = self._decode(token)
        header = raw[:_HEADER_BYTES]
        cipher = self._opening.get(header)
        if cipher is None:
            if raw[:1] != _VERSION:
                raise InvalidRequestState("unknown token version")
            raise InvalidRequestState(
                "sealed under a key that is not in the ring. Give every replica all keys of the ring",
                StateFault.KEY_UNKNOWN,
            )
        try:
            return cipher.decrypt(raw[_HEADER_BYTES:_SEALED_AT], raw[_SEALED_AT:], header)
        except InvalidTag:
            raise InvalidRequestState("forged or damaged") from None

    def reseal(self, token: str) -> str | None:
        """Seal what a token holds under the first key.

        Args:
            token: one that this ring sealed for this purpose.

        Returns:
            Another token for the same payload; None if this one is sealed under the first key.

        Raises:
            InvalidRequestState: as for `unseal`.
        """
        return None if self._decode(token).startswith(self._header) else self.seal(self.unseal(token))

    def _decode(self, token: str) -> bytes:
        try:
            raw = _from_base64(token)
        except ValueError:
            raise InvalidRequestState("not Base64") from None
        if "=" in token or "+" in token or "/" in token:  # a second spelling
            raise InvalidRequestState("not canonical Base64")
        if len(raw) < _SHORTEST:
            raise InvalidRequestState("too short")
        return raw
