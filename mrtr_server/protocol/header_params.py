"""Parameters that headers mirror (Streamable HTTP, Schema Extension)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import SetupError

TCHARS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The characters of an HTTP field name (RFC 9110, section 5.6.2)."""


HEADER_KEYWORD = "x-mcp-header"

LARGEST = 2**53 - 1
"""The largest integer that a header mirrors, up or down; clients in JavaScript know no larger one exactly."""


_EXAMPLE = 'region: Annotated[str, Header("Region")]'


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """One parameter that a header mirrors."""

    header: str  # the whole header's name, in lower case
    path: tuple[str, ...]  # the chain of property names that leads to the value
    kind: str


def header_parameters(where: str, schema: Mapping[str, Any]) -> tuple[HeaderParameter, ...]:
    """Collect the parameters that headers mirror, and check the rules for them (Streamable HTTP, Schema Extension).

    Raises `SetupError`.
    """
    found: list[HeaderParameter] = []
    _collect(where, schema, (), found)
    names: set[str] = set()
    for parameter in found:
        if parameter.header in names:
            raise SetupError(f"{where}: two parameters share the header {parameter.header!r}")
        names.add(parameter.header)
    if _count(schema) != len(found):
        raise SetupError(
            f"{where}: {HEADER_KEYWORD} can only mark properties that are reached by properties alone: no items of a "
            f'list, and no part of a union; instead of an optional type, give a default: {_EXAMPLE} = ""'
        )
    return tuple(found)


def _collect(where: str, schema: Mapping[str, Any], path: tuple[str, ...], found: list[HeaderParameter]) -> None:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return
    for name, field in properties.items():
        if not isinstance(field, Mapping):
            continue
        here = (*path, name)
        if HEADER_KEYWORD in field:
            header, kind = field[HEADER_KEYWORD], field.get("type")
            if not isinstance(header, str) or not header or not TCHARS.issuperset(header):
                raise SetupError(f"{where}: {header!r} can't be the name of a header (parameter {'.'.join(here)!r})")
            if kind not in ("string", "integer", "boolean"):
                raise SetupError(f"{where}: {'.'.join(here)!r} can't be mirrored into a header: {_unmirrored(field)}")
            if kind == "integer" and (beyond := next(filter(is_beyond, _integers_of(field)), None)) is not None:
                raise SetupError(
                    f"{where}: {'.'.join(here)!r} can't be mirrored into a header: its schema names {beyond}, and an "
                    "integer there is within 2**53 - 1 up and down; take a str for larger ones"
                )
            found.append(HeaderParameter(f"mcp-param-{header.lower()}", here, kind))
        _collect(where, field, here, found)


def is_beyond(value: object) -> bool:
    """Return whether a value is a number that no header mirrors."""
    return isinstance(value, int | float) and not -LARGEST <= value <= LARGEST


def _integers_of(field: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema names: its bounds, its default and its choices."""
    several = field.get("enum")
    named = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default", "const")
    return [*map(field.get, named), *(several if isinstance(several, list) else ())]


def _unmirrored(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return f'it is optional or a union, and only str, int and bool can; give it a default: {_EXAMPLE} = ""'
    if "enum" in field or "allOf" in field:
        return 'it is an enum or a model, and only str, int and bool can; write choices as Literal["eu", "us"]'
    return "only str, int and bool can"


def _count(schema: Any) -> int:
    if isinstance(schema, list):
        return sum(map(_count, schema))
    if not isinstance(schema, Mapping):
        return 0
    marks = int(HEADER_KEYWORD in schema)
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            marks += sum(map(_count, value.values()))
        elif keyword not in _DATA:
            marks += _count(value)
    return marks


_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value has a schema under each name."""


_DATA = frozenset({"default", "examples", "const", "enum"})
"""Keywords whose value is not a schema."""
