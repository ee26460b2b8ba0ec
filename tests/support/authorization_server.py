"""A small OAuth authorization server, and what a test does with it.

It approves whoever the query of `/authorize` names as `user`. Each path is an issuer of its own, with its own keys,
clients and counts, so tests do not disturb each other. Paths that begin with `oidc` have the metadata of OpenID Connect
alone.

    uvicorn tests.support.authorization_server:app
"""

import base64
import hashlib
import json
import secrets
import time
from collections import Counter
from typing import Any
from urllib.parse import urlencode

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

JSON = dict[str, Any]
RESOURCE_SERVER = ("resource-server", "its-secret")
"""Who may introspect tokens."""


class Issuer:
    """One issuer.

    Args:
        url: its identifier.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.clients: dict[str, JSON] = {}
        self.codes: dict[str, JSON] = {}
        self.refresh: dict[str, JSON] = {}
        self.opaque: dict[str, JSON] = {}
        self.counts: Counter[str] = Counter()
        self.is_down = False
        self.lifetime = 300.0
        self.kids = self.before = 0
        self.names_keys = True
        self.published: JSON | None = None
        self.rotate()

    def rotate(self, *, renames: bool = True) -> None:
        """Take another key; the one before is not valid any more, and maybe has its name."""
        self.kids += renames
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.kid = f"key-{self.kids}"

    def metadata(self) -> JSON:
        """What it says of itself (RFC 8414)."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "introspection_endpoint": f"{self.url}/introspect",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": True,
            "subject_types_supported": ["public"],  # what OpenID Connect must have besides
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    def keys(self) -> JSON:
        """Its public keys; or what it publishes in their place."""
        if self.published is not None:
            return self.published
        others = [ec.generate_private_key(ec.SECP256R1()) for _ in range(self.before)]
        listed = [jwt.algorithms.ECAlgorithm.to_jwk(each.public_key(), as_dict=True) for each in (*others, self.key)]
        for number, each in enumerate(listed, 1 - len(listed)):
            each |= {"alg": "ES256", "use": "sig"}
            if self.names_keys:
                each["kid"] = f"other-{-number}" if number else self.kid
        return {"keys": listed}

    def claims(self, subject: str, client: str, scope: str, audience: str) -> JSON:
        """The claims of a token."""
        now = int(time.time())
        given = {"iss": self.url, "sub": subject, "client_id": client, "scope": scope, "aud": audience}
        return {**given, "iat": now, "exp": now + self.lifetime, "jti": secrets.token_hex(8)}

    def sign(self, claims: JSON, headers: JSON | None = None) -> str:
        """A token, signed. A header that is None is left out."""
        given = {"kid": self.kid, "typ": "at+jwt", **(headers or {})}
        named = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(claims, self.key, "ES256", headers=named)

    def answer(self, grant: JSON) -> JSON:
        """What a client gets for a grant."""
        refresh = secrets.token_urlsafe(16)
        self.refresh[refresh] = grant
        token = self.sign(self.claims(grant["user"], grant["client"], grant["scope"], grant["resource"]))
        given = {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime)}
        return {**given, "refresh_token": refresh, "scope": grant["scope"]}


ISSUERS: dict[str, Issuer] = {}


def issuer_of(request: Request) -> Issuer:
    """The issuer whose path a request is for."""
    url = f"http://{request.headers['host']}/{request.path_params['tenant']}"
    issuer = ISSUERS.setdefault(url, Issuer(url))
    issuer.counts[request.url.path.removeprefix(f"/{request.path_params['tenant']}")] += 1
    return issuer


async def metadata(request: Request) -> Response:
    issuer = issuer_of(request)
    is_oidc = request.url.path.endswith("openid-configuration")
    if request.path_params["tenant"].startswith("oidc") != is_oidc:
        return Response(status_code=404)
    return Response(status_code=503) if issuer.is_down else JSONResponse(issuer.metadata())


async def keys(request: Request) -> Response:
    issuer = issuer_of(request)
    return Response(status_code=503) if issuer.is_down else JSONResponse(issuer.keys())


async def register(request: Request) -> Response:
    issuer, wanted = issuer_of(request), await request.json()
    client = {**wanted, "client_id": secrets.token_hex(8), "token_endpoint_auth_method": "none"}
    client.pop("client_secret", None)
    issuer.clients[client["client_id"]] = client
    return JSONResponse(client, 201)


async def authorize(request: Request) -> Response:
    issuer, asked = issuer_of(request), request.query_params
    client = issuer.clients[asked["client_id"]]
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] in client["redirect_uris"]
    code = secrets.token_urlsafe(16)
    issuer.codes[code] = {
        "user": asked["user"],
        "client": asked["client_id"],
        "scope": asked.get("scope", ""),
        "resource": asked["resource"],
        "challenge": asked["code_challenge"],
        "redirect_uri": asked["redirect_uri"],
    }
    given = {"code": code, "iss": issuer.url, "state": asked.get("state")}
    back = urlencode({name: value for name, value in given.items() if value is not None})
    return RedirectResponse(f"{asked['redirect_uri']}?{back}", 302)


async def token(request: Request) -> Response:
    issuer, form = issuer_of(request), await request.form()
    refused = JSONResponse({"error": "invalid_grant"}, 400)
    if form["grant_type"] == "refresh_token":
        grant = issuer.refresh.pop(str(form["refresh_token"]), None)
        return refused if grant is None else JSONResponse(issuer.answer(grant))
    grant = issuer.codes.pop(str(form["code"]), None)
    digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    if grant is None or (grant["challenge"], grant["redirect_uri"]) != (challenge, form["redirect_uri"]):
        return refused
    return JSONResponse(issuer.answer(grant))


async def introspect(request: Request) -> Response:
    issuer, form = issuer_of(request), await request.form()
    given = base64.b64encode(":".join(RESOURCE_SERVER).encode()).decode()
    if issuer.is_down or request.headers.get("authorization") != f"Basic {given}":
        return Response(status_code=503 if issuer.is_down else 401)
    claims = issuer.opaque.get(str(form["token"]))
    if claims is not None and "reply" in claims:
        return Response(**claims["reply"])
    said = {"active": False} if claims is None else {"active": True, **claims}
    return Response(json.dumps(said), media_type="application/json")  # escaped, whatever it is


async def control(request: Request) -> Response:
    """What a test changes, and looks at."""
    issuer, wanted = issuer_of(request), await request.json()
    match wanted.pop("do"):
        case "mint":
            claims = issuer.claims(**{"subject": "alice", "client": "c", "scope": "", **wanted["about"]})
            claims = {name: value for name, value in (claims | wanted["claims"]).items() if value is not None}
            if wanted["opaque"]:
                token = secrets.token_urlsafe(32)
                issuer.opaque[token] = claims
            else:
                token = issuer.sign(claims, wanted["headers"])
            return JSONResponse({"token": token})
        case "rotate":
            issuer.rotate(**wanted)
        case "set":
            vars(issuer).update(wanted)
        case "revoke":
            issuer.opaque.clear()
            issuer.refresh.clear()
    return JSONResponse({"counts": dict(issuer.counts), "kid": issuer.kid, "clients": list(issuer.clients)})


app = Starlette(
    routes=[
        Route("/.well-known/oauth-authorization-server/{tenant}", metadata),
        Route("/{tenant}/.well-known/openid-configuration", metadata),
        Route("/{tenant}/jwks", keys),
        Route("/{tenant}/register", register, methods=["POST"]),
        Route("/{tenant}/authorize", authorize),
        Route("/{tenant}/token", token, methods=["POST"]),
        Route("/{tenant}/introspect", introspect, methods=["POST"]),
        Route("/{tenant}/control", control, methods=["POST"]),
    ]
)


class Tenant:
    """One issuer of the running server, as a test sees it.

    Args:
        url: its identifier.
        client: sends what it is asked.
    """

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url = url
        self._client = client

    def _control(self, do: str, **wanted: Any) -> JSON:
        written = json.dumps({"do": do, **wanted})  # escaped, whatever it is
        answer: JSON = self._client.post(f"{self.url}/control", content=written).json()
        return answer

    def mint(
        self,
        audience: str,
        *,
        opaque: bool = False,
        headers: JSON | None = None,
        claims: JSON | None = None,
        **about: str,
    ) -> str:
        """Return an access token.

        Args:
            audience: its `aud`.
            opaque: whether it is one that must be introspected.
            headers: of its header, besides `kid` and `typ`, or others; None leaves one out.
            claims: further ones, or others; None leaves one out.
            about: its `subject`, `client` and `scope`.
        """
        about = {"audience": audience, **about}
        minted = self._control("mint", about=about, opaque=opaque, headers=headers or {}, claims=claims or {})
        return str(minted["token"])

    def rotate(self, *, renames: bool = True) -> None:
        """Let the issuer sign with another key, and forget the one before.

        Args:
            renames: whether the key has another name than the one before.
        """
        self._control("rotate", renames=renames)

    def revoke(self) -> None:
        """Let opaque tokens and refresh tokens end."""
        self._control("revoke")

    def set(self, **wanted: Any) -> None:
        """Set `is_down`, `lifetime`, `names_keys`, or `published`, in place of keys.

        `before` is how many other keys are listed before its own.
        """
        self._control("set", **wanted)

    @property
    def clients(self) -> list[str]:
        """The clients that have registered."""
        return list(self._control("look")["clients"])

    def count(self, path: str) -> int:
        """Return how many requests have come for a path below the issuer's."""
        return int(self._control("look")["counts"].get(path, 0))


class AuthorizationServer:
    """The running server.

    Args:
        url: its address.
        client: sends what it is asked.
    """

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url = url
        self._client = client

    def tenant(self, kind: str = "") -> Tenant:
        """Return an issuer that nobody has used."""
        return Tenant(f"{self.url}/{kind}{secrets.token_hex(4)}", self._client)
