"""Health and readiness, for orchestrators. They need no credentials."""

import asyncio
from collections.abc import Awaitable, Callable

from pydantic_core import to_json
from starlette.types import Scope, Send

from ..protocol.messages import JSON
from .response_writer import respond

RETRY_AFTER = 1
"""When to retry while the server is not ready, in seconds. Another replica may be ready now."""


class Probes:
    """Answers `health` and `ready`, in the same folder as the endpoint.

    Args:
        endpoint: the path of the MCP endpoint, without a slash at its end.
        ready: returns why the server is not ready; empty if it is.
        store: returns whether the shared store can be used.
        tasks: returns what `ready` shows of the tasks that wait; None where there are none.
        needs_store: whether the server is not ready without its store. If it is ready anyway, the body says that
            the store is unavailable.
    """

    def __init__(
        self,
        endpoint: str,
        ready: Callable[[], str],
        store: Callable[[], Awaitable[bool]],
        tasks: Callable[[], Awaitable[JSON | None]],
        *,
        needs_store: bool,
    ) -> None:
        folder = endpoint.rpartition("/")[0]
        self._health = f"{folder}/health"
        self._ready = f"{folder}/ready"
        self._why_not = ready
        self._is_store_usable = store
        self._tasks = tasks
        self._needs_store = needs_store

    def claims(self, path: str) -> bool:
        """Return whether a path is one of the two."""
        return path in (self._health, self._ready)

    async def answer(self, path: str, scope: Scope, send: Send) -> None:
        """Answer a GET or a HEAD.

        `health` is 200 while the process lives. `ready` is 200 while the server accepts calls, and 503 otherwise.

        Args:
            path: one of the two paths.
            scope: of the ASGI application.
            send: of the ASGI application.
        """
        headers = [(b"cache-control", b"no-store")]
        status, says, more = 200, "ok", b""
        if scope["method"] not in ("GET", "HEAD"):
            status, says = 405, "GET or HEAD"
            headers.append((b"allow", b"GET, HEAD"))
        elif path == self._ready:
            why_not = self._why_not()
            if not why_not:
                is_usable, tasks = await asyncio.gather(self._is_store_usable(), self._tasks())
                if not is_usable:
                    more, why_not = b',"store":"away"', "store away" if self._needs_store else ""
                elif tasks is not None:
                    more = b',"tasks":%b' % to_json(tasks)
            if why_not:
                status, says = 503, why_not
                headers.append((b"retry-after", b"%d" % RETRY_AFTER))
        body = b"" if scope["method"] == "HEAD" else b'{"status":"%b"%b}' % (says.encode(), more)
        await respond(send, status, body, *headers)
