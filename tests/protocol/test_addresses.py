"""Addresses that people open and clients fetch are checked where an author writes them."""

import logging
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import ValidationError

from mrtr_server import (
    Context,
    ElicitUrl,
    EmbeddedResource,
    Icon,
    InputRequired,
    Inputs,
    MRTRServer,
    ResourceContents,
    ResourceLink,
    ServerInfo,
    SetupError,
)
from mrtr_server.testing import Client, accept, roots


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("addresses", base_url="https://tools.example.com")


PAGES = ("https://example.com", "http://127.0.0.1:8000/a?b=c%20d#e", "https://[::1]/", "HTTPS://Example.com/")
NO_PAGES = (
    "",
    "/login",
    "//example.com/login",
    "example.com/login",
    "https:/login",
    "https://",
    "https://example.com:port/",
    "https://[::1/",
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,<script>alert(1)</script>",
    "ftp://example.com/",
    "https://ann:secret@example.com/",
    "https://example.com@evil.example/",
    "https://example.com/my page",
    "https://example.com/\u202etxt",
    "https://example.com\\@evil.example/",
    "https://example.com%40evil.example/",
    "https://example.com%00/",
    "https://exa<mple.com/",
    "https://ex\u0430mple.com/",  # a letter of another alphabet that looks like one
)


def in_a_handler(app: MRTRServer, url: str) -> None:
    @app.tool
    async def login(ctx: Context) -> str:
        return str(await ctx.elicit_url("Log in", url))


def declared(app: MRTRServer, url: str) -> None:
    @app.tool
    def login(done: Annotated[bool, ElicitUrl("Log in", lambda: url)]) -> str:
        return str(done)


def returned(app: MRTRServer, url: str) -> None:
    @app.tool
    def login(inputs: Inputs) -> InputRequired:
        return InputRequired(page=ElicitUrl("Log in", url))


def by_callback(app: MRTRServer, url: str) -> None:
    back = app.callback("back")(lambda request: "x")

    @app.tool
    async def login(ctx: Context) -> str:
        return str(await ctx.elicit_url("Log in", lambda _: url, callback=back))


class TestPages:
    @pytest.mark.parametrize("url", PAGES)
    def test_the_address_of_a_page_goes_out_as_it_is(self, app: MRTRServer, url: str) -> None:
        in_a_handler(app, url)
        assert Client(app).flow("login").start().asked["open_url"].url == url

    @pytest.mark.parametrize("url", NO_PAGES)
    def test_any_other_reaches_nobody(self, app: MRTRServer, url: str, caplog: pytest.LogCaptureFixture) -> None:
        in_a_handler(app, url)
        assert "Internal error" in Client(app).call("login").failure
        assert "The url of an ElicitUrl " in caplog.text

    @pytest.mark.parametrize("style", [declared, returned, by_callback])
    def test_in_every_style(
        self, app: MRTRServer, style: Callable[[MRTRServer, str], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        style(app, "javascript:alert('a token')")
        assert "Internal error" in Client(app).call("login").failure
        assert "The url " in caplog.text
        assert "must be absolute, with http: or https:" in caplog.text

    def test_what_is_known_before_a_call_is_refused_before_it(self) -> None:
        with pytest.raises(SetupError, match="has a user name or a password"):
            ElicitUrl("Log in", "https://ann:secret@example.com/")
        with pytest.raises(SetupError, match="website_url='/about' must be absolute"):
            MRTRServer("x", info=ServerInfo(website_url="/about"))

    def test_the_log_does_not_have_the_address(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        in_a_handler(app, "https://example.com/login?token=hunter2 ")
        with caplog.at_level(logging.DEBUG):
            Client(app).call("login")
        assert "hunter2" not in caplog.text


ICONS: tuple[Any, ...] = (
    {"src": "javascript:alert(1)"},
    {"src": "icon.png"},
    {"src": "file:///icon.png"},
    {"src": "data:text/html,<script>"},
    {},
    {"src": None},
)


class TestIcons:
    @pytest.mark.parametrize(
        "src", ["https://example.com/a.png", "data:image/png;base64,AAAA", "DATA:image/svg+xml,%3C"]
    )
    def test_pages_and_data_are_icons(self, app: MRTRServer, src: str) -> None:
        app.tool(name="it", icons=[Icon(src=src), {"src": src}])(lambda: None)
        assert Client(app).request("tools/list").result["tools"][0]["icons"] == [{"src": src}] * 2

    @pytest.mark.parametrize("icon", ICONS)
    def test_others_are_refused_with_their_place(self, app: MRTRServer, icon: dict[str, Any]) -> None:
        for decorator in (app.tool, app.prompt):
            with pytest.raises(SetupError, match=r"^it: the src of an icon is"):
                decorator(name="it", icons=[icon])(lambda: None)
        with pytest.raises(SetupError, match=r"^it: the src of an icon is"):
            app.resource("docs://it", name="it", icons=[icon])(lambda: None)
        with pytest.raises(SetupError, match=r"^ServerInfo: the src of an icon is"):
            MRTRServer("x", info=ServerInfo(icons=[icon]))
        with pytest.raises(ValidationError):
            Icon(**icon)

    @pytest.mark.parametrize(("name", "value"), [("sizes", "48x48"), ("theme", "blue"), ("mimeType", 5)])
    def test_what_a_client_could_not_read_is_refused(self, app: MRTRServer, name: str, value: Any) -> None:
        with pytest.raises(SetupError, match=f"^it: an icon can't be sent: {name}: Input should be"):
            app.tool(name="it", icons=[{"src": "https://example.com/a.png", name: value}])(lambda: None)


URIS = ("docs://a", "file:///etc/hosts", "https://example.com/a", "urn:isbn:1", "data://naïve/my file")
NO_URIS = (
    "a",
    "/a",
    "a b://c",
    "docs:",
    "javascript:alert(1)",
    "VBScript:x",
    "docs://a\nb",
    "https:///a",
    "https://ann:secret@example.com/",
)


class TestURIs:
    @pytest.mark.parametrize("uri", URIS)
    def test_any_scheme_may_name_a_resource(self, app: MRTRServer, uri: str) -> None:
        app.resource(uri, name="it")(lambda: "text")

        @app.tool
        def both() -> list[ResourceLink | EmbeddedResource]:
            contents = ResourceContents(uri=uri, text="x")
            return [ResourceLink(uri=uri, name="x"), EmbeddedResource(resource=contents)]

        link, embedded = Client(app).call("both").content
        assert link["uri"] == embedded["resource"]["uri"] == uri
        app.notify_resource_updated(uri)

    @pytest.mark.parametrize("uri", NO_URIS)
    def test_others_are_refused_where_they_are_made(self, app: MRTRServer, uri: str) -> None:
        with pytest.raises(ValidationError):
            ResourceLink(uri=uri, name="x")
        with pytest.raises(ValidationError):
            ResourceContents(uri=uri, text="x")
        with pytest.raises(SetupError, match=r"^it: "):
            app.resource(uri, name="it")(lambda: "text")
        with pytest.raises(SetupError, match=r"^it: "):
            app.resource(f"{uri}{{name}}" if uri != "docs:" else "{name}:a", name="it")(lambda name: "text")
        with pytest.raises(SetupError, match=r"^notify_resource_updated: "):
            app.notify_resource_updated(uri)

    def test_variables_may_stand_wherever_a_value_may(self, app: MRTRServer) -> None:
        app.resource("https://{host}:{port}/{+path}", name="it")(lambda host, port, path: host)
        assert Client(app).read("https://example.com:80/a/b").content[0]["text"] == "example.com"

    def test_those_of_changed_and_foreign_content_are_checked_too(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        types = pytest.importorskip("mcp.types")

        @app.tool
        def changed() -> ResourceLink:
            link = ResourceLink(uri="docs://a", name="a")
            link.uri = "javascript:alert(1)"
            return link

        @app.tool
        def foreign() -> Any:
            return types.ResourceLink(type="resource_link", uri="javascript:alert(1)", name="a")

        for name in ("changed", "foreign"):
            caplog.clear()
            assert "Internal error" in Client(app).call(name).failure
            assert "has the scheme javascript:" in caplog.text

    def test_a_resource_within_a_result_says_which_one_it_is(self) -> None:
        with pytest.raises(ValidationError, match="needs its uri"):
            EmbeddedResource(resource=ResourceContents(text="x"))


class TestRoots:
    @pytest.mark.parametrize("uri", ["https://example.com/", "/home/ann", "file:/home/ann", "javascript:x", ""])
    def test_a_root_that_is_no_file_is_asked_for_again(self, app: MRTRServer, uri: str) -> None:
        @app.tool
        async def count(ctx: Context) -> int:
            return len(await ctx.list_roots())

        flow = Client(app).flow("count")
        flow.start()
        again = flow.answer(roots=roots("file:///a", uri))
        assert again.needs_input
        assert flow.answer(roots=roots("file:///home/ann", "FILE:///b")).structured == 2


def test_an_accepted_page_is_answered_as_before(app: MRTRServer) -> None:
    in_a_handler(app, "https://example.com/login")
    assert Client(app).call("login", answers={"open_url": accept()}).text == "True"
