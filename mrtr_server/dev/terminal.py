"""The terminal of an author: lines on standard error, in colour where that is one."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from ..logs.formats import plain

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
_LONGEST = 72
_ELLIPSIS = "…"


def takes_colour(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard error shows colour: it is a terminal, and nobody has said no (https://no-color.org).

    `environment`: where `NO_COLOR` and `TERM` are looked up.
    """
    return sys.stderr.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


class Terminal:
    """Writes lines to standard error. `colour`: whether they have colour; None for where standard error shows it."""

    def __init__(self, colour: bool | None = None) -> None:
        self._colour = takes_colour() if colour is None else colour

    def style(self, text: str, *styles: str) -> str:
        """Return a text in a colour or weight, where there is colour; otherwise as it is."""
        if not self._colour or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[each] for each in styles)}m{text}\x1b[0m"

    def head(self, kind: str, *styles: str) -> str:
        """Return how a line begins: with the time, and with what it is about, in a column."""
        return f"{self.style(time.strftime('%H:%M:%S'), 'dim')}  {self.style(f'{kind:9}', *styles)}"

    def write(self, text: str) -> None:
        """Write a line, or several, at once, so that lines of others do not come between."""
        with suppress(OSError, ValueError):  # the terminal is gone, and requests are still served
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def short(text: str, longest: int = _LONGEST) -> str:
    """Return the beginning of a text on one line, without control characters.

    `text`: what somebody else wrote.
    `longest`: how many characters of it are returned at most.
    """
    line = plain(" ".join(text[: longest * 4].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}{_ELLIPSIS}"


def quoted(text: str, longest: int = _LONGEST) -> str:
    """Return the beginning of a text in quotation marks; see `short`."""
    return f'"{short(text, longest)}"'
