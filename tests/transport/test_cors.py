"""Pages of other origins may call the server if it lists them, and read challenges and errors, too."""

import json
from typing import Any

import httpx
import pytest

from mrtr_server import BearerTokens, MRTRServer, SetupError

from ..support.wire import ACCEPT, JSON, mirrored, modern, text_of

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.com"
OTHER = "https://evil.example.com"


def make(**options: Any) -> MRTRServer:
    app = MRTRServer("shared", keys=[bytes(32)], **{"origins": [PAGE], **options})

    @app.tool
    def look() -> str:
        return "seen"

    @app.tool(scopes=["write"])
    def save() -> str:
        return "saved"

    return app


async def preflight(app: MRTRServer, origin: str, *headers: str, method: str = "POST") -> httpx.Response:
    """Ask what a browser asks before it sends a request."""
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": ",".join(headers),
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tools.example.com") as client:
        return await client.options("/mcp", headers=asked)


async def call(
    app: MRTRServer, origin: str, message: JSON | None = None, headers: JSON | None = None
) -> httpx.Response:
    """Call a tool from a page."""
    message = message or modern("tools/call", {"name": "look", "arguments": {}})
    sent = {
        "Origin": origin,
        "Content-Type": "application/json",
        "Accept": ACCEPT,
        **mirrored(message),
        **(headers or {}),
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tools.example.com") as client:
        return await client.post("/mcp", content=json.dumps(message), headers=sent)


HEADERS = [
    *("authorization", "content-type", "accept", "last-event-id", "mcp-protocol-version", "mcp-session-id"),
    *("mcp-method", "mcp-name", "mcp-param-region", "traceparent"),
]


class TestPreflight:
    @pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
    async def test_a_listed_origin_may_send_the_headers_of_the_protocol(self, method: str) -> None:
        response = await preflight(make(), PAGE, *HEADERS, method=method)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        allowed = {name.strip().lower() for name in response.headers["access-control-allow-headers"].split(",")}
        assert allowed >= set(HEADERS)
        assert method in response.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in response.headers
        assert "Origin" in response.headers["vary"]

    async def test_headers_of_parameters_alone_are_allowed(self) -> None:
        response = await preflight(make(), PAGE, "Mcp-Param-Region", "Mcp-Param-City")
        assert response.status_code == 200
        assert response.headers["access-control-allow-headers"].endswith("mcp-param-region, mcp-param-city")

    async def test_it_needs_no_token(self) -> None:
        app = make(auth=BearerTokens({"token": "alice"}))
        assert (await preflight(app, PAGE, "authorization")).status_code == 200

    @pytest.mark.parametrize(
        ("origin", "headers", "method", "allowed"),
        [
            (OTHER, ["content-type"], "POST", None),
            ("null", ["content-type"], "POST", None),
            (PAGE, ["x-other"], "POST", PAGE),
            (PAGE, ["mcp-param-"], "POST", PAGE),
            (PAGE, ["content-type"], "PUT", PAGE),
        ],
    )
    async def test_nothing_else_is_allowed(
        self, origin: str, headers: list[str], method: str, allowed: str | None
    ) -> None:
        response = await preflight(make(), origin, *headers, method=method)
        assert response.status_code == 400
        assert response.headers.get("access-control-allow-origin") == allowed

    async def test_without_origins_nothing_is_shared(self) -> None:
        app = make(origins=())
        assert (await preflight(app, PAGE, "content-type")).status_code == 405
        response = await call(app, "http://localhost:3000")
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


class TestResponses:
    async def test_a_page_reads_the_result_and_the_headers_that_it_needs(self) -> None:
        response = await call(make(), PAGE)
        assert text_of(response.json()) == "seen"
        assert response.headers["access-control-allow-origin"] == PAGE
        exposed = {name.strip() for name in response.headers["access-control-expose-headers"].split(",")}
        assert exposed == {"Mcp-Session-Id", "WWW-Authenticate", "DPoP-Nonce", "Retry-After"}

    async def test_a_challenge_reaches_the_page(self) -> None:
        response = await call(make(auth=BearerTokens({"token": "alice"})), PAGE)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (401, PAGE)
        assert response.headers["www-authenticate"].startswith("Bearer")

    async def test_a_lack_of_scopes_reaches_the_page(self) -> None:
        message = modern("tools/call", {"name": "save", "arguments": {}})
        app = make(auth=BearerTokens({"token": "alice"}))
        response = await call(app, PAGE, message, {"Authorization": "Bearer token"})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (403, PAGE)

    async def test_errors_reach_the_page(self) -> None:
        message = modern("nonsense/method", {})
        for status, response in (
            (404, await call(make(), PAGE, message)),
            (415, await call(make(), PAGE, headers={"Content-Type": "text/plain"})),
        ):
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == PAGE

    async def test_another_origin_is_refused_and_reads_nothing(self) -> None:
        response = await call(make(), OTHER)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers

    async def test_hosts_are_checked_all_the_same(self) -> None:
        assert (await call(make(allowed_hosts=["other.example.com"]), PAGE)).status_code == 403

    async def test_any_origin_is_served_without_credentials_alone(self) -> None:
        response = await call(make(origins=["*"]), OTHER)
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers

    async def test_probes_are_no_pages_business(self) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(make()), base_url="http://x") as client:
            response = await client.get("/ready", headers={"Origin": PAGE})
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origin", ["null", "app.example.com", "https://app.example.com/path"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(SetupError, match="origins"):
        make(origins=[origin])


def test_any_origin_is_a_finding() -> None:
    assert [each.about for each in make(origins=["*"]).check() if each.about != "dialects"][:1] == ["origins"]
