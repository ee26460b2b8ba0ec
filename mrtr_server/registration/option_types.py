"""Options that were given something of the wrong type: told by the decorator or the constructor, with what to give."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.middleware import Middleware

from ..errors import SetupError
from ..limits import Limits
from ..protocol.content import Icon


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


_TEXT = _Kind(_is_text, "text")
_FLAG = _Kind(_is_flag, "True or False")
_SECONDS = _Kind(_is_number, "a number of seconds")
_JSON_OBJECT = _Kind(_is_mapping, "a dictionary")
_SCOPE = _Kind(lambda value: value in ("public", "private"), '"public" or "private"')
_SHARED = {
    **dict.fromkeys(("name", "version", "title", "description", "instructions", "website_url", "path"), _TEXT),
    **dict.fromkeys(("audience", "base_url", "mime_type", "uri"), _TEXT),
    "icons": _Kind(_several(Icon, Mapping), 'a list of icons: [Icon(src="https://...")]'),
    "list_scope": _SCOPE,
    "scope": _SCOPE,
    **dict.fromkeys(("meta", "input_schema"), _JSON_OBJECT),
}
_SERVER = {
    **_SHARED,
    "limits": _Kind(lambda value: isinstance(value, Limits), "Limits(...), such as Limits(rounds=5)"),
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
    **dict.fromkeys(("run_tasks", "debug", "ready_needs_store"), _FLAG),
}
_REGISTERED = {
    **_SHARED,
    "single_use": _FLAG,
    "ttl": _SECONDS,
    "concurrency": _Kind(_is_count, "a number of tasks"),
    "size": _Kind(_is_count, "a number of bytes"),
}


_NEVER_NONE = {
    *("name", "version", "instructions", "icons", "path", "page_size", "list_ttl"),
    *("middleware", "lame_duck", "run_tasks", "debug", "ready_needs_store", "clock"),
}


def check_settings(given: Mapping[str, Any]) -> None:
    """Check the types of what a server is made with. Raises `SetupError`."""
    _check(given, _SERVER)


def check_registration(**given: Any) -> None:
    """Check the types of what something is registered with; what is None is left out. Raises `SetupError`."""
    _check(given, _REGISTERED)


def _check(given: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    for option, value in given.items():
        kind = kinds.get(option)
        left_out = value is None and (kinds is not _SERVER or option not in _NEVER_NONE)
        if kind is not None and not left_out and not kind.fits(value):
            raise SetupError(f"{option}= takes {kind.example}; it got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    # Not the value of what may be a secret; its type tells as much.
    return repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__
