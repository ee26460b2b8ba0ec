"""The metrics over HTTP, for a scraper in the same network."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from hmac import compare_digest
from ipaddress import ip_address

from starlette.types import Receive, Scope, Send

from ..logs.refusals import RefusalLog
from .response_writer import respond

_PORT = re.compile(r":[0-9]{1,5}$")


class MetricsPage:
    """Shows the metrics of the process.

    No page of another site can read them: a request must have the token. Without one, it must name the server by an
    address, by a name without a dot, as within a cluster, or by one of `allowed_hosts`. None of these can be made to
    point here by somebody else.

    Args:
        path: where it is.
        look: looks at what is not known by itself.
        render: returns the metrics and their content type, by the header `Accept`.
        hosts: further names of this server.
        refusals: logs refused requests.
        token: what a request must have in its `Authorization`; None for nothing.
    """

    def __init__(
        self,
        path: str,
        look: Callable[[], Awaitable[object]],
        render: Callable[[str], tuple[bytes, str]],
        hosts: Collection[str],
        refusals: RefusalLog,
        *,
        token: str | None,
    ) -> None:
        self._path = path
        self._look = look
        self._render = render
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refusals = refusals
        self._token = None if token is None else token.encode()

    def claims(self, path: str) -> bool:
        """Return whether a path within the application is that of the metrics."""
        return path == self._path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b'{"error":"GET or HEAD"}', (b"allow", b"GET, HEAD"))
        elif self._token is not None and not _has_token(headers, self._token):
            self._refusals.note("Refused a request for the metrics: it does not have the token of Metrics(token=...)")
            await respond(send, 401, b'{"error":"A bearer token is needed"}', (b"www-authenticate", b"Bearer"))
        elif self._token is None and not self._is_of_this_network(host.lower()):
            self._refusals.note(
                "Refused the host %r for the metrics: if your scraper reaches this server by that name, add it to "
                "allowed_hosts=",
                host,
            )
            await respond(send, 403, b'{"error":"Host not allowed"}')
        else:
            await self._look()
            body, content_type = self._render(headers.get(b"accept", b"").decode("latin-1"))
            start = {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", content_type.encode()),
                    (b"content-length", b"%d" % len(body)),
                    (b"cache-control", b"no-store"),
                ],
            }
            await send(start)
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _is_of_this_network(self, host: str) -> bool:
        name = _PORT.sub("", host)
        if host in self._hosts or name in self._hosts:
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name != "" and name.replace("-", "").replace("_", "").isalnum()
        return True


def _has_token(headers: Mapping[bytes, bytes], token: bytes) -> bool:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and compare_digest(given.strip(), token)
