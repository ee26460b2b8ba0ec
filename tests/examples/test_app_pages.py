"""The pages of examples/approvals.py, chart.py and seats.py, in Chromium, in a host with the official AppBridge."""

import pytest
from playwright.sync_api import Frame, expect

from examples import approvals, chart, seats
from mrtr_server import MRTRServer

from ..conftest import Serve
from ..support.app_host import ERAS, AppHosts, Era, McpUiHosts
from ..support.axe import barriers
from ..support.serving import wait_until

THEMES = {"dark": ("rgb(255, 255, 255)", "rgb(18, 18, 18)"), "light": ("rgb(0, 0, 0)", "rgb(255, 255, 255)")}
"""The colours of text and background, where a host has a theme and no variables."""

IN_EVERY_ERA = pytest.mark.parametrize("era", ERAS)


@pytest.fixture(autouse=True)
def _as_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "EXPENSES", dict(approvals.EXPENSES))
    monkeypatch.setattr(seats, "TAKEN", {flight: dict(taken) for flight, taken in seats.TAKEN.items()})


def press(page: Frame, *keys: str) -> None:
    for key in keys:
        page.page.keyboard.press(key)


def colours(page: Frame) -> tuple[str, str]:
    """Return the colours of text and background."""
    first, second = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    return first, second


@IN_EVERY_ERA
class TestApprovals:
    def test_a_button_asks_and_then_pays(self, serve: Serve, hosts: AppHosts, era: Era) -> None:
        host = hosts.connect(
            serve(approvals.app).url, era=era, answer={"action": "accept", "content": {"confirm": True}}
        )
        page = host.show("expenses")
        page.get_by_role("button", name="Approve 310 € of Bo").click()
        page.get_by_text("The expense of Bo is approved.").wait_for()
        assert [each["message"] for each in host.seen["asked"]] == ["Pay 310 € to Bo for a monitor?"]
        assert approvals.EXPENSES[2].state == "approved"
        page = host.reload()  # with the result of before
        expect(page.get_by_role("listitem")).to_have_count(2)
        assert host.errors == []

    def test_a_host_that_cannot_ask_asks_in_the_page_and_a_no_is_a_no(
        self, serve: Serve, hosts: AppHosts, era: Era
    ) -> None:
        host = hosts.connect(serve(approvals.app).url, era=era)
        page = host.show("expenses")
        button = page.get_by_role("button", name="Reject 95 € of Cleo")
        button.focus()
        press(page, "Enter")
        question = page.frame_locator("iframe[title=Question]")
        question.get_by_text("Refuse to pay 95 € to Cleo for dinner with a client?").wait_for()
        question.get_by_role("button", name="No").click()
        page.get_by_text("Nothing was done").wait_for()
        expect(button).to_be_enabled()
        assert approvals.EXPENSES[3].state == "waiting"


class TestTheChart:
    @IN_EVERY_ERA
    def test_draws_what_the_table_has_and_counts_again(
        self, serve: Serve, hosts: AppHosts, era: Era, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = hosts.connect(serve(chart.app).url, era=era)
        page = host.show("visitors", museum="ships", days=2)
        expect(page.get_by_role("row")).to_have_text(["DayVisitors", "yesterday480", "today520"])
        heights = "[...document.querySelectorAll('rect')].map((each) => Math.round(each.getBBox().height))"
        assert page.evaluate(heights) == [138, 150]
        monkeypatch.setitem(chart.COUNTED, "ships", [500, 1000])
        page.get_by_role("button", name="Refresh").press("Enter")
        page.get_by_text("The numbers are of now.").wait_for()
        expect(page.get_by_role("row").last).to_have_text("today1000")
        assert page.evaluate(heights) == [75, 150]
        assert host.seen["calls"] == [{"name": "visitors", "arguments": {"museum": "ships", "days": 2}}]
        assert host.errors == []


@pytest.mark.parametrize("hosts", [McpUiHosts], indirect=True, ids=["mcp-ui"])
class TestInAnotherHost:
    """With @mcp-ui/client, which draws no forms by pages."""

    def test_the_chart_is_drawn_and_counts_again(
        self, serve: Serve, hosts: AppHosts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = hosts.connect(serve(chart.app).url, era="2025-11-25")
        page = host.show("visitors", museum="ships", days=2)
        expect(page.get_by_role("row")).to_have_text(["DayVisitors", "yesterday480", "today520"])
        monkeypatch.setitem(chart.COUNTED, "ships", [500, 1000])
        page.get_by_role("button", name="Refresh").click()
        expect(page.get_by_role("row").last).to_have_text("today1000")
        assert (host.errors, host.seen["errors"]) == ([], [])

    def test_an_approval_is_asked_by_the_host_that_elicits(self, serve: Serve, hosts: AppHosts) -> None:
        answer = {"action": "accept", "content": {"confirm": True}}
        host = hosts.connect(serve(approvals.app).url, era="2025-11-25", answer=answer)
        page = host.show("expenses")
        page.get_by_role("button", name="Approve 310 € of Bo").click()
        page.get_by_text("The expense of Bo is approved.").wait_for()
        assert [each["message"] for each in host.seen["asked"]] == ["Pay 310 € to Bo for a monitor?"]

    def test_an_approval_is_asked_in_a_page_where_the_host_does_not(self, serve: Serve, hosts: AppHosts) -> None:
        page = hosts.connect(serve(approvals.app).url, era="2025-11-25").show("expenses")
        page.get_by_role("button", name="Reject 95 € of Cleo").click()
        page.frame_locator("iframe[title=Question]").get_by_role("button", name="No").click()
        page.get_by_text("Nothing was done").wait_for()
        assert approvals.EXPENSES[3].state == "waiting"


@IN_EVERY_ERA
class TestTheSeatMap:
    def test_answers_the_form_by_the_keyboard(self, serve: Serve, hosts: AppHosts, era: Era) -> None:
        host = hosts.connect(serve(seats.app).url, era=era, answer="page")
        host.begin("book_seat", flight="MR12")
        host.until_handshake()
        page = host.page
        page.get_by_role("group", name="Which seat?").wait_for()
        assert page.get_by_role("radio", name="1A").is_disabled()
        expect(page.get_by_role("button", name="Book")).to_be_disabled()
        page.get_by_role("radio", name="3B").focus()
        press(page, "Space", "ArrowRight", "Tab", "Enter")
        assert host.finished()["content"][0]["text"] == "Booked 3C on MR12"
        assert host.errors == []

    def test_can_be_left(self, serve: Serve, hosts: AppHosts, era: Era) -> None:
        host = hosts.connect(serve(seats.app).url, era=era, answer="page")
        host.begin("book_seat", flight="MR12")
        host.until_handshake()
        host.page.get_by_role("button", name="No seat").click()
        assert host.finished()["isError"]
        assert len(seats.TAKEN["MR12"]) == 4


@pytest.mark.parametrize(
    ("app", "tool", "arguments"),
    [
        (approvals.app, "expenses", {}),
        (chart.app, "visitors", {"museum": "art"}),
        (seats.app, "book_seat", {"flight": "MR12"}),
    ],
    ids=["approvals", "chart", "seats"],
)
def test_a_page_follows_the_theme_of_its_host_and_keeps_nobody_from_it(
    serve: Serve, hosts: AppHosts, app: MRTRServer, tool: str, arguments: dict[str, str]
) -> None:
    host = hosts.connect(serve(app).url, answer="page", context={"theme": "light"})
    host.begin(tool, **arguments)
    if tool != "book_seat":
        host.mount(tool, arguments, host.finished())
    host.until_handshake()
    page = host.page
    page.get_by_role("button").first.wait_for()
    for theme, expected in THEMES.items():
        host.bridge("setHostContext", {"theme": theme})
        wait_until(lambda: colours(page) == expected, f"the {theme} theme: {colours(page)}")  # noqa: B023  at once
        # Of text in an SVG, axe can't say on what it stands: here on the page, in the colours of before.
        found = [each for each in barriers(page) if not all(html.startswith("<text ") for html in each[1])]
        assert found == [], theme
    assert host.errors == []
