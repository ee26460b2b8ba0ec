"""The servers that a URL of PostgreSQL names, and whether they are to be written; as libpq reads it."""

import os
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

PORT = "5432"


class Server(NamedTuple):
    """Where one of several servers is."""

    host: str
    port: int


def servers_in(url: str) -> list[Server]:
    """Return the servers of a URL that names several; none where there is one, or the operator lets any be read."""
    addresses = _addresses(url)
    if len(addresses) < 2 or may_read_only(url):
        return []
    given = _option(url, "port").split(",")
    ports = given if len(given) == len(addresses) else given[:1] * len(addresses)
    return [_server(address, other) for address, other in zip(addresses, ports, strict=True)]


def _server(address: str, other: str) -> Server:
    host, port = address, ""
    if address[0] == "[":
        host, _, port = address[1:].partition("]")
        port = port.removeprefix(":")
    elif _has_name(address):
        host, _, port = address.partition(":")
    return Server(unquote(host), int(port or other or os.environ.get("PGPORT", "") or PORT))


def names_in(url: str) -> list[str]:
    """Return the names of the servers that may be connected to; none for a socket's directory or an address of IPv6."""
    return [each.partition(":")[0] for each in _addresses(url) if _has_name(each)]


def may_read_only(url: str) -> bool:
    """Return whether the operator has asked for a server that need not be written."""
    wanted = _option(url, "target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS", "")
    return wanted in ("any", "standby", "read-only", "prefer-standby")


def _has_name(address: str) -> bool:
    return address[0] not in "/@[" and address.count(":") < 2


def _addresses(url: str) -> list[str]:
    given = _option(url, "host") or urlsplit(url).netloc.rpartition("@")[2] or os.environ.get("PGHOST", "")
    return [address for address in given.split(",") if address]


def _option(url: str, name: str) -> str:
    """Return an option of a URL, which may be given several times; empty where it is not."""
    return ",".join(parse_qs(urlsplit(url).query).get(name, ()))
