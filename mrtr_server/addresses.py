"""Where browsers reach the server, and what is on this machine: addresses, hosts and origins."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from .errors import SetupError

_LOOPBACK = r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"
_LOOPBACK_HOST = re.compile(_LOOPBACK, re.IGNORECASE)
_LOOPBACK_ORIGIN = re.compile(f"https?://{_LOOPBACK}")

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound


def root_url(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL at which somebody on this machine reaches what listens on an address, or on all."""
    shown = "127.0.0.1" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


def is_loopback_address(host: str) -> bool:
    """Return whether a host is `localhost`, or an address of loopback, such as `127.0.0.2` or `::1`."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    return _LOOPBACK_HOST.fullmatch(host) is not None


def is_loopback_origin(origin: str) -> bool:
    return _LOOPBACK_ORIGIN.fullmatch(origin) is not None


_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_UNESCAPED = "/:@!$&'()*+,;="
"""Characters left unescaped in a path (RFC 3986, section 3.3), besides those that are never escaped."""

_HOST = re.compile(r"([a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
"""A host as clients send it, in lower case: a name beyond ASCII is in Punycode (`xn--...`)."""

_ADDRESS = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:@/\[\]-]+")


def escape_path(path: str) -> str:
    """Return a path as it stands in an address: no quote, space or line break is left in it."""
    return quote(path, safe=_UNESCAPED, errors="replace")


def endpoint_url(base_url: str, path: str) -> str:
    """Return the address of an endpoint: `path` is that of the server below `base_url`."""
    return base_url.rstrip("/") + escape_path(path)


def origins_of(where: str, given: Iterable[str]) -> frozenset[str]:
    """Return origins as browsers write them (RFC 6454, section 6.2). Raises `SetupError`."""
    if isinstance(given, str):
        raise SetupError(f"{where}={given!r} is one string; pass a list: {where}=[{given!r}]")
    return frozenset(_origin(where, origin) for origin in given)


def _origin(where: str, given: str) -> str:
    origin = given.rstrip("/").lower()
    if origin == "null":
        return origin
    scheme, _, host = origin.partition("://")
    if scheme not in _DEFAULT_PORTS or not _HOST.fullmatch(host):
        written = _host_in(origin)
        scheme = scheme if scheme in _DEFAULT_PORTS else "https"
        how = f"{scheme}://{written}" if written else "it like https://login.example.com, without a path"
        raise SetupError(f"{where}: {given!r} is not an origin; write {how}{_no_wildcard(given)}")
    return origin.removesuffix(_DEFAULT_PORTS[scheme])


def hosts_of(where: str, given: Iterable[str]) -> frozenset[str]:
    hosts = frozenset(host.lower() for host in given)
    for host in hosts:
        if host == "*":
            raise SetupError(f'{where}: "*" is no host; leave {where}= out to serve any')
        if not _HOST.fullmatch(host):
            written = f"[{host}]" if host.count(":") > 1 else _host_in(host)
            how = f"write {written}" if _HOST.fullmatch(written) else "write it like tools.example.com"
            raise SetupError(f"{where}: {host!r} is not a host; {how}{_no_wildcard(host)}")
    return hosts


def _host_in(text: str) -> str:
    host = text.partition("://")[2] or text
    host = re.split(r"[/?#]", host, maxsplit=1)[0].rpartition("@")[2]
    return host if _HOST.fullmatch(host) else ""


def _no_wildcard(given: str) -> str:
    return ". No part of it can be *: list each" if "*" in given else ""


class BaseUrl:
    def __init__(self, given: str | None) -> None:
        self._given = None if given is None else given.rstrip("/")
        self._host = ""
        if given is None:
            return
        try:
            parts = urlsplit(given)
            valid = parts.scheme in _DEFAULT_PORTS and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid or parts.username is not None or not _ADDRESS.fullmatch(given):
            raise SetupError(f"base_url={given!r} must be an address such as https://tools.example.com")
        self._port = _DEFAULT_PORTS[parts.scheme]
        self._host = parts.netloc.lower().removesuffix(self._port)
        self._origin = f"{parts.scheme}://{self._host}"

    def at(self, host: str, root: str) -> str | None:
        """Return the address, without a slash at its end."""
        if self._given is not None:
            return self._given
        return f"http://{host.lower()}{escape_path(root.rstrip('/'))}" if self.is_of(host) else None

    def is_origin(self, origin: str, host: str) -> bool:
        if self._given is None:
            return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        return origin.lower() == self._origin

    def is_of(self, host: str) -> bool:
        host = host.lower()
        if self._given is None:
            return is_loopback_host(host)
        return host.removesuffix(self._port) == self._host
