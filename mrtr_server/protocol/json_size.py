"""What JSON costs: the number of its values, counted in its bytes before it is parsed, and its depth."""

import math
from typing import Any

from ..errors import OverBudget, ParseError
from ..well_formed import read_json


def has_more_values(body: bytes, most: int) -> bool:
    """Check whether a JSON text has more values than are allowed.

    A number of values costs many times its bytes once it is parsed, and each is then looked at more than once.

    Args:
        body: what is to be parsed; it need not be JSON.
        most: how many values are allowed, an empty array or object counting twice.

    Returns:
        True if there are more. Text that could not hold as many, by its length alone, is not looked at.
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
    """Check how deep a value nests, and that none of its numbers has overflowed.

    Args:
        value: was read from JSON.
        most: how deep its arrays and objects may nest.

    Raises:
        OverBudget: it nests deeper.
        ParseError: a number is infinite.
    """
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
    """Read a JSON text within a message, at the cost that a message may have.

    Args:
        text: the text.
        depth: how deep its arrays and objects may nest.
        values: how many values it may hold.

    Raises:
        ParseError: it is not JSON, or holds NaN, an infinity or a number that overflows.
        OverBudget: it nests too deep, or holds too many values.
    """
    if has_more_values(text.encode(errors="replace"), values):
        raise OverBudget(f"The text holds more than {values} JSON values", "values", values)
    try:
        value = read_json(text, allow_inf_nan=False)
    except ValueError:
        raise ParseError("The text is not JSON") from None
    check_depth(value, depth)
    return value
