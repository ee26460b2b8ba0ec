"""What an author sees of a running server: a line a round, effects that will be repeated, and what is logged."""

import linecache
import logging
import logging.config
from collections.abc import Collection, Mapping
from typing import Any

from ..logs.formats import PlainText, plain
from ..logs.refusals import SERVERS, bound_lines_of
from ..logs.tracebacks import AuthorsFirst
from ..methods.middleware import Came, Middleware, watch
from ..protocol.messages import Call, Outlet
from .effects import EffectWatch, shown_path
from .refused_requests import reached
from .round_lines import RoundLines
from .rounds import Answers, SeenRound, SourceLine, current_round
from .terminal import Terminal, short

_INDENT = " " * 21
_PAGE = "https://mrtr-server.github.io/mrtr_server/dev/"
"""What there is to know of effects; the package has no pages in it."""

_LEVEL_STYLES: Mapping[int, tuple[str, ...]] = {
    logging.WARNING: ("yellow",),
    logging.ERROR: ("red",),
    logging.CRITICAL: ("red",),
}
_CHATTY = ("asyncio", "uvicorn", "watchfiles", "httpx", "httpcore", "urllib3", "mcp", "mrtr_server")
"""Loggers of which an author wants to see warnings only."""


class Console:
    """Shows each round to the author, and each request that is refused.

    Args:
        terminal: where it writes.
        effects: watches for effects outside of steps.
    """

    def __init__(self, terminal: Terminal, effects: EffectWatch) -> None:
        self._terminal = terminal
        self._effects = effects
        self._lines = RoundLines(terminal)
        self._answers = Answers()
        self._hinted = False

    @property
    def middleware(self) -> Middleware:
        """What watches calls and rounds of tasks."""
        return watch(self._begin, self._end)

    def _begin(self, call: Call, outlet: Outlet) -> SeenRound:
        seen = self._answers.begin(call, outlet)
        current_round.set(seen)
        if seen.is_round:
            self._effects.begin(seen)
        return seen

    def _end(self, call: Call, outlet: Outlet, seen: SeenRound, came: Came) -> None:
        """Write the line of what has ended, and which of its effects will be repeated."""
        current_round.set(None)  # no token: a round that is abandoned ends in another context
        seen.came = came
        self._answers.end(seen, outlet)
        if (has_line := reached.get()) is not None:
            has_line.append(True)
        self._lines.show(seen)
        for source, what in self._effects.repeated(seen).items():
            self._report(source, what)

    def _report(self, source: SourceLine, what: str) -> None:
        style = self._terminal.style
        where = f"{shown_path(source.file)}:{source.line}"
        lines = [
            f"{self._terminal.head('effect', 'yellow')} {style(where, 'bold')} {what} outside of ctx.step: "
            "this runs again in every round"
        ]
        if code := linecache.getline(source.file, source.line).strip():
            lines.append(f"{_INDENT}{style(short(code, 96), 'dim')}")
        if not self._hinted:
            self._hinted = True
            lines.append(f"{_INDENT}Put it into a function, and that into a step: await ctx.step(function, ...). See")
            lines.append(f"{_INDENT}{_PAGE}")
        self._terminal.write("\n".join(lines))


class _Formatter(logging.Formatter):
    """Formats a record as a line with the time and the level, and its traceback below."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of an exception below it."""
        text = super().format(record)
        name = "" if record.name in ("mrtr_server", "root", "uvicorn.error") else f"{record.name}: "
        head = self._terminal.head(record.levelname.lower(), *_LEVEL_STYLES.get(record.levelno, ("dim",)))
        return f"{head} {name}{text}"


class _Reasons(logging.Filter):
    """Notes in the round in which an exception is logged what it was."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Note the exception of a record. Every record passes."""
        seen = current_round.get()
        if seen is not None and record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            seen.reason = f"{type(error).__name__}: {plain(str(error))}"
        return True


def configure_log(terminal: Terminal, level: str, *, full_tracebacks: bool) -> None:
    """Send what is logged to the terminal.

    Args:
        terminal: where to.
        level: the least that is shown of the author's own loggers.
        full_tracebacks: whether tracebacks have all of their calls, not only the author's.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(terminal))
    handler.addFilter(_Reasons())
    own = logging.getLogger("mrtr_server")
    if full_tracebacks:
        for each in own.filters[:]:
            if isinstance(each, AuthorsFirst):
                own.removeFilter(each)
    else:
        handler.addFilter(AuthorsFirst())
    handler.addFilter(PlainText())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    bound_lines_of(*SERVERS, exceptions=False)  # an author wants to see each of those


def plural(count: int, what: str) -> str:
    """Return a number of things, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def list_counts(counts: Mapping[str, Collection[Any]]) -> str:
    """Return how many there are of each kind, without those of which there are none."""
    return ", ".join(plural(len(found), what) for what, found in counts.items() if found) or "nothing registered yet"
