"""What is on this machine: addresses, hosts and origins of loopback."""

import re
from ipaddress import ip_address

_HOST = r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"
_HOST_HEADER = re.compile(_HOST, re.IGNORECASE)
_ORIGIN = re.compile(f"https?://{_HOST}")


_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound


def root_url(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL at which somebody on this machine reaches what listens on an address.

    Of all addresses, it is that of loopback.
    """
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
    """Return whether a `Host` header names loopback, as a browser of this machine writes it."""
    return _HOST_HEADER.fullmatch(host) is not None


def is_loopback_origin(origin: str) -> bool:
    """Return whether an `Origin` header is of a page that is served on loopback."""
    return _ORIGIN.fullmatch(origin) is not None
