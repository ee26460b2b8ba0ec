"""Hosts that draw apps, in Chromium with the sandbox proxy of the specification: npm's AppBridge, or @mcp-ui/client.

def test_a_button(serve, hosts):
    host = hosts.connect(serve(app).url, era="2025-11-25")
    page = host.show("orders", customer="al")
    page.get_by_role("button", name="Cancel").click()
    assert host.until("calls") == [{"name": "cancel", "arguments": {"number": 3}}]
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Frame, Page, Route

from .npm import NODE, Client, environment, packages
from .serving import TIMEOUT, wait_until

JSON = dict[str, Any]
Era = Literal["2026-07-28", "2025-11-25"]
ERAS: tuple[Era, ...] = ("2026-07-28", "2025-11-25")


ESBUILD = "esbuild@0.28.2"  # makes one script of what a host's page imports
BRIDGE = packages(
    "app bridge",
    "@modelcontextprotocol/ext-apps@2.0.4",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/core@2.4.0",
    ESBUILD,
)
MCP_UI = packages(
    "mcp-ui",
    "@mcp-ui/client@7.1.1",
    "@modelcontextprotocol/sdk@1.32.2",
    "react@19.2.4",
    "react-dom@19.2.4",
    ESBUILD,
)
HERE = Path(__file__).parent
APP = 'import { App } from "@modelcontextprotocol/ext-apps"; window.App = App;'

MIME_TYPE = "text/html;profile=mcp-app"
UI = "io.modelcontextprotocol/ui"
ABLE: JSON = {
    "serverTools": {},
    "serverResources": {},
    "openLinks": {},
    "logging": {},
    "message": {"text": {}},
    "updateModelContext": {"text": {}, "structuredContent": {}},
}
"""What the host declares to a page, unless it lacks it."""
NONE, SELF = "'none'", "'self'"
DIRECTIVES = {"connectDomains", "resourceDomains", "frameDomains", "baseUriDomains"}


@cache
def bundle(source: str, made_with: Client = BRIDGE) -> str:
    """Return a script for a browser with all that it imports. It is kept beside the packages, for other processes."""
    made_with.install()
    kept = made_with.folder / f"bundle-{hashlib.sha256(source.encode()).hexdigest()[:16]}.js"
    if not kept.exists():
        esbuild = made_with.folder / "node_modules" / "esbuild" / "bin" / "esbuild"
        done = subprocess.run(
            [str(NODE / "bin" / "node"), str(esbuild), "--bundle", "--format=iife", "--minify", "--log-level=warning"],
            input=source,
            cwd=made_with.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, done.stderr
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(done.stdout)
        unfinished.replace(kept)
    return kept.read_text()


def official_app() -> str:
    """Return a script that makes `window.App` of the official class, to put into a page."""
    return bundle(APP).replace("</script", "<\\/script")


def policy(csp: Mapping[str, Sequence[str]] | None) -> str:
    """Return the Content-Security-Policy for what a page asks for (MCP Apps, Content Security Policy Enforcement)."""
    asked = {name: " ".join(origins) for name, origins in (csp or {}).items()}
    assert asked.keys() <= DIRECTIVES, f"hosts know no {asked.keys() - DIRECTIVES}"
    assert not re.search(r"[;,'\"]", "".join(asked.values())), asked
    connect, resources, frames, bases = (
        asked.get(name, "") for name in ("connectDomains", "resourceDomains", "frameDomains", "baseUriDomains")
    )
    return "; ".join(
        (
            f"default-src {NONE}",
            f"script-src 'self' 'unsafe-inline' {resources}",
            f"style-src 'self' 'unsafe-inline' {resources}",
            f"img-src 'self' data: {resources}",
            f"media-src 'self' data: {resources}",
            f"font-src 'self' {resources}",
            f"connect-src {connect or NONE}",
            f"frame-src {frames or NONE}",
            "object-src 'none'",
            "form-action 'none'",
            f"base-uri {bases or SELF}",
        )
    )


class AppHost:
    """A host with a client of one server.

    Args:
        window: the window of the browser, for it alone.
        era: what the client negotiated.
        capabilities: of the server.
        tools: all tools of the list.
        for_model: the names of those that a model is shown.
    """

    def __init__(self, window: Page) -> None:
        self.window = window
        self.era = ""
        self.capabilities: JSON = {}
        self.tools: dict[str, JSON] = {}
        self.for_model: list[str] = []
        self.errors: list[str] = []
        """What came to the console as an error, violations of the policy included, and what no page caught."""
        window.on("console", self._note)
        window.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _do(self, what: str, *given: Any) -> Any:
        return self.window.evaluate(f"given => host.{what}(...given)", list(given))

    def connect(self, manner: JSON) -> None:
        """Connect the client, and list the tools."""
        found = self._do("connect", manner)
        self.era, self.capabilities, self.for_model = found["era"], found["capabilities"], found["for_model"]
        self.tools = {tool["name"]: tool for tool in found["tools"]}

    def close(self) -> None:
        """Close its window, and with it all connections."""
        self.window.context.close()

    # What the model does

    def call(self, name: str, *, hidden: bool = False, **arguments: Any) -> JSON:
        """Call a tool as the model would; return its result.

        `hidden`: the model is not shown the tool, and a host lets it call it all the same.
        """
        assert hidden or name in self.for_model, f"the model is not shown {name!r}, but {self.for_model}"
        result: JSON = self._do("call", name, arguments)
        return result

    def begin(self, name: str, **arguments: Any) -> None:
        """Call a tool as the model would, and do not wait: the person answers by a page; see `finished`."""
        assert name in self.for_model, f"the model is not shown {name!r}, but {self.for_model}"
        self._do("begin", name, arguments)

    def finished(self) -> JSON:
        """Wait for the end of the call that has begun; return its result."""
        result: JSON = self._do("finished")
        return result

    def show(self, name: str, **arguments: Any) -> Frame:
        """Call a tool as the model would, draw its page, and wait for the handshake; return the page."""
        return self.mount(name, arguments, self.call(name, **arguments))

    # What the host does

    def mount(
        self, name: str, arguments: JSON, result: JSON | None = None, *, wait: bool = True, before: str = ""
    ) -> Frame:
        """Draw the page of a tool, in the place of the one before.

        Args:
            name: the tool.
            arguments: of the call, for the page.
            result: of the call; None where it isn't there yet.
            wait: for the page's handshake.
            before: HTML that the host puts in front of the page, such as a script of its own.
        """
        assert self._do("mount", name, arguments, result, before), f"{name!r} names no page"
        if wait:
            self.until_handshake()
        return self.page

    def reload(self) -> Frame:
        """Draw the last page anew, with the same arguments and the same result."""
        self._do("reload")
        self.until_handshake()
        return self.page

    def until_handshake(self) -> None:
        """Wait until the page that is drawn has made its handshake."""
        wait_until(lambda: self.window.evaluate("host.met"), f"the page's handshake: {self.errors}")

    @property
    def page(self) -> Frame:
        """The frame of the page, within that of the sandbox."""
        found: list[Frame] = []

        def is_there() -> bool:
            self.window.evaluate("1")  # which lets Playwright hear of frames
            found[:] = [inner for proxy in self.window.main_frame.child_frames for inner in proxy.child_frames]
            return any(frame.url == "about:srcdoc" for frame in found)

        wait_until(is_there, "the frame of the page")
        found[0].wait_for_load_state()
        return found[0]

    def bridge(self, method: str, *given: Any) -> Any:
        """Call a method of AppBridge, such as `setHostContext` or `teardownResource`; return what it comes to."""
        return self._do("bridge", method, *given)

    def request(self, method: str, params: JSON | None = None) -> Any:
        """Send any request to the page; return its result. Raises Playwright's `Error` for an error."""
        return self._do("request", method, params or {})

    # What it saw

    @property
    def seen(self) -> JSON:
        """What pages did, all of them together.

        Lists of `calls`, `messages`, `contexts`, `links`, `sizes`, `modes`, `logs`; `wire`, with all messages of both
        sides; `asked`, what the server asked by elicitation; and the number of `handshakes`.
        """
        seen: JSON = self.window.evaluate("host.seen")
        return seen

    def sent(self, method: str, *, by: str = "page") -> list[JSON]:
        """Return the messages of a method that one side sent."""
        return [each for each in self.seen["wire"] if each["from"] == by and each.get("method") == method]

    def until(self, what: str, count: int = 1) -> list[Any]:
        """Wait until a list of `seen` has so many entries; return it."""
        wait_until(lambda: len(self.seen[what]) >= count, f"{count} of {what}: {self.errors}")
        found: list[Any] = self.seen[what]
        return found


class AppHosts:
    """Opens hosts in one browser."""

    script = "app_host.js"
    packages = BRIDGE

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: list[AppHost] = []

    def close(self) -> None:
        """Close all of them."""
        while self._opened:
            self._opened.pop().close()

    def connect(
        self,
        url: str,
        *,
        era: Era = "2026-07-28",
        capabilities: JSON | None = None,
        answer: JSON | Literal["page"] | None = None,
        headers: Mapping[str, str] | None = None,
        lacks: Sequence[str] = (),
        drops: Sequence[Literal["result", "calls"]] = (),
        refuses: bool = False,
        inner: str = "allow-scripts",
        context: JSON | None = None,
        width: int = 600,
    ) -> AppHost:
        """Open a host, and connect it to a server.

        Args:
            url: the endpoint, on 127.0.0.1.
            era: the protocol that the client has.
            capabilities: what the client declares; by default that it draws apps.
            answer: what the person answers to each form; `page` if the page that a form names draws it; None for a
                client without elicitation.
            headers: of each request, such as `Authorization`.
            lacks: what the host does not do for pages, of `ABLE`.
            drops: where it takes `_meta` away before it passes a result on: of the model's call (`result`), or of a
                page's `calls`.
            refuses: whether it takes messages and links, and says that it failed.
            inner: the attribute `sandbox` of the page's frame.
            context: the host's, for pages.
            width: of the frame, in pixels.
        """
        draws: JSON = {"mimeTypes": [MIME_TYPE], **({"elicitation": {}} if answer == "page" else {})}
        declared = {"extensions": {UI: draws}} if capabilities is None else capabilities
        if answer is not None:
            declared = {**declared, "elicitation": {"form": {}}}
        parts = urlsplit(url)
        window = self._browser.new_context().new_page()
        window.set_default_timeout(TIMEOUT * 1000)
        # The host's page has the server's own origin, so that the server need not know it.
        at = f"{parts.scheme}://{parts.netloc}/host-of-the-tests"
        sandbox = f"http://localhost:{parts.port}/sandbox-of-the-tests"
        assert parts.hostname == "127.0.0.1", "the sandbox needs another origin"
        window.context.route(at, self._serve_host)
        window.context.route(f"{sandbox}?*", _serve_sandbox)
        window.goto(at)
        host = AppHost(window)
        self._opened.append(host)
        host.connect(
            {
                "url": url,
                "mode": "auto" if era == "2026-07-28" else "legacy",
                "capabilities": declared,
                "answer": answer,
                "headers": dict(headers or {}),
                "host_capabilities": {name: value for name, value in ABLE.items() if name not in lacks},
                "drops": list(drops),
                "refuses": refuses,
                "inner": inner,
                "context": context or {},
                "width": width,
                "sandbox": sandbox,
            }
        )
        assert host.era == era
        return host

    def _serve_host(self, route: Route) -> None:
        script = bundle((HERE / self.script).read_text(), self.packages).replace("</script", "<\\/script")
        html = f"<!doctype html><meta charset=utf-8><body><script>{script}</script>"
        route.fulfill(body=html, content_type="text/html; charset=utf-8")


class McpUiHosts(AppHosts):
    """Opens hosts with React and @mcp-ui/client, which know 2025-11-25 alone."""

    script = "mcp_ui_host.js"
    packages = MCP_UI


def _serve_sandbox(route: Route) -> None:
    csp = json.loads(parse_qs(urlsplit(route.request.url).query)["csp"][0])
    headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy(csp)}
    route.fulfill(body=(HERE / "app_sandbox.html").read_text(), headers=headers)
