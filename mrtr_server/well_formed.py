"""Text that is no text: half of a surrogate pair, as of an emoji that was cut or of a file name that is not UTF-8.

Python and JSON can hold one, UTF-8 can't. So each becomes U+FFFD, the replacement character, where text comes in and
where it goes out: what browsers do, and what most other JSON readers do. Text without any costs nothing.
"""

import dataclasses
import re
from collections.abc import Mapping
from copy import copy
from pathlib import PurePath
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

from .errors import SetupError

T = TypeVar("T")

_HALF = re.compile("[\ud800-\udfff]")
_HEX = rb"[0-9a-fA-F]{2}"
_HIGH, _LOW = rb"\\u[dD][89abAB]" + _HEX, rb"\\u[dD][c-fC-F]" + _HEX
_ESCAPED_HALF = re.compile(
    rb"\\u[dD](?:[89abAB]" + _HEX + rb"(?!" + _LOW + rb")|(?<!" + _HIGH + rb"\\u[dD])[c-fC-F]" + _HEX + rb")"
)
_BARE_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""As some encoders write one that have no real UTF-8."""

_OF_HALVES = re.compile("surrogate|hex escape|unicode code point")
"""What an error of the JSON reader says where it met one, or something that looks alike."""


def read_json(data: bytes | str, **options: Any) -> Any:
    """Read JSON that may have halves. Each half becomes U+FFFD. Raises `ValueError`."""
    try:
        return from_json(data, **options)
    except ValueError as error:
        if _OF_HALVES.search(str(error)) is None:
            raise
        mended = _mend(data if isinstance(data, bytes) else data.encode(errors="surrogatepass"))
        return from_json(mended, **options)


def _mend(data: bytes) -> bytes:
    if b"\0" in data:  # no JSON, and what stands for an escaped backslash below
        return data
    data = _ESCAPED_HALF.sub(rb"\\ufffd", data.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")
    return _BARE_HALF.sub("\N{REPLACEMENT CHARACTER}".encode(), data)


def write_json(value: Any, **options: Any) -> bytes:
    try:
        return to_json(value, **options)
    except PydanticSerializationError as error:
        if not has_halves(error):
            raise
        return to_json(well_formed(value), **options)


def is_well_formed(text: str) -> bool:
    return text.isascii() or _HALF.search(text) is None


def escape_halves(text: str) -> str:
    r"""Return a text with `\udcff` and the like for each half: for keys, where different texts must stay different."""
    return text if is_well_formed(text) else text.encode(errors="backslashreplace").decode()


def refuse_halves(where: str, fields: Mapping[str, Any]) -> None:
    """Refuse texts that an author has written down with halves: no reply can hold them. Raises `SetupError`."""
    for name, value in fields.items():
        try:
            to_json(value, fallback=str)
        except PydanticSerializationError as error:
            if has_halves(error):
                what = "half of a character (a surrogate without its pair), which no message can hold"
                raise SetupError(f"{where}: {name} has {what}; write the whole character, or leave it out") from None


def has_halves(error: ValueError) -> bool:
    return isinstance(error, UnicodeEncodeError) or "surrogates not allowed" in str(error)


def well_formed(value: T) -> T:
    return cast(T, _mended(value))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        # Two halves that belong together, each cut from its text, are a character again.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        made: dict[Any, Any] = {}
        for key, item in value.items():
            mended = _mended(key)
            made[escape_halves(key) if mended in made and mended != key else mended] = _mended(item)
        return made
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = map(_mended, value)
            return value._make(items) if hasattr(value, "_make") else kind(items)
    if isinstance(value, PurePath):
        return _mended(str(value))
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _mended(item) for name, item in value})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        instance = copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(instance, field.name, _mended(getattr(value, field.name)))
        return instance
    return value
