"""What the tests of logins share: the small server that is like GitHub, and a server whose people log in there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.round_robin import Replica, RoundRobin
from mrtr_server import Context, MRTRServer
from mrtr_server.fetcher import Fetcher
from mrtr_server.login import GitHub, Login

from ..support import github
from ..support.databases import PostgreSQL
from ..support.front import running_front
from ..support.receivers import Authority
from ..support.serving import in_thread
from .people import Browser, Client

KEY = bytes(32)

JSON = dict[str, Any]


class Provider:
    """The small server, and what a test sets of it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def set(self, **wanted: Any) -> Any:
        """Set who is logged in there, and so on; return what there is now."""
        return httpx.post(f"{self.url}/control", json=wanted, trust_env=False).json()

    def login(self, **options: Any) -> Login:
        """Return logins at this provider."""
        provider = GitHub(
            client_id=github.CLIENT,
            client_secret=github.SECRET,
            url=self.url,
            api=f"{self.url}/api",
            scopes=options.pop("upstream", ("read:user",)),
        )
        return Login(provider, **options)


def make(login: Login, **options: Any) -> MRTRServer:
    """Make a server that says who calls."""
    app = MRTRServer("notes", auth=login, **{"keys": [KEY], **options})

    @app.tool
    async def who(ctx: Context) -> list[str]:
        """Say who calls."""
        principal = ctx.principal
        assert principal is not None
        return [principal.subject, principal.issuer, principal.client_id, ctx.user.display_name, *sorted(ctx.scopes)]

    @app.tool(scopes=["notes:write"])
    async def write(ctx: Context) -> str:
        """Write a note."""
        return "written"

    return app


@pytest.fixture(scope="session")
def running_provider() -> Iterator[str]:
    """The address of the small server."""
    with in_thread(github.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def provider(running_provider: str) -> Iterator[Provider]:
    """The small server, as it is before a test changes it."""
    made, before = Provider(running_provider), dict(github.STATE)
    yield made
    made.set(**before)


class Stage:
    """What one test has: servers, browsers and clients, which all end with it."""

    def __init__(self, provider: Provider, stack: ExitStack, usual: str) -> None:
        self.provider = provider
        self.usual = usual
        """The address of a server that no test changes."""
        self.clock: Callable[[], float] | None = None
        """In place of the time, for the servers that are made from then on."""
        self._stack = stack

    def serve(self, app: MRTRServer | Starlette | None = None, *, port: int = 0, **options: Any) -> str:
        """Serve an application, or the usual one with options of `Login`; return the address."""
        app = app or make(self.provider.login(**options))
        if self.clock is not None and isinstance(app, MRTRServer):
            app = app.__replace__(clock=self.clock)
        return f"http://127.0.0.1:{self._stack.enter_context(in_thread(app, port=port))}"

    def front(self, ports: list[int], port: int) -> None:
        """Let a round robin listen at a port, in front of servers."""
        front = RoundRobin([Replica(each, str(each)) for each in ports])
        self._stack.enter_context(running_front(front, port))

    def documents(self, folder: Path) -> tuple[str, JSON, Fetcher]:
        """Serve documents of clients by https; return the address, the documents by path, and what fetches them."""
        authority, served = Authority(folder), JSON()
        authority.context("127.0.0.1")

        async def answer(request: Request) -> Response:
            found = served.get(request.url.path)
            return found if isinstance(found, Response) else JSONResponse(found, 200 if found else 404)

        app = Starlette(routes=[Route("/{path:path}", answer)])
        port = self._stack.enter_context(in_thread(app, ssl_certfile=str(folder / "server.pem")))
        return f"https://127.0.0.1:{port}", served, Fetcher(allow=[f"127.0.0.1:{port}"], ca=authority.path)

    def browser(self) -> Browser:
        """Return a browser that has no cookies."""
        return Browser(self._http())

    def client(self, base: str, **wanted: Any) -> Client:
        """Return a client that has registered itself."""
        return Client(self._http(), base, **wanted)

    def _http(self) -> httpx.Client:
        return self._stack.enter_context(httpx.Client(follow_redirects=False, trust_env=False, timeout=60))


@pytest.fixture(scope="session")
def usual(running_provider: str) -> Iterator[str]:
    """The address of a server that no test changes."""
    login = Provider(running_provider).login(allow_redirects=["com.example.app"])
    with in_thread(make(login)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/logins.db"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.url(asyncio.run(server.new_database()))


@pytest.fixture
def stage(provider: Provider, usual: str) -> Iterator[Stage]:
    """What a test has."""
    with ExitStack() as stack:
        yield Stage(provider, stack, usual)
