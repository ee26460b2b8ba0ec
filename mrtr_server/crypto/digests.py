"""One canonical form of JSON, and digests of it and of secrets.

Two values have one digest exactly when a JSON reader would take them for the same value: neither the order of keys
counts, nor whether a whole number is written 1 or 1.0. RFC 8785 draws the same line, but refuses whole numbers past
2**53, and is several times slower. The form is about as long as the value: 1e308 is not written with all its digits.
"""

import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from ..well_formed import has_halves


def _normal(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        normal = {}
        for key in sorted(value) if len(value) > 1 else value:
            item = value[key]
            normal[key] = item if type(item) is str else _normal(item)
        return normal
    if kind is list:
        return [_normal(item) for item in value]
    # RFC 8785, too, writes whole numbers from 1e21 on with an exponent.
    if kind is int:
        return value if -(10**21) < value < 10**21 else _shortest(value)
    return int(value) if kind is float and -1e21 < value < 1e21 and value.is_integer() else value


def _shortest(number: int) -> int | float:
    try:
        return as_float if (as_float := float(number)) == number else number
    except OverflowError:
        return number


def canonical(value: Any) -> bytes:
    """Return the canonical form of what a JSON parser returned. Raises `ValueError` where a part of it is not JSON."""
    normal = _normal(value)
    try:
        return to_json(normal)
    except PydanticSerializationError as error:
        if not has_halves(error):
            raise
        return json.dumps(normal).encode()  # in ASCII, where halves of characters differ as the texts do


def digest_bytes(data: bytes) -> str:
    """Return 128 bits, as 32 hex digits."""
    return sha256(data).hexdigest()[:32]


def digest_twice(data: bytes, more: bytes) -> tuple[str, str]:
    """Return the digest of bytes, and that of the same with more behind them, in one pass."""
    digesting = sha256(data)
    first = digesting.hexdigest()[:32]
    digesting.update(more)
    return first, digesting.hexdigest()[:32]


def digest(value: Any) -> str:
    return digest_bytes(canonical(value))


def digest_parts(*parts: str | int) -> str:
    """Return a digest of texts and numbers, in which it counts where one ends and the next one begins."""
    return digest_bytes(canonical(parts))


def challenge_of(verifier: str) -> str:
    """Return the challenge of a verifier (RFC 7636, S256)."""
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
