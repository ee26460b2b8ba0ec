"""Log refused requests with the setting to change, at a limited rate."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import MissingCapability
from ..tally import REFUSALS, Tally

logger = logging.getLogger("mrtr_server")

WINDOW = 60.0
"""How long a line is not repeated, in seconds."""

LINES_IN_WINDOW = 16
"""How many different lines of a kind are logged in that time."""

CHARACTERS = 256
"""How much is shown of a value that a client chose."""

_LACKING = (
    "%r was refused: the client %r did not declare the capability %r that it needs. Use a client that has it; or check "
    'ctx.client.supports(...) in the tool, and do without it (for tasks: register the tool with task="optional")'
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


class RefusalLog:
    """Logs refused requests: each different message once a minute, at most 16 of a kind; the others are counted.

    Args:
        clock: returns the time in seconds, from any beginning.
        tally: counts the refusals that `count` is called for.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, tally: Tally | None = None) -> None:
        self._clock = clock
        self._tally = Tally() if tally is None else tally
        self._windows: dict[str, _Window] = {}

    def count(self, reason: str, limit: str = "") -> None:
        """Count a refused request.

        Args:
            reason: why, in a word.
            limit: the limit that it is over; empty where it is another reason.
        """
        self._tally.add(REFUSALS, reason, limit)

    def note(self, message: str, *values: str, fields: Mapping[str, str] | None = None) -> None:
        """Log a refused request, unless there have been enough of its kind.

        Args:
            message: identifies the kind, and says which setting to change; with a `%r` for each value.
            values: what the request had; they may be anything.
            fields: facts beside the message, for programs that read the log.
        """
        now = self._clock()
        window = self._windows.get(message)
        if window is None or now - window.began >= WINDOW:
            left_out = window.left_out if window is not None else 0
            window = self._windows[message] = _Window(now)
            message += f" ({left_out} more like it were not logged)" if left_out else ""
        shown = tuple(value[:CHARACTERS] for value in values)
        if shown in window.logged or len(window.logged) == LINES_IN_WINDOW:
            window.left_out += 1
            return
        window.logged.add(shown)
        logger.warning(message, *shown, extra=fields and {"fields": fields})

    def note_lacking(self, what: str, client: str, error: MissingCapability, *, has_declared: bool = True) -> None:
        """Log that a client lacks a capability that a request needs.

        Args:
            what: the request.
            client: what the client calls itself; empty if it is not known.
            error: has the capabilities.
            has_declared: whether the client has said what it can do, in this request or before.
        """
        required = json.dumps((error.data or {}).get("requiredCapabilities"))
        if has_declared:
            self.note(_LACKING, what, client, required)
        else:
            self.note(_UNDECLARED, what, required)
