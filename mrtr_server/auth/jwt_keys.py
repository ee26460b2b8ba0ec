"""Signed tokens and the keys of their issuer, as PyJWT reads them: the keys are discovered, kept, and fetched again."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.authentication import AuthenticationError

from ..concurrency.running import PerLoop
from ..errors import IssuerUnavailable, SetupError, lacking
from .fetching import discover, fetch_json

try:
    import jwt
except ImportError as error:
    raise lacking("Verifying tokens", "auth", error) from error

logger = logging.getLogger("mrtr_server")

# Algorithms that verify with a public key.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

MOST_KEYS = 100  # of an issuer that are read

SMALLEST_RSA, LARGEST_RSA = 2048, 8192  # bits of a key

LONGEST_EXPONENT = 32  # bits of that of an RSA key: verifying costs as much as it has

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
    """A public key of an issuer, as PyJWT takes it, and what it may be used with; its thumbprint tells keys apart."""

    id: str
    algorithms: frozenset[str]
    key: Any
    thumbprint: str


def read_keys(document: Mapping[str, Any], allowed: Collection[str]) -> list[VerifyingKey]:
    """Return the keys of a JSON Web Key Set (RFC 7517) that tokens may be signed with; all others are left out."""
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
    if kind == "RSA" and not (
        SMALLEST_RSA <= key.key_size <= LARGEST_RSA and key.public_numbers().e < 1 << LONGEST_EXPONENT
    ):
        return None
    id = entry.get("kid")
    return VerifyingKey(id if isinstance(id, str) else "", algorithms, key, repr(sorted(map(str, entry.items()))))


def read_header(token: bytes, allowed: Collection[str]) -> tuple[str, str]:
    """Return the key id, which may be empty, and the algorithm: nothing else in a header counts, or is verified yet."""
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
    issuer: str | Sequence[str],
    has_audience: bool,
    leeway: float,
) -> dict[str, Any] | None:
    """Return the claims of a token; None if none of the keys has signed it. Raises `AuthenticationError`.

    `issuer` is the one that it has to name, or several of which it has to name one. Whether an `aud` names this server
    is for the caller to check. Clocks may be `leeway` seconds apart.
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


def read_key(given: str | bytes | Mapping[str, Any], allowed: Collection[str]) -> VerifyingKey:
    """Return a public key that is written as PEM or JWK. Raises `SetupError`."""
    keys = read_keys({"keys": [dict(given) if isinstance(given, Mapping) else _jwk_of(given)]}, allowed)
    if not keys:
        raise SetupError(
            "public_key= takes a public key for one of algorithms=, as PEM or as a JWK: RSA of 2048 bits at least, "
            "P-256, P-384, P-521 or Ed25519; never a private one"
        )
    return keys[0]


def _jwk_of(pem: str | bytes) -> dict[str, Any]:
    for name in ("RS256", "ES256", "EdDSA"):
        algorithm: Any = jwt.get_algorithm_by_name(name)
        try:
            found = algorithm.to_jwk(algorithm.prepare_key(pem), as_dict=True)
        except Exception:  # noqa: S112  it is of another type
            continue
        return dict(found)
    return {}


_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "k"})

_LONGEST_MODULUS = 700
"""Characters of an RSA key, of 4096 bits: what is longer costs more to verify than a request is worth."""


def verify_proof(token: bytes, allowed: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the key in the header of a proof (RFC 9449), and its claims, which that key has signed.

    Raises `ValueError`, with the reason.
    """
    try:
        header = jwt.get_unverified_header(token)
    except Exception:
        raise ValueError("the proof is no JWT") from None
    algorithm, key = header.get("alg"), header.get("jwk")
    if header.get("typ") != "dpop+jwt" or algorithm not in allowed or "crit" in header or not isinstance(key, dict):
        raise ValueError("the proof has another header than typ, an accepted alg, and jwk")
    if not _PRIVATE.isdisjoint(key) or len(str(key.get("n", ""))) > _LONGEST_MODULUS:
        raise ValueError("the proof has a private key, or one that is too large")
    read = _read_key({**key, "use": "sig"}, [str(algorithm)])
    if read is None:
        raise ValueError("the key of the proof does not fit its algorithm")
    try:
        claims = jwt.decode(
            token, read.key, algorithms=[str(algorithm)], options={"verify_aud": False, "verify_iat": False}
        )
    except Exception:
        raise ValueError("the proof is not signed by its key") from None
    return key, claims


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


# The keys of one issuer, fetched again by age, or when none of them verifies a token


FLOOR = 10.0
"""How often the issuer is asked at most, in seconds: once in that time, however many tokens no known key verifies."""

RENEW = 300.0
"""After how long keys are fetched again beside the requests, in seconds, so that hardly any request waits for that."""

FRESH = 600.0
"""After how long no key counts before the issuer was asked again, in seconds: it may have withdrawn the key."""

MOST_TRIED = 10  # how many keys are tried for one token that does not name one


class FixedKey:
    """One key in place of those of an issuer; see `IssuerKeys`."""

    trusted_for = math.inf

    def __init__(self, key: VerifyingKey) -> None:
        self._key = key

    async def find(self, id: str, algorithm: str, tried: Collection[VerifyingKey] = ()) -> list[VerifyingKey]:
        return [self._key] if algorithm in self._key.algorithms and not tried else []


class IssuerKeys:
    """The keys of one issuer, kept for as long as it can't be reached; `on_change` is called when they change."""

    def __init__(
        self,
        issuer: str,
        jwks_uri: str | None,
        algorithms: Sequence[str],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._algorithms = algorithms
        self._on_change = on_change
        self._clock = clock
        self._keys: list[VerifyingKey] = []
        self._fetched = self._asked = float("-inf")
        self._found_at: str | None = None
        self._is_away = self._told_of_more = False
        self._fetching = PerLoop[asyncio.Task[None]]()

    async def find(self, id: str, algorithm: str, tried: Collection[VerifyingKey] = ()) -> list[VerifyingKey]:
        """Return the keys that a token may be signed with, at most `MOST_TRIED`; the id is empty where it names none.

        Those that were tried do not verify the token: others may have come since, so the issuer is asked for them.
        Raises `IssuerUnavailable` where no such key is known, and the issuer can't be asked now.
        """
        keys, age = self._lookup(id, algorithm, tried), self._clock() - self._fetched
        if not keys or (age >= FRESH and not self._is_away):
            await self._refresh()
            keys = self._lookup(id, algorithm, tried)
            if not (keys or tried) and (self._is_away or self._fetched == float("-inf")):
                raise IssuerUnavailable(f"{self._issuer} may have a key that is not known here")
        elif age >= RENEW:
            self._start()  # beside the request, which has its key
        return keys

    @property
    def trusted_for(self) -> float:
        """For how long a token may count as verified by these keys, in seconds; then they may have to be renewed."""
        return max(self._fetched + RENEW - self._clock(), FLOOR)

    def _lookup(self, id: str, algorithm: str, tried: Collection[VerifyingKey]) -> list[VerifyingKey]:
        fitting = [key for key in self._keys if algorithm in key.algorithms and (key.id == id or not (key.id and id))]
        fitting.sort(key=lambda key: key.id != id)  # keys of its name first
        known = {key.thumbprint for key in tried}
        return [key for key in fitting[:MOST_TRIED] if key.thumbprint not in known]

    async def _refresh(self) -> None:
        fetching = self._start()
        if fetching is not None:
            await asyncio.shield(fetching)  # for all who wait, whichever of them leaves

    def _start(self) -> "asyncio.Task[None] | None":
        """Begin to fetch, or join in; None if it is too soon to ask again."""
        if (fetching := self._fetching.get()) is not None and not fetching.done():
            return fetching
        now = self._clock()
        if now - self._asked < FLOOR:
            return None
        self._asked = now
        return self._fetching.put(asyncio.create_task(self._fetch()))

    async def _fetch(self) -> None:
        try:
            keys = await self._ask()
        except IssuerUnavailable as error:
            self._found_at = None  # it may have moved
            if not self._is_away:
                what = "the keys that are known are kept" if self._keys else "no token can be verified until then"
                logger.error("The keys of %s can't be fetched, and %s: %s", self._issuer, what, error)
            self._is_away = True
            return
        if self._is_away:
            logger.warning("The keys of %s can be fetched again", self._issuer)
        self._is_away, self._fetched = False, self._clock()
        self._take(keys)

    def _take(self, keys: list[VerifyingKey]) -> None:
        if {key.thumbprint for key in keys} != {key.thumbprint for key in self._keys}:
            self._keys = keys
            self._on_change()

    async def _ask(self) -> list[VerifyingKey]:
        if self._found_at is None:
            self._found_at = self._jwks_uri or _jwks_uri_of(await discover(self._issuer))
        document = await fetch_json(self._found_at)
        keys, listed = read_keys(document, self._algorithms), document.get("keys")
        if isinstance(listed, list) and len(listed) > MOST_KEYS and not self._told_of_more:
            self._told_of_more = True
            logger.warning(
                "%s lists %d keys, and only the first %d are used: tokens signed with one of the others are rejected",
                self._found_at,
                len(listed),
                MOST_KEYS,
            )
        if not keys:
            if isinstance(listed, list):  # the issuer has withdrawn the known keys; anything else is no set of keys
                self._take([])
            raise IssuerUnavailable(f"{self._found_at} has no key for {', '.join(self._algorithms)}")
        return keys


def _jwks_uri_of(metadata: dict[str, object]) -> str:
    uri = metadata.get("jwks_uri")
    if not isinstance(uri, str):
        raise IssuerUnavailable("the metadata has no jwks_uri")
    return uri
