"""How records look: plain text, cut where it is long, as lines of text or lines of JSON on standard error.

A record may carry facts beside its message: `logger.info("...", extra={"fields": {"tool": "deploy"}})`.
"""

import json
import logging
import re
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_json

from ..documentation import help_for
from .failures import linked
from .refusals import SERVERS, BoundedLines

logger = logging.getLogger("mrtr_server")

Format = Literal["text", "json"]

_OWN = frozenset({"time", "level", "logger", "message", "exception"})

_write_ascii = json.JSONEncoder(default=str, separators=(",", ":")).encode

_QUOTED = re.compile(r'[ "=\n\r\t]')


def time_of(record: logging.LogRecord) -> str:
    second = int(record.created)
    milliseconds = int((record.created - second) * 1000 + 0.0005)  # a float is off by less than a microsecond
    return f"{_second(second)}.{str(1000 + min(milliseconds, 999))[1:]}Z"


@lru_cache(1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if type(fields) is dict or isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """Formats a record as `time LEVEL logger: message name=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        is_plain = not (record.exc_info or record.exc_text or record.stack_info)
        text = record.getMessage() if is_plain else super().format(record)
        if not (text.isascii() and text.isprintable()):  # as of other libraries; our own are clean
            text = plain_lines(text)
        message, newline, rest = text.partition("\n")
        fields = "".join(f" {name}={_shown(value)}" for name, value in fields_of(record).items())
        return f"{time_of(record)} {record.levelname} {record.name}: {message}{fields}{newline}{rest}"


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger and message, its fields, and an exception as text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = fields_of(record)
        if _OWN.isdisjoint(fields):
            line.update(fields)
        else:
            line.update((name, value) for name, value in fields.items() if name not in _OWN)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return _write(line)


def log_config(form: Format, level: str, *, access_log: bool = False) -> dict[str, Any]:
    """Return a configuration for `dictConfig`: our loggers and web servers from `level` on, others from `WARNING`."""
    formatter = JSONFormatter if form == "json" else TextFormatter
    own = {"level": level, "handlers": ["stderr"], "propagate": False}
    bounded = {"filters": ["bounded"]}
    quiet = own | {"level": level if access_log else "CRITICAL"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{__name__}.{formatter.__name__}"}},
        "filters": {"bounded": {"()": f"{BoundedLines.__module__}.{BoundedLines.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            **dict.fromkeys(("mrtr_server", "uvicorn"), own),
            **dict.fromkeys(SERVERS, bounded),
            "_granian": own | bounded,
            **dict.fromkeys(("uvicorn.access", "granian.access"), quiet),
        },
    }


def _write(value: Any) -> str:
    try:
        text = to_json(value, fallback=str).decode()
    except PydanticSerializationError:  # such as half of a surrogate pair
        return _write_ascii(value)
    return text if text.isascii() else _write_ascii(value)


def _shown(value: Any) -> str:
    if type(value) is int or type(value) is float:
        return repr(value)
    text = value if isinstance(value, str) else _write(value)
    return plain(_write(text)) if not text or _QUOTED.search(text) or not text.isprintable() else text


# Text from others: without control characters, and cut after a few lines


LONGEST = 2000  # characters of a message, or of what an exception says


# Control characters, characters that break a line in a viewer, and characters that change the direction of text.
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
    r"""Return a JSON document that shows `\u001b` and the like for control characters, and its lines as they are."""
    return _BUT_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


class WithHelp(logging.Filter):
    """Adds a field `help` to warnings and errors that have an entry in the documentation: its address."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            error = record.exc_info[1] if record.exc_info else None
            with suppress(Exception):  # arguments that do not fit, of which `logging` tells itself; or of the exception
                if address := help_for(record.getMessage(), "" if error is None else str(error)):
                    record.fields = {**fields_of(record), "help": address}
        return True


class PlainText(logging.Filter):
    """Keeps control characters and endless text out of records; it goes behind filters that format tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
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
    for each in linked(error):
        with suppress(Exception):  # which `traceback` has seen to
            text = text.replace(f": {each}", f": {plain(str(each))}")
        for note in getattr(each, "__notes__", ()):
            text = text.replace(str(note), str(note).replace("\n", "\n  "))  # no line of it looks like a record
    return _BUT_LINES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
