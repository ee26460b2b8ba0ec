"""The page at /docs as a newcomer uses it: finding, calling, reading results, reloading, and a server that stops."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from pydantic import AfterValidator, BaseModel, Field

from mrtr_server import BearerTokens, Context, MRTRServer, ResourceLink, Task

from ..support.axe import barriers
from ..support.browser import chromium
from ..support.serving import KEYS, TIMEOUT, in_process, in_thread

pytestmark = pytest.mark.processes


class Ticket(BaseModel):
    """A ticket."""

    seat: Literal["window", "aisle"] = "window"
    name: str


def _refuse_town(code: str) -> str:
    if code == "NIL":
        raise ValueError("No town has this code")
    return code


class Town(BaseModel):
    """A town by its code."""

    code: Annotated[str, AfterValidator(_refuse_town)]
    seat: str = "any"


def make_station(**settings: Any) -> MRTRServer:
    """Return a server with lists, links and fields that are checked."""
    app = MRTRServer("station", keys=[bytes(32)], docs=True, **settings)

    @app.tool
    def departures(
        code: Annotated[str, Field(pattern="^[A-Z]{3}$"), AfterValidator(_refuse_town)],
        platform: Annotated[str, Field(json_schema_extra={"pattern": "(?i)^[a-z]$"})] = "a",
    ) -> list[dict[str, Any]]:
        """When trains leave a town."""
        return [{"train": "R10", "at": "08:12"}, {"train": "F4", "stops": [code, platform]}]

    @app.tool
    def leaflet() -> list[ResourceLink]:
        """Return what there is to read."""
        return [ResourceLink(uri="leaflet://7", name="Leaflet")]

    @app.tool
    async def sell(ctx: Context) -> str:
        """Sell a ticket."""
        ticket = await ctx.elicit("Who travels?", Ticket)
        return f"{ticket.name} at the {ticket.seat}"

    @app.tool(task=Task("optional", poll=0.3, rounds_first=True))
    async def reserve(ctx: Context) -> str:
        """Reserve in the background, and ask again for a code that is wrong."""
        await ctx.background()
        return (await ctx.elicit("Where to?", Town)).code

    @app.tool
    async def seat(ctx: Context) -> str:
        """Choose a seat."""
        chosen: str = await ctx.elicit("Which seat?", Literal["window", "aisle"])
        return chosen

    @app.resource("leaflet://{number}")
    def numbered(number: str) -> str:
        """A leaflet."""
        return f"leaflet no {number}"

    for number in (1, 2):
        app.resource(f"plan://{number}", name="plan")(lambda: "a plan")
    return app


@pytest.fixture(scope="module")
def station() -> Iterator[str]:
    with in_thread(make_station(), wait=False) as port:
        yield f"http://127.0.0.1:{port}/docs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Browser, station: str) -> Iterator[Page]:
    """A new tab. No error may come to its console."""
    errors: list[str] = []
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(station)
    expect(page.locator("#entry h2")).to_be_visible()
    yield page
    page.context.close()
    assert [error for error in errors if "responded with a status of 4" not in error] == []


def links(page: Page) -> Locator:
    return page.get_by_role("navigation").get_by_role("link")


def call(page: Page, name: str, **arguments: str) -> Locator:
    """Call a tool; return the calls of it that are shown."""
    links(page).get_by_text(name, exact=True).click()
    expect(page.get_by_role("heading", level=2, name=name, exact=True)).to_be_visible()
    for label, value in arguments.items():
        page.get_by_role("textbox", name=label).fill(value)
    page.get_by_role("button", name="Call", exact=True).click()
    return shown(page)


def shown(page: Page) -> Locator:
    return page.get_by_role("region", name="Calls").get_by_role("article")


def status(flow: Locator) -> Locator:
    return flow.locator(".chip.status")


class TestTheList:
    def test_is_filtered_by_descriptions_too_and_says_when_nothing_matches(self, page: Page) -> None:
        find = page.get_by_label("Filter by name or description")
        find.fill("leave a town")
        expect(links(page)).to_have_text(["departures"])
        find.fill("zeppelin")
        expect(page.get_by_role("navigation")).to_contain_text("Nothing has “zeppelin” in its name or description.")

    def test_tells_resources_of_one_name_apart(self, page: Page) -> None:
        expect(links(page).filter(has_text="plan")).to_have_text(["plan plan://1", "plan plan://2"])

    def test_of_a_narrow_window_is_opened_by_a_button_that_says_what_is_shown(self, page: Page) -> None:
        page.set_viewport_size({"width": 390, "height": 800})
        opener = page.get_by_role("navigation").get_by_role("button")
        expect(opener).to_have_text("departures")
        expect(links(page)).to_have_count(0)
        opener.click()
        links(page).get_by_text("sell", exact=True).click()
        expect(opener).to_have_text("sell")
        expect(links(page)).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    def test_an_address_of_what_is_not_there_says_so(self, page: Page, station: str) -> None:
        page.goto(f"{station}#tool/nope")
        expect(page.get_by_text("This server has no tool named “nope”")).to_be_visible()
        expect(page.get_by_role("button", name="Call", exact=True)).to_have_count(0)
        page.goto(f"{station}#main")  # where the link leads that skips the list
        expect(page.get_by_text("This server has no")).to_be_visible()


class TestAForm:
    def test_shows_at_the_field_that_a_pattern_is_missed_and_sends_nothing(self, page: Page) -> None:
        page.get_by_label("code").fill("osl")
        page.keyboard.press("Enter")
        expect(page.get_by_label("code")).to_be_focused()
        expect(page.locator(".field-problem").first).to_have_text("This has not the form that is wanted: ^[A-Z]{3}$")
        expect(shown(page)).to_have_count(0)

    def test_leaves_a_pattern_that_browsers_can_not_read_to_the_server(self, page: Page) -> None:
        flow = call(page, "departures", code="OSL", platform="B")
        expect(status(flow)).to_have_text("done")

    @pytest.mark.parametrize(
        ("pattern", "text", "misses"),
        [
            ("^\\d+$", "x", True),
            ("^\\d+$", "٣", False),  # a digit to other engines
            ("b", "abc", False),
            ("^(a+)+$", "a" * 40 + "!", False),  # takes longer than a person waits
            ("^(a|a)*$", "a" * 40 + "!", False),
            ("^a?a?a?a?a?$", "aaaaaa", False),
            ("^(?=a)a$", "b", False),
            ("^\\d{5}(-\\d{4})?$", "1234", True),
            ("^[^@]+@[^@]+\\.[a-z]+$", "nobody", True),
            ("(?<x", "a", False),
            ("^a$", "b" * 1000, False),
        ],
    )
    def test_finds_a_misfit_where_it_is_sure_and_quick(self, page: Page, pattern: str, text: str, misses: bool) -> None:
        found = page.evaluate(
            "async ([pattern, text]) => (await import('./docs/patterns.js')).misses(pattern, text)", [pattern, text]
        )
        assert found is misses

    def test_shows_what_the_server_finds_at_the_field_and_stays_in_view(self, page: Page) -> None:
        page.set_viewport_size({"width": 390, "height": 600})
        page.get_by_label("code").fill("NIL")
        page.keyboard.press("Enter")
        expect(status(shown(page))).to_have_text("failed")
        problem = page.get_by_role("alert").filter(has_text="No town has this code")
        expect(problem).to_be_in_viewport()
        expect(page.get_by_label("code")).to_be_focused()
        expect(page.get_by_label("code")).to_have_attribute("aria-invalid", "true")

    def test_of_a_question_that_is_asked_again_has_what_was_given_and_what_is_wrong(self, page: Page) -> None:
        flow = call(page, "reserve")
        flow.get_by_role("textbox", name="seat").fill("14A")
        flow.get_by_role("textbox", name="code").fill("NIL")
        page.keyboard.press("Enter")
        expect(flow.get_by_role("alert").filter(has_text="No town has this code")).to_be_visible()
        expect(flow.get_by_role("textbox", name="seat")).to_have_value("14A")
        expect(flow.get_by_role("textbox", name="code")).to_be_focused()

    def test_of_a_question_is_focused_where_enter_sends(self, page: Page) -> None:
        flow = call(page, "sell")
        expect(flow.get_by_role("textbox", name="name")).to_be_focused()  # the list before it would open
        page.keyboard.type("Ada")
        page.keyboard.press("Enter")
        expect(flow.locator(".result")).to_have_text("Ada at the window")

    def test_of_choices_alone_is_focused_at_its_button(self, page: Page) -> None:
        flow = call(page, "seat")
        expect(flow.get_by_role("button", name="Accept")).to_be_focused()

    def test_is_sent_from_a_large_field_with_ctrl_enter(self, page: Page) -> None:
        page.get_by_role("button", name="Edit as JSON").click()
        page.get_by_label("Arguments as JSON").fill('{"code": "OSL"}')
        page.keyboard.press("Control+Enter")
        expect(status(shown(page))).to_have_text("done")


class TestAResult:
    def test_of_records_is_a_table(self, page: Page) -> None:
        table = call(page, "departures", code="OSL").get_by_role("table")
        expect(table.get_by_role("columnheader")).to_have_text(["train", "at", "stops"])
        expect(table.get_by_role("row").nth(2).get_by_role("cell")).to_have_text(["F4", "–", '["OSL","a"]'])

    def test_links_to_resources_that_the_page_reads(self, page: Page) -> None:
        call(page, "leaflet").get_by_role("link", name="Read Leaflet").click()
        expect(page.locator("#entry h2")).to_have_text("leaflet://7")
        expect(shown(page).locator(".result")).to_contain_text("leaflet no 7")
        assert page.url.endswith(f"#resource/{quote('leaflet://7', safe='')}")
        page.go_back()
        expect(page.locator("#entry h2")).to_have_text("leaflet")
        expect(shown(page).get_by_role("link", name="Read Leaflet")).to_be_visible()


class TestCalls:
    def test_are_those_of_the_tool_that_is_shown_and_only_the_newest_is_open(self, page: Page) -> None:
        for code in ("OSL", "BGO", "TRD"):
            expect(status(call(page, "departures", code=code).first)).to_have_text("done")
        expect(shown(page)).to_have_count(3)
        expect(shown(page).get_by_role("region", name="Reply")).to_have_count(1)
        expect(shown(page).nth(1)).to_contain_text('code: "BGO"')
        call(page, "sell")
        expect(shown(page)).to_have_count(1)
        call(page, "leaflet")
        expect(links(page).locator("..").filter(has_text="sell")).to_contain_text("asks")

    def test_are_there_after_a_reload_with_their_arguments_and_results(self, page: Page) -> None:
        expect(status(call(page, "departures", code="OSL"))).to_have_text("done")
        expect(shown(call(page, "sell").page).get_by_role("textbox", name="name")).to_be_focused()
        page.reload()
        expect(shown(page)).to_contain_text("not finished")
        links(page).get_by_text("departures", exact=True).click()
        expect(status(shown(page))).to_have_text("done")
        shown(page).get_by_text('code: "OSL"').click()
        expect(shown(page).get_by_role("table")).to_contain_text("R10")
        shown(page).get_by_role("button", name="Put the arguments into the form").click()
        expect(page.get_by_label("code")).to_have_value("OSL")
        shown(page).get_by_role("button", name="Remove this call of departures").click()
        page.reload()
        expect(page.locator("#entry h2")).to_be_visible()
        expect(shown(page)).to_have_count(0)

    def test_are_kept_within_bounds_and_without_what_is_secret(self, page: Page) -> None:
        flow = call(page, "sell")
        flow.get_by_role("textbox", name="name").fill("Ada-of-the-answer")
        with page.expect_request(lambda request: "requestState" in (request.post_data or "")) as sent:
            page.keyboard.press("Enter")
        expect(flow.locator(".result")).to_be_visible()
        kept = page.evaluate("JSON.stringify(sessionStorage)")
        assert json.loads(sent.value.post_data or "")["params"]["requestState"] not in kept
        assert "Ada-of-the-answer at the window" in kept  # what the tool returned
        for of in range(3):
            page.evaluate(
                """async ([of]) => {
                    const { keepCall } = await import("./docs/kept_calls.js");
                    for (let at = 0; at < 30; at += 1) {
                        keepCall({ id: `${of}-${at}`, params: {}, reply: { result: "x".repeat(of ? 40000 : 60000) } });
                    }
                }""",
                [of],
            )
        found = page.evaluate("async () => (await import('./docs/kept_calls.js')).keptCalls()")
        assert 5 <= len(found) <= 50
        assert len(json.dumps(found)) < 600_000
        assert found[0]["id"] == "2-29"


def test_no_token_is_kept_but_that_of_the_page(browser: Browser) -> None:
    with in_thread(make_station(auth=BearerTokens({"token-of-dora": "dora"})), wait=False) as port:
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT * 1000)
        page.goto(f"http://127.0.0.1:{port}/docs")
        page.get_by_text("Client settings", exact=True).click()
        page.get_by_label("Bearer token").fill("token-of-dora")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(status(call(page, "departures", code="OSL"))).to_have_text("done")
        kept = page.evaluate("JSON.stringify([sessionStorage, localStorage])")
        assert "OSL" in kept
        assert "token-of-dora" not in kept
        page.context.close()


class TestAServerThatStops:
    def test_is_noticed_and_the_call_goes_on_when_it_is_back(self, browser: Browser, tmp_path: Path) -> None:
        target, environment = "tests.support.page_app:app", {"MRTR_KEYS": KEYS, "MRTR_DEBUG": "true"}
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT * 1000)
        with in_process(target, log=tmp_path / "one", environment=environment) as server:
            found = re.search(r"/docs#token=[\w-]+", server.text)
            assert found, server.text
            page.goto(f"http://127.0.0.1:{server.port}{found[0]}&tool/book_trip")
            page.get_by_role("textbox", name="town").fill("Oslo")
            page.get_by_role("button", name="Call", exact=True).click()
            page.get_by_role("textbox", name="name").fill("Ada")
            page.get_by_role("textbox", name="email").fill("ada@example.com")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="The server does not answer. Start it again")).to_be_visible()
        port = str(server.port)
        with in_process(target, "--port", port, log=tmp_path / "two", environment=environment):
            expect(page.get_by_text("The server does not answer.")).to_have_count(0)
            page.get_by_role("button", name="Send it again", exact=True).click()
            expect(page.get_by_text("Pay 49 EUR for Ada?", exact=True)).to_be_visible()
        page.get_by_role("button", name="Yes").click()
        expect(page.get_by_text("The server does not answer.")).to_be_visible()
        environment["MRTR_KEYS"] = "11" * 32
        with in_process(target, "--port", port, log=tmp_path / "three", environment=environment):
            expect(page.get_by_text("The server was started anew, and has another token.")).to_be_visible()
            page.goto(f"{page.url.partition('#')[0]}#tool/lost_luggage")
            page.get_by_role("button", name="Call", exact=True).click()  # as any client may, without the token
            expect(page.get_by_text("No bag has that number.", exact=True)).to_be_visible()
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_keeps_people_from_using_it(page: Page, width: int, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    call(page, "departures", code="NIL")
    call(page, "departures", code="OSL")
    expect(status(shown(page).first)).to_have_text("done")
    page.reload()
    expect(shown(page)).to_have_count(2)
    flow = call(page, "sell")
    expect(flow.get_by_role("textbox", name="name")).to_be_focused()
    page.get_by_role("button", name="Accept").press("Enter")  # a field is missing
    page.set_viewport_size({"width": width, "height": 900})
    if width < 500:
        page.locator("#opener").click()
    assert barriers(page.main_frame) == []


def test_a_whole_flow_needs_only_the_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")  # the link that skips the list
    page.keyboard.press("Tab")  # client settings
    page.keyboard.press("Tab")
    expect(page.get_by_label("Filter by name or description")).to_be_focused()
    page.keyboard.type("sell a")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2, name="sell")).to_be_focused()
    for _ in range(2):  # over "Edit as JSON"
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(shown(page).get_by_role("textbox", name="name")).to_be_focused()
    page.keyboard.type("Ada")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(shown(page).locator(".result")).to_have_text("Ada at the aisle")
