"""Tokens that are bound to a key of the client (RFC 9449): of no use to whoever has stolen them."""

import base64
import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mrtr_server import InProcessStore, JWTAuth, MRTRServer, Redemption, SetupError, StoreUnavailable

from ..support.authorization_server import AuthorizationServer
from .conftest import Stage, make
from .people import Client
from .test_logins import said


class Key:
    """A key of a client, which makes proofs."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.public = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        members = ",".join(f'"{name}":"{self.public[name]}"' for name in ("crv", "kty", "x", "y"))
        self.thumbprint = digest(f"{{{members}}}".encode())

    def proof(self, method: str, url: str, nonce: object, token: str = "", **changes: Any) -> str:
        """Return a proof. Changes are of its claims, or of its header, as `header`."""
        header = {"typ": "dpop+jwt", "jwk": self.public, **changes.pop("header", {})}
        claims = {"jti": secrets.token_hex(8), "htm": method, "htu": url, "iat": int(time.time())}
        claims |= {"nonce": nonce} if nonce is not None else {}
        claims |= {"ath": digest(token.encode())} if token else {}
        claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        signer = changes.pop("signer", self.private)
        claims.pop("signer", None)
        return jwt.encode(claims, signer, "ES256", headers=header)


def digest(data: bytes) -> str:
    """Return a digest as the RFC writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Bound:
    """A client whose tokens are bound to its key.

    Args:
        client: the client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.key = Key()
        self.url = f"{client.base}/mcp"
        self.nonce: str | None = None

    def post(self, **form: Any) -> httpx.Response:
        """Ask for tokens, and once more with the nonce that the server wants."""
        for _ in range(2):
            proof = self.key.proof("POST", f"{self.client.base}/token", self.nonce)
            answer = self.client.post(headers={"dpop": proof}, **form)
            if answer.status_code != 400 or answer.json()["error"] != "use_dpop_nonce":
                break
            self.nonce = answer.headers["dpop-nonce"]
        return answer

    def redeem(self, code: str) -> Any:
        """Redeem a code."""
        return self.post(
            grant_type="authorization_code",
            code=code,
            redirect_uri=self.client.redirect,
            code_verifier=self.client.verifier,
        )

    def call(self, tokens: Any, scheme: str = "DPoP", proof: str | None = None, **changes: Any) -> httpx.Response:
        """Call a tool with a proof."""
        token = tokens["access_token"]
        message, headers = self.client.message("who")
        headers["authorization"] = f"{scheme} {token}"
        nonce = changes.pop("nonce", self.nonce)
        headers["dpop"] = proof or self.key.proof("POST", self.url, nonce, token, **changes)
        return self.client.http.post(self.url, json=message, headers=headers)


@pytest.fixture
def bound(stage: Stage) -> Bound:
    """A client whose tokens are bound to its key."""
    return Bound(stage.client(stage.usual))


@pytest.fixture
def tokens(bound: Bound, stage: Stage) -> Any:
    """The tokens of a login."""
    answer = bound.redeem(bound.client.came(stage.browser())["code"])
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_client_with_a_key_calls_with_proofs(bound: Bound, tokens: Any) -> None:
    assert tokens["token_type"] == "DPoP"
    assert said(bound.call(tokens))[0] == "583231"
    renewed = bound.post(grant_type="refresh_token", refresh_token=tokens["refresh_token"]).json()
    assert said(bound.call(renewed))[0] == "583231"


def test_a_stolen_token_is_of_no_use_without_the_key(bound: Bound, tokens: Any) -> None:
    refused = bound.client.call({**tokens, "token_type": "Bearer"})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith('DPoP realm="mcp", error="invalid_token"')
    bound.key = Key()
    assert bound.call(tokens).status_code == 401
    stolen = bound.post(grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert stolen.json()["error"] == "invalid_grant"
    assert bound.client.refresh(tokens).json()["error"] == "invalid_grant"  # and without any


def test_a_request_without_a_nonce_is_told_one(bound: Bound, tokens: Any) -> None:
    bound.nonce = None
    refused = bound.call(tokens)
    assert refused.status_code == 401
    assert 'error="use_dpop_nonce"' in refused.headers["www-authenticate"]
    assert 'algs="ES256 ' in refused.headers["www-authenticate"]
    bound.nonce = refused.headers["dpop-nonce"]
    assert bound.call(tokens).status_code == 200


def test_a_proof_counts_once(bound: Bound, tokens: Any) -> None:
    proof = bound.key.proof("POST", bound.url, bound.nonce, tokens["access_token"])
    assert bound.call(tokens, proof=proof).status_code == 200
    assert bound.call(tokens, proof=proof).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"htm": "GET"},
        {"htm": "post"},
        {"htu": "https://other.example.com/mcp"},
        {"htu": "http://127.0.0.1/mcp"},
        {"htu": None},
        {"ath": None},
        {"ath": digest(b"another token")},
        {"jti": None},
        {"jti": 7},
        {"iat": None},
        {"nonce": "AAAA"},
        {"nonce": 7},
        {"header": {"typ": "JWT"}},
        {"header": {"jwk": None}},
        {"header": {"jwk": {"kty": "oct", "k": "AAAA"}}},
        {"header": {"crit": ["b64"], "b64": True}},
        {"signer": ec.generate_private_key(ec.SECP256R1())},
    ],
)
def test_a_proof_that_says_anything_else_is_refused(bound: Bound, tokens: Any, changes: Any) -> None:
    refused = bound.call(tokens, **changes)
    assert refused.status_code == 401
    assert refused.headers["dpop-nonce"]
    assert bound.call(tokens, htu=f"{bound.url}?query=of-client").status_code == 200


def test_a_private_key_in_a_proof_and_two_proofs_are_refused(bound: Bound, tokens: Any) -> None:
    private = jwt.algorithms.ECAlgorithm.to_jwk(bound.key.private, as_dict=True)
    assert bound.call(tokens, header={"jwk": private}).status_code == 401
    proof = bound.key.proof("POST", bound.url, bound.nonce, tokens["access_token"])
    message, headers = bound.client.message("who")
    listed = [*headers.items(), ("authorization", f"DPoP {tokens['access_token']}"), ("dpop", proof), ("dpop", proof)]
    assert bound.client.http.post(bound.url, json=message, headers=listed).status_code == 401
    assert bound.client.call({**tokens, "token_type": "DPoP"}).status_code == 401  # and none


def test_a_nonce_ends_after_five_minutes_and_another_comes_before(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now
    bound = Bound(stage.client(stage.serve()))
    tokens = bound.redeem(bound.client.came(stage.browser())["code"]).json()
    now += 200
    response = bound.call(tokens)
    assert response.status_code == 200
    next_nonce = response.headers["dpop-nonce"]
    now += 101
    assert bound.call(tokens).status_code == 401
    bound.nonce = next_nonce
    assert bound.call(tokens).status_code == 200


def test_a_proof_counts_once_in_the_fleet_where_the_store_notes_it(stage: Stage, tmp_path: Path) -> None:
    address, store = "http://127.0.0.1:7070", f"sqlite:///{tmp_path}/logins.db"
    apps = [make(stage.provider.login(dpop_replay="store"), store=store, base_url=address) for _ in range(2)]
    here, there = (stage.serve(app) for app in apps)
    stage.front([int(each.rpartition(":")[2]) for each in (here, there)], 7070)
    bound = Bound(stage.client(address))
    tokens = bound.redeem(bound.client.came(stage.browser())["code"]).json()
    proof = bound.key.proof("POST", f"{address}/token", bound.nonce)
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": bound.client.id}
    given = [bound.client.http.post(f"{each}/token", headers={"dpop": proof}, data=form) for each in (here, there)]
    assert [each.json().get("error") for each in given] == [None, "invalid_dpop_proof"]


def test_a_proof_of_whoever_has_no_token_is_not_noted(bound: Bound) -> None:
    form = {"grant_type": "refresh_token", "refresh_token": "none", "client_id": bound.client.id}
    bound.post(**form)  # for a nonce
    proof = bound.key.proof("POST", f"{bound.client.base}/token", bound.nonce)
    found = [bound.client.post(headers={"dpop": proof}, **form).json()["error"] for _ in range(2)]
    assert found == ["invalid_grant"] * 2


def test_a_server_may_want_proofs_of_all(stage: Stage) -> None:
    base = stage.serve(dpop="require")
    challenge = httpx.post(f"{base}/mcp", trust_env=False)
    assert challenge.headers["www-authenticate"].startswith("DPoP ")
    about = httpx.get(f"{base}/.well-known/oauth-protected-resource", trust_env=False).json()
    assert about["dpop_bound_access_tokens_required"] is True
    assert "ES256" in about["dpop_signing_alg_values_supported"]
    client = stage.client(base)
    assert client.redeem(client.came(stage.browser())["code"]).json()["error"] == "invalid_dpop_proof"
    bound = Bound(client)
    tokens = bound.redeem(client.came(stage.browser())["code"]).json()
    assert said(bound.call(tokens))[0] == "583231"


def test_a_code_may_be_bound_to_a_key_before(stage: Stage) -> None:
    bound = Bound(stage.client(stage.usual))
    code = bound.client.came(stage.browser(), dpop_jkt=bound.key.thumbprint)["code"]
    thief = Bound(bound.client)
    assert thief.redeem(code).json()["error"] == "invalid_grant"
    assert bound.client.redeem(code).json()["error"] == "invalid_grant"
    assert bound.redeem(code).status_code == 200


# Tokens of another issuer


def protected(**options: Any) -> MRTRServer:
    """Make a server that takes tokens of an issuer."""
    app = MRTRServer("notes", keys=[bytes(32)], auth=JWTAuth(**options))

    @app.tool
    def who() -> list[str]:
        """Say something."""
        return ["somebody"]

    return app


def test_tokens_of_another_issuer_may_be_bound_to_a_key(
    stage: Stage, authorization_server: AuthorizationServer
) -> None:
    issuer, audience = authorization_server.tenant(), "https://tools.example.com/mcp"
    base = stage.serve(protected(issuer=issuer.url, audience=audience, dpop="accept"))
    bound = Bound(Client(stage.browser().http, base, id="of-the-issuer"))
    token = {"access_token": issuer.mint(audience, claims={"cnf": {"jkt": bound.key.thumbprint}})}
    bound.nonce = bound.call(token).headers["dpop-nonce"]
    assert said(bound.call(token)) == ["somebody"]
    assert bound.call(token, "Bearer").status_code == 401
    plain = {"access_token": issuer.mint(audience), "token_type": "Bearer"}
    assert said(bound.client.call(plain)) == ["somebody"]
    assert bound.call(plain).status_code == 401  # a proof of a key that the token does not name
    by_certificate = {"access_token": issuer.mint(audience, claims={"cnf": {"x5t#S256": "x"}}), "token_type": "Bearer"}
    assert bound.client.call(by_certificate).status_code == 401


@pytest.mark.parametrize("form", ["pem", "bytes", "jwk"])
def test_a_fixed_key_verifies_tokens_and_nothing_is_fetched(stage: Stage, form: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    given: Any = {"pem": pem.decode(), "bytes": pem, "jwk": jwk}[form]
    base = stage.serve(protected(issuer="https://login.example.com", audience="notes", public_key=given))
    client = Client(stage.browser().http, base, id="of-the-issuer")
    claims = {"iss": "https://login.example.com", "aud": "notes", "sub": "alice", "exp": int(time.time()) + 60}
    token = {"token_type": "Bearer", "access_token": jwt.encode(claims, key, "ES256")}
    assert said(client.call(token)) == ["somebody"]
    other = jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256")
    assert client.call({**token, "access_token": other}).status_code == 401


def test_a_private_or_small_key_is_no_public_key() -> None:
    private = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    small = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505  which is what is refused
    pem = small.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for key in (private, pem, "nothing", {"kty": "oct", "k": "AAAA"}):
        with pytest.raises(SetupError, match="public_key="):
            JWTAuth("https://login.example.com", audience="notes", public_key=key)


def test_a_key_that_costs_too_much_is_refused(bound: Bound, tokens: Any) -> None:
    numbers = rsa.generate_private_key(65537, 2048).public_key().public_numbers()
    exponent = base64.urlsafe_b64encode((2**2047 + 1).to_bytes(256)).rstrip(b"=").decode()
    public = jwt.algorithms.RSAAlgorithm.to_jwk(rsa.RSAPublicNumbers(65537, numbers.n).public_key(), as_dict=True)
    proof = bound.key.proof("POST", bound.url, bound.nonce, tokens["access_token"], header={"jwk": bound.key.public})
    _, claims, signature = proof.split(".")
    header = json.dumps({"typ": "dpop+jwt", "alg": "RS256", "jwk": {**public, "e": exponent}}).encode()
    costly = f"{base64.urlsafe_b64encode(header).rstrip(b'=').decode()}.{claims}.{signature}"
    assert "does not fit its algorithm" in bound.client.post(headers={"dpop": costly}, grant_type="refresh_token").text


class Away(InProcessStore):
    """A store that can be away."""

    is_away = False

    async def put(self, key: str, value: bytes, **options: Any) -> bool:
        """Fail while it is away."""
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().put(key, value, **options)

    async def redeem(self, state: str, answers: str, **options: Any) -> Redemption:
        """Fail while it is away."""
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().redeem(state, answers, **options)


def test_a_store_that_is_away_is_a_503_and_ends_no_login(stage: Stage) -> None:
    store = Away()
    app = make(stage.provider.login(dpop_replay="store"), store=store)
    bound = Bound(stage.client(stage.serve(app)))
    tokens = bound.redeem(bound.client.came(stage.browser())["code"]).json()
    store.is_away = True
    away = bound.call(tokens)
    assert (away.status_code, int(away.headers["retry-after"]) > 0) == (503, True)
    refused = bound.post(grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert (refused.status_code, refused.json()["error"]) == (503, "temporarily_unavailable")
    store.is_away = False
    assert said(bound.call(tokens))[0] == "583231"
    assert bound.post(grant_type="refresh_token", refresh_token=tokens["refresh_token"]).status_code == 200


def test_a_nonce_of_a_replica_whose_clock_is_ahead_counts(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now + 50
    ahead = Bound(stage.client(stage.serve()))
    ahead.post(grant_type="refresh_token", refresh_token="none")
    assert ahead.nonce is not None
    stage.clock = lambda: now
    bound = Bound(stage.client(stage.serve()))
    bound.nonce = ahead.nonce
    assert bound.redeem(bound.client.came(stage.browser())["code"]).status_code == 200
    assert bound.nonce == ahead.nonce
