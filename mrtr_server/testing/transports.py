"""Ways to a server: straight into an application of this process, or over HTTP to wherever it runs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Scope

from ..concurrency.threads import Threads
from ..protocol.header_params import HeaderParameter
from ..server import MRTRServer
from .failure import Unexpected
from .observing import watching
from .replies import Response
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

Server = ASGIApp | str
"""Where a client's requests go: an application, or the URL of its endpoint."""

_threads = Threads(16)

T = TypeVar("T")


class Transport(ABC):
    """The connection to one server.

    Args:
        timeout: how long a reply may take, in seconds; None for any time.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] | None = None
        """The arguments of each tool that headers mirror; None until the tools were listed."""

    @abstractmethod
    async def send(self, request: Request) -> Response:
        """Send a request, and return its response."""


class InProcess(Transport):
    """Calls an ASGI application.

    Args:
        app: the application.
        path: where its endpoint is; None for a server's own path.
        timeout: see `Transport`.
    """

    def __init__(self, app: ASGIApp, path: str | None, timeout: float | None) -> None:
        super().__init__(timeout)
        self.app = app
        self._path = path or (app.path if isinstance(app, MRTRServer) else "/mcp") or "/"

    async def send(self, request: Request) -> Response:
        """Send a request, and observe what it does inside."""
        sent: list[Message] = []
        body = [{"type": "http.request", "body": request.body, "more_body": False}]
        headers = {"host": "127.0.0.1", "content-length": str(len(request.body))}
        headers |= request.headers

        async def receive() -> Message:
            if body:
                return body.pop()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never leaves

        async def keep(message: Message) -> None:
            sent.append(message)

        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        with watching() as seen:
            await _within(self.timeout, self.app(scope, receive, keep))
        starts = [message for message in sent if message["type"] == "http.response.start"]
        if not starts:
            raise Unexpected("The application gave no response")
        given = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in starts[0].get("headers", ())
        }
        return Response(starts[0]["status"], given, b"".join(message.get("body", b"") for message in sent), seen)


class OverHTTP(Transport):
    """Posts to an endpoint, with a new connection for each request.

    Args:
        url: the endpoint.
        timeout: see `Transport`.
    """

    def __init__(self, url: str, timeout: float | None) -> None:
        super().__init__(timeout)
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise Unexpected(f"{url!r} is not the URL of an endpoint, such as 'http://127.0.0.1:8000/mcp'")

    async def send(self, request: Request) -> Response:
        """Send a request in a thread."""
        try:
            response: Response = await _threads(partial(self._post, request))
        except TimeoutError:
            raise _late(self.timeout) from None
        except (OSError, HTTPException) as error:
            raise Unexpected(f"{self._url.geturl()} can't be reached: {error}") from None
        return response

    def _post(self, request: Request) -> Response:
        connection_to = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = connection_to(str(self._url.hostname), self._url.port, timeout=self.timeout)
        try:
            path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", path, request.body, dict(request.headers))
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, headers, response.read())
        finally:
            connection.close()


def transports(servers: Iterable[Server], path: str | None, timeout: float | None) -> list[Transport]:
    """Return the transports to servers."""
    ways: list[Transport] = [
        OverHTTP(each, timeout) if isinstance(each, str) else InProcess(each, path, timeout) for each in servers
    ]
    if not ways:
        raise Unexpected("Pass at least one server: an application, or the URL of an endpoint")
    return ways


class Lifespan:
    """The life of an application between its startup and its shutdown.

    Args:
        app: the application.
        timeout: how long either may take, in seconds.
    """

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
        message = await _within(self._timeout, self._sent.get())
        if message["type"].endswith("failed"):
            raise Unexpected(f"The application's {event} failed: {message.get('message', '')}")


async def _within(seconds: float | None, work: Awaitable[T]) -> T:
    # A task of its own: what it does to its context and its cancellation is not the test's.
    task = asyncio.ensure_future(work)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await task
    except TimeoutError:
        if not limit.expired():  # its own
            raise
        raise _late(seconds) from None


def _late(seconds: float | None) -> Unexpected:
    return Unexpected(f"There was no reply within {seconds} s")
