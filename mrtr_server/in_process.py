"""A client's way into an ASGI application of its own process: requests, and the application's life."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

from starlette.types import ASGIApp, Message, Scope


def http_scope(method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Scope:
    """Return the scope of a request that comes from this machine. `path` is as it was decoded."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


class Served:
    """A request that an application serves, in a task of its own, whatever becomes of its client."""

    _all: ClassVar[set["asyncio.Task[None]"]] = set()  # what is being served, so that none of it is lost before it ends

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        self._app = app
        self._scope = scope
        self._body: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._gone, self._noticed = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # A task of its own: what it does to its context and its cancellation is not the client's.
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

    async def start(self) -> Message | None:
        """Return the beginning of the response; None if there is none. The request ends with its client."""
        try:
            return await self.next()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def read(self) -> bytes:
        """Return the next part of the body; nothing at its end."""
        while (message := await self.next()) is not None:
            if body := message.get("body", b""):
                return bytes(body)
        return b""

    async def noticed(self) -> None:
        """Wait until the application has noticed that its client has left, or has ended."""
        noticed = self._loop.create_task(self._noticed.wait())
        await asyncio.wait([noticed, self._task], return_when=asyncio.FIRST_COMPLETED)
        noticed.cancel()

    def disconnect(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._gone.set)

    def cancel(self) -> None:
        self._task.cancel()

    async def _serve(self) -> None:
        await self._app(self._scope, self._receive, self._keep)

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


class Lifespan:
    """The life of an application. `failure` makes the error of a startup or a shutdown that fails."""

    def __init__(self, app: ASGIApp, failure: Callable[[str], Exception]) -> None:
        self._app = app
        self._failure = failure
        self._coming: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        await self._send("startup")

    async def stop(self) -> None:
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
        message = await self._sent.get()
        if message["type"].endswith("failed"):
            raise self._failure(f"The application's {event} failed: {message.get('message', '')}")
