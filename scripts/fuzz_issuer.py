"""The issuer of tokens for scripts/fuzz: its keys, and what it says of opaque tokens."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

JSON = dict[str, Any]


def encode(part: bytes) -> bytes:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def dump(part: Any) -> bytes:
    """Return JSON."""
    return json.dumps(part).encode()


class Issuer:
    """An issuer with keys of each sort, served on loopback. It says of opaque tokens what it was told to say."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.ed = ed25519.Ed25519PrivateKey.generate()
        self.replies: dict[str, tuple[int, bytes]] = {}
        """What it says of an opaque token: the status and the body."""
        self._keys = dump({"keys": [*self._good_keys(), *self._bad_keys()]})
        answering = type("Answering", (_Answering,), {"issuer": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), answering)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def _good_keys(self) -> list[JSON]:
        rsa_key = jwt.algorithms.RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True)
        ec_key = jwt.algorithms.ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True)
        ed_key = jwt.algorithms.OKPAlgorithm.to_jwk(self.ed.public_key(), as_dict=True)
        return [{**key, "kid": kid} for kid, key in (("rsa", rsa_key), ("ec", ec_key), ("ed", ed_key))]

    def _bad_keys(self) -> list[Any]:
        """Return what stands in the set beside them, and must not be used."""
        weak = jwt.algorithms.RSAAlgorithm.to_jwk(WEAK.public_key(), as_dict=True)
        private = jwt.algorithms.RSAAlgorithm.to_jwk(STOLEN, as_dict=True)
        encrypting = jwt.algorithms.RSAAlgorithm.to_jwk(STOLEN.public_key(), as_dict=True)
        return [
            {"kty": "oct", "k": encode(b"secret").decode(), "kid": "oct", "alg": "HS256"},
            {**weak, "kid": "weak"},
            {**private, "kid": "private"},
            {**encrypting, "kid": "encrypting", "use": "enc"},
            *({"kty": "EC", "crv": "P-256", "x": "", "y": "", "kid": "ec0"}, {"kty": "RSA", "n": 1, "e": []}),
            *("x", None, 1, [], {}, {"kty": []}, {"kid": {}}),
        ]

    def reply(self, path: str, token: str) -> tuple[int, bytes]:
        """Return the status and the body for a request."""
        return (200, self._keys) if path == "/keys" else self.replies.pop(token, (200, b'{"active": false}'))

    def sign(self, header: bytes, claims: bytes, kid: str) -> bytes:
        """Return a token for the bytes of its header and claims, signed with a key."""
        signed = encode(header) + b"." + encode(claims)
        match kid:
            case "rsa":
                signature = self.rsa.sign(signed, padding.PKCS1v15(), hashes.SHA256())
            case "ec":
                r, s = decode_dss_signature(self.ec.sign(signed, ec.ECDSA(hashes.SHA256())))
                signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
            case _:
                signature = self.ed.sign(signed)
        return signed + b"." + encode(signature)


WEAK = rsa.generate_private_key(65537, 1024)  # noqa: S505  which is the point
STOLEN = rsa.generate_private_key(65537, 2048)
"""A key of somebody else, and one that is in the set with its private part."""
ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}


class _Answering(BaseHTTPRequestHandler):
    issuer: Issuer

    def do_GET(self) -> None:
        self._answer("")

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["content-length"])).decode()
        self._answer(form.partition("token=")[2].partition("&")[0])

    def _answer(self, token: str) -> None:
        status, body = self.issuer.reply(self.path, token)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
