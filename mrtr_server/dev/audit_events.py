"""The audit events of Python that announce an effect, each in words for the author (Python's audit events table).

And the statements of databases that write.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

from .terminal import short

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NO_FILES = ("/dev/", "/proc/", os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), ""))
"""Where no effect is: devices, and what libraries keep to be faster the next time."""

_NAMES = 53
"""The port of name servers."""

_SAFE = (b"GET ", b"HEAD ", b"OPTIONS ")
_LONGEST_NAME = 60

Describe = Callable[..., str]
"""Returns what an event announces; empty if that is no effect."""


def _open(path: Any, _mode: Any, flags: Any) -> str:
    if isinstance(path, int) or not flags & _WRITES:
        return ""
    return "" if _is_nobodys(path) else f"opens {_named(path)} for writing"


def _one(verb: str) -> Describe:
    return lambda path, *_: "" if _is_nobodys(path) else f"{verb} {_named(path)}"


def _two(verb: str) -> Describe:
    return lambda source, target, *_: "" if _is_nobodys(target) else f"{verb} {_named(source)} to {_named(target)}"


def _is_nobodys(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(_NO_FILES)


def _start(command: Any, *_: Any) -> str:
    text = command if isinstance(command, str | bytes | os.PathLike) else command[0]
    words = os.fsdecode(text).split() or [""]  # what follows may be secret
    return f"starts {_named(words[0])}"


def _connect(connection: Any, address: Any) -> str:
    if connection.type == socket.SOCK_DGRAM:  # nothing is sent yet
        return ""
    return f"connects to {_address(address)}"


def _send(_connection: Any, address: Any, *_: Any) -> str:
    if not address or (isinstance(address, tuple) and address[1] == _NAMES):
        return ""
    return f"sends to {_address(address)}"


def _request(connection: Any, data: Any) -> str:
    head = bytes(data[:8]) if isinstance(data, bytes | bytearray) else b""
    method, space, _ = head.partition(b" ")
    if not space or not method.isupper() or head.startswith(_SAFE):  # the rest of one, or nothing to fear
        return ""
    return f"sends a {method.decode()} to {short(str(connection.host), _LONGEST_NAME)}"


def _database(name: Any) -> str:
    text = os.fsdecode(name)
    if text in ("", ":memory:") or any(mark in text for mark in ("mode=ro", "mode=memory", "file::memory:")):
        return ""
    return f"opens the database {_named(text)}"


def _named(path: Any) -> str:
    return short(os.fsdecode(path), _LONGEST_NAME)


def _address(address: Any) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return short(f"{host}:{address[1]}", _LONGEST_NAME)
    return short(os.fsdecode(address) if isinstance(address, str | bytes) else str(address), _LONGEST_NAME)


_WRITES_ROWS = re.compile(
    r"\s*(?:(?P<verb>INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE|CREATE|ALTER|DROP)\b"
    r"|WITH\b.*?\b(?P<later>INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\b)",
    re.IGNORECASE | re.DOTALL,
)


def describe_statement(statement: str) -> str:
    """Return what a statement of SQL does to a database; empty if it only reads."""
    found = _WRITES_ROWS.match(statement)
    if found is None:
        return ""
    return f"writes to a database ({(found['verb'] or found['later']).split()[0].upper()})"


DESCRIBED: Mapping[str, Describe] = {
    "open": _open,
    "os.remove": _one("removes"),
    "os.rename": _two("renames"),
    "os.mkdir": _one("makes the folder"),
    "os.rmdir": _one("removes the folder"),
    "os.link": _two("links"),
    "os.symlink": _two("links"),
    "os.truncate": _one("truncates"),
    "subprocess.Popen": _start,
    "os.system": _start,
    "os.posix_spawn": _start,
    "os.spawn": lambda _mode, path, *_: _start(path),
    "os.startfile": _start,
    "sqlite3.connect": _database,
    "socket.connect": _connect,
    "socket.sendto": _send,
    "socket.sendmsg": _send,
    "http.client.send": _request,
    "smtplib.send": lambda *_: "sends a mail",
}
