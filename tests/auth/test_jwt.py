"""`JWTAuth`: which tokens hold, whose they are, and how the keys of their issuer come."""

import asyncio
import base64
import hmac
import json
import logging
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import Mount

from mrtr_server import Context, IntrospectionAuth, JWTAuth, MRTRServer, SetupError
from mrtr_server.auth import fetching, jwt_keys
from mrtr_server.auth.fetching import metadata_urls
from mrtr_server.auth.jwt_keys import read_keys
from mrtr_server.auth.token_backend import LONGEST_TOKEN, MOST_KNOWN, VerifiedTokens

from ..support.authorization_server import RESOURCE_SERVER, AuthorizationServer, Tenant
from ..support.serving import TIMEOUT
from .callers import AUDIENCE, make, send

pytestmark = pytest.mark.anyio

JSON = dict[str, Any]


@pytest.fixture
def app(issuer: Tenant) -> MRTRServer:
    return make(JWTAuth(issuer.url, audience=AUDIENCE))


async def refused(app: MRTRServer, token: str | bytes) -> None:
    """Send a token, and check that it gets the one outward error."""
    reply = await send(app, token)
    assert (reply.status, reply.body) == (401, b'{"error":"Authentication is required"}')
    challenge = reply.headers["www-authenticate"]
    assert challenge == (
        'Bearer realm="mcp", error="invalid_token", '
        'resource_metadata="http://tools.example.com/.well-known/oauth-protected-resource/mcp"'
    )


class TestATokenThatHolds:
    async def test_says_who_calls_with_which_scopes(self, app: MRTRServer, issuer: Tenant) -> None:
        token = issuer.mint(AUDIENCE, subject="alice", client="desk", scope="read write")
        assert json.loads((await send(app, token)).text) == ["alice", issuer.url, "desk", ["read", "write"]]

    async def test_may_have_several_audiences_of_which_one_is_ours(self, app: MRTRServer, issuer: Tenant) -> None:
        assert (await send(app, issuer.mint("", claims={"aud": ["https://other", AUDIENCE]}))).status == 200

    @pytest.mark.parametrize(
        ("claims", "client"),
        [
            ({"client_id": None, "azp": "z"}, "z"),
            ({"client_id": None, "cid": "okta"}, "okta"),
            ({"client_id": None, "appid": "entra"}, "entra"),
            ({"client_id": None}, ""),
        ],
    )
    async def test_names_its_client_as_each_issuer_does(
        self, app: MRTRServer, issuer: Tenant, claims: JSON, client: str
    ) -> None:
        assert json.loads((await send(app, issuer.mint(AUDIENCE, claims=claims))).text)[2] == client

    @pytest.mark.parametrize("opaque", [False, True], ids=["jwt", "opaque"])
    @pytest.mark.parametrize(
        ("claims", "tenant"),
        [({"org": "acme"}, "acme"), ({"org": 7}, "7"), ({"org": None}, ""), ({"other": "acme"}, "")],
    )
    async def test_names_the_tenant_of_its_user_in_the_claim_that_the_server_names(
        self, issuer: Tenant, claims: JSON, tenant: str, opaque: bool
    ) -> None:
        given: Any = {"audience": AUDIENCE, "tenant_claim": "org"}
        client: Any = dict(zip(("client_id", "client_secret"), RESOURCE_SERVER, strict=True))
        app = MRTRServer(
            "tenants",
            keys=[bytes(32)],
            auth=IntrospectionAuth(issuer.url, **client, **given) if opaque else JWTAuth(issuer.url, **given),
        )

        @app.tool
        def who(ctx: Context) -> str:
            assert ctx.principal is not None
            return json.dumps([ctx.principal.subject, ctx.principal.tenant, ctx.user.tenant])

        reply = await send(app, issuer.mint(AUDIENCE, opaque=opaque, claims=claims))
        assert json.loads(reply.text) == ["alice", tenant, tenant]

    @pytest.mark.parametrize("named", [["acme", "other"], {"acme": {}}, True, 1.5])
    async def test_is_refused_if_its_tenant_can_not_be_one(
        self, issuer: Tenant, caplog: pytest.LogCaptureFixture, named: Any
    ) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE, tenant_claim="org"))
        assert (await send(app, issuer.mint(AUDIENCE, claims={"org": named}))).status == 401
        assert "the token's 'org' of tenant_claim= is no text and no number" in caplog.text

    async def test_stands_for_the_user_alone_without_bind_client(self, issuer: Tenant) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE, bind_client=False))
        assert json.loads((await send(app, issuer.mint(AUDIENCE, client="desk"))).text)[2] == ""

    @pytest.mark.parametrize("scp", ["a b", ["a", "b"]])
    async def test_may_name_its_scopes_in_scp(self, app: MRTRServer, issuer: Tenant, scp: Any) -> None:
        token = issuer.mint(AUDIENCE, claims={"scope": None, "scp": scp})
        assert json.loads((await send(app, token)).text)[3] == ["a", "b"]

    async def test_has_the_scopes_that_its_scopes_imply(self, issuer: Tenant) -> None:
        implied = {"admin": ["write"], "write": ["read", "write"]}
        app = make(JWTAuth(issuer.url, audience=AUDIENCE, implied_scopes=implied))
        assert json.loads((await send(app, issuer.mint(AUDIENCE, scope="admin"))).text)[3] == ["admin", "read", "write"]

    @pytest.mark.parametrize(("claim", "seconds"), [("exp", -40), ("nbf", 40), ("iat", 40)])
    async def test_may_come_from_a_clock_that_is_less_than_a_minute_apart(
        self, app: MRTRServer, issuer: Tenant, claim: str, seconds: int
    ) -> None:
        assert (await send(app, issuer.mint(AUDIENCE, claims={claim: int(time.time()) + seconds}))).status == 200

    async def test_counts_in_the_authentication_middleware_of_an_outer_application(self, issuer: Tenant) -> None:
        site = Starlette(
            routes=[Mount("/", make(None))],
            middleware=[Middleware(AuthenticationMiddleware, backend=JWTAuth(issuer.url, audience=AUDIENCE))],
        )
        assert json.loads((await send(site, issuer.mint(AUDIENCE))).text)[0] == "alice"
        assert (await send(site, "x.y.z")).status == 400  # Starlette's own answer
        good = issuer.mint(AUDIENCE)
        assert (await send(site, good, more=[(b"authorization", f"Bearer {good}".encode())])).status == 400

    async def test_is_seen_with_its_claims_and_never_itself(self, issuer: Tenant) -> None:
        auth = JWTAuth(issuer.url, audience=AUDIENCE)
        app = make(auth)
        token = issuer.mint(AUDIENCE, claims={"name": "Alice", "groups": ["staff"]})
        assert (await send(app, token)).status == 200
        (known,) = auth._known._known.values()
        user: Any = known[1][1]
        assert (user.display_name, user.claims["groups"], user.issuer) == ("Alice", ["staff"], issuer.url)
        assert token not in repr(vars(user)) + repr(vars(auth)) + repr(auth._known._known)


KINDS: list[tuple[JSON, bool]] = [
    ({"token_use": "access"}, True),  # Cognito
    ({"token_use": "access_token", "token_type": "Bearer"}, True),  # Hydra
    ({"typ": "Bearer", "token_type": "bearer"}, True),  # Keycloak
    ({"typ": "at+JWT"}, True),
    ({"typ": "application/at+jwt"}, True),
    ({"typ": "JWT"}, True),
    ({"typ": None, "token_use": None, "token_type": None, "cnf": {}}, True),
    ({"token_use": "refresh_token", "token_type": "Bearer"}, False),  # Hydra
    ({"token_use": "refresh"}, False),
    ({"token_use": "id"}, False),  # Cognito
    ({"token_use": ["access"]}, False),
    ({"token_use": ""}, False),
    *(({"typ": kind}, False) for kind in ("Refresh", "Offline", "ID", "Logout", "DPoP", "logout+jwt")),  # Keycloak
    *(({"token_type": kind}, False) for kind in ("refresh_token", "refresh", "DPoP", "N_A", 5)),
    *(({"cnf": {member: "x"}}, False) for member in ("jkt", "x5t#S256", "jwk", "kid", "new")),
    *(({"cnf": wrong}, False) for wrong in ("jkt", ["jkt"], 5, True)),
]
"""What issuers say of their tokens, and whether it is an access token of its bearer."""


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(("claims", "counts"), KINDS, ids=str)
async def test_only_an_access_token_of_its_bearer_lets_in(
    issuer: Tenant, claims: JSON, counts: bool, opaque: bool
) -> None:
    asking = IntrospectionAuth(
        issuer.url, client_id=RESOURCE_SERVER[0], client_secret=RESOURCE_SERVER[1], audience=AUDIENCE
    )
    app = make(asking if opaque else JWTAuth(issuer.url, audience=AUDIENCE))
    token = issuer.mint(AUDIENCE, opaque=opaque)
    assert (await send(app, token)).status == 200
    token = issuer.mint(AUDIENCE, opaque=opaque, claims=claims)
    if counts:
        assert (await send(app, token)).status == 200
    else:
        await refused(app, token)


@pytest.mark.parametrize(
    ("audience", "counts"),
    [
        ("https://TOOLS.example.com/mcp", True),
        ("HTTPS://Tools.Example.Com/mcp", True),
        (["x", "Https://tools.example.com/mcp"], True),
        ("https://tools.example.com/MCP", False),
        ("https://tools.example.com/mcp/", False),
        ("https://tools.example.com", False),
        ("https://tools.example.org/mcp", False),
    ],
)
@pytest.mark.parametrize("opaque", [False, True], ids=["jwt", "opaque"])
async def test_the_case_of_scheme_and_host_of_an_audience_does_not_count(
    issuer: Tenant, audience: str | list[str], counts: bool, opaque: bool
) -> None:
    asking = IntrospectionAuth(
        issuer.url, client_id=RESOURCE_SERVER[0], client_secret=RESOURCE_SERVER[1], audience=AUDIENCE
    )
    app = make(asking if opaque else JWTAuth(issuer.url, audience=AUDIENCE))
    token = issuer.mint("", opaque=opaque, claims={"aud": audience})
    assert (await send(app, token)).status == (200 if counts else 401)


async def test_what_is_no_address_counts_as_it_is(issuer: Tenant) -> None:
    app = make(JWTAuth(issuer.url, audience="Tools"))
    assert (await send(app, issuer.mint("Tools"))).status == 200
    assert (await send(app, issuer.mint("tools"))).status == 401


class TestATokenThatDoesNotHold:
    @pytest.mark.parametrize(
        ("claims", "reason"),
        [
            ({"aud": "https://other.example.com"}, "another audience"),
            ({"aud": None}, "no 'aud'; see client_ids="),
            ({"aud": {"a": 1}}, "another audience"),
            ({"iss": "https://evil.example.com"}, "another issuer"),
            ({"iss": None}, "no 'iss'"),
            ({"sub": None}, "no 'sub'"),
            ({"sub": ""}, "no 'sub'"),
            ({"sub": 5}, "can't be read"),
            ({"exp": None}, "no 'exp'"),
            ({"exp": 1}, "has expired"),
            ({"exp": "never"}, "can't be read"),
            ({"exp": "99999999999"}, "is not a valid time"),
            ({"exp": True}, "has expired"),
            ({"exp": 1e308}, ""),
            ({"exp": 10**400}, ""),
            ({"exp": -(10**400)}, "has expired"),
            ({"nbf": 99999999999}, "not valid yet"),
            ({"iat": 99999999999}, "not valid yet"),
            ({"iat": "then"}, "can't be read"),
            ({"token_use": "id"}, "no access token"),
            ({"typ": "Refresh"}, "no access token"),
            ({"cnf": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}}, "by 'cnf' (jkt)"),
            ({"cnf": {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"}}, "by 'cnf' (x5t#S256)"),
            ({"sub": "\ud800"}, "that can't be written"),
            ({"iss": "\udfff"}, "another issuer"),
            ({"client_id": "a\udc00"}, "that can't be written"),
            ({"scope": "read \ud800"}, "that can't be written"),
            ({"name": "\ud800"}, "that can't be written"),
            ({"more": [{"\ud800": 1}]}, "that can't be written"),
        ],
    )
    async def test_gets_the_one_error_and_a_line_in_the_log_that_says_why(
        self, app: MRTRServer, issuer: Tenant, claims: JSON, reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = issuer.mint(AUDIENCE, claims=claims)
        if not reason:  # far in the future, and still a time
            assert (await send(app, token)).status == 200
            return
        await refused(app, token)
        assert reason in caplog.text
        assert token not in caplog.text
        assert token.partition(".")[0] not in caplog.text

    @pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", 5])
    async def test_is_also_one_of_another_type(self, app: MRTRServer, issuer: Tenant, kind: Any) -> None:
        await refused(app, issuer.mint(AUDIENCE, headers={"typ": kind}))

    async def test_is_also_one_that_has_a_critical_header(self, app: MRTRServer, issuer: Tenant) -> None:
        await refused(app, issuer.mint(AUDIENCE, headers={"crit": ["exp"], "exp": 1}))

    @pytest.mark.parametrize(
        "token",
        [
            b"",
            b"x",
            b"a.b.c",
            b"....",
            b"a.b.c.d.e",
            b"e30.e30.e30",
            b"\xff\xfe",
            b"a b",
            b"'; DROP TABLE",
            base64.urlsafe_b64encode(b"[" * 9000).rstrip(b"=") + b".e30.e30",
            base64.urlsafe_b64encode(b'{"alg":' + b'{"a":' * 3000).rstrip(b"=") + b".e30.e30",
            b"A" * (LONGEST_TOKEN + 1),
            b"A" * 1_000_000,
        ],
    )
    async def test_is_also_whatever_is_no_token(self, app: MRTRServer, issuer: Tenant, token: bytes) -> None:
        await refused(app, token)
        assert issuer.count("/jwks") == 0, "nobody is asked about it"

    async def test_is_also_one_of_another_user_pool_with_the_same_keys_id(
        self, app: MRTRServer, issuer: Tenant, authorization_server: AuthorizationServer
    ) -> None:
        other = authorization_server.tenant()
        await refused(app, other.mint(AUDIENCE, claims={"iss": issuer.url}))

    async def test_is_also_one_that_has_expired_since(self, issuer: Tenant) -> None:
        auth = JWTAuth(issuer.url, audience=AUDIENCE)
        app = make(auth)
        token = issuer.mint(AUDIENCE)
        assert (await send(app, token)).status == 200
        later = time.time() + 300 + 61
        auth._clock = lambda: later
        assert auth._known.get(b"", later) is None
        (digest,) = auth._known._known
        assert auth._known.get(digest, later) is None, "what is known of it ends with it"


class TestAlgorithms:
    """The issuer's public key is public: nothing that is signed with it as a secret may hold."""

    async def forged(self, app: MRTRServer, issuer: Tenant, header: JSON, sign: Callable[[bytes], bytes]) -> None:
        good = issuer.mint(AUDIENCE)
        assert (await send(app, good)).status == 200
        payload = good.split(".")[1].encode()
        head = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=")
        signature = base64.urlsafe_b64encode(sign(head + b"." + payload)).rstrip(b"=")
        await refused(app, b".".join([head, payload, signature]))

    @pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 5, ["ES256"], {"a": 1}])
    async def test_none_is_none(self, app: MRTRServer, issuer: Tenant, algorithm: Any) -> None:
        await self.forged(app, issuer, {"alg": algorithm, "kid": "key-1"}, lambda signed: b"")

    @pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
    async def test_that_take_secrets_are_not_accepted_with_a_public_key(
        self, app: MRTRServer, issuer: Tenant, algorithm: str
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        name = algorithm.replace("HS", "sha")
        sign: Callable[[bytes], bytes] = lambda signed: hmac.digest(pem, signed, name)  # noqa: E731
        await self.forged(app, issuer, {"alg": algorithm, "kid": "key-1"}, sign)

    async def test_must_be_those_of_the_key(self, app: MRTRServer, issuer: Tenant) -> None:
        await self.forged(app, issuer, {"alg": "RS256", "kid": "key-1"}, lambda signed: bytes(256))

    @pytest.mark.parametrize("algorithms", [["HS256"], ["none"], ["RS256", "HS512"], ["ES256K"], []])
    def test_can_be_chosen_from_the_safe_ones_alone(self, algorithms: list[str]) -> None:
        with pytest.raises(SetupError, match="choose from RS256"):
            JWTAuth("https://login.example.com", audience=AUDIENCE, algorithms=algorithms)

    async def test_that_were_not_chosen_are_not_accepted(self, issuer: Tenant) -> None:
        await refused(make(JWTAuth(issuer.url, audience=AUDIENCE, algorithms=["RS256"])), issuer.mint(AUDIENCE))


@asynccontextmanager
async def answering(response: bytes | None) -> AsyncIterator[str]:
    """Serve a page that has these bytes, or that never comes; return its address."""
    writers = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if response is not None:
            writer.write(response)
            writer.close()

    served = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}/jwks"
    finally:
        served.close()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def jwk(key: Any, **more: Any) -> JSON:
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    kind = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
    written: JSON = kind.to_jwk(key.public_key(), as_dict=True)
    return {**written, "kid": "k", **more}


class TestReadingKeys:
    EC = ec.generate_private_key(ec.SECP256R1())

    def test_takes_each_for_its_own_algorithms(self) -> None:
        (key,) = read_keys({"keys": [jwk(self.EC)]}, ["RS256", "ES256", "ES384"])
        assert (key.id, set(key.algorithms)) == ("k", {"ES256"})

    @pytest.mark.parametrize(
        "entry",
        [
            {"kty": "oct", "k": "c2VjcmV0", "kid": "k", "alg": "HS256"},
            jwk(EC, use="enc"),
            jwk(EC, alg="HS256"),
            jwk(EC, alg="RS256"),
            jwk(EC, d="AAAA"),
            jwk(EC, crv="P-521"),
            jwk(EC, x="!"),
            {"kty": "EC"},
            {"kty": ["EC"]},
            "EC",
            jwk(rsa.generate_private_key(65537, 1024)),  # noqa: S505  that is the point
        ],
    )
    def test_leaves_out_what_no_token_may_be_signed_with(self, entry: Any) -> None:
        found = read_keys({"keys": [entry, jwk(self.EC, kid="good")]}, ["RS256", "ES256", "ES512"])
        assert [key.id for key in found] == ["good"]

    @pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {}}, {"keys": []}])
    def test_finds_none_where_there_are_none(self, document: JSON) -> None:
        assert read_keys(document, ["ES256"]) == []


class TestTheKeysOfTheIssuer:
    async def test_are_fetched_once_for_all_who_call_at_the_same_time(self, app: MRTRServer, issuer: Tenant) -> None:
        tokens = [issuer.mint(AUDIENCE, subject=str(number)) for number in range(8)]
        replies = await asyncio.gather(*(send(app, token) for token in tokens))
        assert [reply.status for reply in replies] == [200] * 8
        assert issuer.count("/jwks") == 1

    async def test_are_found_by_openid_discovery_too(self, authorization_server: AuthorizationServer) -> None:
        issuer = authorization_server.tenant("oidc-")
        assert (await send(make(JWTAuth(issuer.url, audience=AUDIENCE)), issuer.mint(AUDIENCE))).status == 200

    async def test_may_be_elsewhere_for_an_issuer_without_metadata(self, issuer: Tenant) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=f"{issuer.url}/jwks"))
        assert (await send(app, issuer.mint(AUDIENCE))).status == 200
        assert issuer.count("/.well-known/oauth-authorization-server") == 0

    async def test_are_fetched_again_for_an_unknown_one(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        before = issuer.mint(AUDIENCE)
        assert (await send(app, before)).status == 200
        issuer.rotate()
        assert (await send(app, issuer.mint(AUDIENCE))).status == 200
        assert (await send(app, before)).status == 401, "the key that it was signed with is gone"

    async def test_are_fetched_again_when_one_of_the_same_name_does_not_fit(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = issuer.mint(AUDIENCE)
        assert (await send(app, before)).status == 200
        issuer.rotate(renames=False)
        token = issuer.mint(AUDIENCE)
        await refused(app, token)
        assert issuer.count("/jwks") == 1, "it was asked a moment ago"
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        assert (await send(app, token)).status == 200
        await refused(app, before)

    async def test_that_is_withdrawn_counts_for_ten_minutes_at_most_also_for_a_token_that_is_known(
        self, issuer: Tenant
    ) -> None:
        auth = JWTAuth(issuer.url, audience=AUDIENCE)
        app, now = make(auth), [0.0]
        keys: Any = auth._keys
        keys._clock = lambda: now[0]
        auth._clock = lambda: time.time() + now[0]
        token = issuer.mint(AUDIENCE, claims={"exp": 10**10})
        assert (await send(app, token)).status == 200
        issuer.rotate()
        now[0] = 599.0
        assert (await send(app, token)).status == 200, "beside which the keys are fetched"
        fetching: Any = keys._fetching.get()
        async with asyncio.timeout(TIMEOUT):
            await fetching
        await refused(app, token)

    @pytest.mark.parametrize("seconds", [600.0, 1e6])
    async def test_that_is_withdrawn_does_not_count_for_the_first_request_after_a_pause(
        self, issuer: Tenant, seconds: float
    ) -> None:
        auth = JWTAuth(issuer.url, audience=AUDIENCE)
        app, now = make(auth), [0.0]
        keys: Any = auth._keys
        keys._clock = lambda: now[0]
        auth._clock = lambda: time.time() + now[0]
        tokens = [issuer.mint(AUDIENCE, subject=name, claims={"exp": 10**10}) for name in ("known", "new")]
        assert (await send(app, tokens[0])).status == 200
        now[0] = seconds
        assert (await send(app, tokens[0])).status == 200, "the issuer still has the key"
        issuer.rotate()
        now[0] += seconds
        for token in tokens:
            await refused(app, token)

    @pytest.mark.parametrize(("published", "status"), [({"keys": []}, 503), ({"error": "busy"}, 200)])
    async def test_that_are_all_withdrawn_do_not_count_either(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, published: JSON, status: int
    ) -> None:
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        token = issuer.mint(AUDIENCE)
        assert (await send(app, token)).status == 200
        issuer.set(published=published)
        assert (await send(app, issuer.mint(AUDIENCE, headers={"kid": "other"}))).status == 503
        assert (await send(app, token)).status == status, "they are kept where there is no list of keys at all"

    async def test_are_tried_where_a_token_names_none(self, issuer: Tenant) -> None:
        issuer.set(before=9)
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))
        assert (await send(app, issuer.mint(AUDIENCE, headers={"kid": None}))).status == 200

    async def test_are_not_tried_without_end(self, issuer: Tenant) -> None:
        issuer.set(before=10)
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))
        await refused(app, issuer.mint(AUDIENCE, headers={"kid": None}))
        assert (await send(app, issuer.mint(AUDIENCE))).status == 200, "it names the key"

    async def test_may_have_no_names(self, issuer: Tenant) -> None:
        issuer.set(before=2, names_keys=False)
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))
        for kid in ("key-1", None):
            assert (await send(app, issuer.mint(AUDIENCE, headers={"kid": kid}))).status == 200

    async def test_are_asked_for_once_in_a_while_whatever_floods_in(self, app: MRTRServer, issuer: Tenant) -> None:
        assert (await send(app, issuer.mint(AUDIENCE))).status == 200
        kids = ["../../admin", "http://169.254.169.254/", "' OR 1=1", "\x00", "k" * 500, *map(str, range(40))]
        tokens = [issuer.mint(AUDIENCE, headers={"kid": kid}) for kid in kids]
        tokens += [f"{token[:-8]}AAAAAAAA" for token in (issuer.mint(AUDIENCE) for _ in range(5))]
        for token in tokens:
            await refused(app, token)
        assert issuer.count("/jwks") == 1

    async def test_come_from_the_issuer_alone_whatever_a_token_names(
        self, app: MRTRServer, issuer: Tenant, authorization_server: AuthorizationServer
    ) -> None:
        evil = authorization_server.tenant()
        key = ec.generate_private_key(ec.SECP256R1())
        claims = {"iss": issuer.url, "sub": "alice", "aud": AUDIENCE, "exp": time.time() + 60}
        headers = {"jku": f"{evil.url}/jwks", "x5u": f"{evil.url}/jwks", "jwk": jwk(key), "kid": "key-1"}
        await refused(app, jwt.encode(claims, key, "ES256", headers=headers))
        assert evil.count("/jwks") == 0

    async def test_are_kept_while_the_issuer_is_down(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        monkeypatch.setattr(jwt_keys, "FRESH", 0.0)
        tokens = [issuer.mint(AUDIENCE, subject=str(number)) for number in range(6)]
        assert (await send(app, tokens[0])).status == 200
        issuer.set(is_down=True)
        for token in tokens[1:]:
            assert (await send(app, token)).status == 200
            await asyncio.sleep(0.02)
        auth: Any = app._parts.settings.auth
        async with asyncio.timeout(TIMEOUT):
            await auth._keys._fetching.get()
        assert caplog.text.count("can't be fetched, and the keys that are known are kept") == 1

    async def test_that_nobody_knows_yet_are_no_reason_to_log_in_again(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        issuer.set(is_down=True)
        token = issuer.mint(AUDIENCE)
        reply = await send(app, token)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert "503" in caplog.text
        assert f"{issuer.url}/jwks" not in caplog.text
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        issuer.set(is_down=False)
        assert (await send(app, token)).status == 200
        assert "can be fetched again" in caplog.text

    async def test_that_came_while_the_issuer_is_down_are_no_reason_to_log_in_again(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = issuer.mint(AUDIENCE)
        assert (await send(app, before)).status == 200
        issuer.rotate()
        issuer.set(is_down=True)
        after = issuer.mint(AUDIENCE)
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        reply = await send(app, after)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        monkeypatch.setattr(jwt_keys, "FLOOR", 1e9)
        assert (await send(app, after)).status == 503, "it is too soon to ask again, and nobody knows more"
        assert (await send(app, before)).status == 200, "known keys go on working"
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        issuer.set(is_down=False)
        assert (await send(app, after)).status == 200
        await refused(app, issuer.mint(AUDIENCE, headers={"kid": "nobodys"}))

    async def test_never_block_the_event_loop(self, issuer: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
        """An issuer that takes the connection and says nothing."""
        monkeypatch.setattr(fetching, "SECONDS", 0.3)
        async with answering(None) as silent:
            app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=silent))
            waiting = asyncio.create_task(send(app, issuer.mint(AUDIENCE)))
            turns = 0
            while not waiting.done():
                turns += 1
                await asyncio.sleep(0.001)
        assert turns > 5
        assert waiting.result().status == 503

    @pytest.mark.parametrize(
        "body",
        [b"", b"[]", b"{", b'{"keys": 5}', b'{"keys": []}', b"[" * 100_000, b'{"x": "' + b"a" * (600 * 1024) + b'"}'],
    )
    async def test_that_are_none_leave_the_server_as_it_was(self, issuer: Tenant, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        async with answering(head + body) as url:
            app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=url))
            assert (await send(app, issuer.mint(AUDIENCE))).status == 503

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, GZIP"])
    async def test_are_not_taken_compressed(
        self, issuer: Tenant, encoding: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        pressed = zlib.compress(b" " * (64 * 1024 * 1024), wbits=15 if encoding == "deflate" else 31)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        tracemalloc.start()
        try:
            async with answering(head % (encoding.encode(), len(pressed)) + pressed) as url:
                app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=url))
                assert (await send(app, issuer.mint(AUDIENCE))).status == 503
            assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
        finally:
            tracemalloc.stop()
        assert "answered compressed, which was not asked for" in caplog.text

    async def test_are_asked_for_uncompressed(self, issuer: Tenant) -> None:
        asked: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as served:
            url = f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}/jwks"
            await send(make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=url)), issuer.mint(AUDIENCE))
        assert b"\r\naccept-encoding: identity\r\n" in asked[0].lower()

    async def test_are_read_up_to_a_number_and_the_log_says_once_that_there_are_more(
        self, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)
        key = jwk(ec.generate_private_key(ec.SECP256R1()))
        body = json.dumps({"keys": [{**key, "kid": str(number)} for number in range(101)]}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        async with answering(head + body) as url:
            app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=url))
            for _ in range(3):
                await refused(app, issuer.mint(AUDIENCE))
        assert caplog.text.count("lists 101 keys, and only the first 100 are used") == 1

    async def test_are_not_fetched_from_where_a_redirect_leads(self, issuer: Tenant) -> None:
        location = f"{issuer.url}/jwks".encode()
        head = b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % location
        async with answering(head) as url:
            app = make(JWTAuth(issuer.url, audience=AUDIENCE, jwks_uri=url))
            assert (await send(app, issuer.mint(AUDIENCE))).status == 503
        assert issuer.count("/jwks") == 0

    async def test_of_metadata_that_another_issuer_wrote_are_not_used(
        self, issuer: Tenant, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = make(JWTAuth(f"{issuer.url}/", audience=AUDIENCE))
        assert (await send(app, issuer.mint(AUDIENCE))).status == 503
        assert f"is of the issuer '{issuer.url}', so set issuer= to that" in caplog.text


class TestDiscovery:
    def test_looks_where_the_standards_say_with_the_path_of_the_issuer(self) -> None:
        assert metadata_urls("https://a.example.com/t/1") == [
            "https://a.example.com/.well-known/oauth-authorization-server/t/1",
            "https://a.example.com/.well-known/openid-configuration/t/1",
            "https://a.example.com/t/1/.well-known/openid-configuration",
        ]
        assert metadata_urls("https://a.example.com/") == [
            "https://a.example.com/.well-known/oauth-authorization-server",
            "https://a.example.com/.well-known/openid-configuration",
        ]


class TestClientIds:
    """They stand for the audience where an issuer gives none."""

    @pytest.fixture
    def app(self, issuer: Tenant) -> MRTRServer:
        return make(JWTAuth(issuer.url, client_ids=["desk", "phone"]))

    async def test_are_the_clients_whose_tokens_hold(self, app: MRTRServer, issuer: Tenant) -> None:
        assert (await send(app, issuer.mint("", client="desk", claims={"aud": None}))).status == 200
        await refused(app, issuer.mint("", client="other", claims={"aud": None}))
        await refused(app, issuer.mint("", claims={"aud": None, "client_id": None}))

    async def test_do_not_make_a_token_hold_that_is_meant_for_somebody_else(
        self, app: MRTRServer, issuer: Tenant
    ) -> None:
        await refused(app, issuer.mint("https://other.example.com", client="desk"))

    async def test_are_asked_for_besides_the_audience_where_both_are_given(self, issuer: Tenant) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE, client_ids=["desk"]))
        assert (await send(app, issuer.mint(AUDIENCE, client="desk"))).status == 200
        await refused(app, issuer.mint(AUDIENCE, client="phone"))
        await refused(app, issuer.mint("https://other.example.com", client="desk"))


class TestWhatIsKnownOfTokens:
    def test_is_bounded_and_the_least_recently_used_goes_first(self) -> None:
        known: VerifiedTokens[int] = VerifiedTokens(2)
        for number in range(3):
            known.put(bytes([number]), 100.0, number)
            known.get(b"\x00", 1.0)
        assert (len(known), known.get(b"\x00", 1.0), known.get(b"\x01", 1.0)) == (2, 0, None)

    async def test_saves_the_verification(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = issuer.mint(AUDIENCE)
        assert (await send(app, token)).status == 200
        monkeypatch.setattr(jwt, "decode", None)
        assert (await send(app, token)).status == 200

    def test_fits_many_users(self) -> None:
        assert MOST_KNOWN >= 4096


class TestSettings:
    @pytest.mark.parametrize("library", ["jwt", "httpx"])
    def test_without_the_extra_the_error_says_how_to_install_it(self, library: str) -> None:
        code = f"""
import sys
sys.modules[{library!r}] = None
from mrtr_server import JWTAuth, SetupError
try:
    JWTAuth("https://login.example.com", audience="x")
except SetupError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == (
            f"Verifying tokens needs {library}. Install the extra 'auth', or: pip install 'PyJWT[crypto]>=2.10' "
            "'httpx>=0.28'\n"
        )

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({}, "audience= is missing"),
            ({"audience": ""}, "not empty"),
            ({"audience": []}, "audience= is missing"),
            ({"client_ids": "desk"}, r"give a list: client_ids=\['desk'\]"),
            ({"client_ids": [""]}, "not empty"),
            ({"audience": "a", "issuer": "http://login.example.com"}, "must be an https address"),
            ({"audience": "a", "issuer": "login.example.com"}, "must be an https address"),
            ({"audience": "a", "issuer": "https://u:p@login.example.com"}, "must be an https address"),
            ({"audience": "a", "issuer": "https://login.example.com?x=1"}, "must be an https address"),
            ({"audience": "a", "issuer": None}, "must be an https address"),
            ({"audience": "a", "jwks_uri": "file:///etc/passwd"}, "jwks_uri"),
            ({"audience": "a", "implied_scopes": {"a": "b c"}}, "give a list"),
            ({"audience": "a", "implied_scopes": {"a b": ["c"]}}, "can't be a scope"),
        ],
    )
    def test_that_can_not_be_right_are_refused(self, given: JSON, says: str) -> None:
        with pytest.raises(SetupError, match=says):
            JWTAuth(**{"issuer": "https://login.example.com", **given})


async def test_a_token_is_in_no_log(app: MRTRServer, issuer: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = [issuer.mint(AUDIENCE), issuer.mint("https://x"), issuer.mint(AUDIENCE, headers={"kid": "no"})]
    for token in tokens:
        await send(app, token)
    assert [part for token in tokens for part in token.split(".") if part in caplog.text] == []
