"""Google and Entra, by ID tokens as each of them makes them, from a small issuer of the tests."""

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from mrtr_server import Context, SetupError
from mrtr_server.crypto.digests import challenge_of
from mrtr_server.login import Entra, Google, Login, Oidc

from ..support.serving import in_thread
from .conftest import Stage, make
from .test_logins import said

JSON = dict[str, Any]

CLIENT, SECRET = "notes.apps.example.com", "of-notes"

TENANT = "9122040d-6c67-4c5b-b112-36a304b66dad"


class Issuer:
    """An issuer that makes ID tokens of the claims that a test gives it.

    Args:
        path: of the issuer below its address.
        more: further members of its metadata.
    """

    def __init__(self, path: str, **more: Any) -> None:
        self.path = path
        self.more = more
        self.asked: list[dict[str, str]] = []
        """The queries of the pages to log in at."""
        self.claims: Callable[[], JSON] = dict
        """Returns the claims of who logs in, besides those of each token."""
        self.url = ""
        self.told: tuple[str, ...] = ()
        """The claims of its userinfo endpoint; without any, it has none."""
        self._key = rsa.generate_private_key(65537, 2048)
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route(f"{path}/.well-known/openid-configuration", self._metadata),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/userinfo", self._userinfo),
            ]
        )

    def _metadata(self, request: Request) -> Response:
        base = self.url.removesuffix(self.path)
        ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        ends |= {"userinfo_endpoint": "userinfo"} if self.told else {}
        found = {name: f"{base}/{path}" for name, path in ends.items()}
        return JSONResponse({"issuer": self.url, **found, **self.more})

    def _keys(self, request: Request) -> Response:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return JSONResponse({"keys": [{**key, "kid": "one", "use": "sig", "alg": "RS256"}]})

    def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.asked.append(asked)
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    def _userinfo(self, request: Request) -> Response:
        return JSONResponse({name: value for name, value in self.claims().items() if name in self.told})

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(form.get("code", form.get("refresh_token", "")), None)
        if asked is None or challenge_of(form.get("code_verifier", "")) != asked["code_challenge"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        each = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 3600, "nonce": asked["nonce"]}
        token = jwt.encode({**each, **self.claims()}, self._key, "RS256", headers={"kid": "one", "typ": "JWT"})
        given = {"access_token": "of-person", "token_type": "Bearer", "expires_in": 3599, "scope": asked["scope"]}
        return JSONResponse({**given, "id_token": token})


@pytest.fixture
def google() -> Iterator[Issuer]:
    """Google: https://accounts.google.com/.well-known/openid-configuration names no `offline_access`."""
    made = Issuer("", scopes_supported=["openid", "email", "profile"])
    with in_thread(made.app) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


@pytest.fixture
def entra() -> Iterator[Issuer]:
    """A directory of Entra, whose issuer has its id and the version in its path."""
    made = Issuer(f"/{TENANT}/v2.0", scopes_supported=["openid", "profile", "email", "offline_access"])
    with in_thread(made.app) as port:
        made.url = f"http://127.0.0.1:{port}/{TENANT}/v2.0"
        yield made


def of_google(**changes: Any) -> JSON:
    """Return claims of an ID token of Google.

    https://developers.google.com/identity/openid-connect/openid-connect#an-id-tokens-payload: `azp`, `sub` of digits,
    `at_hash`, and `hd` of people in a Workspace alone.
    """
    return {
        "azp": CLIENT,
        "sub": "10769150350006150715113082367",
        "at_hash": "HK6E_P6Dh8Y93mRNtsDB1Q",
        "hd": "example.com",
        "email": "jsmith@example.com",
        "email_verified": True,
        "name": "Jane Smith",
        **changes,
    }


def of_entra(**changes: Any) -> JSON:
    """Return claims of an ID token of Entra, of the version 2.

    https://learn.microsoft.com/entra/identity-platform/id-token-claims-reference: `oid`, `tid`, `sub` that is another
    for each application, `rh`, `uti`, `ver`; `groups` where the application is to have them.
    """
    return {
        "ver": "2.0",
        "tid": TENANT,
        "oid": "00000000-0000-0000-66f3-3332eca7ea81",
        "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
        "rh": "0.AXkA",
        "uti": "fqiBqXLPj0eQa82S-IYFAA",
        "nbf": int(time.time()),
        "name": "Abe Lincoln",
        "preferred_username": "AbeLi@example.com",
        "groups": ["6a1d4f39-0ec9-4b1c-9d2e-5b1c3b4f2a10"],
        **changes,
    }


def test_a_person_logs_in_at_google_by_the_domain_of_their_workspace(stage: Stage, google: Issuer) -> None:
    google.claims = of_google
    provider = Google(client_id=CLIENT, client_secret=SECRET, issuer=google.url)
    client = stage.client(stage.serve(make(Login(provider, allow=["example.com"]))))
    tokens = client.tokens(stage.browser())
    assert said(client.call(tokens)) == ["10769150350006150715113082367", google.url, "", "Jane Smith"]
    # It gives a refresh token for these alone: https://developers.google.com/identity/protocols/oauth2/web-server.
    asked = google.asked[-1]
    assert (asked["access_type"], asked["prompt"]) == ("offline", "consent")
    assert "offline_access" not in asked["scope"]
    # "The Issuer Identifier for the Issuer of the response. Always https://accounts.google.com or accounts.google.com".
    google.claims = lambda: of_google(iss=google.url.partition("://")[2])
    assert said(client.call(client.tokens(stage.browser())))[1] == google.url
    for wrong in (
        {"iss": "https://accounts.example.com"},
        {"hd": "example.org"},
        {"hd": None, "email": "jsmith@example.com"},  # anybody can have a Google account of that address
        {"aud": "another.apps.example.com"},
        {"azp": "another.apps.example.com"},
    ):
        google.claims = lambda wrong=wrong: of_google(**wrong)  # type: ignore[misc]
        ended = stage.browser().log_in(client.page())
        assert "code=" not in ended.headers.get("location", ""), wrong


def test_a_person_logs_in_at_a_directory_of_entra_by_their_group(stage: Stage, entra: Issuer) -> None:
    entra.claims = of_entra
    authority = entra.url.removesuffix(f"/{TENANT}/v2.0")
    provider = Entra(tenant=TENANT, client_id=CLIENT, client_secret=SECRET, authority=authority)
    client = stage.client(stage.serve(make(Login(provider, allow=["6a1d4f39-0ec9-4b1c-9d2e-5b1c3b4f2a10"]))))
    tokens = client.tokens(stage.browser())
    subject = "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ"
    assert said(client.call(tokens)) == [subject, entra.url, "", "Abe Lincoln"]
    # https://learn.microsoft.com/entra/identity-platform/scopes-oidc: `offline_access` gives a refresh token. A prompt
    # for consent would stop people whose administrator has consented for them.
    asked = entra.asked[-1]
    assert "offline_access" in asked["scope"].split()
    assert "prompt" not in asked
    another = "72f988bf-86f1-41af-91ab-2d7cd011db47"
    for wrong in (
        {"groups": ["of-others"]},
        {"groups": None, "_claim_names": {"groups": "src1"}},  # more than fit: they are elsewhere
        {"iss": f"{authority}/{another}/v2.0", "tid": another},
        {"iss": f"https://sts.windows.net/{TENANT}/", "ver": "1.0"},
    ):
        entra.claims = lambda wrong=wrong: of_entra(**wrong)  # type: ignore[misc]
        ended = stage.browser().log_in(client.page())
        assert "code=" not in ended.headers.get("location", ""), wrong


@pytest.mark.parametrize("tenant", ["common", "organizations", "consumers", ""])
def test_a_directory_of_everybody_is_refused(tenant: str) -> None:
    with pytest.raises(SetupError, match="everybody"):
        Entra(tenant=tenant, client_id=CLIENT, client_secret=SECRET)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_login_at_an_issuer_without_refresh_tokens_ends_with_the_token_of_the_person(
    stage: Stage, google: Issuer, tmp_path: Path, store: str
) -> None:
    now = time.time()
    stage.clock = lambda: now
    google.claims = of_google
    options: Any = {} if store == "memory" else {"store": f"sqlite:///{tmp_path}/logins.db"}
    app = make(Login(Oidc(google.url, client_id=CLIENT, client_secret=SECRET)), **options)

    @app.tool
    async def upstream(ctx: Context) -> str:
        """Use the person's token."""
        return await ctx.upstream_token("openid")

    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser())
    now += 3595
    tokens = client.refresh(tokens).json()
    assert said(client.call(tokens, "upstream")) == "of-person"
    now += 10
    assert client.call(tokens, "upstream").status_code == (401 if store == "memory" else 403)
    refused = client.refresh(tokens)
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")


def test_what_an_issuer_says_of_a_person_is_asked_for_at_each_refresh(stage: Stage, google: Issuer) -> None:
    google.claims = lambda: of_google(department="research")
    google.told = ("sub", "department")
    seen: list[JSON] = []

    def allow(claims: Any) -> bool:
        seen.append(dict(claims))
        return bool(claims.get("department") == "research")

    login = Login(Oidc(google.url, client_id=CLIENT, client_secret=SECRET), allow=allow)
    client = stage.client(stage.serve(make(login)))
    tokens = client.refresh(client.tokens(stage.browser())).json()
    assert [(each["department"], each["email"]) for each in seen] == [("research", "jsmith@example.com")] * 2
    google.claims = lambda: of_google(department="sales")
    refused = client.refresh(tokens)
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")


def test_scopes_that_google_calls_otherwise_are_covered(google: Issuer) -> None:
    provider = Google(client_id=CLIENT, client_secret=SECRET, issuer=google.url)
    granted = ["openid", "https://www.googleapis.com/auth/userinfo.email"]
    assert provider.covers(granted, "email")
    assert not provider.covers(granted, "profile")
