"""Signatures of messages to webhooks (Standard Webhooks), for who sends them, and for who takes and reads them."""

import base64
import binascii
import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import BadWebhook
from ..well_formed import read_json

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


MOST_APART = 300.0
"""Seconds that a message may be old, or its clock ahead."""

LARGEST = 256 * 1024
"""Bytes of a message."""


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message that came to a webhook, and was signed by the server.

    Args:
        type: `"event"`; `"verification"`, which is to be answered with `{"challenge": message.challenge}`; `"gap"`
            where events were left out; `"terminated"` where the subscription has ended.
        id: names the message: the same for the same event, however often it comes.
        subscription: names the subscription.
        name: of the type of event; empty for what is no event.
        data: what the event carries; nothing for what is no event.
        at: when it happened, as ISO 8601; empty for what is no event.
        cursor: where the client may continue; None where there is nothing to continue.
        challenge: what to answer to a verification.
        error: why a subscription has ended, as an error of JSON-RPC.
    """

    type: Literal["event", "verification", "gap", "terminated"]
    id: str
    subscription: str
    name: str = ""
    data: Mapping[str, Any] | None = None
    at: str = ""
    cursor: str | None = None
    challenge: str = ""
    error: Mapping[str, Any] | None = None


def read_webhook(headers: Mapping[str, str], body: bytes, *secrets: str, now: float | None = None) -> WebhookMessage:
    """Check a message that came to a webhook, and read it (Standard Webhooks; Events, Webhook Event Delivery).

    Args:
        headers: those of the request, such as `request.headers`.
        body: its body, as it came.
        secrets: what the subscription was made with; two, while it changes.
        now: the time, in seconds since the epoch. Default: now.

    Returns:
        The message.

    Raises:
        BadWebhook: it is not signed with one of the secrets, is more than five minutes old, or is no such message.
    """
    given = {name.lower(): value for name, value in headers.items()}
    id, at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not id.isascii():
        raise BadWebhook("The webhook-id is no text of ASCII")
    if not at.isascii() or not at.isdecimal() or len(at) > _DIGITS or len(body) > LARGEST:
        raise BadWebhook("The message has no webhook-timestamp, or is too large")
    if abs((time.time() if now is None else now) - int(at)) > MOST_APART:
        raise BadWebhook("The message is too old, or the clocks are apart")
    known = [each for secret in secrets if (each := read_secret(secret)) is not None]
    if not known:
        raise BadWebhook("No secret is whsec_ followed by base64 of 24 to 64 bytes")
    expected = [each.encode() for each in sign(known, id, int(at), body).split(" ")]
    signatures = given.get("webhook-signature", "").split(" ")[:_MOST_SIGNATURES]
    fits = [hmac.compare_digest(each.encode(errors="replace"), one) for each in signatures for one in expected]
    if not any(fits):
        raise BadWebhook("No signature of the message is of a known secret")
    try:
        said = read_json(body)
    except ValueError:
        raise BadWebhook("The message is not JSON") from None
    if not isinstance(said, dict):
        raise BadWebhook("The message is no object")
    return _message(id, given.get("x-mcp-subscription-id", ""), said)


def _message(id: str, subscription: str, said: Mapping[str, Any]) -> WebhookMessage:
    type, cursor = said.get("type"), said.get("cursor")
    cursor = cursor if isinstance(cursor, str) else None
    match type:
        case None if isinstance(said.get("name"), str) and isinstance(said.get("data"), dict):
            at = str(said.get("timestamp", ""))
            return WebhookMessage("event", id, subscription, said["name"], said["data"], at, cursor)
        case "verification" if isinstance(said.get("challenge"), str):
            return WebhookMessage("verification", id, subscription, challenge=said["challenge"])
        case "gap":
            return WebhookMessage("gap", id, subscription, cursor=cursor)
        case "terminated":
            error = said.get("error")
            return WebhookMessage("terminated", id, subscription, error=error if isinstance(error, dict) else None)
    raise BadWebhook("The message is no event, and nothing else that is known")


_DIGITS, _MOST_SIGNATURES = 12, 8
