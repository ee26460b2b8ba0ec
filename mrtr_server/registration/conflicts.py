"""Names that are taken."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..errors import SetupError


def check_free(records: Mapping[Any, Any], kind: str, key: object, record: Any, included: bool = False) -> None:
    """Check that a name is free.

    Args:
        records: those that are there, by name.
        kind: what they are, for errors.
        key: the name.
        record: what is to have it.
        included: whether that comes from an application that is included.

    Raises:
        SetupError: it is taken; the message names both that want it.
    """
    if key in records:
        advice = "include it with another prefix=" if included else "rename or remove one of them"
        places = f"{_place(records[key])} and {_place(record)}"
        raise SetupError(f"There is a {kind} {key!r} already; {advice}: {places}")


def _place(record: Any) -> str:
    """Return where something was defined, and by which application it was registered."""
    handler = getattr(record, "handler", None)
    function: Any = getattr(record, "function", None) if handler is None else handler.function
    while isinstance(function, partial):
        function = function.func
    named = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return named if handler is None or not handler.homes else f"{named} of {handler.homes[-1].name!r}"
