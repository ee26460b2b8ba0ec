"""Lines that clients cause come at a limited rate: of refused requests, and of the web server."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from traceback import format_exception_only

from ..errors import MissingCapability
from ..tally import REFUSALS, Tally
from .failures import origin_of

logger = logging.getLogger("mrtr_server")

SERVERS = ("uvicorn.error", "_granian", "asyncio")
"""The loggers of what clients cause in a web server before an application has to do with it."""

_UVICORN = ("uvicorn", "websockets", "wsproto", "mrtr_server")
"""The packages that log what uvicorn does. Many authors write lines of their own to its logger."""

WINDOW = 60.0  # seconds in which a line is not repeated

LINES_IN_WINDOW = 16  # different lines of a kind

CHARACTERS = 256  # that are shown of a value that a client chose

_LACKING = (
    "%r was refused: the client %r did not declare the capability %r that it needs. Use a client that has it; or check "
    'ctx.client.supports(...) in the tool, and do without it (for tasks: register the tool with task="optional")'
)

_TOO_OLD = (
    "%r was refused to the client %r: %s (For the author: a field that has a default is left out for such clients, if "
    "its form has another field)"
)

_UNDECLARED = (
    "%r was refused: it needs %r, and has neither the Mcp-Session-Id that initialize returned nor capabilities in "
    "_meta. Use a client that sends one of them; or check ctx.client.supports(...) in the tool, and do without it"
)


@dataclass(slots=True)
class _Window:
    began: float
    logged: set[tuple[str, ...]] = field(default_factory=set)
    left_out: int = 0


class Bound:
    """Bounds what is logged: each different line once a minute, at most 16 of a kind; the others are counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def take(self, kind: str, shown: tuple[str, ...]) -> str | None:
        """Count a line; return what it is to say of lines that were left out, or None if it is left out itself.

        Nobody but our own code and libraries chooses the kind, which it has in common with others.
        """
        now, more = self._clock(), ""
        window = self._windows.get(kind)
        if window is None or now - window.began >= WINDOW:
            left_out = window.left_out if window is not None else 0
            window = self._windows[kind] = _Window(now)
            more = f" ({left_out} more like it were not logged)" if left_out else ""
        if shown in window.logged or len(window.logged) == LINES_IN_WINDOW:
            window.left_out += 1
            return None
        window.logged.add(shown)
        return more


class BoundedLines(logging.Filter):
    """Keeps warnings and errors of a web server within the bound, by the line that logs or raises.

    Lines with an exception may stay outside.
    """

    def __init__(self, *, exceptions: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._exceptions = exceptions
        self._bound = Bound(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.WARNING or (error is not None and not self._exceptions) or _is_of_author(record):
            return True
        message, kind, raised = record.getMessage(), f"{record.pathname}:{record.lineno}", ""
        if error is not None:
            kind += f" {type(error).__qualname__} {_raised_at(error)}"
            raised = "".join(format_exception_only(error))  # which may be one that str() fails for
        more = self._bound.take(kind, (message[:CHARACTERS], raised[:CHARACTERS]))
        if more:
            record.msg, record.args = f"{message.rstrip()}{more}", ()
        return more is not None


def bound_lines_of(*names: str, exceptions: bool = True) -> Callable[[], None]:
    loggers, bounded = list(map(logging.getLogger, names)), BoundedLines(exceptions=exceptions)
    for each in loggers:
        if not any(isinstance(other, BoundedLines) for other in each.filters):
            each.addFilter(bounded)

    def undo() -> None:
        for each in loggers:
            each.removeFilter(bounded)

    return undo


def _is_of_author(record: logging.LogRecord) -> bool:
    return record.name == "uvicorn.error" and origin_of(record.pathname) not in _UVICORN


def _raised_at(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"


class RefusalLog:
    """Logs refused requests, within the `Bound`, and counts them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, tally: Tally | None = None) -> None:
        self._tally = Tally() if tally is None else tally
        self._bound = Bound(clock)

    def count(self, reason: str, limit: str = "") -> None:
        self._tally.add(REFUSALS, reason, limit)

    def note(self, message: str, *values: str, fields: Mapping[str, str] | None = None) -> None:
        """Log a refused request, unless there have been enough of its kind, which is the message.

        The message has a `%r` for each value, which may be anything, and names the setting to change.
        """
        shown = tuple(value[:CHARACTERS] for value in values)
        more = self._bound.take(message, shown)
        if more is not None:
            logger.warning(message + more, *shown, extra=fields and {"fields": fields})

    def note_lacking(self, what: str, client: str, error: MissingCapability, *, has_declared: bool = True) -> None:
        """Log that a client, by the name that it calls itself, lacks a capability, or has not declared any."""
        required = json.dumps((error.data or {}).get("requiredCapabilities"))
        if required == "null":  # no capability would help: the version of its protocol has no way to ask that
            self.note(_TOO_OLD, what, client, error.message)
        elif has_declared:
            self.note(_LACKING, what, client, required)
        else:
            self.note(_UNDECLARED, what, required)
