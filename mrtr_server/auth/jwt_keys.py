"""Signed tokens and the keys of their issuer, as PyJWT reads them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.authentication import AuthenticationError

from ..extras import lacking

try:
    import jwt
except ImportError as error:
    raise lacking("Verifying tokens", "auth", error) from error

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms that verify with a public key."""

MOST_KEYS = 100
"""How many keys of an issuer are read."""

SMALLEST_RSA = 2048
"""How many bits an RSA key has at least."""

_OF_TYPE: Mapping[tuple[str, str], frozenset[str]] = {
    ("RSA", ""): frozenset(algorithm for algorithm in ALGORITHMS if algorithm[:2] in ("RS", "PS")),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""The algorithms that a key can be for, by its type and curve."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key of an issuer.

    Args:
        id: its `kid`; empty if it has none.
        algorithms: those that it may be used with.
        key: as PyJWT takes it.
        thumbprint: what it was read from, to tell keys apart.
    """

    id: str
    algorithms: frozenset[str]
    key: Any
    thumbprint: str


def read_keys(document: Mapping[str, Any], allowed: Collection[str]) -> list[VerifyingKey]:
    """Return the keys of a JSON Web Key Set that tokens may be signed with; all others are left out.

    Args:
        document: the set (RFC 7517).
        allowed: the algorithms to accept.
    """
    listed = document.get("keys")
    entries = listed[:MOST_KEYS] if isinstance(listed, list) else []
    found = (_read_key(entry, allowed) for entry in entries if isinstance(entry, dict))
    return [key for key in found if key is not None]


def _read_key(entry: Mapping[str, Any], allowed: Collection[str]) -> VerifyingKey | None:
    kind = str(entry.get("kty"))
    algorithms = _OF_TYPE.get((kind, "" if kind == "RSA" else str(entry.get("crv"))), frozenset()) & frozenset(allowed)
    if (named := entry.get("alg")) is not None:
        algorithms &= {str(named)}
    if not algorithms or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    try:
        key = jwt.PyJWK(dict(entry), algorithm=min(algorithms)).key
    except Exception:  # whatever is wrong with it, the others may do
        return None
    if kind == "RSA" and key.key_size < SMALLEST_RSA:
        return None
    id = entry.get("kid")
    return VerifyingKey(id if isinstance(id, str) else "", algorithms, key, repr(sorted(map(str, entry.items()))))


def read_header(token: bytes, allowed: Collection[str]) -> tuple[str, str]:
    """Return the key id and the algorithm that a token names. Nothing else in its header counts, such as `jku`.

    Args:
        token: the token; nothing of it is verified yet.
        allowed: the algorithms to accept.

    Returns:
        The id, empty for none; and the algorithm.

    Raises:
        AuthenticationError: it is not a signed token, or not by an accepted algorithm.
    """
    if token.count(b".") != 2:
        raise AuthenticationError("the token is not a signed JWT")
    try:
        # The header alone, since PyJWT takes as long for the rest of the token as for its signature.
        header = jwt.get_unverified_header(token.partition(b".")[0] + b".e30.")
    except Exception as error:
        raise AuthenticationError(f"the token's header can't be read: {type(error).__name__}") from None
    algorithm, id, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "JWT")
    if algorithm not in allowed:
        raise AuthenticationError(f"the algorithm {str(algorithm)[:20]!r} is not accepted; see algorithms=")
    if "crit" in header:
        raise AuthenticationError("the token has critical headers, and none is supported")
    if not isinstance(id, str) or len(id) > 500:
        raise AuthenticationError("the token's 'kid' is not a valid key id")
    if str(kind).lower().removeprefix("application/") not in ("jwt", "at+jwt"):
        raise AuthenticationError(f"the token's type is {str(kind)[:20]!r}, and not that of an access token")
    return id, str(algorithm)


def verify(
    token: bytes,
    keys: Iterable[VerifyingKey],
    algorithm: str,
    *,
    issuer: str,
    has_audience: bool,
    leeway: float,
) -> dict[str, Any] | None:
    """Return the claims of a token; None if none of the keys has signed it.

    Args:
        token: the token.
        keys: of the issuer, any of which may have signed it.
        algorithm: one that the keys are for.
        issuer: must be its `iss`.
        has_audience: whether it must have an `aud`; what that says is for who asks to check.
        leeway: by how much clocks may be apart, in seconds.

    Raises:
        AuthenticationError: it is not valid; the message says which check failed.
    """
    required = ["exp", "iss", "sub", *(["aud"] if has_audience else [])]
    for key in keys:
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                issuer=issuer,
                leeway=leeway,
                options={"require": required, "verify_aud": False},
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError as error:
            raise AuthenticationError(_reason(error)) from None
        except Exception as error:  # such as nesting that no parser takes
            raise AuthenticationError(f"the token can't be read: {type(error).__name__}") from None
    return None


def _reason(error: Exception) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet: check the clocks"
        case jwt.InvalidIssuerError():
            return "the token is of another issuer than issuer="
        case jwt.MissingRequiredClaimError(claim=claim):
            return f"the token has no {claim!r}" + ("; see client_ids=" if claim == "aud" else "")
        case _:
            return f"the token can't be read: {type(error).__name__}"
