"""Parameters that headers mirror, and the values of such headers (Streamable HTTP, Schema Extension)."""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import HeaderMismatch, SetupError

TCHARS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The characters of an HTTP field name (RFC 9110, section 5.6.2)."""


HEADER_KEYWORD = "x-mcp-header"

LARGEST = 2**53 - 1  # mirrored up and down; clients in JavaScript know no larger integer exactly


_EXAMPLE = 'region: Annotated[str, Header("Region")]'


class HeaderParameter(NamedTuple):
    """One parameter that a header mirrors."""

    header: str  # the whole header's name, in lower case
    path: tuple[str, ...]  # the chain of property names that leads to the value
    kind: str


def header_parameters(where: str, schema: Mapping[str, Any]) -> tuple[HeaderParameter, ...]:
    """Return the parameters that headers mirror, by the rules for them (Schema Extension). Raises `SetupError`."""
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
        if keyword in NAMED and isinstance(value, Mapping):
            marks += sum(map(_count, value.values()))
        elif keyword not in _DATA:
            marks += _count(value)
    return marks


NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value has a schema under each name."""


_DATA = frozenset({"default", "examples", "const", "enum"})  # keywords whose value is no schema


# What headers say

_HEADER_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_INTEGER = re.compile(r"-?[0-9]{1,32}(\.0{1,32})?")


def decode_header(value: bytes) -> str | None:
    """Decode a header's value (Value Encoding); None if it has wrong characters, or not the Base64 that it promises."""
    if value.translate(None, b"_-./:").isalnum():  # as nearly every name is; it needs no closer look
        return value.decode("ascii")
    value = value.strip(b" \t")
    if not _HEADER_VALUE.fullmatch(value):
        return None
    if not (value.startswith(b"=?base64?") and value.endswith(b"?=") and len(value) >= 11):
        return value.decode("ascii")
    try:
        return a2b_base64(value[9:-2], strict_mode=True).decode("utf-8")
    except (Base64Error, ValueError):
        return None


def check_mirrored(
    headers: Mapping[bytes, bytes],
    arguments: Mapping[str, Any],
    parameters: Iterable[HeaderParameter],
    *,
    required: bool,
) -> None:
    """Check that headers say what the arguments say which they mirror. Raises `HeaderMismatch`."""
    for parameter in parameters:
        value: Any = arguments
        for part in parameter.path:
            value = value.get(part) if isinstance(value, dict) else None
        header = headers.get(parameter.header.encode())
        where = ".".join(parameter.path)
        if header is None:
            if required and value is not None:
                raise HeaderMismatch(f"Header mismatch: {parameter.header} is missing, arguments.{where} is there")
        elif not _same(decode_header(header), value):
            raise HeaderMismatch(f"Header mismatch: {parameter.header} is not arguments.{where} of the body")
        elif is_beyond(value):
            raise HeaderMismatch(f"Header mismatch: arguments.{where} is beyond 2**53 - 1, which no header mirrors")


def _same(header: str | None, value: object) -> bool:
    if header is None or value is None:
        return False
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    if isinstance(value, int | float):
        return _INTEGER.fullmatch(header) is not None and int(header.partition(".")[0]) == value
    return header == value if isinstance(value, str) else False
