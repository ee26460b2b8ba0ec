"""Where the server can be put: bare, in Starlette, in FastAPI, under a root path, with any lifespans, in workers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mrtr_server import MRTRServer

from ..conftest import Serve
from ..support.direct import send
from ..support.serving import KEYS, in_process, in_thread, started
from ..support.wire import Reply, Wire, accept, modern, request


@pytest.fixture
def server() -> MRTRServer:
    served = MRTRServer("mounted", keys=[bytes(32)])

    @served.tool
    def hello() -> str:
        return "hello"

    return served


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"page {request.url.path}")


def hello(wire: Wire) -> str:
    return wire.call("hello").text


def elsewhere(wire: Wire, path: str) -> Reply:
    """Get another path of the same server."""
    return wire.send(b"", method="GET", path=path)


class TestBare:
    def test_it_is_an_application_of_its_own(self, server: MRTRServer, serve: Serve) -> None:
        assert hello(serve(server)) == "hello"

    def test_a_lifespan_is_not_needed(self, server: MRTRServer, serve: Serve) -> None:
        assert hello(serve(server, lifespan="off")) == "hello"
        assert hello(serve(server, lifespan="on")) == "hello"

    def test_several_lifespans_are_survived(self, server: MRTRServer) -> None:
        """Plain functions run in threads, and those end with each."""
        for _ in range(3):
            with in_thread(server, lifespan="on") as port:
                wire = Wire(f"http://127.0.0.1:{port}/mcp")
                assert hello(wire) == "hello"
                wire.close()

    def test_it_stands_behind_a_proxy_that_strips_a_prefix(self, server: MRTRServer, serve: Serve) -> None:
        """Uvicorn's root path goes before the path that the client asked for."""
        assert hello(serve(server, root_path="/api")) == "hello"
        assert serve(server, root_path="/api", path="/other").draft(request("tools/list")).status == 404


class TestStarlette:
    @pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
    def test_mounted_at_the_root_it_keeps_its_path(self, server: MRTRServer, serve: Serve, path: str) -> None:
        site = Starlette(routes=[Route("/page", page), Mount("/", server)])
        wire = serve(site, path=path)
        assert hello(wire) == "hello"
        assert elsewhere(wire, "/page").body == b"page /page"
        assert elsewhere(wire, "/other").status == 404

    @pytest.mark.parametrize("path", ["/mcp/", "/mcp/mcp"])
    def test_mounted_elsewhere_the_root_of_the_mount_is_the_endpoint(
        self, server: MRTRServer, serve: Serve, path: str
    ) -> None:
        assert hello(serve(Starlette(routes=[Mount("/mcp", server)]), path=path)) == "hello"

    def test_mounted_elsewhere_it_redirects_nothing_itself(self, server: MRTRServer, serve: Serve) -> None:
        """Without its slash a path is no part of a mount, so there Starlette redirects before the server is asked."""
        wire = serve(Starlette(routes=[Mount("/mcp", server)]), path="/mcp")
        reply = wire.draft(request("tools/list"))
        assert (reply.status, reply.headers["location"]) == (307, f"{wire.url}/")
        assert hello(serve(Starlette(routes=[Mount("/mcp", server)]), path="/mcp/")) == "hello"

    @pytest.mark.parametrize("path", ["/mcp/x", "/mcp/mcp/x", "/mcpx", "/", "/x/mcp"])
    def test_mounted_elsewhere_nothing_else_is_the_endpoint(self, server: MRTRServer, serve: Serve, path: str) -> None:
        wire = serve(Starlette(routes=[Mount("/mcp", server)]), path=path)
        assert wire.draft(request("tools/list")).status == 404

    def test_mounts_may_be_deep(self, server: MRTRServer, serve: Serve) -> None:
        site = Starlette(routes=[Mount("/a", routes=[Mount("/b", server)])])
        assert hello(serve(site, path="/a/b/")) == "hello"
        assert hello(serve(site, path="/a/b/mcp")) == "hello"
        assert serve(site, path="/a/mcp").draft(request("tools/list")).status == 404

    def test_mounts_may_have_parameters(self, server: MRTRServer, serve: Serve) -> None:
        site = Starlette(routes=[Mount("/tenants/{tenant}", server)])
        assert hello(serve(site, path="/tenants/acme/mcp")) == "hello"

    @pytest.mark.parametrize("path", ["/mcp", "/any/where"])
    def test_as_a_route_it_is_wherever_the_route_is(self, server: MRTRServer, serve: Serve, path: str) -> None:
        site = Starlette(routes=[Route(path, server)])
        wire = serve(site, path=path)
        assert hello(wire) == "hello"
        assert wire.send(b"", method="GET").status == 405

    def test_two_of_them_live_side_by_side(self, serve: Serve) -> None:
        routes = []
        for name in ("one", "two"):
            each = MRTRServer(name, keys=[bytes(32)])
            each.tool(name="hello")(lambda name=name: name)
            routes.append(Mount(f"/{name}", each))
        site = Starlette(routes=routes)
        assert [hello(serve(site, path=f"/{name}/mcp")) for name in ("one", "two")] == ["one", "two"]

    def test_middleware_around_it_works_on_its_replies(self, server: MRTRServer, serve: Serve) -> None:
        site = Starlette(routes=[Mount("/", server)], middleware=[Middleware(GZipMiddleware, minimum_size=1)])
        reply = serve(site).post(modern("tools/call", {"name": "hello"}), {"Accept-Encoding": "gzip"})
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.text == "hello"

    def test_its_own_middleware_is_around_the_endpoint_alone(self, serve: Serve) -> None:
        seen: list[str] = []

        class Seeing:
            def __init__(self, app: ASGIApp, who: str) -> None:
                self.app, self.who = app, who

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                seen.append(self.who)
                await self.app(scope, receive, send)

        middleware = [Middleware(Seeing, "outer"), Middleware(Seeing, who="inner")]
        app = MRTRServer("seen", keys=[bytes(32)], middleware=middleware)
        assert serve(app).modern("tools/list").status == 200
        assert seen == ["outer", "inner"]

    def test_the_site_keeps_its_own_lifespan(self, server: MRTRServer, serve: Serve) -> None:
        """It is not passed on to mounts, and need not be."""
        happened: list[str] = []

        @asynccontextmanager
        async def lifespan(site: Starlette) -> AsyncIterator[None]:
            happened.append("up")
            yield
            happened.append("down")

        site = Starlette(routes=[Mount("/mcp", server)], lifespan=lifespan)
        assert hello(serve(site, path="/mcp/", lifespan="on")) == "hello"
        assert happened == ["up"]


class TestFastAPI:
    @pytest.mark.parametrize("path", ["/mcp/", "/mcp/mcp"])
    def test_mounted_it_is_the_root_of_the_mount(self, server: MRTRServer, serve: Serve, path: str) -> None:
        site = FastAPI()
        site.mount("/mcp", server)
        assert hello(serve(site, path=path)) == "hello"

    def test_mounted_at_the_root_it_leaves_the_other_routes_alone(self, server: MRTRServer, serve: Serve) -> None:
        site = FastAPI()

        @site.get("/health")
        def health() -> dict[str, bool]:
            return {"ok": True}

        site.mount("/", server)
        wire = serve(site)
        assert hello(wire) == "hello"
        assert elsewhere(wire, "/health").message == {"ok": True}

    def test_added_as_a_route_it_is_wherever_the_route_is(self, server: MRTRServer, serve: Serve) -> None:
        site = FastAPI()
        site.add_route("/tools", server)  # type: ignore[arg-type]  # Starlette's routes take any application
        assert hello(serve(site, path="/tools")) == "hello"

    def test_root_paths_of_the_server_go_before_the_mount(self, server: MRTRServer, serve: Serve) -> None:
        site = FastAPI()
        site.mount("/mcp", server)
        assert hello(serve(site, path="/mcp/", root_path="/api/v1")) == "hello"
        assert hello(serve(site, path="/mcp/mcp", root_path="/api/v1")) == "hello"


def test_a_server_that_tells_the_root_path_in_the_path_is_understood(server: MRTRServer) -> None:
    """As ASGI asks of them since version 2.4 of the HTTP part; some leave it out, which is understood, too."""
    for path, root in (("/api/mcp", "/api"), ("/mcp", "/api"), ("/api", "/api"), ("/api/", "/api"), ("/mcp", "")):
        assert asyncio.run(send(server, modern("tools/list"), path=path, root_path=root)).status == 200
    for path, root in (("/api/x", "/api"), ("/apix/mcp", "/api"), ("/", "")):
        assert asyncio.run(send(server, modern("tools/list"), path=path, root_path=root)).status == 404


class TestPaths:
    """A gateway lets paths through by their name, so that nothing else may lead to the endpoint."""

    ALIASES = ("/mcp%2f", "/mcp%2F", "/mcp//", "//mcp", "/mcp/%2f", "/%6dcp", "/m%63p/", "/mcp%00", "/mcp;x", "/MCP")

    def status(self, app: ASGIApp, raw: str, root: str = "") -> int:
        """What a POST to a path gets that comes over the wire as it is here."""
        path = {"path": unquote(raw), "raw_path": raw.encode(), "root_path": root}
        return asyncio.run(send(app, modern("tools/list"), **path)).status

    @pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
    def test_of_the_endpoint_are_two(self, server: MRTRServer, path: str) -> None:
        assert self.status(server, path) == 200

    @pytest.mark.parametrize("path", [*ALIASES, "/mcp/mcp", "/mcp/../mcp", "/x/mcp", "/", ""])
    def test_that_are_something_like_it_are_none_of_it(self, server: MRTRServer, path: str) -> None:
        assert self.status(server, path) == 404

    @pytest.mark.parametrize("path", ALIASES)
    def test_are_none_over_the_wire_either(self, server: MRTRServer, serve: Serve, path: str) -> None:
        wire = serve(server)
        with socket.create_connection(("127.0.0.1", int(wire.url.split(":")[2].split("/")[0]))) as connection:
            body = json.dumps(modern("tools/list")).encode()
            headers = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
            connection.sendall(b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), headers, body))
            assert b" 404 " in connection.recv(4096)

    @pytest.mark.parametrize("site", ["starlette", "fastapi"])
    def test_under_a_mount_are_its_root_and_the_servers_own(self, server: MRTRServer, site: str) -> None:
        if site == "fastapi":
            app: Any = FastAPI()
            app.mount("/api", server)
        else:
            app = Starlette(routes=[Mount("/api", server)])
        for path in ("/api/", "/api/mcp", "/api/mcp/"):
            assert self.status(app, path) == 200, path
        for path in ("/api//", "/api%2f", "/api/%2f", "/api///", *(f"/api{alias}" for alias in self.ALIASES)):
            assert self.status(app, path) in (404, 307), path

    def test_under_a_mount_with_parameters_may_have_what_is_escaped_there(self, server: MRTRServer) -> None:
        app = Starlette(routes=[Mount("/tenants/{tenant}", server)])
        assert self.status(app, "/tenants/a%20b/mcp") == 200
        assert self.status(app, "/tenants/a%20b/") == 200
        assert self.status(app, "/tenants/a%20b%2fmcp") == 404

    def test_of_a_server_that_is_all_there_is_are_its_root(self) -> None:
        app = MRTRServer("root", keys=[bytes(32)], path="/")
        assert self.status(app, "/") == 200
        for path in ("//", "/%2f", "/mcp", "%2f"):
            assert self.status(app, path) == 404, path

    def test_may_have_characters_that_are_escaped(self) -> None:
        app = MRTRServer("named", keys=[bytes(32)], path="/für alle")
        assert self.status(app, "/f%C3%BCr%20alle") == 200
        assert self.status(app, "/f%C3%BCr%20alle/") == 200
        assert self.status(app, "/f%C3%BCr%20%61lle") == 404

    def test_are_understood_from_servers_that_do_not_tell_how_they_came(self, server: MRTRServer) -> None:
        for raw in ({"raw_path": None}, {"raw_path": b""}):
            assert asyncio.run(send(server, modern("tools/list"), path="/mcp", **raw)).status == 200
            assert asyncio.run(send(server, modern("tools/list"), path="/mcp//", **raw)).status == 404


class TestLifespan:
    async def pass_through(self, app: ASGIApp, *steps: str) -> list[Message]:
        coming: asyncio.Queue[Message] = asyncio.Queue()
        for step in steps:
            coming.put_nowait({"type": f"lifespan.{step}"})
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, coming.get, keep)
        return sent

    def test_starts_and_stops_in_good_order(self, server: MRTRServer) -> None:
        sent = asyncio.run(self.pass_through(server, "startup", "shutdown"))
        assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]

    def test_leaves_what_comes_after_it_working(self, server: MRTRServer) -> None:
        for _ in range(2):
            asyncio.run(self.pass_through(server, "startup", "shutdown"))
            assert asyncio.run(send(server, modern("tools/call", {"name": "hello"}))).text == "hello"


class TestWorkers:
    """Several workers need one ring of keys, or a flow that begins in one can't go on in another."""

    def test_without_keys_are_refused_with_the_command_that_makes_one(self, tmp_path: Path) -> None:
        """The exit code is uvicorn's: 0.54 ends the parent of several workers with 0 whatever they died of."""
        with in_process("examples.weather:app", "--workers", "2", log=tmp_path / "log") as server:
            server.wait()
            assert server.port == 0, "it never served"
            assert "2 workers need one shared key" in server.text
            assert "MRTR_KEYS=$(mrtr-server keygen)" in server.text
            assert "Traceback" not in server.text
            assert server.text.count("Started server process") <= 2, "nothing starts them again and again"

    def test_with_keys_take_turns_in_one_flow(self, tmp_path: Path) -> None:
        arguments = ("--workers", "2")
        keys = {"MRTR_KEYS": KEYS}
        with in_process("tests.support.apps:telling", *arguments, log=tmp_path / "log", environment=keys) as server:
            wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
            workers, crossed = set(), 0
            for _ in range(200):
                asked, asked_by = told(wire)
                done, done_by = told(wire, answers={"login": accept(name="octocat")}, state=asked["requestState"])
                assert done["content"][0]["text"].endswith("octocat")
                workers |= {asked_by, done_by}
                crossed += asked_by != done_by
                if crossed >= 3:
                    break
            wire.close()
        assert len(workers) == 2
        assert crossed >= 3, "rounds of one flow were served by different workers"

    def test_of_one_need_no_keys_and_are_told_what_that_means(self, tmp_path: Path) -> None:
        with in_process("examples.weather:app", "--workers", "1", log=tmp_path / "log") as server:
            wire = Wire(f"http://127.0.0.1:{server.port}/mcp")
            assert wire.call("get_weather", {"location": "Oslo"}).result["resultType"] == "input_required"
            wire.close()
            assert "no keys are given" in server.text

    def test_keys_that_are_none_end_the_start_without_being_shown(self, tmp_path: Path) -> None:
        secret = "not-hex-but-somebody-thinks-it-secret"
        environment = {"MRTR_KEYS": secret}
        with in_process("examples.weather:app", log=tmp_path / "log", environment=environment) as server:
            assert server.wait() != 0
            assert "MRTR_KEYS" in server.text
            assert secret not in server.text

    def test_keys_that_are_none_end_the_start_of_several_too(self, tmp_path: Path) -> None:
        environment = {"MRTR_KEYS": "not-hex"}
        arguments = ("--workers", "2")
        with started("examples.weather:app", *arguments, log=tmp_path / "log", environment=environment) as server:
            server.wait()
            assert "64 hex digits" in server.text


def told(wire: Wire, **more: Any) -> tuple[dict[str, Any], str]:
    """Send one round on its own connection, so that any worker may take it; return the result, and who served it."""
    one = Wire(wire.url)
    reply = one.call("who_serves", **more)
    one.close()
    result = reply.result
    if "inputRequests" in result:
        (asked,) = result["inputRequests"].values()
        return result, asked["params"]["message"].split()[-1]
    return result, result["content"][0]["text"].split()[0]
