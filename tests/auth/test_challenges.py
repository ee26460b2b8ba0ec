"""Challenges and metadata: how a client that has no token, or too little of one, gets in."""

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Host, Mount, Route, Router

from mrtr_server import BearerTokens, Caller, InsufficientScope, JWTAuth, MRTRServer, ServerInfo, SetupError
from mrtr_server.auth.fixed_tokens import TokenUser

from ..support.authorization_server import Tenant
from ..support.direct import exchange
from ..support.wire import JSON, Reply, modern, request
from .callers import AUDIENCE, get, make, send

pytestmark = pytest.mark.anyio

WELL_KNOWN = "/.well-known/oauth-protected-resource"
OTHER = "api://not-an-address"


class Scoped(AuthenticationBackend):
    """A backend of an author's own: the token is the list of its scopes."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        given = conn.headers.get("authorization")
        return None if given is None else (AuthCredentials(given.split()[1:]), TokenUser("alice"))


class Named(Scoped):
    """One that says where tokens come from."""

    authorization_servers = ("https://login.example.com",)


def with_scopes(auth: Any = None, **options: Any) -> MRTRServer:
    """Make a server with something of each kind that needs scopes."""
    app = make(auth or Named(), **options)

    @app.tool(scopes=["files:write", "files:read"])
    def save() -> str:
        return "saved"

    @app.prompt(scopes=["prompts"])
    def greet() -> str:
        return "hello"

    @app.resource("fixed://one", scopes=["files:read"])
    def one() -> str:
        return "one"

    @app.resource("many://{name}", scopes=["files:read", "many"])
    def many(name: str) -> str:
        return name

    @app.completion("name", resource="many://{name}")
    def names(value: str) -> list[str]:
        return ["ann"]

    @app.tool(visible=["admin"], scopes=["files:write"])
    def hidden() -> str:
        return "seen"

    return app


def challenge(scope: str, host: str = "tools.example.com") -> str:
    where = f"http://{host}{WELL_KNOWN}/mcp"
    return f'Bearer realm="mcp", error="insufficient_scope", scope="{scope}", resource_metadata="{where}"'


class TestWithoutAToken:
    async def test_the_challenge_says_where_the_metadata_is_and_which_scopes_to_ask_for(self) -> None:
        reply = await send(make(Named(), scopes=["base", "more"]), None)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == (
            f'Bearer realm="mcp", scope="base more", resource_metadata="http://tools.example.com{WELL_KNOWN}/mcp"'
        )

    async def test_a_backend_that_names_no_authorization_server_has_no_metadata(self) -> None:
        app = make(BearerTokens({"t": "alice"}))
        reply = await send(app, None)
        assert reply.headers["www-authenticate"] == 'Bearer realm="mcp"'
        assert (await get(app, WELL_KNOWN)).status == 404
        with pytest.raises(SetupError, match="authorization_servers"):
            _ = app.resource_metadata

    @pytest.mark.parametrize("query", [b"access_token=x", b"a=1&access_token=x", b"%61ccess_token=x", b"access_token="])
    async def test_one_in_the_address_is_refused_even_beside_one_that_holds(
        self, query: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        reply = await send(make(Named()), "base", query_string=query)
        assert reply.status == 400
        assert 'error="invalid_request"' in reply.headers["www-authenticate"]
        assert "Refused a token in the address" in caplog.text

    async def test_another_query_is_nobodys_business(self) -> None:
        assert (await send(make(Named()), "base", query_string=b"x=access%20token&y=access_token")).status == 200

    async def test_two_are_refused_whichever_holds(self) -> None:
        app = make(Named())
        more = [(b"authorization", b"Bearer other")]
        assert (await send(app, "base", more=more)).status == 400


class TestTheMetadata:
    @pytest.mark.parametrize("path", [WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"{WELL_KNOWN}/mcp/"])
    async def test_is_at_both_well_known_paths(self, path: str) -> None:
        app = make(Named(), scopes=["base"], info=ServerInfo(title="Tools", website_url="https://example.com/docs"))
        reply = await get(app, path)
        assert json.loads(reply.body) == {
            "resource": "http://tools.example.com/mcp",
            "authorization_servers": ["https://login.example.com"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Tools",
            "scopes_supported": ["base"],
            "resource_documentation": "https://example.com/docs",
        }
        assert reply.headers["cache-control"] == "no-store"

    async def test_names_the_audience_of_the_tokens_where_that_is_an_address(self) -> None:
        app = make(JWTAuth("https://login.example.com", audience=[OTHER, AUDIENCE]))
        reply = await get(app, WELL_KNOWN, host=b"evil.example.com")
        assert (reply.message["resource"], reply.headers["cache-control"]) == (AUDIENCE, "max-age=300")
        assert "scopes_supported" not in reply.message

    async def test_names_the_base_url_in_front_of_whatever_host_was_asked(self) -> None:
        app = make(JWTAuth("https://login.example.com", audience=OTHER), base_url="https://tools.example.com/x")
        reply = await get(app, f"{WELL_KNOWN}/mcp", host=b"evil.example.com")
        assert reply.message["resource"] == "https://tools.example.com/x/mcp"
        challenged = (await send(app, None)).headers["www-authenticate"]
        assert f'resource_metadata="https://tools.example.com/x{WELL_KNOWN}/mcp"' in challenged

    @pytest.mark.parametrize("host", [b'x", error="y', b"a b", b"a/b", b"", b"u@h", b"a:b"])
    async def test_never_repeats_a_host_that_is_none(self, host: bytes) -> None:
        app = make(Named())
        assert (await get(app, WELL_KNOWN, host=host)).status == 404

    async def test_may_be_read_by_browsers_before_they_have_a_token(self) -> None:
        app = make(Named())
        assert (await get(app, WELL_KNOWN)).headers["access-control-allow-origin"] == "*"
        reply = await get(app, WELL_KNOWN, host=b"h")
        assert reply.status == 200

    @pytest.mark.parametrize(
        "path", [f"{WELL_KNOWN}/other", f"{WELL_KNOWN}x", f"{WELL_KNOWN}/mcp/mcp", f"/x{WELL_KNOWN}"]
    )
    async def test_is_nowhere_else(self, path: str) -> None:
        assert (await get(make(Named()), path)).status == 404


class TestMounted:
    """Below the root of a site, clients find the metadata by the challenge, or where the site mounts it."""

    @pytest.mark.parametrize("path", ["/app/mcp", "/app/mcp/", "/app/", "/app"])
    async def test_the_challenge_leads_to_metadata_of_the_address_that_was_called(self, path: str) -> None:
        site = Starlette(routes=[Mount("/app", make(Named()))])
        reply = await send(site, None, path=path)
        if reply.status == 307:  # Starlette's own, to the slash
            return
        url = reply.headers["www-authenticate"].partition('resource_metadata="')[2].rstrip('"')
        found = await get(site, url.removeprefix("http://tools.example.com"))
        assert found.message["resource"] == f"http://tools.example.com{path.rstrip('/')}"

    @pytest.mark.parametrize("about", ["/app/mcp", "/app"])
    async def test_a_client_that_looks_by_itself_finds_it_where_the_site_mounts_it(self, about: str) -> None:
        app = make(Named())
        site = Starlette(routes=[Mount(WELL_KNOWN, app.resource_metadata), Mount("/app", app)])
        assert (await get(site, WELL_KNOWN + about)).message["resource"] == f"http://tools.example.com{about}"

    async def test_a_route_is_the_endpoint_at_its_path(self) -> None:
        app = make(Named())
        site = Starlette(routes=[Mount(WELL_KNOWN, app.resource_metadata), Route("/a/b", app, methods=["POST"])])
        reply = await send(site, None, path="/a/b")
        assert f'resource_metadata="http://tools.example.com{WELL_KNOWN}/a/b"' in reply.headers["www-authenticate"]
        assert (await get(site, f"{WELL_KNOWN}/a/b")).message["resource"] == "http://tools.example.com/a/b"

    @pytest.mark.parametrize(
        "tenant", ['a", error="b', "a\r\nSet-Cookie: b=1", "a\x00\x7f", "a\\", "ä€", "a%22", "a b?c#d"]
    )
    @pytest.mark.parametrize("needed", [[], ["base"]])
    async def test_nothing_in_the_address_breaks_out_of_the_challenge(self, tenant: str, needed: list[str]) -> None:
        site = Starlette(routes=[Mount("/t/{tenant}", make(Named(), scopes=needed))])
        reply = await send(site, "other" if needed else None, path=f"/t/{tenant}/mcp")
        found = reply.headers["www-authenticate"]
        url = found.partition('resource_metadata="')[2].removesuffix('"')
        assert reply.status == (403 if needed else 401)
        assert re.fullmatch(r"http://tools\.example\.com/t/[A-Za-z0-9:=,;%_/.-]+", url)
        path = unquote(url.removeprefix("http://tools.example.com"))
        assert path == f"/t/{tenant}{WELL_KNOWN}/mcp"
        metadata = await get(site, path)
        assert unquote(metadata.message["resource"]) == f"http://tools.example.com/t/{tenant}/mcp"
        assert metadata.message["resource"].isascii()

    async def test_a_route_of_many_addresses_is_named_as_it_was_called(self) -> None:
        app = make(Named())
        site = Starlette(routes=[Mount(WELL_KNOWN, app.resource_metadata), Route("/{name}", app, methods=["POST"])])
        reply = await send(site, None, path='/a"b')
        assert f'resource_metadata="http://tools.example.com{WELL_KNOWN}/a%22b"' in reply.headers["www-authenticate"]
        found = await get(site, f'{WELL_KNOWN}/a"b')
        assert found.message["resource"] == "http://tools.example.com/a%22b"


def bare() -> tuple[MRTRServer, Any]:
    app = make(Named())
    return app, app


def around(*routes: Any, metadata: bool = False) -> Any:
    """Return what makes a site of functions from a server to a route."""

    def build() -> tuple[MRTRServer, Any]:
        app = make(Named())
        more = [Mount(WELL_KNOWN, app.resource_metadata)] if metadata else []
        return app, Starlette(routes=[*more, *(make_route(app) for make_route in routes)])

    return build


def fastapi(path: str, *, below: str = "") -> Any:
    def build() -> tuple[MRTRServer, Any]:
        app, outer = make(Named()), FastAPI()
        inner = FastAPI() if below else outer
        inner.router.routes.append(Route(path, app))
        if below:
            outer.mount(below, inner)
        return app, outer

    return build


class Around:
    """A middleware of an author's own, in front of a server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, *given: Any) -> None:
        await self._app(*given)


def route(app: Any) -> BaseRoute:
    return Route("/mcp", app)


def pages(app: Any) -> BaseRoute:
    """Return what serves all that is left, such as static files."""
    return Mount("/", Around(Starlette()))


SITES: dict[str, tuple[Any, str, bool]] = {
    "none": (bare, "/mcp", True),
    "route": (around(route), "/mcp", False),
    "route of POST": (around(lambda app: Route("/mcp", app, methods=["POST"])), "/mcp", False),
    "route elsewhere": (around(lambda app: Route("/a/b", app)), "/a/b", False),
    "route with a slash": (around(lambda app: Route("/a/", app)), "/a/", False),
    "route before pages": (around(route, pages), "/mcp", False),
    "route with a middleware": (around(lambda app: Route("/mcp", Around(app))), "/mcp", False),
    "route of many": (around(lambda app: Route("/{path:path}", app)), "/mcp", True),
    "route, metadata": (around(route, metadata=True), "/mcp", True),
    "route, route of metadata": (around(route, lambda app: Route(f"{WELL_KNOWN}/mcp", app)), "/mcp", True),
    "route, mount": (around(route, lambda app: Mount("/", app)), "/mcp", True),
    "mount": (around(lambda app: Mount("/app", app)), "/app/mcp", True),
    "mount with a middleware": (around(lambda app: Mount("/app", Around(app))), "/app/mcp", True),
    "mount of the endpoint": (around(lambda app: Mount("/mcp", app)), "/mcp/", True),
    "mounts": (around(lambda app: Mount("/a", routes=[Mount("/b", app)])), "/a/b/mcp", True),
    "mounted route": (around(lambda app: Mount("/api", routes=[route(app)])), "/api/mcp", False),
    "mounted route, metadata": (
        around(lambda app: Mount("/api", routes=[route(app)]), metadata=True),
        "/api/mcp",
        True,
    ),
    "host": (around(lambda app: Host("tools.example.com", app)), "/mcp", True),
    "host, route": (around(lambda app: Host("tools.example.com", Router([route(app)]))), "/mcp", False),
    "fastapi": (fastapi("/mcp"), "/mcp", False),
    "fastapi in fastapi": (fastapi("/mcp", below="/api"), "/api/mcp", False),
}
"""Sites; where the endpoint is; and whether the metadata is there, too."""


class TestWhereTheMetadataIs:
    """A challenge leads to metadata that names the address that was called, or the log and `check` say what to add."""

    @pytest.mark.parametrize("root", ["", "/prefix"])
    @pytest.mark.parametrize("site", SITES)
    async def test_it_is_there_or_the_log_says_how_it_gets_there(
        self, site: str, root: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        build, path, is_there = SITES[site]
        _, app = build()
        for _ in range(2):
            reply = await send(app, None, path=root + path, root_path=root)
            assert reply.status == 401
        url = reply.headers["www-authenticate"].partition('resource_metadata="http://tools.example.com')[2].rstrip('"')
        found = await get(app, url, root_path=root)
        warned = [line for line in caplog.messages if "does not serve" in line]
        if is_there:
            assert (found.status, warned) == (200, [])
            assert found.message["resource"] == f"http://tools.example.com{root}{path}".rstrip("/")
        else:
            assert found.status == 404
            assert len(warned) == 1
            assert f'Add Mount("{WELL_KNOWN}", server.resource_metadata) to its routes' in warned[0]

    @pytest.mark.parametrize("site", SITES)
    def test_check_says_the_same_of_routes_that_lead_to_the_server(self, site: str) -> None:
        build, _, is_there = SITES[site]
        server, app = build()
        found = [str(each) for each in server.check(site=app) if "does not serve" in each.message]
        assert len(found) == (not is_there and site != "route with a middleware")
        assert all(each.startswith("warning: auth: at /") for each in found)

    async def test_what_the_log_says_to_add_is_all_that_was_missing(self, caplog: pytest.LogCaptureFixture) -> None:
        app = make(Named())
        site = Starlette(routes=[Mount("/api", routes=[Route("/mcp", app)])])
        assert (await send(site, None, path="/api/mcp")).status == 401
        assert f"does not serve '{WELL_KNOWN}/api/mcp'. Add" in caplog.text
        site.router.routes.append(Mount(WELL_KNOWN, app.resource_metadata))
        challenged = (await send(site, None, path="/api/mcp")).headers["www-authenticate"]
        assert f'resource_metadata="http://tools.example.com{WELL_KNOWN}/api/mcp"' in challenged

    @pytest.mark.parametrize(
        ("base", "mount", "expected"),
        [
            ("https://tools.example.com", "", "/mcp"),
            ("https://tools.example.com/api", "/api", "/api/mcp"),
            ("https://tools.example.com/x", "", "/x/mcp"),  # a proxy takes its prefix away
        ],
    )
    async def test_it_names_the_endpoint_below_the_base_url(self, base: str, mount: str, expected: str) -> None:
        app = make(Named(), base_url=base)
        route = Route("/mcp", app)
        routes = [Mount(WELL_KNOWN, app.resource_metadata), Mount(mount, routes=[route]) if mount else route]
        reply = await get(Starlette(routes=routes), f"{WELL_KNOWN}{mount}/mcp")
        assert reply.message["resource"] == f"https://tools.example.com{expected}"

    async def test_a_backend_without_servers_needs_none(self, caplog: pytest.LogCaptureFixture) -> None:
        app = make(Scoped())
        site = Starlette(routes=[Route("/mcp", app)])
        assert (await send(site, None)).headers["www-authenticate"] == 'Bearer realm="mcp"'
        assert "does not serve" not in caplog.text
        assert not [each for each in app.check(site=site) if "does not serve" in each.message]


class TestScopesOfTheServer:
    async def test_are_needed_by_every_request(self) -> None:
        app = make(Named(), scopes=["base", "more"])
        reply = await send(app, "base", message=modern("tools/list"))
        assert reply.status == 403
        assert reply.headers["www-authenticate"] == challenge("base more")
        assert (await send(app, "more base other")).status == 200

    async def test_are_those_of_a_middleware_around_the_application_too(self) -> None:
        site = Starlette(
            routes=[Mount("/", make(None, scopes=["base"]))],
            middleware=[Middleware(AuthenticationMiddleware, backend=Scoped())],
        )
        assert (await send(site, "base")).status == 200
        assert (await send(site, "other")).status == 403
        assert (await send(site, None)).status == 401
        assert (await send(make(None, scopes=["base"]), "base")).status == 401, "nobody has authenticated it"

    @pytest.mark.parametrize("scopes", ["base", ["a b"], ['a"b'], [""], [5, None], 5])
    def test_that_can_be_none_are_refused(self, scopes: Any) -> None:
        with pytest.raises(SetupError, match="scope"):
            make(Named(), scopes=scopes)
        with pytest.raises(SetupError, match="scope"):
            MRTRServer("x").tool(scopes=scopes, name="x")(lambda: "")
        with pytest.raises(SetupError, match="visible"):
            MRTRServer("x").tool(visible=scopes, name="x")(lambda: "")


READ: JSON = {"uri": "many://ann"}
USES: dict[str, tuple[JSON, str]] = {
    "tool": (modern("tools/call", {"name": "save", "arguments": {}}), "base files:write files:read"),
    "tool of the drafts": (request("tools/call", {"name": "save"}), "base files:write files:read"),
    "prompt": (modern("prompts/get", {"name": "greet"}), "base prompts"),
    "resource": (modern("resources/read", {"uri": "fixed://one"}), "base files:read"),
    "template": (modern("resources/read", READ), "base files:read many"),
    "completion": (
        modern(
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "many://{name}"}, "argument": {"name": "name", "value": ""}},
        ),
        "base files:read many",
    ),
    "listening": (
        modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["fixed://one", "many://ann"]}}),
        "base files:read many",
    ),
}


class TestScopesOfATool:
    """And of a prompt, and of a resource."""

    @pytest.mark.parametrize("use", USES)
    async def test_that_are_missing_are_named_all_at_once(self, use: str) -> None:
        message, needed = USES[use]
        if "drafts" in use:
            reply = await send_draft(message)
        else:
            reply = await send(with_scopes(scopes=["base"]), "base", message=message)
        assert reply.status == 403
        found = reply.headers["www-authenticate"]
        assert set(found.partition('scope="')[2].partition('"')[0].split()) == set(needed.split())
        assert found.startswith('Bearer realm="mcp", error="insufficient_scope", scope="base ')
        error = reply.message["error"]
        assert (error["code"], reply.message["id"]) == (-31003, 1)
        assert set(error["data"]["requiredScopes"]) | {"base"} == set(needed.split())

    async def test_let_those_in_who_have_them(self) -> None:
        assert (await send(with_scopes(), "files:write files:read", tool="save")).text == "saved"

    async def test_hide_nothing(self) -> None:
        listed = await send(with_scopes(), "x", message=modern("tools/list"))
        assert [tool["name"] for tool in listed.message["result"]["tools"]] == ["who", "save"]
        templates = await send(with_scopes(), "x", message=modern("resources/templates/list"))
        assert len(templates.message["result"]["resourceTemplates"]) == 1

    async def test_that_make_it_visible_hide_it_from_others(self) -> None:
        app = with_scopes()
        unknown = await send(app, "files:write", tool="hidden")
        assert unknown.message["error"]["message"] == "Unknown tool: hidden"
        assert (await send(app, "files:write", tool="nothing")).status == unknown.status
        assert (await send(app, "admin", tool="hidden")).status == 403
        assert (await send(app, "admin files:write", tool="hidden")).text == "seen"
        listed = await send(app, "admin", message=modern("tools/list"))
        assert "hidden" in [tool["name"] for tool in listed.message["result"]["tools"]]


async def send_draft(message: JSON) -> Reply:
    headers = [
        (b"host", b"tools.example.com"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer base"),
    ]
    return await exchange(with_scopes(scopes=["base"]), json.dumps(message).encode(), headers)


class TestWithAHook:
    def make(self, answer: Iterable[Any]) -> MRTRServer:
        app, answers = make(Named()), iter(answer)

        async def decide(caller: Caller, name: str) -> bool:
            found = next(answers)
            if isinstance(found, Exception):
                raise found
            return bool(found)

        @app.tool(scopes=["own"], authorize=decide)
        def guarded() -> str:
            return "done"

        return app

    async def test_whoever_the_hook_refuses_learns_of_no_scopes(self) -> None:
        reply = await send(self.make([False]), "x", tool="guarded")
        assert reply.message["error"]["message"] == "Unknown tool: guarded"

    async def test_a_hook_may_ask_for_scopes_itself_and_all_are_named(self) -> None:
        reply = await send(self.make([InsufficientScope("dynamic")]), "own", tool="guarded")
        assert reply.headers["www-authenticate"] == challenge("dynamic own")

    async def test_both_must_let_in(self) -> None:
        app = self.make([True, True])
        assert (await send(app, "x", tool="guarded")).headers["www-authenticate"] == challenge("own")
        assert (await send(app, "own", tool="guarded")).text == "done"


async def test_a_real_token_of_too_little_scope_is_challenged_for_more(issuer: Tenant) -> None:
    app = with_scopes(JWTAuth(issuer.url, audience=AUDIENCE))
    assert (await send(app, issuer.mint(AUDIENCE, scope="files:read"), tool="save")).status == 403
    assert (await send(app, issuer.mint(AUDIENCE, scope="files:read files:write"), tool="save")).text == "saved"
