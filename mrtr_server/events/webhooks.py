"""Messages to webhooks: their signatures (Standard Webhooks), what comes back, and the check that one is wanted."""

import base64
import binascii
import hmac
from collections.abc import Sequence
from secrets import token_urlsafe
from typing import Literal, NamedTuple

from pydantic_core import from_json

from ..fetcher import Fetcher, UnfitUrl, Unreachable
from ..protocol.messages import JSON
from ..well_formed import write_json

Reason = Literal["connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"]

SECRET_PREFIX = "whsec_"  # noqa: S105  it begins secrets
SHORTEST_SECRET, LONGEST_SECRET = 24, 64
"""Bytes of a secret."""

ANSWER_BYTES = 4096


class Result(NamedTuple):
    """What came of a message."""

    reason: Reason | None = None
    """Why it was not taken; None where it was."""
    is_final: bool = False
    """Whether this message is never to be sent again."""
    is_gone: bool = False
    """Whether nothing more is to be sent there."""
    body: bytes = b""


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


def control_id(type: str) -> str:
    """Return the id of a message that is no event."""
    return f"msg_{type}_{token_urlsafe(12)}"


async def send(
    fetcher: Fetcher, url: str, secrets: Sequence[bytes], subscription: str, id: str, body: JSON, now: float
) -> Result:
    """Send a message to a webhook, once."""
    content = write_json(body)
    headers = {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": sign(secrets, id, int(now), content),
        "x-mcp-subscription-id": subscription,
    }
    try:
        status, answer = await fetcher.fetch("POST", url, headers=headers, content=content, most=ANSWER_BYTES)
    except Unreachable as error:
        return Result(error.reason)
    except UnfitUrl:  # what is allowed has changed
        return Result("connection_refused")
    if _OK <= status < _REDIRECTED:
        return Result(body=answer)
    if status == _TOO_LARGE:
        return Result("http_4xx", is_final=True)
    if status == _GONE:
        return Result("http_4xx", is_final=True, is_gone=True)
    return Result("http_5xx" if status >= _THEIR_FAULT else "http_4xx")


_OK, _REDIRECTED, _GONE, _TOO_LARGE, _THEIR_FAULT = 200, 300, 410, 413, 500


async def verify(fetcher: Fetcher, url: str, secret: bytes, subscription: str, now: float) -> Reason | None:
    """Ask a webhook whether it wants messages; return why not, or None if it does (Endpoint verification)."""
    challenge = token_urlsafe(32)
    body = {"type": "verification", "challenge": challenge}
    result = await send(fetcher, url, [secret], subscription, control_id("verification"), body, now)
    if result.reason is not None:
        return "challenge_failed" if result.reason in ("http_4xx", "http_5xx") else result.reason
    try:
        echoed = from_json(result.body)
    except ValueError:
        return "challenge_failed"
    given = echoed.get("challenge") if isinstance(echoed, dict) else None
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), challenge.encode()):
        return "challenge_failed"
    return None
