"""Where browsers reach the server."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from ..errors import SetupError
from ..loopback import is_loopback_host

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def origins_of(where: str, given: Iterable[str]) -> frozenset[str]:
    """Return origins as browsers write them (RFC 6454, section 6.2).

    Args:
        where: the option, for errors.
        given: each such as `https://login.example.com`, or `null`.

    Raises:
        SetupError: one is not an origin.
    """
    if isinstance(given, str):
        raise SetupError(f"{where}={given!r} is one string; pass a list: {where}=[{given!r}]")
    return frozenset(_origin(where, origin) for origin in given)


def _origin(where: str, given: str) -> str:
    origin = given.rstrip("/").lower()
    if origin == "null":
        return origin
    try:
        parts = urlsplit(origin)
        valid = parts.scheme in _DEFAULT_PORTS and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or origin != f"{parts.scheme}://{parts.netloc}":
        raise SetupError(
            f"{where}: {given!r} is not an origin; write it like https://login.example.com, without a path"
        )
    return origin.removesuffix(_DEFAULT_PORTS[parts.scheme])


class BaseUrl:
    """The address under which browsers reach the server.

    Args:
        given: the address of the application, with the path at which it is mounted. None for development: the address
            is then that of each request on loopback.

    Raises:
        SetupError: it is not such an address.
    """

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
        if not valid or parts.username is not None or "?" in given or "#" in given:
            raise SetupError(f"base_url={given!r} must be an address such as https://tools.example.com")
        self._port = _DEFAULT_PORTS[parts.scheme]
        self._host = parts.netloc.lower().removesuffix(self._port)
        self._origin = f"{parts.scheme}://{self._host}"

    def at(self, host: str, root: str) -> str | None:
        """Return the address, without a slash at its end.

        Args:
            host: the `Host` header of a request.
            root: the path at which the application is mounted.

        Returns:
            The address; None if none was given and the request's `Host` is not loopback.
        """
        if self._given is not None:
            return self._given
        return f"http://{host.lower()}{root.rstrip('/')}" if self.is_of(host) else None

    def is_origin(self, origin: str, host: str) -> bool:
        """Return whether an `Origin` header names this address.

        Args:
            origin: the header.
            host: the `Host` header of the same request, which must belong to this address.
        """
        if self._given is None:
            return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        return origin.lower() == self._origin

    def is_of(self, host: str) -> bool:
        """Return whether a `Host` header belongs to this address.

        Args:
            host: the header.
        """
        host = host.lower()
        if self._given is None:
            return is_loopback_host(host)
        return host.removesuffix(self._port) == self._host
