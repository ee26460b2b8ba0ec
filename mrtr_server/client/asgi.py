"""Requests to an ASGI application in the same process, streamed as over a network."""

from collections.abc import AsyncIterator, Callable
from typing import Self

from starlette.types import ASGIApp
from typing_extensions import override

from ..errors import SetupError, lacking
from ..in_process import Lifespan, Served, http_scope

try:
    import httpx
except ImportError as error:
    raise lacking("The client", "client", error) from error


class InProcessTransport(httpx.AsyncBaseTransport):
    """Serves the requests of a client of httpx by an application, which lives as long as the client."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._life: Lifespan | None = None

    @override
    async def __aenter__(self) -> Self:
        life = Lifespan(self._app, SetupError)
        await life.start()
        self._life = life
        return self

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.partition(b"?")
        scope = http_scope(request.method, request.url.path, query, [(n.lower(), v) for n, v in request.headers.raw])
        scope["raw_path"] = path
        served = Served(self._app, scope, await request.aread())
        start = await served.start()
        if start is None:
            raise httpx.RemoteProtocolError("The application gave no response", request=request)
        return httpx.Response(start["status"], headers=start.get("headers", ()), stream=_Body(served))

    @override
    async def aclose(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.stop()


class _Body(httpx.AsyncByteStream):
    def __init__(self, served: Served) -> None:
        self._served = served

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._served.read():
            yield data

    @override
    async def aclose(self) -> None:
        self._served.disconnect()


def in_process(app: ASGIApp) -> Callable[[], httpx.AsyncClient]:
    return lambda: httpx.AsyncClient(transport=InProcessTransport(app))
