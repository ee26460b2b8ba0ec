"""Ways to a server: straight into an application of this process, or over HTTP to wherever it runs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from typing import TypeVar
from urllib.parse import urlsplit
from weakref import finalize

from starlette.authentication import BaseUser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..auth.fixed_tokens import Acting
from ..concurrency.threads import Threads
from ..in_process import Served, http_scope
from ..protocol.header_params import HeaderParameter
from ..protocol.trace import HEARD
from ..server import MRTRServer
from .answers import Unexpected
from .replies import Request, Response
from .servers import Observed, logging_to

__tracebackhide__ = True  # pytest then shows the test's line instead

Server = ASGIApp | str
"""Where a client's requests go: an application, or the URL of its endpoint."""

User = str | BaseUser
"""Whom a test acts as: a name, or a user of Starlette."""

_threads = Threads(16)

_CHUNK = 64 * 1024

T = TypeVar("T")


class Stream(ABC):
    """A response that is read as it comes."""

    def __init__(self, status: int, headers: Mapping[str, str], seen: Observed | None = None) -> None:
        self.status = status
        self.headers = headers
        self.seen = seen

    @abstractmethod
    async def read(self) -> bytes:
        """Return the next part of the body; nothing at its end. Raises `ConnectionError` if the stream broke."""

    @abstractmethod
    def close(self) -> None:
        """Leave, as a client does whose connection breaks. Safe to call twice."""

    async def noticed(self) -> None:
        """Wait until the server has noticed that its client has left, where that can be seen."""
        return

    async def read_whole(self) -> Response:
        """Return the response, when all of it has come."""
        parts: list[bytes] = []
        try:
            while data := await self.read():
                parts.append(data)
        except ConnectionError as error:
            raise Unexpected(f"The response was cut off: {error}") from None
        return Response(self.status, self.headers, b"".join(parts), self.seen)

    def abort(self) -> None:
        """Leave, and end what the server does for the request, as far as that is possible from here."""
        self.close()


class Transport(ABC):
    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        # The arguments of each tool that headers mirror; None until the tools were listed.
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] | None = None

    @abstractmethod
    async def open(self, request: Request) -> Stream:
        """Send a request, and return its response as soon as that begins."""

    async def send(self, request: Request) -> Response:
        return await within(self.timeout, self._send(request))

    async def _send(self, request: Request) -> Response:
        stream = await self.open(request)
        try:
            return await stream.read_whole()
        finally:
            stream.abort()


class InProcess(Transport):
    """Calls an ASGI application."""

    def __init__(
        self, app: ASGIApp, path: str | None, timeout: float | None, acting: tuple[Acting, BaseUser] | None = None
    ) -> None:
        super().__init__(timeout)
        self.app = app
        self._acting = acting
        self._path = path or (app.path if isinstance(app, MRTRServer) else "/mcp") or "/"

    async def open(self, request: Request) -> Stream:
        """Send a request, and observe what it does inside."""
        headers = {"host": "127.0.0.1", "content-length": str(len(request.body))}
        headers |= request.headers
        named = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
        scope = http_scope(request.method, self._path, b"", named)
        if self._acting is not None and "authorization" not in headers:
            scope["auth"], scope["user"] = self._acting
        seen = Observed()
        served = Served(_observed(self.app, seen), scope, request.body)
        start = await served.start()
        if start is None:
            raise Unexpected("The application gave no response")
        return _InProcessStream(start, served, seen)


def _observed(app: ASGIApp, seen: Observed) -> ASGIApp:
    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        with logging_to(seen):
            await app({**scope, HEARD: seen.hear}, receive, send)

    return observed


class _InProcessStream(Stream):
    def __init__(self, start: Message, served: Served, seen: Observed) -> None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start.get("headers", ())}
        super().__init__(start["status"], given, seen)
        self._served = served
        self._leave = finalize(self, served.disconnect)  # also when a test drops it

    async def read(self) -> bytes:
        return await self._served.read()

    def close(self) -> None:
        self._leave()

    async def noticed(self) -> None:
        await self._served.noticed()

    def abort(self) -> None:
        self._leave()
        self._served.cancel()


class OverHTTP(Transport):
    """Sends to an endpoint, with a new connection for each request."""

    def __init__(self, url: str, timeout: float | None) -> None:
        super().__init__(timeout)
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise Unexpected(f"{url!r} is not the URL of an endpoint, such as 'http://127.0.0.1:8000/mcp'")

    async def open(self, request: Request) -> Stream:
        connection_to = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = connection_to(str(self._url.hostname), self._url.port, timeout=self.timeout)
        try:
            response, sock = await _threads(partial(self._request, connection, request))
        except TimeoutError:
            connection.close()
            raise late(self.timeout) from None
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unexpected(f"{self._url.geturl()} can't be reached: {error}") from None
        except asyncio.CancelledError:
            _cut(connection, connection.sock)
            raise
        return _HTTPStream(connection, sock, response, self.timeout)

    def _request(self, connection: HTTPConnection, request: Request) -> tuple[HTTPResponse, socket]:
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        connection.request(request.method, path, request.body or None, dict(request.headers))
        sock = connection.sock  # which the connection forgets if the response is its last one
        return connection.getresponse(), sock


class _HTTPStream(Stream):
    def __init__(self, connection: HTTPConnection, sock: socket, response: HTTPResponse, timeout: float | None) -> None:
        super().__init__(response.status, {name.lower(): value for name, value in response.getheaders()})
        self._response = response
        self._timeout = timeout
        self._leave = finalize(self, _cut, connection, sock, response)  # also when a test drops it

    async def read(self) -> bytes:
        try:
            data: bytes = await _threads(partial(self._response.read1, _CHUNK))
        except TimeoutError:
            raise late(self._timeout) from None
        except (OSError, HTTPException, ValueError, AttributeError) as error:  # the last two if it was closed meanwhile
            raise ConnectionError(str(error)) from None
        return data

    def close(self) -> None:
        self._leave()


def _cut(connection: HTTPConnection, sock: socket | None, response: HTTPResponse | None = None) -> None:
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(SHUT_RDWR)
    connection.close()
    if response is not None:
        response.close()


def transports(
    servers: Iterable[Server], path: str | None, timeout: float | None, acting: tuple[Acting, BaseUser] | None = None
) -> list[Transport]:
    servers = list(servers)
    if acting is not None and any(isinstance(each, str) for each in servers):
        raise Unexpected("user= is for an application in this process; a server at a URL needs a token=")
    ways: list[Transport] = [
        OverHTTP(each, timeout) if isinstance(each, str) else InProcess(each, path, timeout, acting) for each in servers
    ]
    if not ways:
        raise Unexpected("Pass at least one server: an application, or the URL of an endpoint")
    return ways


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Wait for a reply, and fail the test if it takes too long."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():  # its own
            raise
        raise late(seconds) from None


def late(seconds: float | None) -> Unexpected:
    return Unexpected(f"There was no reply within {seconds} s")
