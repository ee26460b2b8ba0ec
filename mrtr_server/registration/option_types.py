"""Options that were given something of the wrong type: told by the decorator or the constructor, with what to give."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from starlette.middleware import Middleware

from ..errors import SetupError
from ..limits import Limits
from ..protocol.content import Icon
from ..rates.rate_limiter import RateLimits


class _Kind(NamedTuple):
    """What an option takes.

    Args:
        fits: says whether a value is of that kind.
        example: what may be given, as an author writes it.
    """

    fits: Callable[[Any], bool]
    example: str


def _has(*methods: str) -> Callable[[Any], bool]:
    """Return a check for an object, not a class, that has these methods."""
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, each, None)) for each in methods)


def _several(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, kinds) for each in value)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Collection) and all(isinstance(each, str) for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


_TEXT = _Kind(_is_text, "text")
_TEXTS = _Kind(_are_texts, "a list of texts")
_FLAG = _Kind(_is_flag, "True or False")
_SECONDS = _Kind(_is_number, "a number of seconds")
_JSON_OBJECT = _Kind(_is_mapping, "a dictionary")
_SCOPE = _Kind(lambda value: value in ("public", "private"), '"public" or "private"')
_ICONS = _Kind(_several(Icon, Mapping), 'a list of icons: [Icon(src="https://...")]')

Kinds = Mapping[str, _Kind]
"""What options take, by their names."""

LISTED: Kinds = {"name": _TEXT, "title": _TEXT, "description": _TEXT, "icons": _ICONS, "meta": _JSON_OBJECT}
TOOL: Kinds = {
    "single_use": _FLAG,
    "concurrency": _Kind(_is_count, "a number of tasks"),
    "input_schema": _JSON_OBJECT,
    "rate_limit": _Kind(_is_text, 'a rate, such as "5/minute"'),
}
RESOURCE: Kinds = {
    "mime_type": _TEXT,
    "size": _Kind(_is_count, "a number of bytes"),
    "ttl": _SECONDS,
    "scope": _SCOPE,
}
SETTING_TYPES: Kinds = {
    **dict.fromkeys(("name", "version", "title", "description", "instructions", "website_url", "path"), _TEXT),
    **dict.fromkeys(("audience", "base_url", "metrics"), _TEXT),
    **dict.fromkeys(("dialects", "registers_later", "allowed_origins", "allowed_hosts", "cors_origins"), _TEXTS),
    "icons": _ICONS,
    "list_scope": _SCOPE,
    "limits": _Kind(lambda value: isinstance(value, Limits), "Limits(...), such as Limits(rounds=5)"),
    "rate_limits": _Kind(
        lambda value: isinstance(value, RateLimits), 'RateLimits(...), such as RateLimits(per_principal="100/minute")'
    ),
    "auth": _Kind(
        _has("authenticate"),
        'a Starlette AuthenticationBackend; for fixed tokens BearerTokens({"token": "user"})',
    ),
    "codec": _Kind(_has("seal", "unseal"), "a Codec, which seals and unseals"),
    "fanout": _Kind(_has("publish", "subscribe"), "a Fanout, which publishes and subscribes"),
    **dict.fromkeys(("identify", "lifespan", "clock"), _Kind(callable, "a function")),
    "middleware": _Kind(_several(Middleware), "a list of Starlette's Middleware(Class, option=...)"),
    "page_size": _Kind(_is_count, "a number of entries"),
    **dict.fromkeys(("list_ttl", "lame_duck"), _SECONDS),
    "telemetry": _Kind(
        lambda value: isinstance(value, bool) or (hasattr(value, "meter_provider") and not isinstance(value, type)),
        "True, False, or OpenTelemetry(tracer_provider=...)",
    ),
    **dict.fromkeys(("run_tasks", "debug", "ready_needs_store", "docs"), _FLAG),
}


def check_types(options: Any, kinds: Kinds) -> None:
    """Check the types of options. None may be given where it is the default.

    Args:
        options: a dataclass.
        kinds: what its fields take; others are not checked.

    Raises:
        SetupError: something is of another type; the message says what to give.
    """
    for field in fields(options):
        kind, value = kinds.get(field.name), getattr(options, field.name)
        left_out = value is None and field.default is None
        if kind is not None and not left_out and not kind.fits(value):
            raise SetupError(f"{field.name}= takes {kind.example}; it got {_shown(value)}")


def check_seconds(**given: Any) -> None:
    """Check durations, which are None or positive numbers of seconds. Raises `SetupError`."""
    for option, value in given.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise SetupError(f"{option}={value!r} must be a positive number of seconds")


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    # Not the value of what may be a secret; its type tells as much.
    return repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__
