"""Health and readiness: what an orchestrator asks. Anybody may, without credentials."""

from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

from .response_writer import respond

RETRY_AFTER = 1
"""When to try again what is not ready, in seconds. Another replica is ready now."""


class Probes:
    """Answers `health` and `ready`, in the folder that the endpoint is in.

    Args:
        endpoint: the path of the MCP endpoint, without a slash at its end.
        ready: says why the server is not ready; nothing if it is.
        store: says whether the shared store can be used.
        needs_store: whether the server is not ready without it; if it is, the body says that the store is away.
    """

    def __init__(
        self, endpoint: str, ready: Callable[[], str], store: Callable[[], Awaitable[bool]], *, needs_store: bool
    ) -> None:
        folder = endpoint.rpartition("/")[0]
        self._health = f"{folder}/health"
        self._ready = f"{folder}/ready"
        self._why_not = ready
        self._is_store_usable = store
        self._needs_store = needs_store

    def claims(self, path: str) -> bool:
        """Say whether a path is one of the two."""
        return path in (self._health, self._ready)

    async def answer(self, path: str, scope: Scope, send: Send) -> None:
        """Answer a GET or a HEAD: 200 while the process lives; 200 while calls are welcome, and 503 otherwise."""
        headers = [(b"cache-control", b"no-store")]
        status, says, store = 200, "ok", b""
        if scope["method"] not in ("GET", "HEAD"):
            status, says = 405, "GET or HEAD"
            headers.append((b"allow", b"GET, HEAD"))
        elif path == self._ready:
            why_not = self._why_not()
            if not why_not and not await self._is_store_usable():
                store, why_not = b',"store":"away"', "store away" if self._needs_store else ""
            if why_not:
                status, says = 503, why_not
                headers.append((b"retry-after", b"%d" % RETRY_AFTER))
        body = b"" if scope["method"] == "HEAD" else b'{"status":"%b"%b}' % (says.encode(), store)
        await respond(send, status, body, *headers)
