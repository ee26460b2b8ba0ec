"""Data within content: Base64, data URLs and MIME types."""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import unquote, unquote_to_bytes

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema


def _base64(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode("ascii")
    if not isinstance(value, str):
        return value
    text = "".join(value.split())  # encoders of mails break lines
    try:
        a2b_base64(text, strict_mode=True)
    except ValueError:
        is_whole = False
    else:
        is_whole = len(text) % 4 == 0 and not text.endswith("===")  # Python before 3.13 takes more padding
    if not is_whole:
        raise ValueError("it is not Base64: pass bytes, or Base64 with its padding and without a prefix")
    return text


Base64 = Annotated[
    bytes | str, BeforeValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
"""Bytes, or text that is already Base64; kept as Base64 text."""


def without_url(given: Any, name: str) -> Any:
    """Return the fields of an object with a data URL taken apart (RFC 2397)."""
    url = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(url, str) or url[:5].lower() != "data:":
        return given
    head, comma, data = url[5:].partition(",")
    kind, *parameters = head.split(";")
    if not comma:
        raise ValueError("the data URL has no comma")
    is_base64 = bool(parameters) and parameters[-1].strip().lower() == "base64"
    apart = {**given, name: unquote(data) if is_base64 else unquote_to_bytes(data)}
    if kind and given.get("mime_type", given.get("mimeType")) is None:
        apart = {each: value for each, value in apart.items() if each != "mimeType"} | {"mime_type": kind.strip()}
    return apart


_MIME_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[ -~]*)?", re.ASCII)


def is_mime_type(text: str) -> bool:
    """Return whether a text has the form of a MIME type (RFC 6838)."""
    return _MIME_TYPE.fullmatch(text) is not None


def _mime_type(text: str) -> str:
    if not is_mime_type(text):
        raise ValueError('it is no MIME type, such as "image/png"')
    return text


MimeType = Annotated[str, AfterValidator(_mime_type)]


def of_kinds(kinds: str, example: str) -> AfterValidator:
    """Return a check that a MIME type is of some kinds."""

    def check(text: str) -> str:
        if not re.match(f"({kinds})/", text, re.IGNORECASE):
            raise ValueError(f'it is another kind of data; give its type, such as "{example}"')
        return text

    return AfterValidator(check)
