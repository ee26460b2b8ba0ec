"""Messages to webhooks: whose is sent next, how, with which reply, and the check that a principal wants them."""

import asyncio
import hmac
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic_core import from_json

from ..errors import TooMany, UnfitUrl, Unreachable
from ..protocol.callers import Principal
from ..protocol.messages import JSON
from ..protocol.sessions import owner_of
from ..storage.base import Store
from ..storage.quotas import Quotas
from ..well_formed import write_json
from .signatures import sign
from .subscriptions import subscription_id

if TYPE_CHECKING:
    from ..fetcher import Fetcher


Reason = Literal["connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"]

ANSWER_BYTES = 4096


VERIFIED_SECONDS = 86_400.0
"""How long it is known that a webhook wants messages for a principal."""

AT_ONCE, AT_ONCE_IN_ALL = 4, 24
"""Webhooks that are asked at once, for one principal and in all: other connections are for events."""

MOST_REFUSALS = 10
"""Webhooks of one host that do not want messages, for one principal in a minute; after that, none is asked."""

REFUSALS_WITHIN = 60.0

FOR_ALL = 8
"""How many times as many refusals there may be for all principals together."""

MOST_NOTED = 10_000


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


class Verifications:
    """Knows which webhooks have said that they want messages."""

    def __init__(self, store: Store, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._store = store
        self._quotas = quotas
        self._now = clock
        self._asked: Counter[str] = Counter()  # how many are being asked, by owner
        self._refusals: dict[tuple[str, str], deque[float]] = {}  # when, by owner and host

    async def check(
        self, fetcher: "Fetcher", principal: Principal, url: str, secret: bytes, subscription: str
    ) -> Reason | None:
        """Return why a webhook gets no messages of a principal; None if it wants them.

        Raises `TooMany`, `Full`, `StoreUnavailable`.
        """
        owner = owner_of(principal)
        known = subscription_id(owner, url, "", {"verified": True})
        if await self._store.get(known) is not None:
            return None
        host = host_of(url)
        of_host = {(owner, host): MOST_REFUSALS, ("", host): MOST_REFUSALS * FOR_ALL}
        for key, most in of_host.items():
            if sum(each > self._now() - REFUSALS_WITHIN for each in self._refusals.get(key, ())) >= most:
                raise TooMany(MOST_REFUSALS)
        with self._place(owner):
            reason = await verify(fetcher, url, secret, subscription, self._now())
        if reason is None:
            await self._store.put(known, b"", keep=VERIFIED_SECONDS, quota=self._quotas.of(principal))
        else:
            for key in of_host:
                self._note_refusal(key)
        return reason

    @contextmanager
    def _place(self, owner: str) -> Iterator[None]:
        if self._asked[owner] >= AT_ONCE or self._asked.total() >= AT_ONCE_IN_ALL:
            raise TooMany(AT_ONCE)
        self._asked[owner] += 1
        try:
            yield
        finally:
            self._asked[owner] -= 1
            if not self._asked[owner]:
                del self._asked[owner]

    def _note_refusal(self, key: tuple[str, str]) -> None:
        if key not in self._refusals and len(self._refusals) >= MOST_NOTED:
            del self._refusals[next(iter(self._refusals))]
        noted = self._refusals.pop(key, None)
        self._refusals[key] = noted = deque(maxlen=MOST_REFUSALS * FOR_ALL) if noted is None else noted
        noted.append(self._now())


AT_ONCE_BY_HOST = 64
"""Messages that are on their way to one host. Most hosts of clients have many subscriptions."""

SLOW_AT_ONCE_BY_HOST = 4
"""The same for webhooks of it that were slow or failed the last time."""

SLOW_AT_ONCE = 24
"""Messages to all such webhooks: a quarter of the connections that there may be."""

SLOW = 2.0
"""Seconds for an answer, from which on a webhook is slow."""


class Turns:
    """Limits how many messages are on their way."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, bool], _Host] = {}
        self._slow = asyncio.Semaphore(SLOW_AT_ONCE)

    @asynccontextmanager
    async def of(self, url: str, *, is_slow: bool) -> AsyncIterator[None]:
        """Hold a place for a message to a URL, as `Fetcher.check` returned it."""
        key = host_of(url), is_slow
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = _Host(SLOW_AT_ONCE_BY_HOST if is_slow else AT_ONCE_BY_HOST)
        host.users += 1
        try:
            async with host.places:
                if is_slow:
                    async with self._slow:
                        yield
                else:
                    yield
        finally:
            host.users -= 1
            if not host.users:
                del self._hosts[key]


class _Host:
    """The places of one host, for as long as somebody uses them or waits for one."""

    def __init__(self, most: int) -> None:
        self.places = asyncio.Semaphore(most)
        self.users = 0
