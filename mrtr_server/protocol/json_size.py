"""What JSON costs: the number of its values, counted in its bytes before it is parsed, and its depth."""

import math
from typing import Any

from ..errors import OverBudget, ParseError
from ..well_formed import read_json


def has_more_values(body: bytes, most: int) -> bool:
    """Check whether a JSON text has more values than are allowed.

    A number of values costs many times its bytes once it is parsed, and each is then looked at more than once.
    """
    if len(body) < 2 * most:
        return False
    if most_values(body) <= most:
        return False
    # Commas and brackets within strings were counted, too: count again without the strings.
    body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if body.count(b'"') > 4 * most:  # each value has a string and a key at most
        return True
    return most_values(b"".join(body.split(b'"')[::2])) > most


def most_values(body: bytes) -> int:
    """Return how many values there are at most: the outermost, and in each array or object one more than commas."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def check_depth(value: Any, most: int) -> None:
    """Check how deep a value nests, and that none of its numbers has overflowed. Raises `OverBudget`, `ParseError`."""
    _check(value, most, most)


def _check(value: Any, depth: int, limit: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ParseError("The body holds a number that overflows")
    elif isinstance(value, dict | list):
        if depth == 0:
            raise OverBudget(f"JSON nests deeper than {limit}", "json_depth", limit)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth - 1, limit)


def read_value(text: str, depth: int, values: int) -> Any:
    """Read a JSON text within a message, at the cost that a message may have. Raises `ParseError`, `OverBudget`."""
    if has_more_values(text.encode(errors="replace"), values):
        raise OverBudget(f"The text holds more than {values} JSON values", "values", values)
    try:
        value = read_json(text, allow_inf_nan=False)
    except ValueError:
        raise ParseError("The text is not JSON") from None
    check_depth(value, depth)
    return value
