"""Text from others in the log: without control characters, and cut after a few lines."""

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress

LONGEST = 2000
"""How many characters of a message, or of what an exception says, are logged."""

# Control characters, characters that break a line in a viewer, and those that change the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BUT_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def plain(text: str) -> str:
    r"""Return a text with `\x1b` and the like for its control characters, on one line, and cut where it is long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    return _CONTROL.sub(_escaped, text)


def plain_lines(text: str) -> str:
    r"""Return a text with `\x1b` and the like for its control characters, and its lines as they are."""
    return _BUT_LINES.sub(_escaped, text)


def plain_json(written: str) -> str:
    r"""Return a JSON document that shows `\u001b` and the like for control characters, and its lines as they are.

    Args:
        written: the document.
    """
    return _BUT_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


class PlainText(logging.Filter):
    """Keeps control characters, and whatever has no end, out of a logger's records and their tracebacks.

    It goes behind other filters of the logger that format tracebacks, and cleans what they have made.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace what is not plain in a record. Every record passes."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit, of which `logging` tells itself
            pass
        else:
            is_plain = message.isascii() and message.isprintable()  # as nearly all are; this takes less than the search
            if len(message) > LONGEST or not (is_plain or _CONTROL.search(message) is None):
                record.msg, record.args = plain(message), ()
        if record.exc_info and record.exc_info[1] is not None:
            text = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_text = _plain_traceback(text, record.exc_info[1])  # handlers take it instead of their own
        return True


def _plain_traceback(text: str, error: BaseException) -> str:
    for each in _chain(error):
        with suppress(Exception):  # which `traceback` has seen to
            text = text.replace(f": {each}", f": {plain(str(each))}")
        for note in getattr(each, "__notes__", ()):
            text = text.replace(str(note), str(note).replace("\n", "\n  "))  # no line of it looks like a record
    return _BUT_LINES.sub(_escaped, text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """List an exception with all that led to it."""
    found, left = {id(error)}, [error]
    while left:
        error = left.pop()
        yield error
        inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        for each in (error.__cause__, error.__context__, *inner):
            if each is not None and id(each) not in found:
                found.add(id(each))
                left.append(each)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
