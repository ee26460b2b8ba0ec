"""Health and readiness: what an orchestrator asks. Anybody may, without credentials."""

from collections.abc import Callable

from starlette.types import Scope, Send

from .response_writer import respond

RETRY_AFTER = 1
"""When to try again what is not ready, in seconds. Another replica is ready now."""


class Probes:
    """Answers `health` and `ready`, in the folder that the endpoint is in.

    Parameters:
        endpoint: the path of the MCP endpoint, without a slash at its end.
        ready: says why the server is not ready; nothing if it is.
    """

    def __init__(self, endpoint: str, ready: Callable[[], str]) -> None:
        folder = endpoint.rpartition("/")[0]
        self._health = f"{folder}/health"
        self._ready = f"{folder}/ready"
        self._why_not = ready

    def claims(self, path: str) -> bool:
        """Say whether a path is one of the two."""
        return path in (self._health, self._ready)

    async def answer(self, path: str, scope: Scope, send: Send) -> None:
        """Answer a GET or a HEAD: 200 while the process lives; 200 while calls are welcome, and 503 otherwise."""
        headers = [(b"cache-control", b"no-store")]
        status, says = 200, "ok"
        if scope["method"] not in ("GET", "HEAD"):
            status, says = 405, "GET or HEAD"
            headers.append((b"allow", b"GET, HEAD"))
        elif path == self._ready and (why_not := self._why_not()):
            status, says = 503, why_not
            headers.append((b"retry-after", b"%d" % RETRY_AFTER))
        body = b"" if scope["method"] == "HEAD" else b'{"status":"%b"}' % says.encode()
        await respond(send, status, body, *headers)
