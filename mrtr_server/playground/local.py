"""Which requests come from the page itself, in a browser on this machine, of somebody who was given its token."""

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hmac import compare_digest

from starlette.types import Scope

from ..crypto.keys import KeyRing
from ..loopback import is_loopback_address, is_loopback_host

_FORWARDED = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"cf-connecting-ip",
        b"true-client-ip",
    }
)
"""Headers that proxies and tunnels add: a request with one may come from anywhere, whatever address it has."""


TOKEN = b"mrtr-page-token"
"""The header in which the page sends its token."""

_TOKEN_BYTES = 24
_WITHOUT = "It lacks the token of the page, which the server printed with the address of the page when it started."


def token_of(ring: KeyRing) -> str:
    """Return the token of the page. All processes with the same keys have the same one."""
    return urlsafe_b64encode(ring.derive("page")[0][1][:_TOKEN_BYTES]).decode()


def address_of(path: str, token: str) -> str:
    """Return the address of the page with its token, which a browser sends to nobody: it is in the fragment."""
    return f"{path}#token={token}"


def why_not_page(scope: Scope, token: str, *, reads: bool = False) -> str:
    """Return why a request can't be from the page of somebody who was given its token; empty if it is.

    Any program of this machine can send what a browser sends. Its token it can't know.

    `reads`: as for `why_not_local`.
    """
    if why_not := why_not_local(scope, reads=reads):
        return why_not
    given = [value for name, value in scope["headers"] if name == TOKEN]
    return "" if len(given) == 1 and compare_digest(given[0], token.encode()) else _WITHOUT


def why_not_local(scope: Scope, *, reads: bool = False) -> str:
    """Return why a request can't be from the page in a browser of this machine; empty if it is.

    The address of the client must be loopback. `Host` must be, too, so that no name of somebody else's can point here
    (DNS rebinding). `Origin` must be that of the page, so that no other page can send it, not even one of another port.
    No proxy may have sent it on, since then its address says nothing.

    `reads`: whether it only reads. A browser sends no `Origin` with a GET of the same origin.
    """
    client = scope.get("client")
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    origins = [value for name, value in headers if name == b"origin"]
    if client is None or not is_loopback_address(client[0]):
        return "It came from another machine."
    # nginx as it comes adds no header at all, but speaks HTTP/1.0, which no browser does.
    if scope.get("http_version") == "1.0" or any(name in _FORWARDED for name, _ in headers):
        return "It came through a proxy."
    if len(hosts) != 1 or not is_loopback_host(hosts[0].decode("latin-1")):
        return "Its Host is not localhost."
    own = scope.get("scheme", "http").encode() + b"://" + hosts[0]
    if not origins and reads:
        return ""
    return "" if [origin.lower() for origin in origins] == [own.lower()] else "Its Origin is not this page."
