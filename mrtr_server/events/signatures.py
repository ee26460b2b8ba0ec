"""Signatures of messages to webhooks (Standard Webhooks), for who sends them and for who takes them."""

import base64
import binascii
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105  it begins secrets
SHORTEST_SECRET, LONGEST_SECRET = 24, 64
"""Bytes of a secret."""


def read_secret(text: object) -> bytes | None:
    """Return the bytes of a secret; None if it is none (Standard Webhooks, Symmetric secrets)."""
    if not isinstance(text, str) or not text.startswith(SECRET_PREFIX) or len(text) > 2 * LONGEST_SECRET:
        return None
    try:
        secret = base64.b64decode(text[len(SECRET_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return secret if SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET else None


def sign(secrets: Sequence[bytes], id: str, seconds: int, body: bytes) -> str:
    """Return the signatures of a message, one for each secret."""
    signed = b"%b.%d.%b" % (id.encode(), seconds, body)
    return " ".join("v1," + base64.b64encode(hmac.digest(each, signed, "sha256")).decode() for each in secrets)
