"""Ways to a server: straight into an application of this process, or over HTTP to wherever it runs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from typing import ClassVar, TypeVar
from urllib.parse import urlsplit
from weakref import finalize

from starlette.authentication import BaseUser
from starlette.types import ASGIApp, Message, Scope

from ..auth.fixed_tokens import Acting
from ..concurrency.threads import Threads
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
        """Return what came next of the body; nothing at its end. Raises `ConnectionError` if the stream broke."""

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
    """The connection to one server."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] | None = None
        """The arguments of each tool that headers mirror; None until the tools were listed."""

    @abstractmethod
    async def open(self, request: Request) -> Stream:
        """Send a request, and return its response as soon as that begins."""

    async def send(self, request: Request) -> Response:
        """Send a request, and return its whole response."""
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
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        if self._acting is not None and "authorization" not in headers:
            scope["auth"], scope["user"] = self._acting
        served = _Served(self.app, scope, request.body)
        try:
            start = await served.next()
        except asyncio.CancelledError:
            served.cancel()
            raise
        if start is None:
            raise Unexpected("The application gave no response")
        return _InProcessStream(start, served)


class _Served:
    """A request that an application serves, in a task of its own."""

    _all: ClassVar[set["asyncio.Task[None]"]] = set()
    """What is being served, so that none of it is lost before it ends."""

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        self.seen = Observed()
        self._app = app
        self._scope = scope
        self._body: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._gone, self._noticed = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # A task of its own: what it does to its context and its cancellation is not the test's.
        self._task = self._loop.create_task(self._serve())
        self._all.add(self._task)
        self._task.add_done_callback(self._end)

    async def next(self) -> Message | None:
        """Return what the application sent next; None at the end. Raises what the application raised."""
        message = await self._sent.get()
        if message is None:
            self._sent.put_nowait(None)  # for whoever reads on
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                raise error
        return message

    async def noticed(self) -> None:
        """Wait until the application has noticed that its client has left, or has ended."""
        noticed = self._loop.create_task(self._noticed.wait())
        await asyncio.wait([noticed, self._task], return_when=asyncio.FIRST_COMPLETED)
        noticed.cancel()

    def disconnect(self) -> None:
        """Notify the application that its client has left."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._gone.set)

    def cancel(self) -> None:
        """Cancel what the application does."""
        self._task.cancel()

    async def _serve(self) -> None:
        with logging_to(self.seen):
            await self._app({**self._scope, HEARD: self.seen.hear}, self._receive, self._keep)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._all.discard(task)
        self._sent.put_nowait(None)
        if not task.cancelled():
            task.exception()  # nobody may be there to see it

    async def _receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self._gone.wait()
        self._noticed.set()
        return {"type": "http.disconnect"}

    async def _keep(self, message: Message) -> None:
        if not self._gone.is_set():
            self._sent.put_nowait(message)


class _InProcessStream(Stream):
    """The response of an application."""

    def __init__(self, start: Message, served: _Served) -> None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start.get("headers", ())}
        super().__init__(start["status"], given, served.seen)
        self._served = served
        self._leave = finalize(self, served.disconnect)  # also when a test drops it

    async def read(self) -> bytes:
        while (message := await self._served.next()) is not None:
            if body := message.get("body", b""):
                return bytes(body)
        return b""

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
        """Send a request in a thread."""
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
    """A response over HTTP."""

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
    """Close a connection, which ends the wait of a thread that reads from it."""
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(SHUT_RDWR)
    connection.close()
    if response is not None:
        response.close()


def transports(
    servers: Iterable[Server], path: str | None, timeout: float | None, acting: tuple[Acting, BaseUser] | None = None
) -> list[Transport]:
    """Return the transports to servers."""
    servers = list(servers)
    if acting is not None and any(isinstance(each, str) for each in servers):
        raise Unexpected("user= is for an application in this process; a server at a URL needs a token=")
    ways: list[Transport] = [
        OverHTTP(each, timeout) if isinstance(each, str) else InProcess(each, path, timeout, acting) for each in servers
    ]
    if not ways:
        raise Unexpected("Pass at least one server: an application, or the URL of an endpoint")
    return ways


class Lifespan:
    """The life of an application between its startup and its shutdown."""

    def __init__(self, app: ASGIApp, timeout: float | None) -> None:
        self._app = app
        self._timeout = timeout
        self._coming: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the application. Fails if it does not start; one that knows no lifespan is left as it is."""
        self._task = asyncio.create_task(self._run())
        await self._send("startup")

    async def stop(self) -> None:
        """Shut the application down."""
        if self._task is not None and not self._task.done():
            await self._send("shutdown")
            await self._task

    async def _run(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        with suppress(Exception):  # it has said so before, or knows no lifespan
            await self._app(scope, self._coming.get, self._sent.put)
        await self._sent.put({"type": "ended"})

    async def _send(self, event: str) -> None:
        await self._coming.put({"type": f"lifespan.{event}"})
        message = await within(self._timeout, self._sent.get())
        if message["type"].endswith("failed"):
            raise Unexpected(f"The application's {event} failed: {message.get('message', '')}")


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
    """Return the failure of a test whose reply did not come in time."""
    return Unexpected(f"There was no reply within {seconds} s")
