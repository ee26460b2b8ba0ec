"""Requests to one server over HTTP: each is bounded, and sent again where that is safe."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Literal, NamedTuple, cast

from pydantic_core import from_json

from ..addresses import is_loopback_address
from ..errors import BadReply, ClientError, NoReply, RequestRefused, SetupError
from ..extras import lacking
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, PIECE
from ..well_formed import read_json
from ..wire import About, Event, EventReader, write_modern

try:
    import httpx
except ImportError as error:
    raise lacking("The client", "client", error) from error

logger = logging.getLogger("mrtr_server")

OnMessage = Callable[[Literal["sent", "received"], JSON], None]
Noted = Callable[[JSON], Awaitable[None]]

_RELATED = {"notifications/progress": "progressToken", PIECE: "requestId"}
"""How the notifications that are taken name their request."""

_REDIRECTS = 3
_PAUSE = 0.2
"""How long to wait before a lost request is sent again, in seconds; it doubles each time."""

_KEPT = 3.0
"""How long an idle connection is kept, in seconds: less than servers keep it, so that none is closed as it is used."""

_LONGEST_ERROR = 2000
"""How much of what a server says of an error is kept, in characters."""

_LATER = frozenset({429, 503})
_MOVED = frozenset({307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a client takes from a server, and for how long it waits.

    Args:
        request_seconds: how long one request may take, from its first byte to the last of its reply, in seconds.
        task_seconds: how long a task is followed, in seconds. It is not cancelled then.
        waiting_seconds: how long one request waits in all, in seconds, for servers that ask to be called later.
        resends: how often one request is sent again after a lost reply.
        response_bytes: how large a reply may be, and a list with all its pages, in bytes.
        rounds: how many rounds one call may have.
        questions: how many questions one round may have.
        pages: how many pages one list may have.

    Raises:
        SetupError: one is negative, or zero where there would be no reply at all.
    """

    request_seconds: float = 120.0
    task_seconds: float = 3600.0
    waiting_seconds: float = 60.0
    resends: int = 3
    response_bytes: int = 16 * 1024 * 1024
    rounds: int = 50
    questions: int = 50
    pages: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value, may_be_none = getattr(self, field.name), field.name in ("waiting_seconds", "resends")
            if not (value > 0 or (may_be_none and value == 0)):
                raise SetupError(f"Bounds({field.name}={value}): it must be {'at least' if may_be_none else 'over'} 0")


DEFAULT = Bounds()


class _Again(NamedTuple):
    """A request that brought no result, and may be worth sending again."""

    failure: ClientError
    after: float | None = None
    arrived: bool = True


class Allowance:
    """How much more may come."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    def take(self, size: int) -> None:
        """Take what came. Raises `BadReply` if that is more than is left."""
        self.left -= size
        if self.left < 0:
            raise BadReply(f"The reply has more than {self._size} bytes")


class Connection:
    """Sends requests to one server."""

    def __init__(
        self,
        url: str,
        about: About,
        headers: Mapping[str, str],
        bounds: Bounds,
        http: httpx.AsyncClient | None,
        on_message: OnMessage | None,
    ) -> None:
        try:
            self._url = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise SetupError(f"{url!r} is no URL: {error}") from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise SetupError(f"{url!r} is no http or https address")
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise SetupError(f"The header {name} can't be sent: it has a line feed or another special character")
            if name.lower() == "authorization" and self._url.userinfo:
                raise SetupError("Give either a token, or a URL with a user and a password")
            if name.lower() == "authorization":
                self._warn_of_plain_http()
        self._about = about
        self._headers = headers
        self._bounds = bounds
        self._given = http
        self._http = http
        self._on_message = on_message
        self._numbers = count(1)

    def _warn_of_plain_http(self) -> None:
        host = self._url.host
        if self._url.scheme == "http" and not is_loopback_address(host):
            logger.warning("The token goes to %s over plain http, where others on the way can read it: use https", host)

    async def open(self) -> None:
        """Get ready to send."""
        if self._http is None:
            self._http = await asyncio.to_thread(_make_http)  # it reads certificates, some 20 ms

    async def close(self) -> None:
        """Close the connections, unless the program brought them."""
        if self._http is not None and self._given is None:
            await self._http.aclose()
            self._http = None

    async def request(
        self,
        method: str,
        params: JSON,
        noted: Noted,
        *,
        mirrored: Iterable[HeaderParameter] = (),
        repeatable: bool,
        allowance: Allowance | None = None,
    ) -> JSON:
        """Send a request, and return its result."""
        number = next(self._numbers)
        headers, body = write_modern(self._about, number, method, params, mirrored)
        headers = {**headers, "Accept-Encoding": "identity", **self._headers}
        allowance = allowance or Allowance(self._bounds.response_bytes)
        lost, waited, left = 0, 0.0, allowance.left
        while True:
            if self._on_message is not None:
                self._on_message("sent", from_json(body))
            allowance.left = left
            try:
                async with asyncio.timeout(self._bounds.request_seconds) as limit:
                    came = await self._exchange(headers, body, number, noted, allowance)
            except TimeoutError:
                if not limit.expired():
                    raise  # of a callback
                raise NoReply(f"There was no reply within {self._bounds.request_seconds:g} s") from None
            if not isinstance(came, _Again):
                return came
            if came.after is None:
                if lost == self._bounds.resends or (came.arrived and not repeatable):
                    raise came.failure
                pause = _PAUSE * 2**lost
                lost += 1
            else:
                pause = came.after
                waited += pause
                if waited > self._bounds.waiting_seconds:
                    raise came.failure
            await asyncio.sleep(pause)

    async def _exchange(
        self, headers: Mapping[str, str], body: bytes, number: int, noted: Noted, allowance: Allowance
    ) -> JSON | _Again:
        url = self._url
        for _ in range(_REDIRECTS + 1):
            moved = await self._post(url, headers, body, number, noted, allowance)
            if not isinstance(moved, httpx.URL):
                return moved
            url = moved
        raise BadReply("The server redirects without an end")

    async def _post(
        self, url: httpx.URL, headers: Mapping[str, str], body: bytes, number: int, noted: Noted, allowance: Allowance
    ) -> JSON | httpx.URL | _Again:
        if self._http is None:
            raise SetupError("Use the client in an `async with` block")
        try:
            async with self._http.stream(
                "POST", url, headers=headers, content=body, timeout=None, follow_redirects=False
            ) as response:
                if response.status_code in _MOVED:
                    return self._moved(url, response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise BadReply("The server compresses its reply, though this client does not ask for that")
                parts = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
                # The inner one would otherwise be left to the garbage collector when its reader is closed.
                async with aclosing(parts), aclosing(_messages(response, parts, allowance)) as messages:
                    async for message in messages:
                        if (result := await self._take(message, response, number, noted)) is not None:
                            return result
                if response.status_code >= 400:
                    return _refused_by(response)
                if not _is_stream(response):
                    raise BadReply(f"The server replies with HTTP {response.status_code}, and without a message")
                return _Again(NoReply("The reply ended before its result"))
        except (httpx.TransportError, httpx.StreamError) as error:
            arrived = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _Again(
                NoReply(f"The server can't be reached: {str(error) or type(error).__name__}"), arrived=arrived
            )

    def _moved(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        try:
            to = url.join(response.headers.get("location", ""))
        except httpx.InvalidURL:
            raise BadReply("The server redirects to what is no URL") from None
        if _origin(to) != _origin(url):
            raise BadReply(f"The server redirects to another origin, {to.host[:200]}; nothing is sent there")
        return to

    async def _take(self, message: JSON, response: httpx.Response, number: int, noted: Noted) -> JSON | _Again | None:
        if self._on_message is not None:
            self._on_message("received", message)
        if "method" in message:
            params, related = message.get("params"), _RELATED.get(message["method"])
            if related is not None and isinstance(params, dict) and params.get(related) == number:
                await noted(params)
            return None
        if isinstance(error := message.get("error"), dict):
            return _refused_by(response, error)
        if message.get("id") != number or not isinstance(result := message.get("result"), dict):
            raise BadReply("The reply is not to what was asked")
        return result


async def _messages(
    response: httpx.Response, parts: AsyncIterable[bytes], allowance: Allowance
) -> AsyncGenerator[JSON, None]:
    """Return the JSON-RPC messages of a response, and of the parts of its body, as they come."""
    is_stream = _is_stream(response)
    reader, whole = EventReader(Event), []
    async for part in parts:
        allowance.take(len(part))
        if not is_stream:
            whole.append(part)
            continue
        try:
            events = reader.feed(part)
        except ValueError:
            raise BadReply("The reply is no text") from None
        for event in events:
            if event.data:
                yield _message(event.data)
    if not whole:
        return
    try:
        message = _message(b"".join(whole))
    except BadReply:
        if response.status_code >= 400:
            return  # a gateway's page
        raise
    yield message


def _is_stream(response: httpx.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


def _make_http() -> httpx.AsyncClient:
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=100, keepalive_expiry=_KEPT))


def _refused_by(response: httpx.Response, error: Mapping[str, Any] | None = None) -> _Again:
    """Return a refusal to be waited out. One that can't be is raised."""
    status = response.status_code
    refusal = refusal_of(error, status) if error is not None else RequestRefused(f"HTTP {status}", status=status)
    after = response.headers.get("retry-after", "")
    if status in _LATER and after.isascii() and after.isdecimal() and len(after) < 10:
        return _Again(refusal, max(float(after), _PAUSE))
    raise refusal


def refusal_of(error: Mapping[str, Any], status: int = 0) -> RequestRefused:
    """Return a JSON-RPC error as it is raised."""
    code = error.get("code")
    message = str(error.get("message", ""))[:_LONGEST_ERROR]
    return RequestRefused(message, code if type(code) is int else 0, error.get("data"), status)


def _message(text: str | bytes) -> JSON:
    try:
        message = read_json(text, allow_inf_nan=False)
    except ValueError:
        message = None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise BadReply("The reply is no JSON-RPC message; is the URL that of an MCP endpoint?")
    return message


def _origin(url: httpx.URL) -> tuple[str, str, int | None, bytes]:
    return url.scheme, url.host, url.port, url.userinfo  # a user in a URL would take the place of the token
