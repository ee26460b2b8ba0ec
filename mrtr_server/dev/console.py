"""What an author sees of a running server: a line a round or refused request, effects to be repeated, and the log."""

import linecache
import logging
import logging.config
from collections.abc import Mapping
from contextvars import ContextVar

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..documentation import help_for
from ..logs.failures import AuthorsFirst
from ..logs.formats import PlainText, fields_of, plain
from ..logs.refusals import SERVERS, bound_lines_of
from ..methods.middleware import Came, Middleware, watch
from ..protocol.messages import Call, Outlet
from .effects import EffectWatch, shown_path
from .rounds import RoundLines, SeenAnswers, SeenRound, SourceLine, Terminal, current_round, plural, short

_UNASKED = ("/favicon.ico", "/apple-touch-icon.png", "/.well-known/")  # where browsers and clients look by themselves

_LONGEST_REASON = 120
_FIRST_ERROR = 400

reached: ContextVar[list[bool] | None] = ContextVar("mrtr_server_reached", default=None)
"""Takes an entry once the request that the code serves has a line of its own."""

_INDENT = " " * 21

_LEVEL_STYLES: Mapping[int, tuple[str, ...]] = {
    logging.WARNING: ("yellow",),
    logging.ERROR: ("red",),
    logging.CRITICAL: ("red",),
}

_CHATTY = ("asyncio", "uvicorn", "watchfiles", "httpx", "httpcore", "urllib3", "mcp", "mrtr_server")
"""Loggers of which an author wants to see warnings only."""


class RefusedRequests:
    """Writes a line for each request that gets an error, and no line of its own."""

    def __init__(self, app: ASGIApp, terminal: Terminal) -> None:
        self._app = app
        self._terminal = terminal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNASKED):
            await self._app(scope, receive, send)
            return
        has_line: list[bool] = []
        reached.set(has_line)
        status = 0

        async def send_and_report(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= _FIRST_ERROR and not has_line:
                has_line.append(True)
                self._report(scope, status, message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_and_report)

    def _report(self, scope: Scope, status: int, body: bytes) -> None:
        head = self._terminal.head("refused", "red")
        what = f"{scope['method']} {short(scope['path'], 60)}"
        self._terminal.write(f"{head} {what}: {status} {short(_reason(body), _LONGEST_REASON)}")


def _reason(body: bytes) -> str:
    """Return what a response says of an error: in JSON, as JSON-RPC has it or not, or as text."""
    try:
        error = from_json(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)


class Console:
    def __init__(self, terminal: Terminal, effects: EffectWatch) -> None:
        self._terminal = terminal
        self._effects = effects
        self._lines = RoundLines(terminal)
        self._answers = SeenAnswers()
        self._hinted = False

    @property
    def middleware(self) -> Middleware:
        return watch(self._begin, self._end)

    def _begin(self, call: Call, outlet: Outlet) -> SeenRound:
        seen = self._answers.begin(call, outlet)
        current_round.set(seen)
        if seen.is_round:
            self._effects.begin(seen)
        return seen

    def _end(self, call: Call, outlet: Outlet, seen: SeenRound, came: Came) -> None:
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
            lines.append(f"{_INDENT}{help_for(lines[0])}")
        self._terminal.write("\n".join(lines))


class _Formatter(logging.Formatter):
    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        name = "" if record.name in ("mrtr_server", "root", "uvicorn.error") else f"{record.name}: "
        head = self._terminal.head(record.levelname.lower(), *_LEVEL_STYLES.get(record.levelno, ("dim",)))
        address = fields_of(record).get("help", "")
        return f"{head} {name}{text}" + (f"\n{_INDENT}See {address}" if address and address not in text else "")


class _Reasons(logging.Filter):
    """Notes in the round in which an exception is logged what it was."""

    def filter(self, record: logging.LogRecord) -> bool:
        seen = current_round.get()
        if seen is not None and record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            seen.reason = f"{type(error).__name__}: {plain(str(error))}"
        return True


def configure_log(terminal: Terminal, level: str, *, full_tracebacks: bool) -> None:
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


def list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(plural(count, what) for what, count in counts.items() if count) or "nothing registered yet"
