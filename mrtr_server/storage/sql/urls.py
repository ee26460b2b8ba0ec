"""URLs of databases: their kind, what an operator may see of them, and the servers that one of PostgreSQL names."""

import os
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from ...errors import SetupError

DRIVERS = {"sqlite": ("", "aiosqlite"), "postgresql": ("", "asyncpg")}
"""A URL may name them: nothing, or what other tools need to see there."""


def kind_of(url: str) -> tuple[str, str]:
    """Return the kind of the database, and what comes after the scheme."""
    scheme, _, rest = url.partition(":")
    kind, _, driver = scheme.lower().partition("+")
    kind = "postgresql" if kind == "postgres" else kind
    if not rest.startswith("//"):
        raise _unreadable() from None
    if kind not in DRIVERS:
        raise SetupError(f"The database must be sqlite:///… or postgresql://…, and not {kind}")
    if driver not in DRIVERS[kind]:
        raise SetupError(f"The driver of {kind} must be {DRIVERS[kind][1]}, and not {driver}; write {kind}://…")
    return kind, rest


def path_of(rest: str) -> str:
    """Return the path of a SQLite file, from what comes after the scheme; empty where there is none."""
    host, slash, path = rest.removeprefix("//").partition("/")
    if host:
        raise _unreadable() from None
    if "?" in path:
        path = f"file:{path}"
    return unquote(path) if slash else ""


def name_of(url: str) -> str:
    """Return a PostgreSQL database as an operator knows it, without password and options."""
    try:
        split = urlsplit(url)
        user, at, hosts = split.netloc.rpartition("@")
        if "@" in user:
            raise ValueError  # the rest of a password
        for host in hosts.split(","):
            port = host.rpartition("]")[2].partition(":")[2]
            if port and not port.isdigit():
                raise ValueError
    except ValueError:  # whose text may repeat the password
        raise _unreadable() from None
    place = parse_qs(split.query).get("host")
    shown = f"postgresql://{user.partition(':')[0]}{at}{hosts}{split.path}"
    return f"{shown} at {place[0]}" if place else shown


def _unreadable() -> SetupError:
    return SetupError(
        "The database's URL can't be read; write sqlite:///file.db or postgresql://user:password@host/name, with the "
        "special characters of the password percent-encoded"
    )


# The servers that a URL of PostgreSQL names, and whether they are to be written; as libpq reads it


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
    return ",".join(parse_qs(urlsplit(url).query).get(name, ()))
