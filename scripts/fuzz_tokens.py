"""Tokens for scripts/fuzz: real ones of an issuer, ones that look like them, and what an issuer should not say."""

import base64
import hmac
import json
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256, sha384, sha512
from random import Random
from typing import Any

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fuzz_issuer import ALGORITHMS, JSON, STOLEN, WEAK, Issuer, dump, encode
from fuzz_requests import Request

AUDIENCE = "https://tools.example.com/mcp"
SIGNED, OPAQUE = "signed", "opaque"
"""The servers that take tokens: those that are signed, and those about which the issuer is asked."""

_LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "who"}}).encode()
_SECONDS = 3600
_DEEP = b"[" * 3_000
_JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, 10**60, "", "x", "\x00", "ü", [], {}, [[]], [None], ["x"], {"x": 1}, "a" * 3_000),
)
_NUMBERS = (
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"9" * 5_000,
    b"1" + b"0" * 400,
    b"-0",
    b"1e-999",
    b"true",
    b'"9"',
)
_KIDS: tuple[Any, ...] = (
    *("", "unknown", "../../dev/null", "' OR 1=1 --", "rsa\x00", "RSA", "a" * 501, "|id", "http://127.0.0.1:1/"),
    *(None, 1, [], {}, ["rsa"], True, "oct", "private", "weak", "encrypting"),
)


Verdict = Callable[[int, bytes], str]


def _is_in(status: int, body: bytes) -> str:
    return "" if status == 200 and b'\\"jane\\"' in body else f"a good token was refused: {status} {body[:200]!r}"


def _is_out(status: int, body: bytes) -> str:
    return "" if status in (400, 401) else f"a token was accepted that is none: {status} {body[:200]!r}"


def _either(status: int, body: bytes) -> str:
    """Check a reply to what the issuer itself has said: whatever it is, nobody is who it does not name."""
    return (
        "" if status in (200, 400, 401) and b'[\\"\\"' not in body else f"neither in nor out: {status} {body[:200]!r}"
    )


def _away(status: int, body: bytes) -> str:
    return "" if status in (401, 503) else f"a reply of the issuer was believed: {status} {body[:200]!r}"


class Tokens:
    """Makes requests with tokens, good and bad.

    Args:
        random: decides everything.
        issuer: signs those that are good.
    """

    def __init__(self, random: Random, issuer: Issuer) -> None:
        self._random = random
        self._issuer = issuer
        self._good: deque[bytes] = deque(maxlen=30)
        self._number = 0
        self._makers = [
            (self._right, 4),
            (self._mutated, 8),
            (self._confused, 4),
            (self._stolen, 4),
            (self._odd_header, 5),
            (self._odd_claims, 6),
            (self._odd_place, 3),
            (self._opaque, 2),
        ]

    def next(self) -> Request:
        """Return the next request."""
        makers, weights = zip(*self._makers, strict=True)
        (maker,) = self._random.choices(makers, weights)
        request: Request = maker()
        request.waits = True
        return request

    def _request(
        self, token: bytes, what: str, check: Verdict, server: str = SIGNED, scheme: bytes = b"Bearer "
    ) -> Request:
        value = (scheme + token).decode("latin-1")
        return Request(server, "", headers={"authorization": value}, body=_LIST, what=what, check=check)

    def _claims(self, **more: Any) -> JSON:
        self._number += 1
        now = int(time.time())
        given = {"iss": self._issuer.url, "sub": "jane", "aud": AUDIENCE, "client_id": "c", "scope": "a b"}
        return {**given, "iat": now, "exp": now + _SECONDS, "jti": str(self._number), **more}

    def _kid(self) -> str:
        return self._random.choices(tuple(ALGORITHMS), (1, 4, 3))[0]

    def _header(self, kid: str, **more: Any) -> JSON:
        return {"alg": ALGORITHMS[kid], "kid": kid, "typ": "at+jwt", **more}

    def _token(self, **claims: Any) -> bytes:
        kid = self._kid()
        return self._issuer.sign(dump(self._header(kid)), dump(self._claims(**claims)), kid)

    def _right(self) -> Request:
        if self._good and self._random.random() < 0.5:
            return self._request(self._random.choice(self._good), "a known token", _is_in)
        token = self._token()
        self._good.append(token)
        return self._request(token, "a new token", _is_in)

    # Tokens that were given, and are not the same any more

    def _mutated(self) -> Request:
        random = self._random
        token = random.choice(self._good) if self._good else self._token()
        parts = token.split(b".")
        other = (random.choice(self._good) if self._good else self._token()).split(b".")
        number, at = random.randrange(3), random.randrange(len(token))
        match random.randrange(8):
            case 0:
                forged = token[:at] + bytes([token[at] ^ (1 << random.randrange(7))]) + token[at + 1 :]
            case 1:
                forged = token[:at]
            case 2:
                forged = token + random.choice((b"=", b"A", b".", b"..", b".e30", b"%00", b" x"))
            case 3:
                forged = b".".join([*parts[:number], other[number], *parts[number + 1 :]])
            case 4:
                forged = b".".join([*parts[:number], b"", *parts[number + 1 :]])
            case 5:
                forged = b".".join(random.sample(parts, 3))
            case 6:
                forged = b".".join([parts[0], encode(dump(self._claims(sub="root", scope="admin"))), parts[2]])
            case _:
                forged = token[:at] + random.randbytes(random.randrange(1, 20)) + token[at:]
        return self._request(forged, "a mutated token", _either if _is_same(token, forged) else _is_out)

    # Signed by somebody else

    def _confused(self) -> Request:
        """Return a token whose algorithm is none, or one with a secret that everybody knows."""
        random, issuer = self._random, self._issuer
        public = issuer.rsa.public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        modulus = public.public_numbers().n.to_bytes(256, "big")
        algorithm = random.choice(
            ("none", "None", "NONE", "nOnE", "", "HS256", "HS384", "HS512", "RS256", "ES256", "hs256")
        )
        header = {"alg": algorithm, "kid": random.choice(("rsa", "ec", "oct", "")), "typ": "at+jwt"}
        signed = encode(dump(header)) + b"." + encode(dump(self._claims()))
        secret = random.choice((pem, pem.strip(), der, modulus, encode(modulus), b"secret", b"", b"\x00", b"rsa"))
        signature = hmac.digest(secret, signed, random.choice((sha256, sha384, sha512)))
        if random.random() < 0.4:
            signature = random.choice(
                (b"", b"\x00" * 64, b"\x00" * 256, b"\x30\x06\x02\x01\x00\x02\x01\x00", b"\xff" * 64)
            )
        return self._request(signed + b"." + encode(signature), f"algorithm {algorithm!r}", _is_out)

    def _stolen(self) -> Request:
        """Return a token that is signed by a key that is not for tokens, and that may bring its key along."""
        random, key = self._random, self._random.choice((STOLEN, WEAK))
        public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        brought: tuple[JSON, ...] = (
            *({}, {"jwk": public}, {"jku": f"{self._issuer.url}/theirs"}, {"x5u": "http://127.0.0.1:1/"}),
            *({"x5c": ["MIIB"]}, {"jwk": 1, "x5c": {}}, {"jku": f"{self._issuer.url}@example.com/keys"}),
        )
        kid = random.choice(("rsa", "ec", "private", "weak", "encrypting", "", "theirs"))
        header = {"alg": random.choice(("RS256", "PS256")), "kid": kid, "typ": "JWT", **random.choice(brought)}
        signed = encode(dump(header)) + b"." + encode(dump(self._claims()))
        mask = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
        signature = key.sign(signed, mask if header["alg"] == "PS256" else padding.PKCS1v15(), hashes.SHA256())
        return self._request(signed + b"." + encode(signature), "somebody else's key", _is_out)

    # Signed by the issuer, and odd

    def _odd_header(self) -> Request:
        random, kid = self._random, self._kid()
        header, check = self._header(kid), _is_out
        match random.randrange(7):
            case 0:
                header["crit"] = random.choice((["exp"], [], "x", {"b64": False}, None, 1))
            case 1:
                header["kid"] = random.choice([each for each in (*_KIDS, "rsa", "ec", "ed") if each != kid])
                check = _either if header["kid"] == "" else _is_out
            case 2:
                header["alg"] = random.choice((*_JUNK, "RS1", "ES256K", "dir", "RSA-OAEP", "A" * 500))
            case 3:
                header["typ"] = random.choice(("JWE", "dpop+jwt", "logout+jwt", "id_token", [], {}, 1, "secevent+jwt"))
            case 4:
                header |= {
                    "jku": "http://127.0.0.1:1/keys",
                    "jwk": {"kty": "oct", "k": "AA"},
                    "b64": True,
                    "zip": "DEF",
                }
                check = _either
            case 5:
                twice = dump(header)[:-1] + b', "alg": "none", "kid": "oct"}'
                return self._request(self._issuer.sign(twice, dump(self._claims()), kid), "a member twice", _is_out)
            case _:
                bombs = (b"", b"{", b"[]", b"1", b"null", b'"x"', _DEEP, b"\xff\xfe", b'{"alg":' + _DEEP, b"\x00" * 100)
                number = b'{"alg":"%s","kid":%s}' % (ALGORITHMS[kid].encode(), random.choice(_NUMBERS))
                bomb = random.choice((*bombs, number, b'{"a":"' + b"b" * 9_000 + b'"}'))
                return self._request(self._issuer.sign(bomb, dump(self._claims()), kid), "a header bomb", _is_out)
        return self._request(self._issuer.sign(dump(header), dump(self._claims()), kid), "an odd header", check)

    def _odd_claims(self) -> Request:
        random, kid = self._random, self._kid()
        claims, check = self._claims(), _either
        wrong: JSON
        body = dump(claims)
        match random.randrange(6):
            case 0:
                wrong = random.choice(
                    ({"exp": 1}, {"exp": None}, {"nbf": time.time() + 3600}, {"iat": time.time() + 3600})
                )
                body, check = dump(claims | wrong), _is_out
            case 1:
                wrong = random.choice(({"aud": "https://other/"}, {"aud": []}, {"iss": "https://other/"}, {"sub": ""}))
                body, check = dump(claims | wrong), _is_out
            case 2:
                del claims[random.choice(("exp", "iss", "sub", "aud"))]
                body, check = dump(claims), _is_out
            case 3:
                named = ("exp", "nbf", "iat", "aud", "iss", "sub", "scope", "scp", "client_id", "azp", "typ", "name")
                body = dump(claims | {random.choice(named): random.choice(_JUNK)})
            case 4:
                number = b'"%s": %s}' % (random.choice((b"exp", b"nbf", b"iat", b"sub")), random.choice(_NUMBERS))
                body = body[:-1] + b", " + number
            case _:
                body = random.choice((b"", b"[]", b"null", b"1", _DEEP, b'{"x":' + _DEEP, b"\xff", b"{}"))
                check = _is_out
        return self._request(self._issuer.sign(dump(self._header(kid)), body, kid), "odd claims", check)

    def _odd_place(self) -> Request:
        random = self._random
        token = random.choice(self._good) if self._good else self._token()
        scheme = random.choice(
            (b"", b"Basic ", b"DPoP ", b"Bearer", b"bearer ", b"BEARER   ", b"Bearer\t", b"Bearer Bearer ")
        )
        check = _is_in if scheme in (b"bearer ", b"BEARER   ") else _is_out
        if random.random() < 0.3:
            token, check = random.choice((b"", b"x" * 20_000, random.randbytes(50), b"." * 500)), _is_out
        return self._request(token, f"a token after {scheme!r}", check, scheme=scheme)

    # What the issuer says of an opaque token

    def _opaque(self) -> Request:
        random = self._random
        claims = {"active": True, **self._claims()}
        token, status, check = f"opaque-{self._number}", 200, _either
        body = dump(claims)
        match random.randrange(6):
            case 0:
                check = _is_in
            case 1:
                body, check = dump(claims | {"active": random.choice((False, None, "true", 1, [], {}))}), _is_out
            case 2:
                wrong = random.choice(({"aud": "x"}, {"iss": "x"}, {"sub": ""}, {"sub": 1}, {"exp": 1}, {"exp": "9"}))
                body, check = dump(claims | wrong), _is_out
            case 3:
                named = ("exp", "nbf", "aud", "iss", "sub", "scope", "client_id", "username", "typ", "token_use")
                body = dump(claims | {random.choice(named): random.choice(_JUNK)})
            case 4:
                body = body[:-1] + b', "%s": %s}' % (random.choice((b"exp", b"nbf", b"sub")), random.choice(_NUMBERS))
            case _:
                if random.random() < 0.2:  # nobody is asked for a second then
                    status = random.choice((500, 401, 302, 204))
                    body = random.choice((b"", b"[]", b"null", b"\xff", _DEEP, b"<html>", b'{"active": true'))
                    check = _away
        self._issuer.replies[token] = status, body
        may_be_away = check
        return self._request(
            token.encode(),
            "an opaque token",
            lambda status, body: "" if status == 503 else may_be_away(status, body),
            OPAQUE,
        )


def _is_same(token: bytes, forged: bytes) -> bool:
    """Return whether a token says and proves the same as another one: the last bits of Base64 may differ."""
    first, second = token.split(b"."), forged.strip().split(b".")
    if len(second) != 3:
        return False
    try:
        return [base64.urlsafe_b64decode(part + b"==") for part in first] == [
            base64.urlsafe_b64decode(part + b"==") for part in second
        ]
    except ValueError:
        return False
