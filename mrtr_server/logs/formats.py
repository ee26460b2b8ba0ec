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

Format = Literal["text", "json"]

_OWN = ("time", "level", "logger", "message", "exception")
_write = json.JSONEncoder(default=str).encode
_QUOTED = re.compile(r'[ "=\n\r\t]')


def time_of(record: logging.LogRecord) -> str:
    """Return the time of a record, in UTC, to the millisecond (RFC 3339)."""
    second = int(record.created)
    milliseconds = round((record.created - second) * 1e6) // 1000
    return f"{_second(second)}.{min(milliseconds, 999):03}Z"


@lru_cache(1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the facts that a record carries beside its message."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """Formats a record as `time LEVEL logger: message name=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of an exception below it."""
        text = super().format(record)
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
            **{name: value for name, value in fields_of(record).items() if name not in _OWN},
        }
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
    quiet = own | {"level": level if access_log else "CRITICAL"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            **dict.fromkeys(("mrtr_server", "uvicorn", "_granian"), own),
            **dict.fromkeys(("uvicorn.access", "granian.access"), quiet),
        },
    }


def _shown(value: Any) -> str:
    if type(value) is int or type(value) is float:
        return repr(value)
    text = value if isinstance(value, str) else _write(value)
    return _write(text) if not text or _QUOTED.search(text) else text
