"""Proofs that a client holds the key that its token is bound to (RFC 9449, Demonstrating Proof of Possession)."""

import json
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from ..addresses import BaseUrl, escape_path
from ..crypto.digests import digest_parts
from ..crypto.keys import KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import Full, InvalidRequestState, ProofRefused, SetupError
from ..protocol.callers import Principal

Mode = Literal["accept", "require"]

ALGORITHMS = ("ES256", "ES384", "ES512", "EdDSA", "RS256", "PS256")

NONCE_SECONDS = 300.0
"""How long a nonce is valid, in seconds. It says when it was made, so no clock of a client counts."""

AHEAD = 60.0  # seconds by which the clock of the replica that gave a nonce may be ahead

MOST_SEEN = 200_000  # proofs that a process remembers for that long

LONGEST = 8 * 1024  # bytes of a proof

_MEMBERS = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}

_PORTS = {"https": 443, "http": 80}

Once = Callable[[str, float, Principal | None], Awaitable[bool]]
"""Notes that something happened, for some seconds; returns whether it is new."""


def check_mode(dpop: str | None, replay: str) -> None:
    """Check settings. Raises `SetupError`."""
    if dpop not in (None, "accept", "require"):
        raise SetupError(f'dpop={dpop!r}: choose from "accept", "require", or leave it out')
    if replay not in ("process", "store"):
        raise SetupError(f'dpop_replay={replay!r}: choose from "process", "store"')


class Proof(NamedTuple):
    """What a proof shows."""

    jkt: str  # the thumbprint of its key
    nonce: str
    jti: str


class _Seen:
    """What this process has seen lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, what: str, seconds: float, who: Principal | None) -> bool:
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        if what in self._until:
            return False
        if len(self._until) >= MOST_SEEN:  # none is forgotten early: it could come again
            raise Full("proofs", MOST_SEEN)
        self._until[what] = now + seconds
        return True


class Proofs:
    """Checks proofs for one server."""

    def __init__(
        self,
        mode: Mode,
        ring: KeyRing,
        base_url: str | None,
        once: Once | None = None,  # None for once in each process
        clock: Callable[[], float] = time.time,
    ) -> None:
        from .jwt_keys import verify_proof  # loads PyJWT

        self.mode = mode
        self._verify = verify_proof
        self._codec = PlaceCodec(ring, "dpop nonce")
        self._base = BaseUrl(base_url)
        self._once = once or _Seen(clock)
        self._clock = clock

    def nonce(self) -> str:
        return self._codec.seal(b"", b"%d" % self._clock())

    def nonce_after(self, used: str) -> str:
        """Return the nonce to use next, where the one that was used has lived for a while; otherwise nothing."""
        return self.nonce() if self._age(used) > NONCE_SECONDS / 2 else ""

    def url_of(self, host: str, root: str, path: str) -> str:
        """Return the address that the proof of a request names; empty where that can't be known."""
        base = self._base.at(host, root)
        return "" if base is None else base + escape_path(path.removeprefix(root))

    async def use(self, proof: Proof, who: Principal | None) -> None:
        """Note that a proof was used, of whoever has the token. Raises `ProofRefused` if it was before, and `Full`."""
        if not await self._once(digest_parts("dpop", proof.jkt, proof.jti), NONCE_SECONDS + AHEAD, who):
            raise self._refused("the proof came before")

    def verify(
        self, given: Sequence[bytes], method: str, url: str, *, token: bytes | None = None, jkt: str | None = None
    ) -> Proof:
        """Return what a proof shows (section 4.3). Raises `ProofRefused`.

        `given` are the values of the header; `token` is the access token that it comes with, which is bound to `jkt`.
        """
        if len(given) != 1 or len(given[0]) > LONGEST:
            raise self._refused("there is not one proof" if len(given) != 1 else "the proof is too long")
        try:
            key, claims = self._verify(given[0], ALGORITHMS)
        except ValueError as error:
            raise self._refused(str(error)) from None
        named, own = _plain(claims.get("htu")), _plain(url)
        if claims.get("htm") != method or named is None or named != own:
            raise self._refused("the proof is for another request: check base_url=")
        if token is not None and not _same(claims.get("ath"), _base64(sha256(token).digest())):
            raise self._refused("the proof is for another token")
        found = thumbprint(key)
        if jkt is not None and not compare_digest(found, jkt):
            raise self._refused("the proof is by another key than that of the token")
        jti, nonce = claims.get("jti"), claims.get("nonce")
        if not isinstance(jti, str) or not jti or not isinstance(claims.get("iat"), int | float):
            raise self._refused("the proof has no jti, or no iat")
        if not isinstance(nonce, str) or not -AHEAD <= self._age(nonce) <= NONCE_SECONDS:
            raise ProofRefused("the proof has no nonce of this server, or an old one", "use_dpop_nonce", self.nonce())
        return Proof(found, nonce, jti)

    def _age(self, nonce: str) -> float:
        try:
            made = int(self._codec.unseal(b"", nonce, ""))
        except (InvalidRequestState, ValueError):
            return float("inf")
        return self._clock() - made

    def _refused(self, why: str) -> ProofRefused:
        return ProofRefused(why, "invalid_dpop_proof", self.nonce())


def thumbprint(key: dict[str, Any]) -> str:
    """Return the thumbprint of a public key (RFC 7638)."""
    members = {name: key[name] for name in _MEMBERS[str(key["kty"])]}
    return _base64(sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode(errors="replace"), expected.encode())


def _plain(url: object) -> tuple[str, str, int | None, str] | None:
    """Return the parts of an address that count: neither its query, nor the case of its host, nor a usual port."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port, parts.path or "/") if parts.hostname else None
