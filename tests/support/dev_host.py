"""The host of apps in the page at /docs, driven by what a person sees there, with the same methods as `AppHost`."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Frame, Locator, Page, expect

from .app_host import JSON, AppHost, AppHosts
from .serving import TIMEOUT, wait_until

HEAR = """if (window === top) { window.heard = []; addEventListener("message", ({ data }) => heard.push(data)); }"""
"""Keeps what pages say to their host."""

BOXES = {
    "serverTools": "Calls tools for pages",
    "serverResources": "Reads resources for pages",
    "openLinks": "Opens links",
    "message": "Takes messages for the chat",
    "updateModelContext": "Tells the model",
}
LISTS = {
    "calls": "tools/call",
    "messages": "ui/message",
    "contexts": "ui/update-model-context",
    "links": "ui/open-link",
    "sizes": "ui/notifications/size-changed",
    "modes": "ui/request-display-mode",
    "logs": "notifications/message",
}


class DevHost(AppHost):
    """The page of one server."""

    def __init__(self, window: Page, manner: JSON) -> None:
        super().__init__(window)
        self.era = "2026-07-28"
        self._manner = manner
        self._shown = 0
        settings = window.get_by_role("form", name="Client settings")
        window.get_by_text("Client settings").click()
        if not manner["asks"]:
            for name in ("Forms and confirmations", "Pages to open"):
                settings.get_by_label(name).uncheck()
        for name in manner["lacks"]:
            settings.get_by_label(BOXES[name]).uncheck()
        if manner["drops"]:
            settings.get_by_label("Passes _meta of results on").uncheck()
        window.keyboard.press("Escape")
        # What is listed depends on the settings, and is read again with each change.
        expect(window.locator("#main")).not_to_have_attribute("aria-busy", "true")

    def call(self, name: str, *, hidden: bool = False, **arguments: Any) -> JSON:
        with self.window.expect_response(
            lambda response: '"tools/call"' in (response.request.post_data or "")
        ) as found:
            self._call(name, arguments)
        result: JSON = found.value.json()["result"]
        return result

    def _call(self, name: str, arguments: JSON) -> Locator:
        calls = self.window.locator("#calls > article")
        while calls.count():
            # Those of other tools are there, and not shown.
            calls.first.locator("button[aria-label^='Remove this call']").first.dispatch_event("click")
        self.window.evaluate("name => (location.hash = `#tool/${name}`)", name)
        entry = self.window.locator("#entry")
        expect(entry.get_by_role("heading", level=2)).to_have_text(name)
        if arguments:
            entry.get_by_text("Edit as JSON").click()
            entry.locator("textarea.code").fill(json.dumps(arguments))
        entry.locator("button.call").click()
        return self.window.locator("article.flow").first

    def show(self, name: str, **arguments: Any) -> Frame:
        self._shown = self.seen["handshakes"]
        self._call(name, arguments)
        self._arrange()
        return self.page

    def reload(self) -> Frame:
        self._shown = self.seen["handshakes"]
        self.window.get_by_role("button", name="Draw it again").click()
        self.until_handshake()
        return self.page

    def _arrange(self) -> None:
        """Wait for the page, and give it its width and theme."""
        self.until_handshake()
        view = self.window.locator("section.app")
        if width := self._manner["width"]:
            view.get_by_label("Width").select_option(str(width))
        if theme := self._manner["context"].get("theme"):
            view.get_by_label("Theme").select_option(theme)

    def until_handshake(self) -> None:
        wait_until(lambda: self.seen["handshakes"] > self._shown, f"the page's handshake: {self.errors}")

    @property
    def seen(self) -> JSON:
        wire: list[JSON] = self.window.evaluate("heard")
        lists = {
            kept: [each.get("params", {}) for each in wire if each.get("method") == method]
            for kept, method in LISTS.items()
        }
        handshakes = sum(each.get("method") == "ui/notifications/initialized" for each in wire)
        return {**lists, "wire": [{"from": "page", **each} for each in wire], "handshakes": handshakes}


class DevHosts(AppHosts):
    """Opens the page at /docs in one browser."""

    def connect(self, url: str, **manner: Any) -> AppHost:
        """Open the page of a server that has it. Of a host's manner it has `lacks`, `drops`, `width` and a theme."""
        given = {"era": "2026-07-28", "lacks": (), "drops": (), "width": None, "context": {}, "asks": False, **manner}
        assert given.keys() == {"era", "lacks", "drops", "width", "context", "asks"}, manner
        assert given["era"] == "2026-07-28"
        parts = urlsplit(url)
        window = self._browser.new_context().new_page()
        window.set_default_timeout(TIMEOUT * 1000)
        window.add_init_script(HEAR)
        window.goto(f"{parts.scheme}://{parts.netloc}/docs")
        window.locator("#entries a").first.wait_for()
        host = DevHost(window, given)
        self._opened.append(host)
        return host


IN_EVERY_HOST = pytest.mark.parametrize("hosts", [AppHosts, DevHosts], indirect=True, ids=["AppBridge", "dev"])
IN_EVERY_HOST_AND_ERA = pytest.mark.parametrize(
    ("hosts", "era"),
    [(AppHosts, "2026-07-28"), (AppHosts, "2025-11-25"), (DevHosts, "2026-07-28")],
    indirect=["hosts"],
    ids=["AppBridge-2026-07-28", "AppBridge-2025-11-25", "dev"],
)
