"""What the tests of logins share: the small server that is like GitHub, and a server whose people log in there."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from mrtr_server import Context, MRTRServer
from mrtr_server.login import GitHub, Login

from ..support import github
from ..support.serving import in_thread
from .people import Browser, Client

KEY = bytes(32)


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

    def __init__(self, provider: Provider, stack: ExitStack) -> None:
        self.provider = provider
        self._stack = stack

    def serve(self, app: MRTRServer | None = None, **options: Any) -> str:
        """Serve an application, or the usual one with options of `Login`; return the address."""
        app = app or make(self.provider.login(**options))
        return f"http://127.0.0.1:{self._stack.enter_context(in_thread(app))}"

    def browser(self) -> Browser:
        """Return a browser that has no cookies."""
        return Browser(self._http())

    def client(self, base: str, **wanted: Any) -> Client:
        """Return a client that has registered itself."""
        return Client(self._http(), base, **wanted)

    def _http(self) -> httpx.Client:
        return self._stack.enter_context(httpx.Client(follow_redirects=False, trust_env=False, timeout=60))


@pytest.fixture
def stage(provider: Provider) -> Iterator[Stage]:
    """What a test has."""
    with ExitStack() as stack:
        yield Stage(provider, stack)
