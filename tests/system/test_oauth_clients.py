"""Official clients log in by their own OAuth code, refresh, and step up, against a real authorization server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import ElicitResult
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from mrtr_server import Context, JWTAuth, MRTRServer
from mrtr_server.auth import jwt_keys

from ..support.authorization_server import AuthorizationServer, Tenant
from ..support.models import Login
from ..support.official import typescript_client
from ..support.serving import TIMEOUT, in_thread

pytestmark = pytest.mark.anyio

CALLBACK = "http://127.0.0.1:1/callback"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server ask for keys as often as it wants."""
    monkeypatch.setattr(jwt_keys, "FLOOR", 0.0)


class LateSite:
    """An application that is made when its address is known."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)


Start = Callable[..., str]


@pytest.fixture
def start(issuer: Tenant) -> Iterator[Start]:
    """Serve the tools for an issuer, here or below the root of a site; returns the address of the endpoint."""
    with ExitStack() as stack:

        def begin(at: Tenant = issuer, mount: str = "") -> str:
            site = LateSite()
            port = stack.enter_context(in_thread(site, wait=False, lifespan="off"))
            url = f"http://127.0.0.1:{port}{mount}/mcp"
            app = make(at, url)
            site.app = Starlette(routes=[Mount(mount, app)]) if mount else app
            return url

        yield begin


def make(issuer: Tenant, audience: str) -> MRTRServer:
    app = MRTRServer("logins", keys=[bytes(32)], auth=JWTAuth(issuer.url, audience=audience), scopes=["use"])

    @app.tool
    async def who(ctx: Context) -> str:
        """Say who calls."""
        login = await ctx.elicit("Who?", Login)
        return f"{login.name} is {ctx.user.identity}, with {' '.join(sorted(ctx.scopes))}"

    @app.tool(scopes=["files:write"])
    async def save(ctx: Context) -> str:
        """Save something."""
        return f"saved for {ctx.user.identity}, with {' '.join(sorted(ctx.scopes))}"

    return app


class Person:
    """Logs in at the authorization server, in the place of a browser; keeps what the client has."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.asked: list[str] = []
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self._back = httpx.URL()

    async def open(self, url: str) -> None:
        asked = httpx.URL(url).copy_merge_params({"user": self.user})
        self.asked.append(asked.params["scope"])
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as browser:
            self._back = httpx.URL((await browser.get(asked)).headers["location"])

    async def come_back(self) -> AuthorizationCodeResult:
        given = self._back.params
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given["iss"])

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    def provider(self, url: str) -> OAuthClientProvider:
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(CALLBACK)], client_name="tests")
        return OAuthClientProvider(url, metadata, self, self.open, self.come_back)


async def elicit(context: Any, params: Any) -> Any:
    return ElicitResult(action="accept", content={"name": "Al"})


class TestThePythonClient:
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_logs_in_is_asked_and_steps_up(self, start: Start, issuer: Tenant, mode: str, fresh: None) -> None:
        url = start()
        person = Person("alice")
        async with httpx2.AsyncClient(auth=person.provider(url), trust_env=False) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=elicit) as client:
                assert (await client.call_tool("who", {})).content[0].text == "Al is alice, with use"  # type: ignore[union-attr]
                saved = await client.call_tool("save", {})
                assert saved.content[0].text == "saved for alice, with files:write use"  # type: ignore[union-attr]
                issuer.rotate()
                assert (await client.call_tool("save", {})).content[0].text.startswith("saved")  # type: ignore[union-attr]
        assert person.asked[:2] == ["use", "use files:write"], "the least at first, and then what was asked for besides"

    async def test_refreshes_what_has_expired(self, start: Start, issuer: Tenant, fresh: None) -> None:
        url = start()
        person = Person("alice")
        provider = person.provider(url)
        async with httpx2.AsyncClient(auth=provider, trust_env=False) as http:
            async with Client(streamable_http_client(url, http_client=http), elicitation_callback=elicit) as client:
                first, provider.context.token_expiry_time = person.tokens, 1.0  # long ago
                assert (await client.call_tool("who", {})).content[0].text == "Al is alice, with use"  # type: ignore[union-attr]
        assert first is not None
        assert person.tokens is not None
        assert person.tokens.access_token != first.access_token
        assert len(person.asked) == 1, "nobody had to log in again"

    async def test_finds_its_way_below_the_root_of_a_site(self, start: Start, issuer: Tenant, fresh: None) -> None:
        url = start(mount="/app")
        person = Person("bob")
        async with httpx2.AsyncClient(auth=person.provider(url), trust_env=False) as http:
            async with Client(streamable_http_client(url, http_client=http), elicitation_callback=elicit) as client:
                assert (await client.call_tool("who", {})).content[0].text == "Al is bob, with use"  # type: ignore[union-attr]

    async def test_a_client_that_may_not_have_more_is_told(self, start: Start, issuer: Tenant, fresh: None) -> None:
        url = start()
        token = issuer.mint(url, scope="use")
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
            async with Client(streamable_http_client(url, http_client=http)) as client:
                with pytest.raises(MCPError):
                    await client.call_tool("save", {})


@pytest.mark.parametrize("name", ["@modelcontextprotocol/client 2", "@modelcontextprotocol/sdk 1"])
def test_the_typescript_client_logs_in_steps_up_and_refreshes(
    start: Start, authorization_server: AuthorizationServer, name: str, fresh: None
) -> None:
    issuer = authorization_server.tenant("oidc-" if name.endswith("1") else "")
    url = start(issuer)
    asked: list[str] = []

    def log_in(page: str) -> str:
        url = httpx.URL(page).copy_merge_params({"user": "alice"})
        asked.append(url.params["scope"])
        return httpx.get(url, trust_env=False, timeout=TIMEOUT).headers["location"]

    with typescript_client(url, name, log_in) as client:
        assert client.call("who") == "Al is alice, with use"
        assert client.call("save") == "saved for alice, with files:write use"
        client.spoil()
        assert client.call("save") == "saved for alice, with files:write use"
    assert asked == ["use", "use files:write"], "the spoilt token was refreshed without a login"
