"""Effects outside of steps: what the system or a database is asked for, in the name of a line of the author's code.

Python announces requests to the system to its audit hooks (PEP 578); SQLite and SQLAlchemy tell of statements. A
handler that asks runs again from the top in each round, so what it does outside of `ctx.step` happens again. What
cannot be seen is in docs/dev.md.
"""

import asyncio
import os
import re
import socket
import sqlite3
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, wraps
from gc import get_referents
from types import AsyncGeneratorType, FrameType
from typing import Any, NamedTuple

from ..flow import authorization, teardown
from ..flow.steps import current_dependency, current_step
from ..logs.failures import origin_of
from .rounds import SeenRound, SourceLine, current_round, short

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NO_FILES = ("/dev/", "/proc/", os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), ""))
"""Where no effect is: devices, and what libraries keep to be faster the next time."""

_NAMES = 53  # the port of name servers

_SAFE = (b"GET ", b"HEAD ", b"OPTIONS ")
_LONGEST_NAME = 60

Describe = Callable[..., str]  # what an event announces; empty if that is no effect

_WRITES_ROWS = re.compile(
    r"\s*(?:(?P<verb>INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE|CREATE|ALTER|DROP)\b"
    r"|WITH\b.*?\b(?P<later>INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\b)",
    re.IGNORECASE | re.DOTALL,
)

_QUIET = frozenset(
    {
        *("logging", "warnings", "traceback", "linecache", "tempfile", "pdb", "bdb", "cProfile", "faulthandler"),
        *("loguru", "structlog", "logfire", "sentry_sdk", "opentelemetry", "prometheus_client"),
        *("coverage", "debugpy", "pydevd"),
    }
)
"""Libraries that watch, or whose effects are nobody's concern."""

_OURS = "mrtr_server"

_NO_HANDLERS = frozenset((authorization.__file__, teardown.__file__))
"""What calls functions of the author's that may do in every round what they do."""

_NO_WRITERS = frozenset((authorization.__file__,))
"""The same for statements: a teardown that commits writes what the handler has added to a session."""

_origin_of = cache(origin_of)

_spawned_at: ContextVar[SourceLine | None] = ContextVar("mrtr_server_spawned_at", default=None)
"""The author's line that started the asyncio task in which the code runs, as a client library does to connect."""


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


def describe_statement(statement: str) -> str:
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


class _Stack(NamedTuple):
    source: SourceLine | None  # the author's line that led to it
    is_theirs: bool = True  # whether it is the effect of a handler, as far as can be seen


class EffectWatch:
    """Collects the effects outside of steps of each round, and says which of them will be repeated."""

    def __init__(self, own: Container[str] = ()) -> None:
        self._own = own
        self._reported: set[SourceLine] = set()
        self._knows_sqlalchemy = False

    def install(self) -> None:
        """Begin to listen. An audit hook stays for as long as the process lives."""
        sys.addaudithook(self.on_audit_event)
        connect = sqlite3.connect

        @wraps(connect)
        def connect_and_listen(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **options)
            told_in = current_round.get() if _is_handler() else None  # that it was opened, which is enough

            def listen(statement: str) -> None:
                if told_in is None or current_round.get() is not told_in:
                    self.on_statement(statement)

            with suppress(Exception):  # of a class of the author's
                connection.set_trace_callback(listen)
            return connection

        for module in (sqlite3, sqlite3.dbapi2):  # no hook has a connection that is ready
            setattr(module, "connect", connect_and_listen)  # noqa: B010  it is a function to type checkers

    def begin(self, seen: SeenRound) -> None:
        self._listen_to_sqlalchemy()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            seen.tasks.add(task)
        if loop.get_task_factory() is None:  # else it is the author's own
            loop.set_task_factory(self._make_task)

    def repeated(self, seen: SeenRound) -> dict[SourceLine, str]:
        """Return the effects of a round that has ended which its flow will repeat; each line is reported once."""
        if not seen.runs_again:
            return {}
        found = {source: what for source, what in seen.effects.items() if source not in self._reported}
        self._reported.update(found)
        return found

    def on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Note an audit event. It never raises, since that would forbid what the event announces."""
        # An event of another shape, a stack that changes meanwhile, or the end of the interpreter.
        with suppress(Exception):
            if (describe := DESCRIBED.get(event)) is not None:
                self._note(lambda: describe(*args), _NO_HANDLERS)

    def on_statement(self, statement: str) -> None:
        with suppress(Exception):
            self._note(lambda: describe_statement(statement), _NO_WRITERS)

    def _listen_to_sqlalchemy(self) -> None:
        """Begin to listen to SQLAlchemy, whatever database it talks to, once the author's code has loaded it."""
        event, engine = (sys.modules.get(f"sqlalchemy.{each}") for each in ("event", "engine"))
        if event is not None and engine is not None and not self._knows_sqlalchemy:
            self._knows_sqlalchemy = True
            event.listen(engine.Engine, "before_cursor_execute", lambda _1, _2, sql, *_: self.on_statement(sql))

    def _note(self, describe: Callable[[], str], no_handlers: Container[str]) -> None:
        seen = current_round.get()
        if seen is None or not seen.is_round or not _is_handler():
            return
        what = describe()
        source = self._find_source(seen, no_handlers) if what else None
        if source is not None:
            seen.effects.setdefault(source, what)

    # Where

    def _find_source(self, seen: SeenRound, no_handlers: Container[str]) -> SourceLine | None:
        """Return the author's line that an effect belongs to; None if it is nobody's, or can't be told."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        stack = self._read(frame, no_handlers)
        if stack.source is not None or not stack.is_theirs:
            return stack.source
        return _spawned_at.get() or self._awaiting(seen)

    def _read(self, frame: FrameType | None, no_handlers: Container[str] = _NO_HANDLERS) -> _Stack:
        source: SourceLine | None = None
        in_loop = False
        while frame is not None:
            file = frame.f_code.co_filename
            origin = _origin_of(file)
            if file.startswith("<frozen importlib"):  # it happens once in the process
                return _Stack(None, is_theirs=False)
            if origin == _OURS:
                if file in no_handlers:
                    return _Stack(None, is_theirs=False)
                if source is None:
                    return _Stack(None, is_theirs=in_loop)
            elif source is None and self._is_own(file, origin):
                source = SourceLine(file, frame.f_lineno)
            elif source is None and origin in _QUIET:
                return _Stack(None, is_theirs=False)
            in_loop = in_loop or (origin == "asyncio" and frame.f_code.co_name == "_run")
            frame = frame.f_back
        return _Stack(source)

    def _is_own(self, file: str, origin: str | None) -> bool:
        return origin in self._own if origin is not None else not file.startswith("<")

    def _awaiting(self, seen: SeenRound) -> SourceLine | None:
        """Return the line at which the handler waits, as for a thread that it started; None if there are several."""
        sources = {source for task in tuple(seen.tasks) if (source := self._waits_at(task)) is not None}
        return sources.pop() if len(sources) == 1 else None

    def _waits_at(self, task: "asyncio.Task[Any]") -> SourceLine | None:
        source = None
        for frame in _awaited(task.get_coro()):
            file = frame.f_code.co_filename
            if self._is_own(file, _origin_of(file)):
                source = SourceLine(file, frame.f_lineno)
        return source

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any) -> "asyncio.Task[Any]":
        """Make an asyncio task that knows which line of the author's started it; see `loop.set_task_factory`."""
        seen = current_round.get()
        if seen is None or not seen.is_round:
            return asyncio.Task(coroutine, loop=loop, **options)
        source = self._read(sys._getframe(1)).source
        token = None if source is None else _spawned_at.set(source)
        try:
            task = asyncio.Task(coroutine, loop=loop, **options)
        finally:
            if token is not None:
                _spawned_at.reset(token)
        seen.tasks.add(task)
        return task


def _is_handler() -> bool:
    """Whether the code that runs is that of a handler, outside of steps, or of nobody's."""
    return not (current_step.get() or current_dependency.get())


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Return the frames of a coroutine that is suspended, and of those that it awaits, the innermost last."""
    while coroutine is not None:
        if isinstance(coroutine, AsyncGeneratorType) and coroutine.ag_frame is not None:
            yield coroutine.ag_frame
            coroutine = coroutine.ag_await
        elif (frame := getattr(coroutine, "cr_frame", None)) is not None:
            yield frame
            coroutine = coroutine.cr_await
        else:  # what awaits the next value of a generator does not say of which
            coroutine = next((each for each in get_referents(coroutine) if isinstance(each, AsyncGeneratorType)), None)


def shown_path(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative
