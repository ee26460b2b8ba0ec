"""The page that asks in the place of hosts that can't elicit: in Chromium, in a host with the official AppBridge."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from playwright.sync_api import Frame, Route, expect
from pydantic import AfterValidator, AnyUrl, BaseModel, Field, WithJsonSchema

from mrtr_server import Apps, Context, Elicited, MRTRServer, ToolResult

from ..conftest import Serve
from ..support.app_host import AppHost, AppHosts, Era
from ..support.axe import barriers
from ..support.dev_host import IN_EVERY_HOST, IN_EVERY_HOST_AND_ERA
from ..support.serving import wait_until

Open = Callable[..., AppHost]

FEE = "https://pay.example.com/fee?no=7"
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
CLICK_ON = """() => {
    let shown
    new MutationObserver(() => {
        if (document.body.textContent.includes('Book 2C?')) shown ??= performance.now()
    }).observe(document.body, {childList: true, subtree: true, characterData: true})
    setInterval(() => {
        if (performance.now() - shown > 300) return
        document.querySelectorAll('.buttons button').forEach((each) => each.click())
    }, 5)
}"""
"""Clicks all buttons all the time, until 300 ms after the next question: by the page's own clock, so that a click on a
busy machine is never that of a person who has read the question.
"""


class Meal(Enum):
    FISH = "fish"
    TOFU = "tofu"


def _refuse_seat(seat: str) -> str:
    if seat == "1A":
        raise ValueError("The seat is taken")
    return seat


class Trip(BaseModel):
    """Every kind of field that a form has."""

    name: str = Field(title="Name", description="As in\nthe passport", min_length=2, max_length=5)
    seats: int = Field(title="Seats", ge=1, le=9)
    weight: float = Field(1.5, title="Weight")
    window: bool = Field(title="Window")
    insured: bool | None = Field(None, title="Insured")
    flexible: bool = Field(True, title="Flexible")
    fare: Literal["eco", "first"] = Field(title="Fare")
    meal: Meal | None = Field(None, title="Meal")
    extras: list[Literal["bag", "bike", "pet"]] = Field(title="Extras", min_length=1, max_length=2)
    allergies: list[Literal["nuts", "milk"]] = Field([], title="Allergies")
    mail: Annotated[str, WithJsonSchema({"type": "string", "format": "email"})] | None = Field(None, title="Mail")
    site: AnyUrl | None = Field(None, title="Site")
    day: date = Field(date(2026, 1, 2), title="Day")
    at: datetime | None = Field(None, title="At")
    note: str = Field("none", title="Note")
    remarks: str = Field("", title="Remarks", max_length=500)


class Seat(BaseModel):
    seat: Annotated[str, AfterValidator(_refuse_seat)] = Field(title="Seat")


@pytest.fixture
def done() -> list[Any]:
    """What tools have done."""
    return []


@pytest.fixture
def open_host(serve: Serve, hosts: AppHosts, done: list[Any]) -> Open:
    def connect(**manner: Any) -> AppHost:
        return hosts.connect(serve(application(done)).url, **manner)

    return connect


def application(done: list[Any]) -> MRTRServer:
    app = MRTRServer("travel", keys=[bytes(32)], docs=True, apps=Apps(question=True))

    @app.tool
    async def plan(ctx: Context) -> dict[str, Any]:
        """Plan a trip."""
        done.append((await ctx.elicit("Where to?", Trip)).model_dump(mode="json"))
        return {"planned": True}

    @app.tool
    async def book(ctx: Context) -> dict[str, str]:
        """Book a seat."""
        seat = (await ctx.elicit("Which seat?", Seat)).seat
        await ctx.confirm(f"Book {seat}?")
        done.append(seat)
        return {"booked": seat}

    @app.tool
    async def cancel(ctx: Context) -> ToolResult:
        """Cancel all."""
        await ctx.confirm(f"Cancel {MARKUP}?\nReally?")
        done.append("cancelled")
        return ToolResult(content=[f"Cancelled {MARKUP}"])

    @app.tool
    async def check_in(ctx: Context) -> str:
        """Ask three things at once."""
        meal, name, *_ = await asyncio.gather(
            ctx.elicit("Which meal?", Elicited[Meal], key="meal"),
            ctx.elicit("Which name?", str, key="name"),
            ctx.confirm("Bring a bag?", key="bag"),
            ctx.elicit_url("Pay the fee.", FEE, key="fee"),
        )
        done.append((meal.action, name))
        return "checked in"

    @app.tool
    async def pay(ctx: Context) -> str:
        """Ask to pay on a page."""
        await ctx.elicit_url("Pay the fee.", FEE)
        done.append("paid")
        return "paid"

    @app.tool
    async def greet(ctx: Context, ask: bool = False) -> str:
        """Ask only if told so."""
        if ask:
            await ctx.confirm("Greet?")
        return "hello"

    return app


def answers(host: AppHost) -> list[Any]:
    """Return the answers that the page has sent."""
    return [call["arguments"]["answers"] for call in host.seen["calls"] if "answers" in call["arguments"]]


def press(page: Frame, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


@IN_EVERY_HOST
class TestForms:
    def test_every_kind_of_field_arrives_as_it_was_filled_in(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("plan")
        expect(page.get_by_text("Time zone: ")).to_be_visible()
        page.get_by_label("Name *").fill("Ada")
        page.get_by_label("Seats *").fill("3")
        page.get_by_label("Seats *").hover()
        host.window.mouse.wheel(0, 100)
        page.get_by_label("Window *").select_option("No")
        page.get_by_label("Fare *").select_option("first")
        page.get_by_label("Meal").select_option("tofu")
        page.get_by_role("group", name="Extras").get_by_label("bike").check()
        page.get_by_label("Mail").fill("ada@example.com")
        page.get_by_label("Site").fill("https://example.com/ada")
        page.get_by_label("At", exact=True).fill("2026-07-01T10:30")
        page.get_by_label("Note").fill("")
        page.get_by_label("Remarks").fill("two\nlines")
        # By keyboard: what the wheel has scrolled may move while the mouse is down. A key waits for nothing.
        button = page.get_by_role("button", name="Send", exact=True)
        expect(button).to_be_enabled()
        button.press("Enter")
        expect(page.get_by_text("planned")).to_be_visible()
        (trip,) = done
        at = page.evaluate("new Date('2026-07-01T10:30').toISOString()")
        assert datetime.fromisoformat(trip.pop("at")) == datetime.fromisoformat(at)
        assert trip == {
            "name": "Ada",
            "seats": 3,
            "weight": 1.5,
            "window": False,
            "insured": None,
            "flexible": True,
            "fare": "first",
            "meal": "tofu",
            "extras": ["bike"],
            "allergies": [],
            "mail": "ada@example.com",
            "site": "https://example.com/ada",
            "day": "2026-01-02",
            "note": "",
            "remarks": "two\nlines",
        }

    def test_what_does_not_fit_is_said_at_its_field_and_nothing_is_sent(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("plan")
        page.get_by_label("Name *").fill("Alexandra")
        page.get_by_label("Seats *").fill("10")
        page.get_by_label("Mail").fill("ada")
        press(page, "Send")
        for label, problem in {
            "Name *": "As in\nthe passport Characters: at most 5.",
            "Seats *": "Value must be less than or equal to 9.",
            "Window *": "Please select an item in the list.",
            "Mail": "Please include an '@' in the email address. 'ada' is missing an '@'.",
        }.items():
            field = page.get_by_label(label)
            expect(field).to_have_accessible_description(problem)
            expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_role("group", name="Extras *")).to_have_accessible_description("Choices: at least 1.")
        expect(page.get_by_label("Weight *")).to_have_attribute("aria-invalid", "false")
        expect(page.get_by_label("Name *")).to_be_focused()
        assert answers(host) == []

    def test_what_the_server_refuses_is_asked_again_with_what_was_typed(self, open_host: Open, done: list[Any]) -> None:
        page = open_host().show("book")
        page.get_by_label("Seat *").fill("1A")
        press(page, "Send")
        expect(page.get_by_text("The seat is taken")).to_be_visible()
        expect(page.get_by_label("Seat *")).to_have_value("1A")
        page.get_by_label("Seat *").fill("2C")
        press(page, "Send")
        press(page, "Yes")
        expect(page.get_by_text("booked")).to_be_visible()
        assert done == ["2C"]


class TestConfirmations:
    @IN_EVERY_HOST_AND_ERA
    def test_a_form_and_then_a_yes_by_the_keyboard_alone(self, open_host: Open, done: list[Any], era: Era) -> None:
        host = open_host(era=era)
        page = host.show("book")
        keyboard = host.window.keyboard
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        page.get_by_label("Seat *").focus()
        keyboard.type("2C")
        page.get_by_label("Seat *").dispatch_event("keydown", {"key": "Enter", "isComposing": True})
        assert answers(host) == []
        keyboard.press("Enter")
        expect(page.get_by_role("heading")).to_be_focused()
        expect(page.get_by_role("heading")).to_have_accessible_description("Book 2C?")
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()
        assert done == []
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        expect(page.get_by_role("heading")).to_be_focused()
        assert done == ["2C"]
        assert [list(each.values()) for each in answers(host)] == [
            [{"action": "accept", "content": {"seat": "2C"}}],
            [{"action": "accept", "content": {"confirm": True}}],
        ]
        ((context,),) = [each["content"] for each in host.until("contexts")]
        assert re.fullmatch(
            r"The person answered the question of book\. Its result:\n.*2C.*", context["text"], re.DOTALL
        )
        ((message,),) = [each["content"] for each in host.until("messages")]
        (id,) = {call["arguments"]["ask"] for call in host.seen["calls"]}
        assert message["text"] == f"I answered the question of book. Get its result with mrtr_result, ask={id}."
        assert host.call("mrtr_result", ask=id)["structuredContent"] == {"booked": "2C"}
        assert host.errors == []

    @IN_EVERY_HOST
    def test_a_no_is_a_no(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("cancel")
        press(page, "No")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        host.until("messages")
        assert answers(host) == [{"confirm": {"action": "decline"}}]
        assert done == []

    @IN_EVERY_HOST
    def test_a_double_click_answers_once_and_never_what_comes_next(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("book")
        page.get_by_label("Seat *").fill("2C")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        page.evaluate(CLICK_ON)
        expect(page.get_by_text("Book 2C?")).to_be_visible()
        assert page.evaluate("new Promise((done) => setTimeout(done, 300))") is None
        assert (len(answers(host)), done) == (1, [])


@IN_EVERY_HOST
class TestSeveralQuestions:
    def test_they_are_answered_together_and_nothing_is_a_yes_by_itself(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("check_in")
        asked = ("Which meal?", "Which name?", "Bring a bag?", "Pay the fee.")
        meal, name, bag, fee = (page.get_by_role("group", name=each) for each in asked)
        meal.get_by_label("Decline this question").check()
        name.get_by_label("Your answer").fill("Ada")
        press(page, "Send")
        expect(bag.get_by_label("Your answer")).to_be_focused()
        bag.get_by_label("Your answer").select_option("Yes")
        press(page, "Send")
        expect(fee.get_by_text("Open the page first, or decline.")).to_be_visible()
        assert answers(host) == []
        fee.get_by_role("button", name="Open the page").click()
        expect(fee.get_by_text("The page was opened.")).to_be_visible()
        press(page, "Send")
        expect(page.get_by_text("checked in")).to_be_visible()
        assert host.seen["links"] == [{"url": FEE}]
        assert done == [("decline", "Ada")]

    def test_a_no_among_them_is_a_no(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("check_in")
        for group in ("Which meal?", "Which name?", "Pay the fee."):
            page.get_by_role("group", name=group).get_by_label("Decline this question").check()
        page.get_by_role("group", name="Bring a bag?").get_by_label("Your answer").select_option("No")
        press(page, "Send")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        assert answers(host) == [{key: {"action": "decline"} for key in ("meal", "name", "bag", "fee")}]
        assert done == []


class TestLinks:
    @pytest.mark.parametrize("refuses", [False, True])
    def test_a_page_is_opened_by_the_host_after_its_address_was_shown(
        self, open_host: Open, done: list[Any], refuses: bool
    ) -> None:
        host = open_host(refuses=refuses)
        page = host.show("pay")
        expect(page.get_by_text(FEE, exact=True)).to_be_visible()
        press(page, "Continue")
        expect(page.get_by_text("Open the page first, or decline.")).to_be_visible()
        press(page, "Open the page")
        expect(page.get_by_text("Copy its address" if refuses else "The page was opened.")).to_be_visible()
        assert (host.seen["links"], answers(host)) == ([{"url": FEE}], [])
        press(page, "Continue")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        assert done == ["paid"]


class TestWhereTheFlowIs:
    def test_a_page_that_is_drawn_again_shows_it_and_says_nothing_in_the_chat(
        self, open_host: Open, done: list[Any]
    ) -> None:
        host = open_host()
        page = host.show("book")
        page.get_by_label("Seat *").fill("2C")
        press(page, "Send")
        expect(page.get_by_text("Book 2C?")).to_be_visible()
        page = host.reload()
        expect(page.get_by_text("Book 2C?")).to_be_visible()
        press(page, "Yes")
        host.until("messages")
        page = host.reload()
        expect(page.get_by_role("heading")).to_have_text("This was answered before")
        expect(page.get_by_text("2C")).to_be_visible()
        host.request("ping")
        assert (len(host.seen["messages"]), len(host.seen["contexts"]), done) == (1, 1, ["2C"])

    def test_an_answer_whose_reply_was_lost_is_not_sent_again(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        page = host.show("cancel")
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()

        def lose(route: Route) -> None:
            route.fetch()
            route.abort()

        host.window.route("**/mcp", lose, times=1)
        press(page, "Yes")
        expect(page.get_by_text("Cancelled")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_text("Failed to fetch")
        host.until("messages")
        assert done == ["cancelled"]

    def test_where_nobody_can_say_it_the_result_is_drawn_and_an_answer_can_be_sent_again(
        self, open_host: Open, done: list[Any]
    ) -> None:
        host = open_host()
        result = host.call("book")

        def fail(route: Route) -> None:
            if "mrtr_answer" in (route.request.post_data or ""):
                route.abort()
            else:
                route.continue_()

        host.window.route("**/mcp", fail)
        page = host.mount("book", {}, result)
        page.get_by_label("Seat *").fill("2C")
        press(page, "Send")
        expect(page.get_by_role("alert")).to_have_text("Failed to fetch")
        expect(page.get_by_text("It is not known whether your answer arrived.")).to_be_visible()
        expect(page.get_by_label("Seat *")).to_have_value("2C")
        host.window.unroute("**/mcp")
        press(page, "Send")
        press(page, "Yes")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        expect(page.get_by_role("alert")).to_have_text("")
        assert done == ["2C"]

    def test_a_second_page_of_the_same_question_shows_what_the_first_one_did(
        self, open_host: Open, done: list[Any]
    ) -> None:
        host = open_host()
        old = host.call("cancel")
        press(host.mount("cancel", {}, old), "Yes")
        host.until("messages")
        page = host.mount("cancel", {}, old)
        expect(page.get_by_text("Cancelled")).to_be_visible()
        assert done == ["cancelled"]

    def test_what_the_server_says_instead_can_be_asked_for_again(self, open_host: Open) -> None:
        host = open_host()
        lost = {"content": [{"type": "text", "text": "mrtr-ask: nobodys\nThe person is asked."}]}
        page = host.mount("cancel", {}, lost)
        expect(page.get_by_text("There is no such question of yours.")).to_be_visible()
        press(page, "Check again")
        wait_until(lambda: len(host.seen["calls"]) == 2, "another call")


class TestHosts:
    @IN_EVERY_HOST_AND_ERA
    def test_one_that_drops_meta_is_served_by_the_id(self, open_host: Open, done: list[Any], era: Era) -> None:
        host = open_host(drops=["result", "calls"], era=era)
        press(host.show("cancel"), "Yes")
        host.until("messages")
        assert done == ["cancelled"]

    def test_one_that_has_meta_elsewhere(self, open_host: Open, done: list[Any]) -> None:
        host = open_host()
        meta = host.call("cancel").pop("_meta")
        script = f"<script>window.openai = {{ toolResponseMetadata: {json.dumps(meta)} }}</script>"
        press(host.mount("cancel", {}, {"content": []}, before=script), "Yes")
        host.until("messages")
        assert done == ["cancelled"]

    @IN_EVERY_HOST
    def test_one_that_calls_no_tools_is_said_to_be_so(self, open_host: Open) -> None:
        host = open_host(lacks=["serverTools"])
        page = host.show("cancel")
        expect(page.get_by_text("This application can't send your answer, so nothing has been done.")).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)

    @IN_EVERY_HOST
    @pytest.mark.parametrize("lacks", [["message", "updateModelContext"], ["message"]])
    def test_one_without_messages_is_told_what_to_do(self, open_host: Open, lacks: list[str]) -> None:
        host = open_host(lacks=lacks)
        page = host.show("cancel")
        press(page, "Yes")
        expect(page.get_by_role("status")).to_have_text("Write any message to go on.")
        if "updateModelContext" in lacks:
            assert host.seen["contexts"] == []
        else:
            assert len(host.until("contexts")) == 1

    def test_a_tool_that_does_not_ask_gets_no_room(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("greet")
        assert host.until("sizes")[-1]["height"] == 0
        host.request("ping")
        assert page.evaluate("document.querySelector('main').innerText") == ""
        assert host.seen["calls"] == []


class TestSafety:
    def test_text_of_others_is_text_and_nothing_secret_is_in_the_document(self, open_host: Open) -> None:
        host = open_host()
        result = host.call("cancel")
        page = host.mount("cancel", {}, result)
        expect(page.get_by_text(f"Cancel {MARKUP}?")).to_be_visible()
        asked = page.content()
        press(page, "Yes")
        expect(page.get_by_text(f"Cancelled {MARKUP}")).to_be_visible()
        host.until("messages")
        first = host.seen["calls"][0]["arguments"]
        assert first.keys() == {"ask", "token", "page"}
        said = str([host.seen[each] for each in ("messages", "contexts", "logs")])
        for secret in (first["token"], first["page"]):
            assert secret not in asked + page.content() + said
        assert page.locator("img, b, script").count() == 1  # the script of all pages
        assert host.errors == []


@IN_EVERY_HOST
class TestPeople:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_nothing_keeps_them_from_it_in_either_theme_at_260_pixels(self, open_host: Open, theme: str) -> None:
        host = open_host(width=260, context={"theme": theme})
        page = host.show("plan")
        press(page, "Send")
        expect(page.get_by_label("Name *")).to_be_focused()
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 260
        for tool in ("check_in", "pay", "cancel"):
            page = host.show(tool)
            expect(page.get_by_role("button").last).to_be_enabled()
            assert barriers(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == 260
        press(page, "Yes")
        expect(page.get_by_role("heading")).to_have_text("Your answer was sent")
        assert barriers(page) == []
