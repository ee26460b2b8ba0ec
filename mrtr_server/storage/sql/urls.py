"""From the URL of a database to the database."""

import os
import time
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from ...errors import SetupError
from .database import DIRECT, Database
from .sqlite import SQLiteDatabase

DRIVERS = {"sqlite": ("", "aiosqlite"), "postgresql": ("", "asyncpg")}
"""What a URL may name as its driver: nothing, or what other tools need to see there."""


def open_database(
    url: str, clock: Callable[[], float] = time.time, environment: Mapping[str, str] = os.environ
) -> Database:
    """Return the database of a URL, which connects when it is first used. A path is from the working directory.

    Raises `SetupError`, which never repeats the URL.
    """
    kind, rest = _kind(url.strip())
    if kind == "sqlite":
        return SQLiteDatabase(_path(rest), clock)
    name = _name(_split(f"postgresql:{rest}"))
    direct = environment.get(DIRECT, "").strip()
    if direct:
        direct_kind, rest_of_direct = _kind(direct)
        if direct_kind != kind:
            raise SetupError(f"{DIRECT} must be a postgresql:// URL of the same database")
        _split(f"postgresql:{rest_of_direct}")
        direct = f"postgresql:{rest_of_direct}"
    from .postgresql import PostgreSQLDatabase

    return PostgreSQLDatabase(f"postgresql:{rest}", name, direct or None, clock)


def _kind(url: str) -> tuple[str, str]:
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


def _path(rest: str) -> str:
    host, slash, path = rest.removeprefix("//").partition("/")
    if host:
        raise _unreadable() from None
    if "?" in path:
        path = f"file:{path}"
    return unquote(path) if slash else ""


def _split(url: str) -> SplitResult:
    try:
        split = urlsplit(url)
        user, _, hosts = split.netloc.rpartition("@")
        if "@" in user:
            raise ValueError  # the rest of a password
        for host in hosts.split(","):
            port = host.rpartition("]")[2].partition(":")[2]
            if port and not port.isdigit():
                raise ValueError
    except ValueError:  # whose text may repeat the password
        raise _unreadable() from None
    return split


def _name(split: SplitResult) -> str:
    """Return the database as an operator knows it, without password and options."""
    user, at, hosts = split.netloc.rpartition("@")
    place = parse_qs(split.query).get("host")
    shown = f"postgresql://{user.partition(':')[0]}{at}{hosts}{split.path}"
    return f"{shown} at {place[0]}" if place else shown


def _unreadable() -> SetupError:
    return SetupError(
        "The database's URL can't be read; write sqlite:///file.db or postgresql://user:password@host/name, with the "
        "special characters of the password percent-encoded"
    )
