"""A login in the browser, against a real authorization server: what is checked, and what is kept."""

import asyncio
import json
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mrtr_server import Context, JWTAuth, MRTRServer
from mrtr_server.client import Client, FileTokens, LoginFailed, OAuth, RequestRefused
from mrtr_server.client.oauth import read_challenge
from mrtr_server.client.token_store import SystemTokens
from mrtr_server.wire import HANDSHAKES, MODERN

from ..support.authorization_server import Tenant
from ..support.serving import TIMEOUT, free_ports, in_thread

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


@contextmanager
def protected(issuer: Tenant) -> Iterator[str]:
    """Serve an application whose tokens are of an issuer; yield its URL."""
    (port,) = free_ports(1)
    root = f"http://127.0.0.1:{port}"
    app = MRTRServer("protected", keys=[bytes(32)], base_url=root, auth=JWTAuth(issuer.url, audience=f"{root}/mcp"))

    @app.tool
    async def who(ctx: Context) -> str:
        return str(ctx.user.identity)

    @app.tool(scopes=["files:write"])
    async def save(ctx: Context) -> str:
        return f"saved for {ctx.user.identity}"

    with in_thread(app, port=port):
        yield f"{root}/mcp"


class Person:
    """Someone who opens pages, and is known at once to the authorization server."""

    def __init__(self, **more: str) -> None:
        self.pages: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.more = more

    async def open(self, page: str) -> None:
        self.pages.append({name: values[0] for name, values in parse_qs(urlsplit(page).query).items()})
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as browser:
            redirect = (await browser.get(f"{page}&user=ann")).headers["location"]
            self.answers.append((await browser.get(self.changed(redirect))).status_code)

    def changed(self, redirect: str) -> str:
        return redirect


@pytest.fixture
def store(tmp_path: Path) -> FileTokens:
    return FileTokens(tmp_path / "tokens")


def kept(store: FileTokens, url: str) -> dict[str, str]:
    """Return what is kept for a server."""
    found: dict[str, str] = json.loads(store.load(url) or "")
    return found


@pytest.mark.parametrize("era", [MODERN, HANDSHAKES[0]])
async def test_a_person_logs_in_once_and_the_tokens_are_kept(
    issuer: Tenant, store: FileTokens, tmp_path: Path, era: str
) -> None:
    person = Person()
    with protected(issuer) as url:
        async with Client(url, era=era, auth=OAuth(person.open, store=store)) as client:
            assert (await client.call("who")).text == "ann"
            assert (await client.call("who")).text == "ann"
        async with Client(url, auth=OAuth(store=store)) as client:
            assert (await client.call("who")).text == "ann"
        (page,) = person.pages
        assert page["resource"] == url
        assert page["code_challenge_method"] == "S256"
        assert person.answers == [200]
        (file,) = (tmp_path / "tokens").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        store.forget(url)
        assert store.load(url) is None


async def test_a_token_that_has_expired_is_refreshed_without_the_person(issuer: Tenant, store: FileTokens) -> None:
    person = Person()
    with protected(issuer) as url:
        issuer.set(lifetime=-120.0)  # over at once
        async with Client(url, auth=OAuth(person.open, store=store)) as client:
            with pytest.raises(RequestRefused):
                await client.call("who")
        assert len(person.pages) == 1  # a second login would bring no better one
        before = kept(store, url)
        issuer.set(lifetime=300.0)
        async with Client(url, auth=OAuth(store=store)) as client:
            assert (await client.call("who")).text == "ann"
        after = kept(store, url)
    assert after["refresh_token"] != before["refresh_token"]
    assert after["client_id"] == before["client_id"]


async def test_a_refresh_token_that_has_ended_needs_the_person_again_and_no_other_registration(
    issuer: Tenant, store: FileTokens
) -> None:
    person = Person()
    with protected(issuer) as url:
        for _ in range(2):
            async with Client(url, auth=OAuth(person.open, store=store)) as client:
                assert (await client.call("who")).text == "ann"
            store.save(url, json.dumps({**kept(store, url), "access_token": "ended", "refresh_token": "ended"}))
    assert len(person.pages) == 2
    assert len(issuer.clients) == 1


async def test_a_tool_that_needs_more_scopes_asks_for_them_besides_those_that_were_given(
    issuer: Tenant, store: FileTokens
) -> None:
    person = Person()
    with protected(issuer) as url:
        async with Client(url, auth=OAuth(person.open, scopes=("files:read",), store=store)) as client:
            assert (await client.call("who")).text == "ann"
            replies = await asyncio.gather(client.call("save"), client.call("save"))
        assert [each.text for each in replies] == ["saved for ann"] * 2
    assert [page["scope"] for page in person.pages] == ["files:read", "files:read files:write"]


async def test_a_client_that_is_registered_uses_its_id(issuer: Tenant, store: FileTokens) -> None:
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}/callback"
    async with httpx.AsyncClient(trust_env=False) as browser:
        registered = (await browser.post(f"{issuer.url}/register", json={"redirect_uris": [uri]})).json()["client_id"]
    person = Person()
    with protected(issuer) as url:
        auth = OAuth(person.open, client_id=registered, port=port, store=store)
        async with Client(url, auth=auth) as client:
            assert (await client.call("who")).text == "ann"
    assert person.pages[0]["client_id"] == registered
    assert issuer.clients == [registered]


class Forger(Person):
    """Someone whose redirect was changed on the way."""

    def __init__(self, pattern: str, by: str) -> None:
        super().__init__()
        self.pattern, self.by = pattern, by

    def changed(self, redirect: str) -> str:
        return re.sub(self.pattern, self.by, redirect)


@pytest.mark.parametrize(
    ("pattern", "by", "why"),
    [
        (r"iss=[^&]+", "iss=https%3A%2F%2Fevil.example", "is not of http"),
        (r"iss=[^&]+&", "", "does not say that it is of"),
        (r"code=[^&]+", "error=access_denied", "refused the login: access_denied"),
        (r"code=[^&]+", "code=", "has no code"),
        (r"code=[^&]+", "code=another", "answered with the status 400"),
    ],
)
async def test_a_redirect_that_is_not_the_issuers_ends_the_login(
    issuer: Tenant, store: FileTokens, pattern: str, by: str, why: str
) -> None:
    with protected(issuer) as url:
        async with Client(url, auth=OAuth(Forger(pattern, by).open, store=store)) as client:
            with pytest.raises(LoginFailed, match=why):
                await client.call("who")
        assert store.load(url) is None


async def test_another_state_is_told_no_and_ends_no_login(issuer: Tenant, store: FileTokens) -> None:
    forger = Forger(r"state=[^&]+", "state=another")
    with protected(issuer) as url:
        async with Client(url, auth=OAuth(forger.open, seconds=0.2, store=store)) as client:
            with pytest.raises(LoginFailed, match="Nobody has logged in within"):
                await client.call("who")
    assert forger.answers == [404]


async def test_without_a_person_the_refusal_is_told(issuer: Tenant, store: FileTokens) -> None:
    with protected(issuer) as url:
        async with Client(url, auth=OAuth(store=store)) as client:
            with pytest.raises(RequestRefused) as refused:
                await client.call("who")
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("resource", "authorization", "why"),
    [
        ({"resource": "https://other.example/mcp"}, {}, "is of another server"),
        ({"resource": "ROOT/mc"}, {}, "is of another server"),
        ({"authorization_servers": []}, {}, "no https address"),
        ({"authorization_servers": ["http://login.example.com"]}, {}, "no https address"),
        ({}, {"code_challenge_methods_supported": ["plain"]}, "PKCE with S256"),
        ({}, {"issuer": "https://other.example"}, "is of the issuer"),
        ({}, {"authorization_endpoint": "javascript:alert(1)"}, "no https address"),
        ({}, {"token_endpoint": "http://elsewhere.example/token"}, "no https address"),
        ({}, {"registration_endpoint": None}, "registers no clients"),
    ],
)
async def test_metadata_that_is_not_safe_is_refused_before_a_page_is_opened(
    store: FileTokens, resource: dict[str, Any], authorization: dict[str, Any], why: str
) -> None:
    def root(request: Request) -> str:
        return f"http://{request.headers['host']}"

    def said(request: Request, about: dict[str, Any]) -> Response:
        return JSONResponse(json.loads(json.dumps(about).replace("ROOT", root(request))))

    async def metadata(request: Request) -> Response:
        return said(request, {"resource": "ROOT/mcp", "authorization_servers": ["ROOT"], **resource})

    async def authorization_server(request: Request) -> Response:
        endpoints = {f"{each}_endpoint": f"ROOT/{each}" for each in ("authorization", "token", "registration")}
        about = {"issuer": "ROOT", "code_challenge_methods_supported": ["S256"], **endpoints, **authorization}
        return said(request, {name: each for name, each in about.items() if each is not None})

    async def endpoint(request: Request) -> Response:
        return Response(status_code=401)

    routes = [
        Route("/.well-known/oauth-protected-resource/mcp", metadata),
        Route("/.well-known/oauth-authorization-server", authorization_server),
        Route("/mcp", endpoint, methods=["POST"]),
    ]
    person = Person()
    with in_thread(Starlette(routes=routes)) as port:
        async with Client(f"http://127.0.0.1:{port}/mcp", auth=OAuth(person.open, store=store)) as client:
            with pytest.raises(LoginFailed, match=why):
                await client.call("who")
    assert not person.pages


async def test_a_server_elsewhere_can_t_send_the_client_to_this_machine(store: FileTokens) -> None:
    auth = OAuth(Person().open, store=store)
    header = 'Bearer resource_metadata="http://127.0.0.1:9/secret"'
    with pytest.raises(LoginFailed, match="of this machine"):
        await auth.renew("https://shop.example/mcp", "", 401, header, None)
    assert not await auth.renew("http://shop.example/mcp", "", 401, header, None)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (
            'Bearer scope="a b", resource_metadata="https://x/y", error=insufficient_scope',
            ("insufficient_scope", "a b", "https://x/y"),
        ),
        ('Basic realm="x", bearer Scope="a\\"b"', ("", 'a"b', "")),
        ('Basic scope="a"', ("", "", "")),
        ("Bearer " + "a" * 100_000, ("", "", "")),
    ],
)
def test_a_challenge_is_read_with_care(header: str, found: tuple[str, ...]) -> None:
    assert read_challenge(header) == found


class TestSystemTokens:
    """The keyring of the system has no place in tests: the package is played by what it promises."""

    def test_keeps_them_in_the_keyring(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        kept: dict[tuple[str, str], str] = {}
        keyring = SimpleNamespace(
            get_password=lambda service, name: kept.get((service, name)),
            set_password=lambda service, name, text: kept.__setitem__((service, name), text),
            delete_password=lambda service, name: kept.pop((service, name)),
            errors=SimpleNamespace(KeyringError=RuntimeError),
        )
        monkeypatch.setitem(sys.modules, "keyring", keyring)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        tokens = SystemTokens()
        tokens.save("https://s/mcp", "secret")
        assert tokens.load("https://s/mcp") == "secret"
        assert not list(tmp_path.rglob("*.json"))
        tokens.forget("https://s/mcp")
        assert tokens.load("https://s/mcp") is None

    @pytest.mark.parametrize("installed", [True, False])
    def test_keeps_them_in_a_file_where_there_is_none(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool
    ) -> None:
        def fail(*_: str) -> None:
            raise RuntimeError("no keyring")

        keyring = SimpleNamespace(
            get_password=fail,
            set_password=fail,
            delete_password=fail,
            errors=SimpleNamespace(KeyringError=RuntimeError),
        )
        monkeypatch.setitem(sys.modules, "keyring", keyring if installed else None)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        tokens = SystemTokens()
        tokens.save("https://s/mcp", "secret")
        assert tokens.load("https://s/mcp") == "secret"
        tokens.forget("https://s/mcp")
        assert tokens.load("https://s/mcp") is None


@pytest.mark.parametrize("written", ["{", "[]", '{"issuer": 1}', "\u00e9"])
async def test_what_another_release_has_kept_counts_as_nothing(store: FileTokens, written: str) -> None:
    store.save("https://s/mcp", written)
    auth = OAuth(store=store)
    await auth.load("https://s/mcp")
    assert auth.token("https://s/mcp") == ""
