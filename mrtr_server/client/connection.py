"""Messages to one server over HTTP: each is bounded, and sent again where that is safe."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import from_json

from ..addresses import is_loopback_address
from ..errors import BadReply, ClientError, NoReply, RequestRefused, SetupError, lacking
from ..protocol.messages import JSON
from ..wire import Event, EventReader, resume_headers
from .exchange import Allowance, Bounds, Exchange, OnMessage, read_message, refusal_of

try:
    import httpx
except ImportError as error:
    raise lacking("The client", "client", error) from error

if TYPE_CHECKING:
    from .oauth import OAuth, Way

logger = logging.getLogger("mrtr_server")

_REDIRECTS = 3
_PAUSE = 0.2  # before a lost request is sent again, in seconds; it doubles each time
_LONGEST_PAUSE = 30.0  # that a server may ask for before its client comes back to a stream, in seconds

_KEPT = 3.0  # seconds that an idle connection is kept: less than servers do, so that none is closed as it is used

_LATER = frozenset({429, 503})
_MOVED = frozenset({307, 308})
_UNAUTHORIZED = frozenset({401, 403})

_LOGINS = 3  # that one request may need: a refreshed token, a login, and one with more scopes

_WHERE = "the URL that of an MCP endpoint"


class _Again(NamedTuple):
    """A request that brought no result, and may be worth sending again."""

    failure: ClientError
    after: float | None = None
    arrived: bool = True


class _Challenged(NamedTuple):
    """A request that another token might get through."""

    failure: RequestRefused
    challenge: str


class _Place:
    """Where the stream of a reply was when it was lost, and the token of its request."""

    def __init__(self) -> None:
        self.token = ""
        self.way: Way | None = None  # how the token was got, if that was for this request
        self.event = ""
        self.retry: float | None = None
        self.is_new = False  # whether something came since the client came back the last time

    def note(self, event: Event) -> None:
        if event.id and event.id.isascii() and event.id.isprintable():
            self.event, self.is_new = event.id, True
        if event.retry is not None:
            self.retry = min(event.retry / 1000, _LONGEST_PAUSE)


class HTTPConnection:
    is_stream = False

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        bounds: Bounds,
        on_message: OnMessage | None,
        http: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | None = None,
        login: "OAuth | None" = None,
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
        self._headers = headers
        self._bounds = bounds
        self._make = http if callable(http) else _make_http
        self._given = http if isinstance(http, httpx.AsyncClient) else None
        self._http = self._given
        self._on_message = on_message
        self._login = login

    def _warn_of_plain_http(self) -> None:
        host = self._url.host
        if self._url.scheme == "http" and not is_loopback_address(host):
            logger.warning("The token goes to %s over plain http, where others on the way can read it: use https", host)

    @property
    def is_over(self) -> bool:
        return self._http is None

    async def open(self) -> None:
        if self._http is None:
            http = await asyncio.to_thread(self._make)  # it reads certificates, some 20 ms
            self._http = await http.__aenter__()
        if self._login is not None:
            await self._login.load(str(self._url))

    async def close(self) -> None:
        """Close the connections, unless the program brought them."""
        if self._http is not None and self._given is None:
            await self._http.aclose()
            self._http = None

    async def exchange(self, exchange: Exchange) -> JSON:
        allowance, place = exchange.allowance, _Place()
        lost, waited, left, logins = 0, 0.0, allowance.left, 0
        ends = monotonic() + self._bounds.task_seconds
        while True:
            if self._on_message is not None and not place.event:
                self._on_message("sent", from_json(exchange.body))
            allowance.left = left
            place.is_new = False
            came: JSON | _Again | _Challenged
            async with exchange.within(self._bounds.request_seconds):
                came = await self._attempt(exchange, place)
            if isinstance(came, _Challenged):
                way = await self._logs_in(came, place) if logins < _LOGINS else None
                if way is None:
                    raise came.failure
                place.way, logins = way, logins + 1
                continue
            if not isinstance(came, _Again):
                return came
            comes_back = exchange.resumes and bool(place.event)
            if comes_back and place.is_new:
                lost = 0
            if came.after is None:
                may_repeat = exchange.repeatable or comes_back
                if lost == self._bounds.resends or (came.arrived and not may_repeat) or monotonic() > ends:
                    raise came.failure
                pause = _PAUSE * 2**lost if place.retry is None else place.retry
                lost += 1
            else:
                pause = came.after
                waited += pause
                if waited > self._bounds.waiting_seconds:
                    raise came.failure
            await asyncio.sleep(pause)

    async def end_session(self, headers: Mapping[str, str]) -> None:
        if self._http is not None:
            await self._http.delete(self._url, headers={**headers, **self._headers}, follow_redirects=False)

    async def _logs_in(self, came: _Challenged, place: _Place) -> "Way | None":
        """Get another token; the time of a person is not that of the request."""
        if self._login is None:
            return None
        status = came.failure.status
        return await self._login.renew(str(self._url), place.token, status, came.challenge, place.way)

    async def _attempt(self, exchange: Exchange, place: _Place) -> JSON | _Again | _Challenged:
        if not (exchange.resumes and place.event):
            return await self._sent("POST", exchange.headers, exchange.body, exchange, place)
        named = {name: value for name, value in exchange.headers.items() if name.startswith(("MCP-", "Mcp-"))}
        try:
            return await self._sent("GET", {**named, **resume_headers(place.event)}, b"", exchange, place)
        except RequestRefused as refusal:
            if refusal.status < 400:
                raise  # it is what the call came to
            raise NoReply(f"The reply was lost, and the server does not continue it: {refusal}") from None

    async def _sent(
        self, method: str, headers: Mapping[str, str], body: bytes, exchange: Exchange, place: _Place
    ) -> JSON | _Again | _Challenged:
        place.token = self._login.token(str(self._url)) if self._login is not None else ""
        authorized = {"Authorization": f"Bearer {place.token}"} if place.token else {}
        url, headers = self._url, {**headers, "Accept-Encoding": "identity", **self._headers, **authorized}
        for _ in range(_REDIRECTS + 1):
            moved = await self._stream(method, url, headers, body, exchange, place)
            if not isinstance(moved, httpx.URL):
                return moved
            url = moved
        raise BadReply("The server redirects without an end")

    async def _stream(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        exchange: Exchange,
        place: _Place,
    ) -> JSON | httpx.URL | _Again | _Challenged:
        if self._http is None:
            raise SetupError("Use the client in an `async with` block")
        try:
            async with self._http.stream(
                method, url, headers=headers, content=body, timeout=None, follow_redirects=False
            ) as response:
                try:
                    return await self._read(url, response, exchange, place)
                except RequestRefused as refusal:
                    if self._login is None or refusal.status not in _UNAUTHORIZED:
                        raise
                    return _Challenged(refusal, response.headers.get("www-authenticate", ""))
        except (httpx.TransportError, httpx.StreamError) as error:
            arrived = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _Again(
                NoReply(f"The server can't be reached: {str(error) or type(error).__name__}"), arrived=arrived
            )

    async def _read(
        self, url: httpx.URL, response: httpx.Response, exchange: Exchange, place: _Place
    ) -> JSON | httpx.URL | _Again:
        if response.status_code in _MOVED:
            return self._moved(url, response)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise BadReply("The server compresses its reply, though this client does not ask for that")
        if exchange.number is None and response.is_success:
            return {}
        exchange.received = response.headers
        parts = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
        # The inner one would otherwise be left to the garbage collector when its reader is closed.
        async with aclosing(parts), aclosing(_messages(response, parts, exchange.allowance, place)) as messages:
            async for message in messages:
                if self._on_message is not None:
                    self._on_message("received", message)
                if "method" not in message and isinstance(error := message.get("error"), dict):
                    return _refused_by(response, error)
                if (result := await exchange.take(message, self._bounds.request_seconds)) is not None:
                    return result
        if response.status_code >= 400:
            return _refused_by(response)
        if not _is_stream(response):
            raise BadReply(f"The server replies with HTTP {response.status_code}, and without a message")
        return _Again(NoReply("The reply ended before its result"))

    def _moved(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        try:
            to = url.join(response.headers.get("location", ""))
        except httpx.InvalidURL:
            raise BadReply("The server redirects to what is no URL") from None
        if _origin(to) != _origin(url):
            raise BadReply(f"The server redirects to another origin, {to.host[:200]}; nothing is sent there")
        return to


async def _messages(
    response: httpx.Response, parts: AsyncIterator[bytes], allowance: Allowance, place: _Place
) -> AsyncGenerator[JSON, None]:
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
            place.note(event)
            if event.data:
                yield read_message(event.data, _WHERE)
    if not whole:
        return
    try:
        message = read_message(b"".join(whole), _WHERE)
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


def _origin(url: httpx.URL) -> tuple[str, str, int | None, bytes]:
    return url.scheme, url.host, url.port, url.userinfo  # a user in a URL would take the place of the token
