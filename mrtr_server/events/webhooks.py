"""Messages to webhooks: how one is sent, what comes back, and the check that one is wanted."""

import hmac
from collections.abc import Sequence
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic_core import from_json

from ..errors import UnfitUrl, Unreachable
from ..protocol.messages import JSON
from ..well_formed import write_json
from .signatures import sign

if TYPE_CHECKING:
    from ..fetcher import Fetcher

Reason = Literal["connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"]

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


def host_of(url: str) -> str:
    """Return the host and port of a URL, as `Fetcher.check` returned it."""
    return url.split("/", 3)[2]


def control_id(type: str) -> str:
    """Return the id of a message that is no event."""
    return f"msg_{type}_{token_urlsafe(12)}"


async def send(
    fetcher: "Fetcher", url: str, secrets: Sequence[bytes], subscription: str, id: str, body: JSON, now: float
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
        fetched = await fetcher.fetch("POST", url, headers=headers, content=content, most=ANSWER_BYTES)
    except Unreachable as error:
        return Result(error.reason)
    except UnfitUrl:  # what is allowed has changed
        return Result("connection_refused")
    status = fetched.status
    if _OK <= status < _REDIRECTED:
        return Result(body=fetched.body)
    if status == _TOO_LARGE:
        return Result("http_4xx", is_final=True)
    if status == _GONE:
        return Result("http_4xx", is_final=True, is_gone=True)
    return Result("http_5xx" if status >= _THEIR_FAULT else "http_4xx")


_OK, _REDIRECTED, _GONE, _TOO_LARGE, _THEIR_FAULT = 200, 300, 410, 413, 500


async def verify(fetcher: "Fetcher", url: str, secret: bytes, subscription: str, now: float) -> Reason | None:
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
