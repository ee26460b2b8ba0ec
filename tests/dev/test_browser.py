"""The page in a real browser: every kind of ask, tasks, failures, two users, and trouble on the way."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

from examples.round_robin import Replica, RoundRobin
from mrtr_server import BearerTokens, Context, MRTRServer

from ..support.browser import chromium
from ..support.front import running_front
from ..support.serving import KEYS, TIMEOUT, Process, in_process, in_thread
from ..support.wire import text_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the page, for all tests of this file."""
    log = tmp_path_factory.mktemp("page") / "log"
    environment = {"MRTR_KEYS": KEYS, "MRTR_DEBUG": "true"}
    with in_process("tests.support.page_app:app", log=log, environment=environment) as server:
        assert server.port, server.text
        found = re.search(r"/docs#token=[\w-]+", server.text)
        assert found, server.text
        yield f"http://127.0.0.1:{server.port}{found[0]}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def window(browser: Browser) -> Page:
    window = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    window.set_default_timeout(TIMEOUT * 1000)
    return window


@pytest.fixture
def page(window: Page, address: str) -> Iterator[Page]:
    """The page, loaded anew. No error may come to its console, and nothing may be asked of another host."""
    errors: list[str] = []

    def note_request(sent: Request) -> None:
        if not sent.url.startswith((address.partition("docs")[0], "data:")):
            errors.append(sent.url)

    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    def note_error(error: Exception) -> None:
        errors.append(str(error))

    window.goto("about:blank")  # or another fragment would not load it anew
    window.set_viewport_size({"width": 1280, "height": 900})
    window.on("request", note_request)
    window.on("console", note_message)
    window.on("pageerror", note_error)
    window.goto(address)
    expect(window.get_by_role("heading", level=1)).to_have_text("Travel desk")
    yield window
    window.evaluate("sessionStorage.clear()")  # what a tab keeps of its calls
    window.remove_listener("request", note_request)
    window.remove_listener("console", note_message)
    window.remove_listener("pageerror", note_error)
    # What the server refuses is an error to the browser, too.
    assert [error for error in errors if "responded with a status of 4" not in error] == []


def choose(page: Page, name: str) -> None:
    if page.locator("#opener").is_visible():  # in a narrow window
        page.locator("#opener").click()
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#entry h2")).to_have_text(name)


def call(page: Page, name: str, **arguments: str) -> Locator:
    """Call a tool; return its call on the page."""
    choose(page, name)
    form = page.locator("#entry")
    for label, value in arguments.items():
        form.get_by_label(label).fill(value)
    form.locator("button.call").click()
    return page.locator("article.flow").first


def pieces(flow: Locator) -> Locator:
    return flow.get_by_role("group", name="Pieces of the result")


def question(flow: Locator, number: int = -1) -> Locator:
    """The question that is open: the last of those that have come."""
    return flow.locator("form.question:not(.answered)").nth(number)


def press(where: Locator, name: str) -> None:
    where.get_by_role("button", name=name, exact=True).click()


def status(flow: Locator) -> Locator:
    return flow.locator(".chip.status").first


def result(flow: Locator) -> Locator:
    return flow.locator(".result").last


def fill_traveller(asked: Locator, name: str = "Ada Lovelace") -> None:
    asked.get_by_label("name").fill(name)
    asked.get_by_label("email").fill("ada@example.com")


class TestACall:
    def test_asks_its_questions_round_by_round_and_shows_its_result(self, page: Page) -> None:
        flow = call(page, "book_trip", town="Oslo")
        asked = question(flow)
        expect(asked).to_contain_text("Who travels on the 08:12 to Oslo?")
        fill_traveller(asked)
        asked.get_by_label("seat").select_option("aisle")
        asked.get_by_label("bags").fill("2")
        press(asked, "Accept")
        expect(question(flow)).to_contain_text("Pay 49 EUR for Ada Lovelace?")
        press(question(flow), "Yes")
        expect(result(flow)).to_have_text("ticket to Oslo for Ada Lovelace, aisle, 2 bags")
        expect(status(flow)).to_have_text("done")

        rounds = flow.locator("li.round")
        expect(rounds).to_have_count(3)
        expect(rounds.nth(0).locator(".chip.ran")).to_have_text("ran search")
        expect(rounds.nth(2).locator(".chip.replayed")).to_have_text("replayed search")
        expect(rounds.nth(2).locator(".chip.ran")).to_have_text("ran charge")
        expect(rounds.nth(0).locator(".chip.process")).to_have_text(re.compile(r"answered by process \d+ on "))

    def test_shows_what_goes_over_the_wire_and_what_the_journal_holds(self, page: Page) -> None:
        flow = call(page, "book_trip", town="Bergen")
        shown = flow.locator("li.round").first
        expect(shown.locator(".wire dl").first).to_contain_text("Mcp-Name")
        expect(shown.get_by_role("region", name="Request")).to_contain_text('"town": "Bergen"')
        expect(shown.get_by_role("region", name="Reply")).to_contain_text(re.compile(r'"requestState": "\S{16}… \('))
        expect(shown.locator(".journal")).to_contain_text('search: ["08:12 to Bergen","11:40 to Bergen"]')
        expect(shown.locator(".journal")).to_contain_text("traveller (form)")

    def test_shows_progress_and_the_log_as_they_come(self, page: Page) -> None:
        flow = call(page, "slow_search")
        expect(result(flow)).to_have_text("three railways")
        expect(flow.locator(".notes")).to_contain_text("Asked railway 3 of 3")
        expect(flow.locator(".notes")).to_contain_text("railway 2 answered")
        expect(flow.locator(".chip.process")).to_have_count(1)  # at the end of a stream, too
        expect(flow.locator(".chip.process")).to_be_hidden()  # one process answers, and it is no news which

    def test_shows_the_pieces_of_a_result_as_they_come(self, page: Page) -> None:
        call(page, "diary")
        flow = page.locator("article.flow", has_text="diary")
        expect(pieces(flow)).to_have_text("Day 1: Hamar.")
        expect(pieces(flow).locator("img")).to_have_count(1)
        expect(status(flow)).to_have_text("running")
        call(page, "go_on")
        expect(status(flow)).to_have_text("done")
        expect(pieces(flow)).to_have_count(0)
        expect(result(flow)).to_contain_text("Day 1: Hamar.")
        expect(result(flow)).to_contain_text("Day 2: Oslo.")

    def test_can_be_stopped(self, page: Page) -> None:
        flow = call(page, "forever")
        expect(flow.locator(".notes")).to_contain_text("waiting")
        press(flow, "Stop")
        expect(flow.locator(".says")).to_contain_text("You ended this request")

    def test_of_a_prompt_and_of_resources_shows_what_they_return(self, page: Page) -> None:
        expect(result(call(page, "itinerary", town="Rome"))).to_contain_text("Write an itinerary of 3 days in Rome.")
        expect(result(call(page, "timetable"))).to_contain_text("11:40 Bergen")
        expect(result(call(page, "weather", city="São Paulo"))).to_contain_text("São Paulo")


class TestAForm:
    def test_has_lists_objects_choices_and_unions(self, page: Page) -> None:
        choose(page, "plan_route")
        form = page.locator("#entry")
        for town in ("Oslo", "Voss"):
            press(form, "Add to stops")
            form.get_by_label("town").last.fill(town)
        form.get_by_label("limit").fill("120.5")
        form.get_by_label("Kind:").select_option(label="Tent")
        form.get_by_label("people").fill("2")
        form.get_by_label("busy").check()
        form.get_by_label("region").fill("süd")
        form.get_by_label("extra").fill('{"pets": ["dog"]}')
        form.locator("button.call").click()
        shown = page.locator("article.flow").first
        for part in (
            '"town": "Voss"',
            '"limit": 120.5',
            '"kind": "tent"',
            '"people": 2',
            '"busy"',
            '"süd"',
            '"dog"',
        ):
            expect(shown.locator(".result")).to_contain_text(part)
        expect(shown.locator(".wire dl").first).to_contain_text("=?base64?")

    def test_keeps_what_was_typed_when_its_own_link_is_followed(self, page: Page) -> None:
        first = page.get_by_role("navigation").get_by_role("link").first
        heading = page.locator("#entry h2")
        expect(heading).to_have_text(first.inner_text())  # shown before anybody chose it
        page.locator("#entry").get_by_label("town").fill("Oslo")
        first.click()
        expect(heading).to_be_focused()
        expect(page.locator("#entry").get_by_label("town")).to_have_value("Oslo")

    def test_keeps_what_was_typed_when_the_lists_are_read_again(self, page: Page) -> None:
        page.locator("#entry").get_by_label("town").fill("Oslo")
        page.locator("#settings > summary").click()
        page.get_by_label("Call as").fill("alice")
        with page.expect_response(lambda response: "resources/templates/list" in (response.request.post_data or "")):
            page.keyboard.press("Enter")
        page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 50))")
        expect(page.locator("#entry").get_by_label("town")).to_have_value("Oslo")

    def test_says_what_is_missing_and_sends_nothing(self, page: Page) -> None:
        choose(page, "book_trip")
        page.locator("#entry button.call").click()
        field = page.locator("#entry").get_by_label("town")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_be_focused()
        expect(page.locator("#entry .field-problem")).to_have_text("Please fill this in.")
        expect(page.locator("article.flow")).to_have_count(0)

    def test_can_be_filled_as_json(self, page: Page) -> None:
        choose(page, "book_trip")
        form = page.locator("#entry")
        form.get_by_label("town").fill("Oslo")
        press(form, "Edit as JSON")
        expect(form.get_by_label("Arguments as JSON")).to_have_value('{\n  "town": "Oslo"\n}')
        form.get_by_label("Arguments as JSON").fill('{"town": "Hamar"}')
        press(form, "Back to the form")
        expect(form.get_by_label("town")).to_have_value("Hamar")

    def test_of_a_question_is_checked_before_it_is_sent(self, page: Page) -> None:
        asked = question(call(page, "book_trip", town="Oslo"))
        asked.get_by_label("name").fill("A")
        asked.get_by_label("email").fill("nobody")
        press(asked, "Accept")
        expect(asked).to_contain_text("Please give at least 2 characters.")
        asked.get_by_label("name").fill("Ada")
        press(asked, "Accept")
        expect(asked.get_by_label("email")).to_be_focused()


class TestAQuestion:
    def test_of_the_person_and_of_the_model_come_and_go_together(self, page: Page) -> None:
        flow = call(page, "introduce")
        expect(flow.locator("form.question")).to_have_count(2)
        budget, message = question(flow, 0), question(flow, 1)
        budget.get_by_label("limit").fill("10")
        expect(message).to_contain_text("What is the capital of Norway?")
        expect(message).to_contain_text("Be brief.")
        press(budget, "Accept")
        expect(flow.locator("li.round")).to_have_count(1)
        flow.get_by_label("Answer in place of the model").fill("Oslo.")
        press(flow, "Send the message")
        expect(result(flow)).to_have_text("10 EUR. Oslo.")

    def test_may_be_for_folders(self, page: Page) -> None:
        flow = call(page, "folders")
        flow.get_by_label("Address, file://…").fill("file:///srv/trips")
        press(flow, "Send the folders")
        expect(result(flow)).to_have_text("file:///srv/trips")

    def test_may_be_a_page_that_is_only_a_link(self, page: Page) -> None:
        flow = call(page, "sign_in")
        link = question(flow).get_by_role("link")
        expect(link).to_have_attribute("href", "https://airline.example/login")
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(question(flow)).to_contain_text("airline.example")
        press(question(flow), "I have done it")
        expect(result(flow)).to_have_text("signed in")

    def test_may_be_a_page_that_reports_back(self, page: Page) -> None:
        flow = call(page, "check_in")
        with page.context.expect_page() as opened:
            question(flow).get_by_role("link").click()
        opened.value.wait_for_load_state()
        opened.value.close()
        press(question(flow), "I have done it")
        expect(result(flow)).to_have_text("14A")

    @pytest.mark.parametrize(("answer", "words"), [("No", "You declined."), ("Cancel", "You cancelled.")])
    def test_may_be_declined_and_cancelled(self, page: Page, answer: str, words: str) -> None:
        flow = call(page, "refund")
        press(question(flow), answer)
        expect(flow.locator(".decided")).to_have_text(words)
        expect(status(flow)).to_have_text("failed")

    def test_is_answered_with_the_keyboard_alone(self, page: Page) -> None:
        choose(page, "refund")
        page.keyboard.press("Tab")
        page.keyboard.type("B2")
        page.keyboard.press("Enter")
        flow = page.locator("article.flow").first
        expect(question(flow).get_by_role("button", name="Yes")).to_be_focused()
        page.keyboard.press("Enter")
        expect(result(flow)).to_have_text("ticket to B2")
        choose(page, "refund")
        page.locator("#entry button.call").press("Enter")
        expect(question(flow).get_by_role("button", name="Yes")).to_be_focused()
        page.keyboard.press("Escape")
        expect(flow.locator(".decided")).to_have_text("You cancelled.")


class TestAFailure:
    def test_of_the_tool_and_of_its_code_are_shown(self, page: Page) -> None:
        flow = call(page, "lost_luggage")
        expect(result(flow)).to_have_text("No bag has that number.")
        expect(status(flow)).to_have_text("failed")
        expect(result(call(page, "broken"))).to_contain_text("the conveyor stands still")

    def test_names_a_capability_that_was_switched_off(self, page: Page) -> None:
        page.locator("#settings > summary").click()
        page.get_by_label("Folders").uncheck()
        page.keyboard.press("Escape")
        flow = call(page, "folders")
        expect(flow.locator(".says")).to_contain_text("capability that this client did not declare: roots")

    def test_text_of_a_tool_is_never_markup(self, page: Page) -> None:
        flow = call(page, "postcard")
        text = '<img src=x onerror="document.title=1"><b>not bold</b>'
        expect(result(flow).locator(".prose").first).to_have_text(text)
        expect(result(flow).locator("img")).to_have_count(1)  # a PNG; an SVG is shown as JSON
        expect(result(flow)).to_contain_text("image/svg+xml")
        expect(result(flow).locator("a[target]")).to_have_count(1)  # an address of the web; any other is text
        assert page.title() == "Travel desk"


class TestTrouble:
    def test_a_lost_reply_is_safe_after_a_confirmation(self, page: Page) -> None:
        flow = call(page, "refund")
        press(flow, "Lose the next reply")
        press(question(flow), "Yes")
        expect(flow.locator(".second")).to_contain_text("ran nothing, and returned the outcome that was recorded")
        expect(result(flow)).to_have_text("ticket to A1")
        last = flow.locator("li.round").last
        expect(last.locator(".dropped").first.locator(".chip.ran")).to_have_text("ran charge")
        expect(last.locator(".round-head .chip.ran")).to_have_count(0)

    def test_a_second_delivery_at_once_has_one_effect(self, page: Page) -> None:
        flow = call(page, "refund")
        press(flow, "Deliver the next request twice")
        press(question(flow), "Yes")
        expect(flow.locator(".second")).to_contain_text("ran nothing, and returned the outcome that was recorded")
        expect(flow.locator("li.round").last.locator(".chip.ran")).to_have_count(1)

    def test_a_round_without_a_confirmation_runs_again_and_the_page_says_so(self, page: Page) -> None:
        flow = call(page, "book_trip", town="Oslo")
        press(flow, "Send this request again")
        expect(flow.locator(".second")).to_contain_text("so the function began again. Steps that ran again: search.")
        fill_traveller(question(flow))
        press(question(flow), "Accept")
        expect(flow.locator("li.round")).to_have_count(2)
        press(flow.locator("li.round").last, "Send this request again")
        expect(flow.locator(".second").last).to_contain_text("against the journal in the state")


class TestAnotherUser:
    def test_can_not_continue_what_belongs_to_somebody_else(self, page: Page) -> None:
        page.locator("#settings > summary").click()
        page.get_by_label("Call as").fill("alice")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        flow = call(page, "book_trip", town="Oslo")
        fill_traveller(question(flow))
        press(question(flow), "Accept")
        second = flow.locator("li.round").last
        expect(second.locator(".chip.user")).to_have_text("as alice")
        expect(second.locator(".journal").first).to_contain_text("the user who called")
        press(second, "as bob")
        expect(flow.locator(".second")).to_contain_text("The server refused it.")
        press(question(flow), "Yes")
        expect(result(flow)).to_contain_text("ticket to Oslo")

    def test_is_whom_the_tool_sees(self, page: Page) -> None:
        expect(result(call(page, "whoami"))).to_have_text("nobody")
        page.locator("#settings > summary").click()
        page.get_by_label("Call as").fill("carol")
        page.keyboard.press("Tab")
        expect(result(call(page, "whoami"))).to_have_text("carol")

    def test_has_a_token_where_the_server_wants_one(self, window: Page) -> None:
        app = MRTRServer("vault", keys=[bytes(32)], docs=True, debug=True, auth=BearerTokens({"token-of-dora": "dora"}))

        @app.tool
        async def whoami(ctx: Context) -> str:
            return ctx.principal.subject if ctx.principal else "nobody"

        with in_thread(app, wait=False) as port:
            window.goto(f"http://127.0.0.1:{port}/docs")
            expect(window.locator("#welcome")).to_contain_text(
                "Authentication is required. If the server wants a token"
            )
            window.locator("#settings > summary").click()
            window.get_by_label("Bearer token").fill("token-of-dora")
            window.keyboard.press("Tab")
            flow = call(window, "whoami")
            expect(result(flow)).to_have_text("dora")
            expect(flow.locator(".wire").first).to_contain_text("Bearer …")
            expect(flow.locator(".wire").first).not_to_contain_text("token-of-dora")
            expect(window.get_by_label("Call as")).to_be_disabled()
            expect(flow.get_by_role("button", name="as bob")).to_have_count(0)
            window.goto("about:blank")


class TestATask:
    def test_is_followed_answered_and_ends_with_its_result(self, page: Page) -> None:
        flow = call(page, "charter", seats="12")
        expect(status(flow)).to_have_text("a task")
        asked = question(flow)
        expect(asked).to_contain_text("What may it cost?")
        asked.get_by_label("limit").fill("900")
        press(asked, "Accept")
        expect(result(flow)).to_have_text("a bus with 12 seats for at most 900 EUR")
        expect(status(flow)).to_have_text("done")
        told = flow.locator(".history li").all_inner_texts()
        assert [line for line in told if line.startswith("input_required")] == [
            "input_required: Asked 3 of 3 companies"
        ]
        rounds = flow.locator(".task-rounds li")
        expect(rounds.nth(0).locator(".chip.ran")).to_have_count(3)
        expect(rounds.nth(1).locator(".chip.replayed")).to_have_count(3)
        expect(flow.locator(".journal").last).to_contain_text('budget: [{"action":"accept","content":{"limit":900')

    def test_can_be_cancelled(self, page: Page) -> None:
        flow = call(page, "charter")
        expect(question(flow)).to_be_visible()
        press(flow, "Cancel the task")
        expect(status(flow)).to_have_text("cancelled")

    def test_of_the_drafts_is_followed_as_well(self, page: Page) -> None:
        page.locator("#settings > summary").click()
        page.get_by_label("Protocol version").select_option(label="The drafts (SEP)")
        page.keyboard.press("Escape")
        flow = call(page, "charter")
        asked = question(flow)
        asked.get_by_label("limit").fill("7")
        press(asked, "Accept")
        expect(result(flow)).to_have_text("a bus with 20 seats for at most 7 EUR")

    def test_of_the_drafts_shows_the_pieces_of_its_result_and_who_answered(self, page: Page) -> None:
        page.locator("#settings > summary").click()
        page.get_by_label("Protocol version").select_option(label="The drafts (SEP)")
        page.keyboard.press("Escape")
        call(page, "voyage")
        flow = page.locator("article.flow", has_text="voyage")
        expect(pieces(flow)).to_have_text("Day 1: Hamar.")
        expect(flow.locator(".task-wire .chip.process")).to_have_text(re.compile(r"answered by process \d+ on "))
        call(page, "go_on")
        expect(result(flow)).to_contain_text("Day 2: Oslo.")
        expect(pieces(flow)).to_have_count(0)


class TestSuggestions:
    def test_come_from_the_server_as_a_person_types(self, page: Page) -> None:
        choose(page, "itinerary")
        field = page.locator("#entry").get_by_label("town")
        field.fill("b")
        expect(page.locator("#entry")).to_contain_text("2 suggested by the server")
        listed = page.locator("#entry datalist option")
        assert [each.get_attribute("value") for each in listed.all()] == ["Bergen", "Bodø"]
        choose(page, "weather")
        page.locator("#entry").get_by_label("city").press_sequentially("am")
        expect(page.locator("#entry")).to_contain_text("1 suggested by the server")

    def test_that_fail_say_so(self, page: Page) -> None:
        choose(page, "weather")
        page.locator("#entry").get_by_label("city").fill("?")
        expect(page.locator("#entry")).to_contain_text("The server suggests nothing: No city has that name.")
        page.locator("#entry").get_by_label("city").fill("Oslo")
        expect(page.locator("#entry")).to_contain_text("1 suggested by the server")


class TestACommand:
    def test_that_is_copied_sends_the_same_request(self, page: Page) -> None:
        flow = call(page, "itinerary", town='O\'Higgins $HOME `id` \\ "!"')
        expect(result(flow)).to_contain_text("O'Higgins")
        reply = command_of(page, flow)
        assert 'O\'Higgins $HOME `id` \\ "!"' in reply["result"]["messages"][0]["content"]["text"]

    def test_of_a_later_round_has_its_state_and_its_user(self, page: Page) -> None:
        page.locator("#settings > summary").click()
        page.get_by_label("Call as").fill("alice")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        flow = call(page, "refund")
        press(question(flow), "Yes")
        expect(result(flow)).to_have_text("ticket to A1")
        assert text_of(command_of(page, flow)) == "ticket to A1"


def command_of(page: Page, flow: Locator) -> dict[str, Any]:
    """Copy the last request of a call as a command, and run it; return the reply."""
    flow.get_by_role("button", name="Copy as curl: this request").last.click()
    expect(flow.get_by_role("button", name="Copy as curl: this request").last).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    token = page.evaluate("sessionStorage.getItem('mrtr-page-token')")
    assert token not in command
    given = {**os.environ, "PAGE_TOKEN": token}
    replied = subprocess.run(
        ["sh", "-c", command], check=True, capture_output=True, text=True, timeout=TIMEOUT, env=given
    ).stdout
    message = next((line[5:] for line in replied.splitlines() if line.startswith("data:")), replied)
    found: dict[str, Any] = json.loads(message)
    return found


class TestItsToken:
    def test_is_taken_out_of_the_address_and_kept_for_the_tab(self, page: Page, address: str) -> None:
        assert page.url == address.partition("#")[0]
        page.reload()
        flow = call(page, "book_trip", town="Oslo")
        expect(flow.locator(".journal").first).to_contain_text("search")
        assert address.partition("=")[2] not in page.content()

    def test_may_stand_before_the_entry_that_is_to_be_shown(self, page: Page, address: str) -> None:
        page.goto("about:blank")
        page.goto(f"{address}&tool/refund")
        expect(page.locator("#entry h2")).to_have_text("refund")
        assert page.url.endswith("/docs#tool/refund")

    def test_is_asked_for_where_it_is_missing(self, browser: Browser, address: str) -> None:
        page = browser.new_context().new_page()
        where, _, token = address.partition("#token=")
        page.goto(where)
        locked = page.get_by_role("form", name="Token of the page")
        expect(locked).to_contain_text("need the token that the server printed")
        flow = call(page, "book_trip", town="Oslo")  # as any client may
        expect(flow.locator(".journal").first).to_contain_text("It lacks the token of the page")
        for given, left in (("wrong", 1), (token, 0)):
            locked.get_by_label("Token of the page").fill(given)
            press(locked, "Use it")
            page.wait_for_load_state("load")
            expect(page.locator("#entry h2")).to_be_visible()
            expect(locked).to_have_count(left)
        flow = call(page, "book_trip", town="Oslo")
        expect(flow.locator(".journal").first).to_contain_text("search")
        page.close()


class TestReplicas:
    """Behind a front, with `docs=True` and no `debug=True`, the page works with whichever replica answers."""

    def test_continue_each_others_flows_and_tasks(self, window: Page, tmp_path: Path) -> None:
        with replicas(tmp_path) as (address, processes):
            window.goto("about:blank")
            window.goto(address)
            flow = call(window, "book_trip", town="Oslo")
            fill_traveller(question(flow))
            press(question(flow), "Accept")
            press(question(flow), "Yes")
            expect(result(flow)).to_have_text("ticket to Oslo for Ada Lovelace, window, 1 bags")
            names = flow.locator("li.round .chip.process").all_inner_texts()
            assert len(names) == 3
            assert len(set(names)) == 2
            expect(flow.locator("li.round .chip.process").first).to_be_visible()
            assert all(re.fullmatch(r"answered by replica [0-9a-f]{6}", name) for name in names)
            expect(flow.locator(".journal").first).to_contain_text("The page can't open it")

            flow = call(window, "charter")
            expect(question(flow)).to_contain_text("What may it cost?")
            before = flow.locator("li.round .chip.process").first.inner_text()
            served_by = flow.locator("li.round .wire dl").nth(1).inner_text()
            first = next(number for number in (1, 2) if f"replica {number}" in served_by)
            processes[first - 1].stop()
            question(flow).get_by_label("limit").fill("900")
            press(question(flow), "Accept")
            answered = flow.locator(".task-wire .chip.process")
            expect(answered.first).not_to_have_text(before)
            expect(result(flow)).to_have_text("a bus with 20 seats for at most 900 EUR")
            window.goto("about:blank")


@contextmanager
def replicas(folder: Path) -> Iterator[tuple[str, list[Process]]]:
    """Serve the page by two processes with one database, behind a front that takes them in turn."""
    environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{folder}/shared.db"}
    target = "tests.support.page_app:app"
    with (
        in_process(target, log=folder / "one", environment=environment) as one,
        in_process(target, log=folder / "two", environment=environment) as two,
    ):
        front = RoundRobin([Replica(one.port, "replica 1"), Replica(two.port, "replica 2")])
        with running_front(front) as port:
            yield f"http://127.0.0.1:{port}/docs", [one, two]


class TestItsLook:
    @pytest.mark.parametrize("width", [320, 768, 1280])
    def test_nothing_is_wider_than_the_window(self, page: Page, width: int) -> None:
        page.set_viewport_size({"width": width, "height": 800})
        flow = call(page, "book_trip", town="Oslo")
        expect(question(flow)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    def test_a_narrow_window_has_room_for_the_settings_and_shows_which_entry_is_chosen(self, page: Page) -> None:
        page.set_viewport_size({"width": 320, "height": 800})
        page.locator("#settings > summary").click()
        box = page.locator("#settings-panel").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 320
        page.keyboard.press("Escape")
        page.goto(f"{page.url}#template/{quote('weather://{city}', safe='')}")
        expect(page.locator("#entry h2")).to_have_text("weather")
        expect(page.get_by_role("navigation").get_by_role("button")).to_have_text("weather")

    def test_it_follows_the_colours_of_the_system(self, page: Page) -> None:
        seen = set()
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(seen) == 2

    def test_what_is_there_does_not_move_while_it_loads(self, browser: Browser, address: str) -> None:
        page = browser.new_page()
        page.add_init_script(
            "window.shift = 0; new PerformanceObserver(list => { for (const each of list.getEntries()) "
            "window.shift += each.value; }).observe({type: 'layout-shift', buffered: true});"
        )
        page.goto(address)
        expect(page.locator("#entry h2")).to_be_visible()
        assert page.evaluate("window.shift") < 0.02
        page.close()

    def test_the_filter_finds_names_and_escape_clears_it(self, page: Page) -> None:
        page.get_by_label("Filter by name").fill("trip")
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.get_by_role("navigation").get_by_role("link", name="whoami")).to_be_visible()


def test_no_text_of_a_file_names_another_host() -> None:
    folder = Path(__file__).parents[2] / "mrtr_server" / "dev" / "page_files"
    address = re.compile(r"""https?://[^:"\]]+|["'(]//\w+""")
    assert [address.findall(file.read_text()) for file in folder.iterdir()] == [[] for _ in folder.iterdir()]
