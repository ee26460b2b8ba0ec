"""How records look on standard error: as lines of text, or as lines of JSON.

A record may carry facts beside its message: `logger.info("...", extra={"fields": {"tool": "deploy"}})`.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_json

from .refusals import SERVERS, BoundedLines
from .text import plain, plain_lines

Format = Literal["text", "json"]

_OWN = frozenset({"time", "level", "logger", "message", "exception"})
_write_ascii = json.JSONEncoder(default=str, separators=(",", ":")).encode
_QUOTED = re.compile(r'[ "=\n\r\t]')


def time_of(record: logging.LogRecord) -> str:
    """Return the time of a record, in UTC, to the millisecond (RFC 3339)."""
    second = int(record.created)
    milliseconds = int((record.created - second) * 1000 + 0.0005)  # a float is off by less than a microsecond
    return f"{_second(second)}.{str(1000 + min(milliseconds, 999))[1:]}Z"


@lru_cache(1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the facts that a record carries beside its message."""
    fields = getattr(record, "fields", None)
    return fields if type(fields) is dict or isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """Formats a record as `time LEVEL logger: message name=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of an exception below it."""
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
        """Return the line."""
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
    """Return a configuration for `logging.config.dictConfig`, with the loggers of this package and of web servers.

    Args:
        form: of the lines.
        level: of this package and of the web server, such as `"INFO"`. Others log from `WARNING` on.
        access_log: whether the web server logs each request.
    """
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
    """Return a value as JSON, in ASCII, so that it is one line in every encoding."""
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
