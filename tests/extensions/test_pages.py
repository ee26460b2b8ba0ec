"""A page of an app is drawn as it was written, at any address that it ever had, and loads what its policy allows."""

import re
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import Caller, Context, Csp, MRTRServer, ServerInfo, SetupError
from mrtr_server.testing import AsyncClient, Client, Unexpected, yes

UI = "io.modelcontextprotocol/ui"
BOARD = "<!doctype html>\n<html><head><title>Orders</title></head><body>{}</body></html>"
MODERN, NEWEST = "2026-07-28", "2025-11-25"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "board.html"
    path.write_text(BOARD.format("<script>mrtr.call('cancel', {number: 3}); app.go(mrtr.name(\"orders\"))</script>"))
    return path


def shop(page: Any, **options: Any) -> MRTRServer:
    app = MRTRServer("shop")
    drawn = app.ui(page, **options)

    @app.tool(ui=drawn)
    def orders() -> dict[str, int]:
        """List the orders."""
        return {"open": 3}

    @app.tool(ui=drawn, used_by="app")
    async def cancel(number: int, ctx: Context) -> str:
        """Cancel an order."""
        await ctx.confirm(f"Cancel {number}?")
        return f"{number} is cancelled"

    @app.tool(ui=drawn, used_by="model")
    def forget() -> str:
        """Forget it."""
        return "forgotten"

    return app


def entry(app: MRTRServer, tool: str = "orders", **client: Any) -> Any:
    tools = Client(app, **{"ui": True, **client}).request("tools/list").result["tools"]
    return next(each for each in tools if each["name"] == tool)


def names(app: MRTRServer, **client: Any) -> list[str]:
    return [each["name"] for each in Client(app, **client).request("tools/list").result["tools"]]


class TestAPage:
    @pytest.mark.parametrize("era", [MODERN, NEWEST])
    def test_says_in_the_list_and_where_it_is_read_what_it_may_do(self, board: Path, era: str) -> None:
        app = shop(
            board,
            csp=Csp(
                connect=["https://API.example.com/", "wss://live.example.com"], resources=["https://*.example.com"]
            ),
            permissions=["clipboard_write"],
            domain="shop.example.net",
            border=False,
        )
        meta = {
            "csp": {
                "connectDomains": ["https://api.example.com", "wss://live.example.com"],
                "resourceDomains": ["https://*.example.com"],
                "frameDomains": [],
                "baseUriDomains": [],
            },
            "permissions": {"clipboardWrite": {}},
            "domain": "shop.example.net",
            "prefersBorder": False,
        }
        client = Client(app, era=era, ui=True)
        (listed,) = client.request("resources/list").result["resources"]
        (read,) = client.read(listed["uri"]).result["contents"]
        assert listed["_meta"] == read["_meta"] == {"ui": meta}
        assert listed["mimeType"] == read["mimeType"] == "text/html;profile=mcp-app"
        assert listed["uri"] == read["uri"] == entry(app)["_meta"]["ui"]["resourceUri"]

    def test_has_a_policy_without_a_network_if_nothing_is_said(self, board: Path) -> None:
        page = Client(shop(board)).page("orders")
        assert page.csp == {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []}
        assert page.meta == {"csp": page.csp}

    def test_has_our_script_before_all_of_its_own(self, board: Path) -> None:
        html = Client(shop(board)).page("orders").html
        assert re.match(r"<!doctype html>\s<html><head><script>.*?</script><title>", html, re.DOTALL)
        assert html.endswith(board.read_text().partition("<head>")[2])

    def test_is_text(self) -> None:
        app = MRTRServer("shop")
        app.tool(name="orders", ui=app.ui(lambda: {"a": 1}, name="orders"))(lambda: None)
        with pytest.raises(Unexpected, match="Internal error"):
            Client(app).page("orders")
        assert "The page 'orders' is a dict; return its HTML as text" in str(app.check()[0])

    def test_is_found_beside_the_module_that_names_it(self) -> None:
        app = MRTRServer("shop")
        assert app.ui("pages/seats.html").address == "ui://seats"
        with pytest.raises(SetupError, match=re.escape(str(Path(__file__).parent / "nothing.html"))):
            app.ui("nothing.html")

    def test_needs_a_name_of_its_own(self, board: Path) -> None:
        app = shop(board)
        with pytest.raises(SetupError, match="a page ui://board already; give this one another name="):
            app.ui(lambda: "", name="board")
        assert app.ui(lambda: "", name="other").address == "ui://other"

    def test_is_of_one_server(self, board: Path) -> None:
        with pytest.raises(SetupError, match="the page ui://board2 belongs to another server"):
            MRTRServer("other").tool(name="a", ui=shop(board).ui(board, name="board2"))(lambda: None)


class TestItsAddress:
    def test_changes_with_the_page_and_its_policy_alone(self, board: Path) -> None:
        first, again = entry(shop(board)), entry(shop(board))
        assert first == again
        assert entry(shop(board, border=True)) != first
        board.write_text(BOARD.format("new"))
        assert entry(shop(board)) != first

    def test_that_it_had_before_leads_to_the_page_of_today(self, board: Path) -> None:
        before = entry(shop(board))["_meta"]["ui"]["resourceUri"]
        board.write_text(BOARD.format("new"))
        for era in (MODERN, NEWEST):
            (read,) = Client(shop(board), era=era).read(before).result["contents"]
            assert read["uri"] == before
            assert "<body>new</body>" in read["text"]
        assert Client(shop(board)).read(before.replace("board", "other")).error.code == -32602

    def test_of_one_that_a_function_makes_changes_with_the_function_and_the_release(self) -> None:
        def made(text: str, version: str = "1") -> Any:
            app = MRTRServer("shop", info=ServerInfo(version=version))
            page = app.ui((lambda: "<p>a") if text == "a" else (lambda: "<p>other"), name="page")
            return page.uri

        assert made("a") == made("a")
        assert made("a") != made("a", "2")

    def test_is_one_for_hooks_and_for_disabling(self, board: Path) -> None:
        asked: list[str] = []

        def authorize(caller: Caller, name: str) -> bool:
            asked.append(name)
            return True

        app = MRTRServer("shop", authorize=authorize)
        page = app.ui(board)
        Client(app).read(page.uri)
        assert asked == ["ui://board"]
        app.disable(resources=[page.address])
        assert Client(app).read(page.uri).error.code == -32602


class TestATool:
    def test_names_its_page_and_who_calls_it(self, board: Path) -> None:
        app = shop(board)
        uri = app.registry.find("resources", "ui://board").entry["uri"]  # type: ignore[union-attr]
        ui = {"resourceUri": uri, "visibility": ["model", "app"]}
        assert entry(app)["_meta"] == {"ui": ui, "ui/resourceUri": uri}
        assert entry(app, "forget")["_meta"]["ui"]["visibility"] == ["model"]
        assert entry(app, "cancel")["_meta"]["ui"]["visibility"] == ["app"]
        assert entry(app, "cancel")["_meta"]["openai/visibility"] == "private"

    @pytest.mark.parametrize("era", [MODERN, NEWEST])
    def test_for_pages_alone_is_not_shown_to_a_client_that_draws_none(self, board: Path, era: str) -> None:
        app = shop(board)
        assert names(app, era=era, ui=True) == ["orders", "cancel", "forget", "mrtr_once"]
        assert names(app, era=era) == ["orders", "forget"]
        assert names(app, era=era, capabilities={}) == ["orders", "forget"]

    def test_with_a_page_makes_the_list_private(self, board: Path) -> None:
        assert Client(shop(board)).request("tools/list").result["cacheScope"] == "private"
        app = MRTRServer("shop")
        app.tool(name="orders")(lambda: None)
        assert Client(app).request("tools/list").result["cacheScope"] == "public"

    def test_has_text_for_hosts_that_draw_nothing(self, board: Path) -> None:
        reply = Client(shop(board)).call("orders")
        assert reply.structured == {"open": 3}
        assert reply.text == '{"open":3}'

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"ui": "https://example.com"}, "is no page"),
            ({"ui": 5}, "ui= takes a page"),
            ({"used_by": "app"}, "is for a tool that has a page"),
            ({"ui": "ui://orders", "used_by": "everybody"}, 'choose from "model", "app"'),
            ({"ui": "ui://orders", "meta": {"ui": {"resourceUri": "ui://x"}}}, "meta= has 'ui', which ui= sets"),
        ],
    )
    def test_is_refused_with_what_is_no_page(self, options: Any, reason: str) -> None:
        with pytest.raises(SetupError, match=reason):
            MRTRServer("shop").tool(name="orders", **options)(lambda: None)


def test_the_extension_is_declared_where_there_is_a_page(board: Path) -> None:
    def declared(app: MRTRServer, era: str) -> Any:
        client = Client(app, era=era)
        reply = client.request("server/discover") if era == MODERN else client.begin()
        return reply.result["capabilities"].get("extensions", {})

    for era in (MODERN, NEWEST):
        assert declared(shop(board), era) == {UI: {}}
        assert declared(MRTRServer("shop"), era) == {}
        by_hand = MRTRServer("shop")
        by_hand.tool(name="orders", meta={"ui": {"resourceUri": "ui://orders"}})(lambda: None)
        assert declared(by_hand, era) == {UI: {}}


class TestIncluding:
    def test_puts_the_prefix_into_addresses_and_into_the_names_that_the_page_calls(self, board: Path) -> None:
        middle, outer = MRTRServer("middle"), MRTRServer("outer")
        middle.include(shop(board), prefix="shop")
        outer.include(middle, prefix="all")
        client = Client(outer, ui=True)
        page = client.page("all_shop_orders")
        assert page.uri.startswith("ui://all/shop/board/v-")
        assert page.calls == ["all_shop_cancel", "all_shop_orders"]
        assert entry(outer, "all_shop_orders")["_meta"]["ui/resourceUri"] == page.uri
        reply = client.as_app("all_shop_orders").call(page.calls[0], number=3, answers={"confirm": yes})
        assert reply.text == "3 is cancelled"

    def test_of_two_pages_of_one_name_is_refused(self, board: Path) -> None:
        outer = shop(board)
        other = MRTRServer("other")
        other.ui(lambda: "", name="board")
        with pytest.raises(SetupError, match="ui://board"):
            outer.include(other)


class TestAPolicy:
    @pytest.mark.parametrize(
        ("option", "given", "reason"),
        [
            ("connect", ["https://a.example/path"], r"write one such as https://a\.example, without a path"),
            ("connect", ["a.example"], r"write one such as https://a\.example"),
            ("resources", ["*"], "is no origin"),
            ("resources", ["https://*"], "is no origin"),
            ("resources", ["https://a.example; script-src *"], "is no origin"),
            ("resources", ["'unsafe-eval'"], "is no origin"),
            ("resources", ["data:"], "is no origin"),
            ("frames", ["wss://a.example"], "belong into connect="),
            ("base_uris", "https://a.example", "takes a list of origins"),
            ("connect", [None], "is no origin"),
        ],
    )
    def test_is_made_of_origins(self, option: str, given: Any, reason: str) -> None:
        with pytest.raises(SetupError, match=reason):
            Csp(**{option: given})

    @pytest.mark.parametrize(
        ("html", "origin"),
        [
            ('<script src="https://cdn.example/a.js"></script>', "https://cdn.example"),
            ('<SCRIPT SRC="HTTPS://CDN.example:8443/a.js"></SCRIPT>', "https://cdn.example:8443"),
            ('<link rel="Stylesheet" href="//cdn.example/a.css">', "https://cdn.example"),
            ('<link href="https://cdn.example/f.woff2" rel="preload">', "https://cdn.example"),
            ("<style>@import url('https://fonts.example/a.css');</style>", "https://fonts.example"),
            ('<style>@import "https://fonts.example/a.css";</style>', "https://fonts.example"),
            ('<script type="module">\nimport {a} from "https://esm.example/a";</script>', "https://esm.example"),
        ],
    )
    def test_lets_the_page_load_what_it_loads_or_the_page_is_refused(
        self, tmp_path: Path, html: str, origin: str
    ) -> None:
        path = tmp_path / "page.html"
        path.write_text(BOARD.format(html))
        app = MRTRServer("shop")
        with pytest.raises(SetupError, match=re.escape(f'write csp=Csp(resources=["{origin}"])')):
            app.ui(path)
        with pytest.raises(SetupError, match="which its policy does not allow"):
            app.ui(path, csp=Csp(connect=[origin]))
        app.ui(path, csp=Csp(resources=[origin]))
        app.ui(path, name="wild", csp=Csp(resources=["https://*.example:*", "https://*.example"]))

    @pytest.mark.parametrize("html", ['<script src="app.js"></script>', '<link rel="stylesheet" href="/a.css">'])
    def test_can_t_make_up_for_a_relative_address(self, tmp_path: Path, html: str) -> None:
        path = tmp_path / "page.html"
        path.write_text(BOARD.format(html))
        with pytest.raises(SetupError, match="has no address of its own there"):
            MRTRServer("shop").ui(path)

    @pytest.mark.parametrize(
        "html",
        [
            '<!-- <script src="https://cdn.example/a.js"></script> -->',
            '<link rel="canonical" href="https://example.com">',
            '<link rel="icon" href="data:,">',
            '<a href="https://example.com">x</a>',
            '<script type="module">\n// import a from "https://esm.example/a"\n</script>',
            "<script>const a = '<script src=\"https://cdn.example/a.js\">'</script>",
        ],
    )
    def test_is_not_asked_for_what_loads_nothing(self, tmp_path: Path, html: str) -> None:
        path = tmp_path / "page.html"
        path.write_text(BOARD.format(html))
        MRTRServer("shop").ui(path)

    def test_counts_for_a_page_that_a_function_makes_when_it_is_served(self) -> None:
        app = MRTRServer("shop")

        async def page() -> str:
            return BOARD.format('<script src="https://cdn.example/a.js"></script>')

        app.tool(name="orders", ui=app.ui(page))(lambda: None)
        client = Client(app)
        with pytest.raises(Unexpected, match=r"loads 'https://cdn\.example/a\.js' by <script src>"):
            client.page("orders")
        assert [each.about for each in app.check() if "its policy does not allow" in each.message] == [
            "resource ui://page"
        ]


def test_check_finds_a_page_that_is_not_there() -> None:
    app = MRTRServer("shop")
    app.tool(name="orders", ui="ui://orders")(lambda: None)
    assert "its page ui://orders is no resource of this server" in str(app.check()[0])
    app.resource("ui://orders", name="orders", mime_type="text/html;profile=mcp-app")(lambda: "")
    assert not any("is no resource" in each.message for each in app.check())


def test_check_finds_a_page_that_can_draw_no_question() -> None:
    app = MRTRServer("shop")
    app.resource("ui://mine", name="mine", mime_type="text/html;profile=mcp-app")(lambda: "")

    async def ask(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return "done"

    app.tool(name="by_hand", ui="ui://mine")(ask)
    app.tool(name="ours", ui=app.ui(lambda: "", name="ours"))(ask)
    found = [each.about for each in app.check() if "shows no question" in each.message]
    assert found == ["tool by_hand"]


class TestAHostOfTheKit:
    def test_refuses_what_a_host_refuses(self, board: Path) -> None:
        app = shop(board)
        app.tool(name="plain")(lambda: None)
        client = Client(app, ui=True)
        with pytest.raises(Unexpected, match="'forget' is for models alone"):
            client.as_app("orders").call("forget")
        with pytest.raises(Unexpected, match="no tool 'nothing'"):
            client.as_app("orders").call("nothing")
        with pytest.raises(Unexpected, match="'plain' has no page"):
            client.as_app("plain").call("orders")
        with pytest.raises(Unexpected, match="no tool 'cancel'"):
            Client(app).as_app("orders").call("cancel", number=3)

    @pytest.mark.anyio
    async def test_is_awaited_in_a_test_that_is_a_coroutine(self, board: Path) -> None:
        client = AsyncClient(shop(board), ui=True, era=NEWEST)
        assert (await client.page("orders")).calls == ["cancel", "orders"]
        reply = await client.as_app("orders").call("cancel", number=4, answers={"confirm": yes})
        assert reply.text == "4 is cancelled"
