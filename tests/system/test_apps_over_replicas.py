"""Questions in apps: npm's AppBridge in Chromium, and three replicas behind a round robin, in both eras.

No effect twice, none without the person, no swallowed no, and no question that nobody sees.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Error, Frame, Locator, expect
from pydantic import TypeAdapter

from examples.round_robin import Replica, RoundRobin

from ..support.app_host import ERAS, AppHost, AppHosts, Era
from ..support.front import running_front
from ..support.serving import KEYS, Process, in_process, wait_until

pytestmark = pytest.mark.parametrize("era", ERAS)

ASK = "mrtr-server/ask"
YES = {"confirm": {"action": "accept", "content": {"confirm": True}}}


class Fleet:
    """Three replicas behind a front, and the ledger of what they did.

    Args:
        folder: with the ledger and the logs.
        url: of the front.
        servers: the replicas.
    """

    def __init__(self, folder: Path, url: str, servers: list[Process]) -> None:
        self.folder = folder
        self.url = url
        self.servers = servers

    def effects(self, title: str) -> list[str]:
        """Return what was done for the calls with a title."""
        return [what for what, _ in self.rows(title)]

    def rows(self, title: str) -> list[tuple[str, int]]:
        """Return the same, with the process of each."""
        text = (self.folder / "ledger").read_text() if (self.folder / "ledger").exists() else ""
        rows = [TypeAdapter(tuple[str, str, int]).validate_json(line) for line in text.splitlines()]
        return [(what, process) for each, what, process in rows if each == title]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Fleet]]:
    """Start the fleet of this file; one that lost a replica is left behind."""
    with ExitStack() as stack:
        fleets: list[Fleet] = []

        def start() -> Fleet:
            if fleets and all(server.process.poll() is None for server in fleets[-1].servers):
                return fleets[-1]
            folder = tmp_path_factory.mktemp("asked")
            environment = {"MRTR_KEYS": KEYS, "ASKED_DIR": str(folder)}
            servers = [
                stack.enter_context(
                    in_process("tests.support.asked_app:app", log=folder / f"log-{number}", environment=environment)
                )
                for number in range(3)
            ]
            assert all(server.port for server in servers), servers[0].text
            front = RoundRobin([Replica(server.port, f"replica {server.port}") for server in servers])
            port = stack.enter_context(running_front(front))
            fleets.append(Fleet(folder, f"http://127.0.0.1:{port}/mcp", servers))
            return fleets[-1]

        yield start


@pytest.fixture
def fleet(running: Callable[[], Fleet]) -> Fleet:
    return running()


@pytest.fixture
def title() -> str:
    """What a test's calls are about, and nobody else's; it is text, whatever it looks like."""
    return f"<img src=x onerror=alert(1)><b>{uuid4().hex[:8]}</b>"


@pytest.fixture
def host(fleet: Fleet, hosts: AppHosts, era: Era) -> AppHost:
    """A host of Ann's that draws apps and does not elicit."""
    return open_host(fleet, hosts, era)


def open_host(fleet: Fleet, hosts: AppHosts, era: Era, user: str = "ann", **manner: Any) -> AppHost:
    return hosts.connect(fleet.url, era=era, headers={"Authorization": f"Bearer token of {user}"}, **manner)


def press(page: Frame, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def outcome(page: Frame) -> Locator:
    return page.get_by_role("heading")


def text_of(result: Any) -> str:
    return "\n".join(each["text"] for each in result["content"])


class TestAnswers:
    def test_a_form_and_then_a_yes_whatever_is_repeated_on_the_way(
        self, host: AppHost, fleet: Fleet, title: str
    ) -> None:
        """A value out of range, loads in the middle and at the end, and the model that calls again."""
        assert "outputSchema" not in host.tools["order"]
        result = host.call("order", title=title)
        assert result["isError"] is False
        page = host.mount("order", {"title": title}, result)
        page.get_by_label("Copies").fill("99")
        press(page, "Send")
        expect(page.get_by_label("Copies")).to_be_focused()
        page.get_by_label("Copies").fill("2")
        press(page, "Send")
        expect(page.get_by_text(f"Order 2 of {title}?")).to_be_visible()
        again = host.call("order", title=title)
        assert again["_meta"][ASK]["id"] == result["_meta"][ASK]["id"]
        page = host.reload()
        expect(page.get_by_text(f"Order 2 of {title}?")).to_be_visible()
        assert fleet.effects(title) == ["reserved"]
        press(page, "Yes")
        expect(outcome(page)).to_have_text("Your answer was sent")
        page = host.reload()
        expect(outcome(page)).to_have_text("This was answered before")
        assert host.call("mrtr_result", ask=result["_meta"][ASK]["id"])["structuredContent"] == {"copies": 2}
        assert fleet.effects(title) == ["reserved", "ordered 2"]
        assert page.locator("img, b").count() == 0
        assert host.errors == []

    def test_each_kind_of_field_arrives(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("plan", title=title)
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        texts = {
            "Name": "Ada",
            "Seats": "3",
            "Weight": "1.5",
            "Mail": "ada@example.com",
            "Site": "https://example.com/",
        }
        dates = {"Day": "2026-01-02", "At": "2026-07-01T10:30", "Note": "two\nlines"}
        for label, value in (texts | dates).items():
            page.get_by_label(re.compile(rf"^{label}( \*)?$")).fill(value)
        for label, choice in {"Window": "No", "Fare": "first", "Meal": "tofu"}.items():
            page.get_by_label(re.compile(rf"^{label}( \*)?$")).select_option(choice)
        page.get_by_label("bike").check()
        page.get_by_role("button", name="Send", exact=True).press("Enter")
        expect(outcome(page)).to_have_text("Your answer was sent")
        (written,) = fleet.effects(title)
        trip = TypeAdapter(dict[str, Any]).validate_json(written)
        at = page.evaluate("new Date('2026-07-01T10:30').toISOString()")
        assert datetime.fromisoformat(trip.pop("at")) == datetime.fromisoformat(at)
        assert trip == {
            "name": "Ada",
            "seats": 3,
            "weight": 1.5,
            "window": False,
            "fare": "first",
            "meal": "tofu",
            "extras": ["bike"],
            "mail": "ada@example.com",
            "site": "https://example.com/",
            "day": "2026-01-02",
            "note": "two\nlines",
        }

    def test_a_no_is_a_no_whoever_says_yes_afterwards(self, host: AppHost, fleet: Fleet, title: str) -> None:
        result = host.call("dispatch", title=title)
        press(host.mount("dispatch", {"title": title}, result), "No")
        host.until("messages")
        ask = host.seen["calls"][0]["arguments"]
        late = host.call("mrtr_answer", hidden=True, **ask, answers=YES)
        assert "answer" in text_of(late)
        page = host.reload()
        expect(outcome(page)).to_have_text("This was answered before")
        assert host.call("mrtr_result", ask=ask["ask"])["isError"] is True
        assert fleet.effects(title) == []

    def test_a_yes_and_a_no_at_once_have_one_outcome(
        self, host: AppHost, fleet: Fleet, hosts: AppHosts, era: Era, title: str
    ) -> None:
        other = open_host(fleet, hosts, era)
        result = host.call("dispatch", title=title)
        pages = [each.mount("dispatch", {"title": title}, result) for each in (host, other)]
        for page, name in zip(pages, ("Yes", "No"), strict=True):
            expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled()
            page.evaluate(
                "name => void setTimeout(() => [...document.querySelectorAll('button')]"
                ".find((each) => each.textContent === name).click(), 50)",
                name,
            )
        for page in pages:
            expect(page.locator("#text")).to_be_visible()
        texts = {page.locator("#text").inner_text() for page in pages}
        ended = host.call("mrtr_result", ask=result["_meta"][ASK]["id"])
        assert texts == {text_of(ended)}
        assert fleet.effects(title) == ([] if ended["isError"] else ["begin", "shipped"])

    def test_a_form_that_is_sent_twice_counts_once(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("survey", title=title)
        page.get_by_label("Copies").fill("3")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        page.get_by_role("button", name="Send", exact=True).dblclick()
        expect(outcome(page)).to_have_text("Your answer was sent")
        (sent,) = [each["arguments"] for each in host.until("calls") if "answers" in each["arguments"]]
        changed = {"amount": {"action": "accept", "content": {"copies": 4}}}
        for answers in (sent["answers"], changed):
            host.call("mrtr_answer", hidden=True, **{**sent, "answers": answers})
        assert fleet.effects(title) == ["counted 3"]

    def test_one_that_comes_too_late_does_nothing(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("hurry", title=title)
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()
        page.evaluate("new Promise((done) => setTimeout(done, 1500))")
        press(page, "Yes")
        expect(page.get_by_text("The question was not answered in time")).to_be_visible()
        assert fleet.effects(title) == []

    def test_an_address_is_opened_by_the_host(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("pay", title=title)
        press(page, "Open the page")
        expect(page.get_by_text("The page was opened.")).to_be_visible()
        assert (len(host.seen["links"]), fleet.effects(title)) == (1, [])
        press(page, "Continue")
        expect(outcome(page)).to_have_text("Your answer was sent")
        assert fleet.effects(title) == ["paid"]

    def test_a_tool_that_does_not_ask_gets_no_room(self, host: AppHost, fleet: Fleet, title: str) -> None:
        host.show("greet", title=title)
        assert host.until("sizes")[-1]["height"] == 0
        assert host.request("ping") == {}
        assert (host.seen["calls"], fleet.effects(title)) == ([], ["greeted"])


class TestWhoAnswers:
    def test_is_neither_another_user_nor_the_model(
        self, host: AppHost, fleet: Fleet, hosts: AppHosts, era: Era, title: str
    ) -> None:
        ask = host.call("dispatch", title=title)["_meta"][ASK]
        page = host.mount("dispatch", {"title": title}, {"content": [], "_meta": {ASK: ask}})
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()
        own = host.until("calls")[0]["arguments"]
        other = open_host(fleet, hosts, era, user="bob")
        as_bob = other.mount("dispatch", {"title": title}, {"content": [], "_meta": {ASK: ask}})
        expect(as_bob.get_by_text("There is no such question of yours.")).to_be_visible()
        another = host.call("dispatch", title=f"{title} too")["_meta"][ASK]
        for forged in (
            {"ask": ask["id"], "answers": YES},
            {"ask": ask["id"], "token": ask["token"], "answers": YES},
            {**own, "page": "0" * 32, "answers": YES},
            {**own, "token": "forged", "answers": YES},
            {**own, "token": another["token"], "answers": YES},
            {"page": own["page"], "answers": YES},
        ):
            try:
                result = host.call("mrtr_answer", hidden=True, **forged)
            except Error:
                continue  # an error of the protocol, such as for what is left out
            assert "outcome" not in result.get("structuredContent", {}), forged
        assert (fleet.effects(title), fleet.effects(f"{title} too")) == ([], [])
        press(page, "Yes")
        expect(outcome(page)).to_have_text("Your answer was sent")
        assert fleet.effects(title) == ["begin", "shipped"]


class TestHosts:
    @pytest.mark.parametrize("drops", [["result"], ["result", "calls"]])
    def test_that_drop_meta_are_served(
        self, fleet: Fleet, hosts: AppHosts, era: Era, title: str, drops: list[Any]
    ) -> None:
        page = open_host(fleet, hosts, era, drops=drops).show("dispatch", title=title)
        press(page, "Yes")
        expect(outcome(page)).to_have_text("Your answer was sent")
        assert fleet.effects(title) == ["begin", "shipped"]

    def test_that_call_no_tools_for_pages_say_so(self, fleet: Fleet, hosts: AppHosts, era: Era, title: str) -> None:
        page = open_host(fleet, hosts, era, lacks=["serverTools"]).show("dispatch", title=title)
        expect(page.get_by_text("This application can't send your answer, so nothing has been done.")).to_be_visible()
        assert fleet.effects(title) == []

    def test_that_take_no_messages_say_what_to_do(self, fleet: Fleet, hosts: AppHosts, era: Era, title: str) -> None:
        page = open_host(fleet, hosts, era, lacks=["message", "updateModelContext"]).show("dispatch", title=title)
        press(page, "Yes")
        expect(page.get_by_role("status")).to_have_text("Write any message to go on.")
        assert fleet.effects(title) == ["begin", "shipped"]

    @pytest.mark.parametrize("action", ["accept", "decline"])
    def test_that_elicit_ask_by_themselves(
        self, fleet: Fleet, hosts: AppHosts, era: Era, title: str, action: str
    ) -> None:
        answer = {"action": action, **({"content": {"confirm": True}} if action == "accept" else {})}
        host = open_host(fleet, hosts, era, answer=answer)
        result = host.call("dispatch", title=title)
        assert [each["message"] for each in host.seen["asked"]] == [f"Ship {title}?"]
        assert ASK not in result.get("_meta", {})
        assert fleet.effects(title) == (["begin", "shipped"] if action == "accept" else [])

    def test_that_can_not_ask_at_all_are_told_what_is_missing(
        self, fleet: Fleet, hosts: AppHosts, era: Era, title: str
    ) -> None:
        host = open_host(fleet, hosts, era, capabilities={})
        with pytest.raises(Error, match="elicitation"):
            host.call("dispatch", title=title)
        assert fleet.effects(title) == []


class TestFormsOfPages:
    """A form that names a page, in a host that draws it (SEP-3118)."""

    @pytest.mark.parametrize("name", ["Take 2", "Leave"])
    def test_are_drawn_by_it_and_answered_once(
        self, fleet: Fleet, hosts: AppHosts, era: Era, title: str, name: str
    ) -> None:
        host = open_host(fleet, hosts, era, answer="page")
        host.begin("reserve", title=title)
        host.until_handshake()
        expect(host.page.get_by_role("heading")).to_have_text(f"Which seats for {title}?")
        press(host.page, name)
        assert host.finished()["isError"] is (name == "Leave")
        assert fleet.effects(title) == ([] if name == "Leave" else ["reserved 2"])
        assert len(host.seen["asked"]) == 1


class TestAReplicaThatIsKilled:
    def test_between_the_rounds_is_not_missed(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("order", title=title)
        page.get_by_label("Copies").fill("2")
        press(page, "Send")
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()
        ((_, process),) = fleet.rows(title)
        os.kill(process, signal.SIGKILL)
        press(page, "Yes")
        expect(outcome(page)).to_have_text("Your answer was sent")
        assert fleet.effects(title) == ["reserved", "ordered 2"]

    def test_in_the_middle_of_an_answer_is_followed_by_another(self, host: AppHost, fleet: Fleet, title: str) -> None:
        page = host.show("dispatch", title=title)
        expect(page.get_by_role("button", name="Yes")).to_be_enabled()
        hold = fleet.folder / "hold"
        hold.touch()
        press(page, "Yes")
        wait_until(lambda: fleet.effects(title) == ["begin"], "the shipment to begin")
        ((_, process),) = fleet.rows(title)
        os.kill(process, signal.SIGKILL)
        hold.unlink()
        expect(page.get_by_role("alert")).to_have_text("Failed to fetch")
        press(page, "Yes")
        expect(outcome(page)).to_have_text("Your answer was sent")
        # The step that was cut in the middle ran again, and the other has the outcome.
        assert fleet.effects(title) == ["begin", "begin", "shipped"]
        assert {other for what, other in fleet.rows(title) if what == "shipped"} != {process}
