"""One canonical form of JSON, and short digests of it.

Two values have one digest exactly when a JSON reader would take them for the same value: the order of keys does not
count, nor whether a whole number is written 1 or 1.0. RFC 8785 draws the same line; its form is not used, since it
refuses whole numbers past 2**53 and is several times slower.
"""

import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _normal(value: Any) -> Any:
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is dict:
        return {key: _normal(item) for key, item in value.items()}
    if type(value) is list:
        return [_normal(item) for item in value]
    return value


def canonical(value: Any) -> bytes:
    """Write a JSON value in its canonical form.

    Parameters:
        value: what a JSON parser gives: dict, list, str, int, finite float, bool, None.

    Returns:
        ASCII bytes, equal for equal values.

    Raises:
        ValueError: a number is not finite.
        TypeError: something is not JSON.
    """
    return _encode(_normal(value)).encode("ascii")


def digest_bytes(data: bytes) -> str:
    """Digest bytes to 128 bits, as 22 characters of URL-safe Base64."""
    return urlsafe_b64encode(sha256(data).digest()[:16])[:22].decode("ascii")


def digest(value: Any) -> str:
    """Digest a JSON value by its canonical form. Raises as `canonical` does."""
    return digest_bytes(canonical(value))
