"""Where a browser may be sent at the end of a login (OAuth 2.1; RFC 8252; RFC 9700, section 4.1)."""

import re
from collections.abc import Collection, Iterable
from urllib.parse import SplitResult, urlsplit

from ..addresses import is_loopback_address
from ..errors import SetupError

LONGEST = 1000  # characters of an address

MOST = 20  # addresses of a client

_PLAIN = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
"""What an address may have (RFC 3986, section 2), without a fragment: no backslash, which browsers read as a slash."""

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")
"""A name, or an address as `urlsplit` returns it: without its brackets, and checked by it."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

_NEVER = frozenset(
    (
        "about",
        "blob",
        "data",
        "file",
        "filesystem",
        "ftp",
        "http",
        "https",
        "javascript",
        "mailto",
        "vbscript",
        "ws",
        "wss",
    )
)
"""No schemes of applications: what runs in the browser, or is not the application's alone."""


def check_schemes(given: Iterable[str]) -> frozenset[str]:
    """Return the private-use schemes of `allow_redirects=`. Raises `SetupError`."""
    if isinstance(given, str):
        raise SetupError(f"allow_redirects={given!r} is one string; give a list: allow_redirects=[{given!r}]")
    schemes = frozenset(each.lower().removesuffix("://").removesuffix(":") for each in given)
    for scheme in schemes:
        if not _SCHEME.fullmatch(scheme) or scheme in _NEVER:
            raise SetupError(
                f"allow_redirects={scheme!r}: name schemes of applications, such as 'com.example.app' or 'cursor'. "
                "Redirects to https, and to this machine, are allowed in any case"
            )
    return schemes


def fault_of(uri: object, schemes: Collection[str]) -> str:
    """Return why a client may not have an address to be sent to, for its developer; empty if it may."""
    if not isinstance(uri, str) or not uri or len(uri) > LONGEST or not _PLAIN.fullmatch(uri):
        return f"must be an address of at most {LONGEST} plain characters, without a fragment"
    try:
        parts = urlsplit(uri)
        port_is_wrong = parts.port == 0
    except ValueError:
        return "is no address"
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        return "must not have a user name"
    if parts.scheme in ("https", "http"):
        if port_is_wrong or not _HOST.fullmatch(parts.hostname or "") or parts.netloc.endswith(":"):
            return "must have a plain host"
        if parts.scheme == "http" and not is_loopback(parts):
            return "must be https, unless it is on this machine"
        return ""
    if parts.scheme not in schemes:
        return f"has the scheme {parts.scheme!r}, which this server does not allow"
    return ""


def is_loopback(parts: SplitResult) -> bool:
    return parts.scheme == "http" and is_loopback_address(parts.hostname or "")


def fits(uri: str, registered: Iterable[str]) -> bool:
    """Return whether an address is one that a client has registered: the same text, but on loopback for the port."""
    # One that was not registered as it is has to be checked as those that were.
    return any(uri == each or (not fault_of(uri, ()) and _differ_in_port(uri, each)) for each in registered)


def _differ_in_port(uri: str, registered: str) -> bool:
    here, there = urlsplit(uri), urlsplit(registered)
    if not (is_loopback(here) and is_loopback(there)):
        return False
    return (here.hostname, here.path, here.query) == (there.hostname, there.path, there.query)


def host_of(uri: str) -> str:
    """Return what a person is shown of where the browser goes."""
    parts = urlsplit(uri)
    if is_loopback(parts):
        return "this computer"
    return parts.netloc if parts.scheme == "https" else f"{parts.scheme}:"


def is_on_this_computer(uri: str) -> bool:
    """Return whether an address is on the computer of the browser, so that no other site can be there."""
    return is_loopback(urlsplit(uri))
