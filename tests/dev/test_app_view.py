"""Pages of apps in the page at /docs: what its host shows of them, and what it leaves to the person."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from examples import approvals, seats
from mrtr_server import Apps, Context, Csp, MRTRServer

from ..conftest import Serve
from ..support.app_host import AppHost
from ..support.axe import barriers
from ..support.browser import until_true
from ..support.dev_host import DevHosts
from ..support.serving import wait_until

pytestmark = pytest.mark.parametrize("hosts", [DevHosts], indirect=True, ids=["dev"])

PAGE = "<!doctype html><html><head><title>Shop</title></head><body><p>Shop</p><script>SCRIPT</script></body></html>"

Open = Callable[..., AppHost]


@pytest.fixture
def open_page(serve: Serve, hosts: DevHosts) -> Open:
    """Serve a tool whose page has a script; open the page at /docs."""

    def connect(script: str = "mrtr.ready", csp: Csp | None = None, **manner: Any) -> AppHost:
        app = MRTRServer("shop", keys=[bytes(32)], docs=True)
        board = app.ui(lambda: PAGE.replace("SCRIPT", script), name="board", csp=csp, border=True)

        @app.tool(ui=board)
        def orders() -> dict[str, int]:
            """List orders."""
            return {"open": 2}

        @app.tool(ui=board, used_by="app")
        async def cancel(ctx: Context, number: int = 1) -> str:
            """Cancel an order."""
            await ctx.confirm(f"Cancel {number}?")
            return f"{number} is cancelled"

        return hosts.connect(serve(app).url, **manner)

    return connect


def view_in(host: AppHost) -> Locator:
    return host.window.locator("section.app")


def said_in(host: AppHost) -> Locator:
    return view_in(host).get_by_role("log").locator("> div")


class TestWhatThePageDoes:
    def test_what_its_policy_refuses_is_said(self, open_page: Open) -> None:
        script = "mrtr.ready.then(() => fetch('https://example.com/').catch(() => {}))"
        host = open_page(script, csp=Csp(connect=["https://api.example.com"]))
        host.show("orders")
        expect(view_in(host).get_by_text("connectDomains: https://api.example.com")).to_be_visible()
        expect(said_in(host).filter(has_text="policy")).to_have_text(
            ["The policy of the page refused https://example.com/ (connect-src). Csp(...) lists what it may load."]
        )

    def test_an_error_that_nobody_caught_is_said(self, open_page: Open) -> None:
        host = open_page("mrtr.ready.then(() => { throw Error('no such order') });\nsetTimeout(() => missing())")
        host.show("orders")
        expect(said_in(host).filter(has_text="Nobody caught: no such order")).to_be_visible()
        expect(said_in(host).filter(has_text="missing is not defined, in line ")).to_be_visible()

    def test_what_it_says_and_all_traffic_is_shown(self, open_page: Open) -> None:
        host = open_page("mrtr.message('I paid').then(() => mrtr.tell('2 are open', { open: 2 }))")
        host.show("orders")
        expect(said_in(host)).to_contain_text(
            ["A message for the chat: I paid", "For the model's next turn: 2 are open"]
        )
        view_in(host).get_by_text("Traffic with the page").click()
        message = view_in(host).locator("details details").filter(has_text="ui/message")
        message.locator("summary").click()
        expect(message.get_by_role("region")).to_contain_text('"text": "I paid"')

    def test_one_that_makes_no_handshake_is_said_to_be_so(self, open_page: Open) -> None:
        host = open_page("0")
        host.window.locator("button.call").click()
        expect(said_in(host)).to_contain_text(["It has made no handshake yet."])


class TestCalls:
    def test_of_the_page_that_ask_are_answered_by_the_person(self, open_page: Open) -> None:
        script = "mrtr.call('cancel', { number: 7 }).then(({ value }) => (document.body.textContent = value))"
        host = open_page(script, asks=True)
        page = host.show("orders")
        call = view_in(host).get_by_role("article", name="cancel, called by the page")
        expect(call.get_by_text("Cancel 7?", exact=True)).to_be_visible()
        call.get_by_role("button", name="Yes").click()
        expect(page.get_by_text("7 is cancelled")).to_be_visible()

    def test_of_the_model_to_a_tool_for_pages_are_possible_and_said_to_be_so(self, open_page: Open) -> None:
        host = open_page(asks=True)
        host.window.get_by_role("link", name="cancel", exact=True).click()
        expect(host.window.get_by_text("For pages alone: hosts do not show this tool to the model.")).to_be_visible()
        host.window.locator("button.call").click()
        expect(host.window.get_by_text("Cancel 1?", exact=True)).to_be_visible()

    def test_an_approval_is_given_as_in_a_host_that_elicits(
        self, serve: Serve, hosts: DevHosts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(approvals, "EXPENSES", dict(approvals.EXPENSES))
        app = MRTRServer("approvals", keys=[bytes(32)], docs=True)
        app.include(approvals.app)
        host = hosts.connect(serve(app).url, asks=True)
        page = host.show("expenses")
        page.get_by_role("button", name="Approve 310 € of Bo").click()
        host.window.get_by_role("button", name="Yes").click()
        expect(page.get_by_text("The expense of Bo is approved.")).to_be_visible()

    def test_while_the_lists_are_read_again_have_the_page_of_the_new_list(self, serve: Serve, hosts: DevHosts) -> None:
        app = MRTRServer("shop", keys=[bytes(32)], docs=True, apps=Apps(question=True))

        @app.tool
        async def cancel(ctx: Context) -> str:
            """Cancel an order, which a page asks where the host can't."""
            await ctx.confirm("Cancel it?")
            return "cancelled"

        host = hosts.connect(serve(app).url, asks=True)
        host.window.get_by_text("Client settings").click()
        held: list[Route] = []
        host.window.route("**/mcp", lambda route: _hold(route, held))
        for name in ("Forms and confirmations", "Pages to open"):
            host.window.get_by_label(name).uncheck()
        host.window.keyboard.press("Escape")
        wait_until(lambda: len(host.window.evaluate("[]")) == 0 and len(held) == 2, "both lists to be asked for")
        host.window.locator("button.call").click()
        for route in reversed(held):  # the later list is there first
            route.continue_()
        expect(view_in(host).locator("iframe")).to_have_count(1)


def _hold(route: Route, held: list[Route]) -> None:
    if '"tools/list"' in (route.request.post_data or ""):
        held.append(route)
    else:
        route.continue_()


class TestForms:
    @pytest.fixture
    def host(self, serve: Serve, hosts: DevHosts, monkeypatch: pytest.MonkeyPatch) -> AppHost:
        monkeypatch.setattr(seats, "TAKEN", {flight: dict(taken) for flight, taken in seats.TAKEN.items()})
        app = MRTRServer("airline", keys=[bytes(32)], docs=True)
        app.include(seats.app)
        return hosts.connect(serve(app).url, asks=True)

    def test_that_name_a_page_are_drawn_by_it(self, host: AppHost) -> None:
        page = host.show("book_seat", flight="MR12")
        page.get_by_role("radio", name="3C").check()
        page.get_by_role("button", name="Book").click()
        expect(host.window.get_by_text("The page answered: accept.")).to_be_visible()
        expect(host.window.locator(".result")).to_have_text("Booked 3C on MR12")
        expect(view_in(host).locator("iframe")).to_have_count(0)

    def test_are_drawn_again_and_then_answered(self, host: AppHost) -> None:
        host.show("book_seat", flight="MR12")
        page = host.reload()
        page.get_by_role("button", name="No seat").click()
        expect(host.window.get_by_text("The page answered: decline.")).to_be_visible()

    def test_can_be_answered_in_the_fields_of_the_host_all_the_same(self, host: AppHost) -> None:
        host.show("book_seat", flight="MR12")
        question = host.window.locator("form.question")
        question.get_by_role("combobox").last.select_option("3C")
        question.get_by_role("button", name="Accept").click()
        expect(host.window.locator(".result")).to_have_text("Booked 3C on MR12")


class TestTheHost:
    def test_changes_theme_width_and_place(self, open_page: Open) -> None:
        host = open_page("mrtr.on('context', ({ displayMode }) => (document.title = displayMode))")
        page = host.show("orders")
        view = view_in(host)
        for theme in ("dark", "light"):
            view.get_by_label("Theme").select_option(theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
        view.get_by_label("Width").select_option("390")
        until_true(page, "innerWidth === 390")
        assert page.evaluate("mrtr.display('fullscreen')") == "fullscreen"
        assert page.evaluate("document.title") == "fullscreen"
        view.get_by_role("button", name="Leave the full screen").click()
        until_true(page, "document.title === 'inline'")

    def test_waits_for_what_a_page_does_before_it_is_drawn_again(self, open_page: Open) -> None:
        host = open_page()
        page = host.show("orders")
        page.evaluate(
            """mrtr.on('teardown', async () => {
                await new Promise((done) => setTimeout(done, 600));
                await mrtr.message('saved');
            })"""
        )
        page = host.reload()
        expect(said_in(host).filter(has_text="A message for the chat: saved")).to_be_visible()
        page.evaluate("void mrtr.on('teardown', () => new Promise(() => {}))")
        host.reload()
        expect(said_in(host).filter(has_text="It has not answered ui/resource-teardown.")).to_be_visible()

    def test_without_apps_draws_none_and_lists_no_tool_for_pages(self, open_page: Open) -> None:
        host = open_page()
        settings = host.window.get_by_role("form", name="Client settings")
        host.window.get_by_text("Client settings").click()
        settings.get_by_label("Pages of apps").uncheck()
        expect(host.window.get_by_role("link", name="cancel", exact=True)).to_have_count(0)
        host.window.keyboard.press("Escape")
        assert host.call("orders")["structuredContent"] == {"open": 2}
        expect(host.window.locator(".result")).to_be_visible()
        expect(view_in(host)).to_have_count(0)

    def test_keeps_nobody_from_it(self, open_page: Open) -> None:
        host = open_page("mrtr.message('I paid')")
        host.show("orders")
        expect(said_in(host).filter(has_text="I paid")).to_be_visible()
        assert barriers(host.window.main_frame) == []
        assert host.errors == []
