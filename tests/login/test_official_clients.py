"""The official clients log in, refresh, step up and are logged out, at three processes behind a round robin.

Each has its own OAuth code. The person is a browser without a screen, which follows the pages; for Inspector, Chromium.
"""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client as PythonClient
from mcp import StdioServerParameters
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from playwright.sync_api import Frame, Page, expect
from pydantic import AnyUrl

from examples.round_robin import Replica, RoundRobin

from ..support import npm
from ..support.browser import chromium
from ..support.front import running_front
from ..support.official import typescript_client
from ..support.programs import running_program
from ..support.serving import TIMEOUT, free_ports
from .conftest import Provider, Stage
from .people import REDIRECT, Browser
from .test_fleet import fleet

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

DOCUMENT = {
    "client_name": "Official",
    "redirect_uris": [REDIRECT, "http://127.0.0.1:1/callback", "http://localhost:1/oauth/callback"],
    "token_endpoint_auth_method": "none",
}


class Site:
    """Three replicas, and a person who uses them.

    Args:
        url: where clients find them.
        browser: the person's.
        documents: the address where documents of clients are, and these.
        passed: the file that moves their clocks.
    """

    def __init__(self, url: str, browser: Browser, documents: tuple[str, Any], passed: Path) -> None:
        self.url = url
        self.base = url.removesuffix("/mcp")
        self.asked: list[str] = []
        """The scopes of each page that the person was sent to."""
        self.clients: set[str] = set()
        """The ids of the clients that sent them."""
        self._browser = browser
        self._documents = documents
        self._passed = passed

    def log_in(self, page: str) -> str:
        """Log in at a page; return where the browser ends."""
        asked = httpx.URL(page).params
        self.asked.append(asked.get("scope", ""))
        self.clients.add(asked["client_id"])
        ended = self._browser.log_in(page)
        assert "location" in ended.headers, ended.text
        return ended.headers["location"]

    def document(self) -> str:
        """Return the address of a client's document."""
        at, served = self._documents
        served["/client.json"] = {**DOCUMENT, "client_id": f"{at}/client.json"}
        return f"{at}/client.json"

    def pass_time(self, seconds: float = 660.0) -> None:
        """Let the clocks of the replicas go on, by default past the end of each access token."""
        self._passed.write_text(str(float(self._passed.read_text()) + seconds))

    def log_out(self, **form: str | None) -> None:
        """End a login, as the metadata says how: none of the official clients does."""
        metadata = httpx.get(f"{self.base}/.well-known/oauth-authorization-server", trust_env=False).json()
        given = {name: value for name, value in form.items() if value is not None}
        answer = httpx.post(metadata["revocation_endpoint"], data=given, trust_env=False)
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def running(running_provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Site]]:
    """Three replicas behind a front, for all tests of this file; each has a person of its own."""
    folder, (port,) = tmp_path_factory.mktemp("site"), free_ports(1)
    base, passed = f"http://127.0.0.1:{port}", folder / "passed"
    passed.write_text("0")
    with ExitStack() as stack:
        stage = Stage(Provider(running_provider), stack, "")
        at, served, _ = stage.documents(folder)
        more = {"PASSED": str(passed), "DOCUMENTS": at.removeprefix("https://"), "AUTHORITY": f"{folder}/ca.pem"}
        replicas = stack.enter_context(fleet(folder, running_provider, base, **more))
        front = RoundRobin([Replica(each, str(each)) for each in replicas.ports])
        stack.enter_context(running_front(front, port))
        yield lambda: Site(f"{base}/mcp", stage.browser(), (at, served), passed)
        assert "Traceback" not in replicas.logged()


@pytest.fixture
def site(running: Callable[[], Site]) -> Site:
    """Three replicas, and a person."""
    return running()


class Kept:
    """What the Python client keeps, and its way to the browser."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self._back = httpx.URL()

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def open(self, page: str) -> None:
        self._back = httpx.URL(await asyncio.to_thread(self.site.log_in, page))

    async def come_back(self) -> AuthorizationCodeResult:
        given = self._back.params
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given["iss"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("known", ["by a document", "by registration"])
async def test_the_python_client(site: Site, mode: str, known: str) -> None:
    kept, document = Kept(site), site.document() if known == "by a document" else None
    wanted = OAuthClientMetadata(
        redirect_uris=[AnyUrl(REDIRECT)], client_name="Official", token_endpoint_auth_method="client_secret_post"
    )
    auth = OAuthClientProvider(site.url, wanted, kept, kept.open, kept.come_back, client_metadata_url=document)

    def pass_time() -> None:
        site.pass_time()
        auth.context.token_expiry_time = 1.0  # its own clock is that of the machine

    async with httpx2.AsyncClient(auth=auth, trust_env=False, timeout=TIMEOUT) as http:
        async with PythonClient(streamable_http_client(site.url, http_client=http), mode=mode) as client:

            async def call(tool: str) -> str:
                return (await client.call_tool(tool, {})).content[0].text  # type: ignore[union-attr]

            assert "583231" in await call("who")
            pass_time()
            assert "583231" in await call("who")
            assert len(site.asked) == 1, "the client refreshed its tokens, and nobody logged in again"
            assert await call("write") == "written with notes:write"
            assert await call("repos") == "read with notes:write repo"
            pages = len(site.asked)
            assert kept.tokens is not None
            assert kept.client is not None
            known_as = {"client_id": kept.client.client_id, "client_secret": kept.client.client_secret}
            site.log_out(token=kept.tokens.refresh_token, **known_as)
            pass_time()
            assert "583231" in await call("who")
            assert len(site.asked) == pages + 1, "the login had ended"
    assert len(site.clients) == 1, "a client registers once"
    assert document is None or site.clients == {document}


@pytest.mark.parametrize("known", ["by a document", "by registration"])
@pytest.mark.parametrize("name", ["@modelcontextprotocol/client 2", "@modelcontextprotocol/sdk 1"])
def test_the_typescript_client(site: Site, name: str, known: str) -> None:
    document = site.document() if known == "by a document" else ""
    with typescript_client(site.url, name, site.log_in, document) as client:
        assert "583231" in client.call("who")
        site.pass_time()
        assert "583231" in client.call("who")
        assert len(site.asked) == 1, "the client refreshed its tokens, and nobody logged in again"
        assert client.call("write") == "written with notes:write"
        assert client.call("repos") == "read with notes:write repo"
        pages = len(site.asked)
        (id,) = site.clients
        site.log_out(token=client.refresh_token(), client_id=id)
        site.pass_time()
        assert "583231" in client.call("who")
        assert len(site.asked) == pages + 1, "the login had ended"
    assert len(site.clients) == 1, "a client registers once"
    assert not document or site.clients == {document}


class Bridge:
    """The bridge `mcp-remote`, which prints the pages that a person is to open.

    Args:
        site: where people log in.
        folder: where it keeps its tokens, and writes.
        more: further arguments.
    """

    def __init__(self, site: Site, folder: Path, more: list[str]) -> None:
        listed = npm.listed("mcp-remote")
        listed.install()
        program = listed.folder / "node_modules" / "mcp-remote" / "dist" / "proxy.js"
        (self._port,) = free_ports(1)
        self.command = StdioServerParameters(
            command=str(npm.NODE / "bin" / "node"),
            args=[str(program), site.url, str(self._port), *more],
            env={**npm.environment(), "MCP_REMOTE_CONFIG_DIR": str(folder / "kept")},
        )
        self.log = folder / "log"
        self.folder = folder
        self._site = site
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Bridge":
        self.log.touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(TIMEOUT)

    def tokens(self) -> Any:
        """Return the tokens that it keeps."""
        (file,) = (self.folder / "kept").rglob("*_tokens.json")
        return json.loads(file.read_text())

    def _follow(self) -> None:
        opened = 0
        while not self._ended.is_set():
            pages = re.findall(r"by visiting:\n(http\S+)\n", self.log.read_text(errors="replace"))
            for page in pages[opened:]:
                opened += 1
                back = self._site.log_in(page)
                while not _opened(back) and not self._ended.is_set():  # no person is as fast as this one
                    time.sleep(0.05)
            time.sleep(0.05)


def _opened(address: str) -> bool:
    """Return whether something answers at an address."""
    try:
        return httpx.get(address, trust_env=False, timeout=TIMEOUT).is_success
    except httpx.ConnectError:
        return False


@pytest.mark.parametrize("known", ["by a document", "by registration"])
async def test_the_bridge_of_desktop_applications(site: Site, tmp_path: Path, known: str) -> None:
    more = ["--client-metadata-url", site.document()] if known == "by a document" else []
    with Bridge(site, tmp_path, ["--allow-http", *more]) as bridge, bridge.log.open("w") as log:
        async with PythonClient(stdio_client(bridge.command, errlog=log), mode="legacy") as client:

            async def call(tool: str) -> str:
                async with asyncio.timeout(TIMEOUT):
                    return (await client.call_tool(tool, {})).content[0].text  # type: ignore[union-attr]

            assert "583231" in await call("who")
            site.pass_time()
            assert "583231" in await call("who")
            assert len(site.asked) == 1, "the bridge refreshed its tokens, and nobody logged in again"
            assert await call("write") == "written with notes:write"
            assert await call("repos") == "read with notes:write repo"
            pages = len(site.asked)
            (id,) = site.clients
            site.log_out(token=bridge.tokens()["refresh_token"], client_id=id)
            site.pass_time()
            assert "583231" in await call("who")
            assert len(site.asked) == pages + 1, "the login had ended"


class Inspector:
    """The web page of Inspector, in a browser in which the person allows what it asks for.

    Args:
        site: where people log in.
        page: a tab.
        folder: where it keeps its tokens.
    """

    def __init__(self, site: Site, page: Page, folder: Path) -> None:
        self._site = site
        self._page = page
        self._folder = folder
        self.pages: list[str] = []
        """The pages of the server that the person was sent to."""
        page.on("framenavigated", self._note)

    def _note(self, frame: Frame) -> None:
        if frame.url.startswith(f"{self._site.base}/authorize"):
            self.pages.append(frame.url)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it, and log in."""
        folder = self._folder
        listed = npm.listed("Inspector --cli")
        listed.install()
        package = listed.folder / "node_modules" / "@modelcontextprotocol" / "inspector"
        port, sandbox, apps = free_ports(3)
        environment = {
            **npm.environment(),
            "HOME": str(folder),
            "MCP_STORAGE_DIR": str(folder / "kept"),
            "CLIENT_PORT": str(port),
            "MCP_SANDBOX_PORT": str(sandbox),
            "MCP_APP_ORIGIN_PORT": str(apps),
            "MCP_INSPECTOR_SECRET_STORE": "file",
            "MCP_AUTO_OPEN_ENABLED": "false",
            "DANGEROUSLY_OMIT_AUTH": "true",  # of its own page
        }
        program = package / "clients" / "launcher" / "build" / "index.js"
        command = [str(npm.NODE / "bin" / "node"), str(program), "--web", "--transport", "http"]
        log = folder / "log"
        with running_program([*command, "--server-url", self._site.url], port, log, log, environment):
            self._page.goto(f"http://localhost:{port}/")
            self._page.get_by_role("switch").click(force=True)
            self.allow()
            self._page.get_by_text("Tools", exact=True).click()
            yield

    def allow(self) -> None:
        """Say yes at the server's page, and come back."""
        self._page.get_by_role("button", name="Allow", exact=True).click()
        expect(self._page.get_by_text("Authorization complete")).to_be_visible()

    def execute(self, tool: str) -> None:
        """Call a tool."""
        close = self._page.get_by_role("button", name="Close results")
        if close.count():
            close.click()
        self._page.get_by_role("button", name=tool, exact=True).click()
        self._page.get_by_role("button", name="Execute Tool").click()

    def allow_more(self) -> None:
        """Say yes where the page says that a tool needs more."""
        self._page.get_by_role("button", name="Authorize", exact=True).click()
        self.allow()

    def shows(self, text: str) -> None:
        """Wait until a result has a text."""
        expect(self._page.get_by_text(text).first).to_be_visible()

    def refresh_token(self) -> str:
        """Return the refresh token that it keeps."""
        kept = (self._folder / "kept" / "secrets.json").read_text()
        (found,) = re.findall(r'refresh_token\\*": ?\\*"([^"\\]+)', kept)
        return str(found)


@pytest.mark.drawn
def test_inspector_in_a_browser(site: Site, tmp_path: Path) -> None:
    with chromium() as browser:
        inspector = Inspector(site, browser.new_page(), tmp_path)
        with inspector.running():
            inspector.execute("who")
            inspector.shows("583231")
            site.pass_time()
            inspector.execute("who")
            inspector.shows("583231")
            assert len(inspector.pages) == 1, "it refreshed its tokens, and nobody logged in again"
            inspector.execute("write")
            inspector.allow_more()
            inspector.execute("write")
            inspector.shows("written with notes:write")
            inspector.execute("repos")
            inspector.allow_more()
            inspector.execute("repos")
            inspector.shows("read with notes:write repo")
            ids = {httpx.URL(page).params["client_id"] for page in inspector.pages}
            assert len(ids) == 1, "a client registers once"
            site.log_out(token=inspector.refresh_token(), client_id=ids.pop())
            site.pass_time()
            inspector.execute("who")
            inspector.allow()
            inspector.execute("who")
            inspector.shows("583231")
