"""Texts that grow when they are read: JSON within a string, networks, fractions and patterns. And names to import."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import wraps
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from re import Pattern
from typing import Any

from pydantic import IPvAnyInterface, IPvAnyNetwork
from pydantic_core import PydanticCustomError

from ..errors import SetupError
from ..protocol.json_size import has_more_values, most_values
from .core_schema import Node, walk

MOST_IN_TEXTS = 100_000
"""How many values the JSON texts of one input, which `Json[...]` parses, may hold: as many as a request by default."""

LONGEST_PREFIX = 40
"""How long the prefix of a network may be: Python keeps each that it has read, and reads any number of zeros first."""

LONGEST_EXPONENT = 5
"""How long the exponent of a fraction may be, with its sign: Python writes out as many zeros."""

LONGEST_PATTERN = 250
"""How long a pattern may be that is compiled: seven characters may take milliseconds."""

_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)
"""How many more values JSON texts may hold."""


def refuse_imports(where: str, schema: Node) -> None:
    """Check that a type imports nothing, as pydantic's `ImportString` does: a client could run any code that is there.

    Args:
        where: what the type is of, for errors.
        schema: pydantic's core schema of the type.

    Raises:
        SetupError: it does.
    """
    for each in walk(schema):
        function = (each.get("function") or {}).get("function")
        if getattr(function, "__name__", "") == "import_string" and function.__module__.startswith("pydantic."):
            raise SetupError(
                f"{where}: an ImportString imports whatever the client names, and so runs code. Take a str or a "
                "Literal, and look it up in a dictionary of your own"
            )


def has_json_texts(schema: Node) -> bool:
    """Return whether a type reads JSON within strings, so that its values are to be validated together."""
    return any(each["type"] == "json" for each in walk(schema))


def validate_together(validate: Callable[[Any], Any], value: Any) -> Any:
    """Validate a value whose JSON texts are counted together.

    Args:
        validate: validates it.
        value: may have such texts.
    """
    token = _left.set([MOST_IN_TEXTS])
    try:
        return validate(value)
    finally:
        _left.reset(token)


def short_text(node: Node) -> Node:
    """Return a node that refuses a text of which Python would make too much, or which it would keep for ever.

    Args:
        node: a node of a core schema.

    Returns:
        The node itself if it makes nothing of the kind. Where pydantic lets an error of Python's pass, which would fail
        the call and name the text in the log, the text is one that does not fit.
    """
    node = _without_failures(node)
    kind = node["type"]
    if kind == "json":
        return _before(_count_values, node)
    if kind == "lax-or-strict":
        made = {each["cls"] for each in walk(node["strict_schema"]) if each["type"] == "is-instance"}
    elif kind == "function-plain":
        function = node["function"]["function"]
        made = {getattr(function, "__self__", None), _COMPILERS.get(getattr(function, "__qualname__", ""))}
    else:
        return node
    checks = [check for cls, check in _CHECKS.items() if cls in made]
    return _before(checks[0], node) if checks else node


def _without_failures(node: Node) -> Node:
    function: Any = (node.get("function") or {}).get("function")
    is_pydantics = str(getattr(function, "__module__", "")).startswith("pydantic.")
    if not is_pydantics or not function.__qualname__.startswith(_FAILING):
        return node

    @wraps(function)
    def read(*given: Any) -> Any:
        try:
            return function(*given)
        except (OSError, OverflowError):
            raise PydanticCustomError("unreadable", "Input can't be read as this type") from None

    return {**node, "function": {**node["function"], "function": read}}


def _before(check: Callable[[Any], Any], node: Node) -> Node:
    return {"type": "function-before", "function": {"type": "no-info", "function": check}, "schema": node}


def _count_values(value: Any) -> Any:
    if isinstance(value, str | bytes):
        text = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        left = _left.get() or [MOST_IN_TEXTS]
        if has_more_values(text, left[0]):
            most = {"most": MOST_IN_TEXTS}
            raise PydanticCustomError("json_values", "JSON texts should have at most {most} values", most)
        left[0] = max(0, left[0] - most_values(text))
    return value


def _limited(longest: int, part: Callable[[str], str]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, str) and len(part(value)) > longest:
            bound = {"longest": longest}
            raise PydanticCustomError("too_long", "Input has a part of more than {longest} characters", bound)
        return value

    return check


_check_prefix = _limited(LONGEST_PREFIX, lambda text: text.partition("/")[2])

_CHECKS: Mapping[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((IPv4Network, IPv6Network, IPv4Interface, IPv6Interface), _check_prefix),
    **dict.fromkeys((IPvAnyNetwork, IPvAnyInterface), _check_prefix),
    Fraction: _limited(LONGEST_EXPONENT, lambda text: text.lower().partition("e")[2].strip()),
    Pattern: _limited(LONGEST_PATTERN, str),
}
"""What is checked of a text, by what Python makes of it."""

_FAILING = ("PathType.", "pattern_")
"""How the names of pydantic's functions begin that fail: at too long a name of a file, or at `a{99999999999}`."""

_COMPILERS = dict.fromkeys(("pattern_either_validator", "pattern_str_validator", "pattern_bytes_validator"), Pattern)
"""The functions by which pydantic compiles what a peer sends."""
