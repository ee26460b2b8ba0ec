"""Health and readiness: where they are, what they say, and that they say it to anyone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from mrtr_server import BearerTokens, MRTRServer
from mrtr_server.testing import AsyncClient

pytestmark = pytest.mark.anyio

RING = [bytes(32)]


async def ask(app: ASGIApp, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


def mounted(server: MRTRServer) -> ASGIApp:
    return Starlette(routes=[Mount("/tools", server)])


def below_the_root(server: MRTRServer) -> ASGIApp:
    return Starlette(routes=[Mount("/", server)])


PLACES: dict[str, tuple[Callable[[MRTRServer], ASGIApp], str, str]] = {
    "bare": (lambda server: server, "/mcp", ""),
    "with another path": (lambda server: server, "/api/v1/mcp", "/api/v1"),
    "with the endpoint at the root": (lambda server: server, "/", ""),
    "mounted": (mounted, "/mcp", "/tools"),
    "mounted at the root": (below_the_root, "/mcp", ""),
}


@pytest.mark.parametrize("place", PLACES)
async def test_they_are_beside_the_endpoint(place: str) -> None:
    put, path, folder = PLACES[place]
    app = put(MRTRServer("probed", keys=RING, path=path))
    for probe, status in (("health", "ok"), ("ready", "ok")):
        response = await ask(app, f"{folder}/{probe}")
        assert (response.status_code, response.json()) == (200, {"status": status})
        assert response.headers["cache-control"] == "no-store"
    assert (await ask(app, f"{folder}/other")).status_code == 404


async def test_a_route_is_the_endpoints_alone() -> None:
    app = Starlette(routes=[Route("/health", MRTRServer("probed", keys=RING))])
    assert (await ask(app, "/health")).status_code == 405


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_they_take_a_head(path: str) -> None:
    response = await ask(MRTRServer("probed", keys=RING), path, "HEAD")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_health_and_readiness_take_no_other_method(path: str) -> None:
    response = await ask(MRTRServer("probed", keys=RING), path, "POST")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_they_answer_anyone(path: str) -> None:
    guarded = MRTRServer("probed", keys=RING, auth=BearerTokens({"token": "ann"}), allowed_hosts=["example.com"])
    assert (await ask(guarded, path)).status_code == 200
    assert (await ask(guarded, path, origin="https://elsewhere.example")).status_code == 200
    assert (await ask(guarded, "/mcp", "POST")).status_code == 401


async def test_a_draining_server_is_healthy_and_not_ready() -> None:
    app = MRTRServer("probed", keys=RING)
    app.drain()
    response = await ask(app, "/ready")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")
    assert (await ask(app, "/ready", "HEAD")).status_code == 503
    assert (await ask(app, "/health")).status_code == 200


async def test_a_server_that_is_not_set_up_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.deployment.shared_resources.worker_count", lambda: 4)
    monkeypatch.delenv("MRTR_KEYS", raising=False)
    app = mounted(MRTRServer("probed"))
    response = await ask(app, "/tools/ready")
    assert (response.status_code, response.json()) == (503, {"status": "not set up"})
    assert (await ask(app, "/tools/health")).status_code == 200
    assert (await ask(app, "/tools/mcp", "POST")).status_code == 500


async def test_later_versions_of_http_have_no_header_that_closes_a_connection() -> None:
    app = MRTRServer("probed", keys=RING)
    app.drain()
    headers: list[list[tuple[bytes, bytes]]] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            headers.append(message["headers"])  # type: ignore[arg-type]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    for version in ("1.1", "2"):
        scope: dict[str, object] = {
            "type": "http",
            "http_version": version,
            "method": "GET",
            "path": "/ready",
            "headers": [],
        }
        await app(scope, receive, send)  # type: ignore[arg-type]
    assert [(b"connection", b"close") in each for each in headers] == [True, False]


class TestTasksThatWait:
    """An orchestrator and an operator see from `/ready` that no worker takes what waits."""

    @staticmethod
    def shop(tmp_path: Path, **settings: Any) -> MRTRServer:
        app = MRTRServer("shop", keys=RING, store=f"sqlite:///{tmp_path}/store.db", run_tasks=False, **settings)

        @app.tool(task="required")
        def report() -> str:
            return "done"

        @app.tool(task="required", visible=["admin"])
        def secret() -> str:
            return "done"

        return app

    @staticmethod
    async def wait(app: MRTRServer, tool: str, **asked: Any) -> str:
        client = AsyncClient(app, tasks=True, **asked)
        reply = await client.request("tools/call", {"name": tool, "arguments": {}})
        id: str = reply.message["result"]["taskId"]
        return id

    async def test_are_counted_by_tool_with_the_oldest_age(self, tmp_path: Path) -> None:
        app = self.shop(tmp_path)
        first = await self.wait(app, "report")
        await self.wait(app, "report")
        await asyncio.sleep(0.2)
        ready = await ask(self.shop(tmp_path), "/ready")  # another replica
        tasks = ready.json()["tasks"]
        assert (ready.status_code, ready.json()["status"], tasks["waiting"]) == (200, "ok", 2)
        assert 0 < tasks["oldest_seconds"] < 60
        assert tasks["by_tool"] == {"report": {"waiting": 2, "oldest_seconds": tasks["oldest_seconds"]}}
        assert first[:8] not in ready.text

    @pytest.mark.parametrize(
        "settings",
        [
            {"auth": BearerTokens({"token": "ann"})},
            {"authorize": lambda caller, name: True},
            {"middleware": [Middleware(lambda app: app)]},
        ],
        ids=["auth", "authorize", "middleware"],
    )
    async def test_of_tools_that_not_everybody_may_see_are_in_the_sum_alone(
        self, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        open_ = self.shop(tmp_path)
        await self.wait(open_, "report")
        tasks = (await ask(self.shop(tmp_path, **settings), "/ready")).json()["tasks"]
        assert (tasks["waiting"], tasks["by_tool"]) == (1, {})

    async def test_of_a_tool_with_visible_are_in_the_sum_alone(self, tmp_path: Path) -> None:
        app = self.shop(tmp_path, auth=BearerTokens({"token": "ann"}, scopes=["admin"]))
        await self.wait(app, "secret", token="token")
        ready = await ask(self.shop(tmp_path), "/ready")
        assert ready.json()["tasks"]["waiting"] == 1
        assert "secret" not in ready.text

    async def test_are_none_where_all_is_done(self, tmp_path: Path) -> None:
        assert (await ask(self.shop(tmp_path), "/ready")).json() == {"status": "ok"}
