"""examples/approvals.py: a page whose buttons call a tool that asks the person."""

import pytest
from pydantic_core import from_json

from examples import approvals
from mrtr_server.testing import Client, decline, yes

from .conftest import Start
from .pasting import needs_curl, replies

ERAS = ("2026-07-28", "2025-11-25")


@pytest.fixture(autouse=True)
def _expenses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "EXPENSES", dict(approvals.EXPENSES))


@pytest.mark.parametrize("era", ERAS)
class TestThePage:
    def test_lists_what_waits_and_has_the_tool_that_decides(self, era: str) -> None:
        client = Client(approvals.app, ui=True, era=era)
        assert client.page("expenses").calls == ["decide", "expenses"]
        done = client.as_app("expenses").call("decide", number=2, approve=True, answers={"confirm": yes})
        assert done.structured["state"] == "approved"
        assert [each["number"] for each in from_json(client.call("expenses").text)] == [1, 3]

    def test_decides_nothing_without_a_yes(self, era: str) -> None:
        client = Client(approvals.app, ui=True, era=era)
        app = client.as_app("expenses")
        assert app.call("decide", number=2, approve=True, answers={"confirm": decline}).failed
        assert len(from_json(client.call("expenses").text)) == 3

    def test_asks_nobody_about_what_is_decided(self, era: str) -> None:
        app = Client(approvals.app, ui=True, era=era).as_app("expenses")
        app.call("decide", number=2, approve=False, answers={"confirm": yes})
        assert app.call("decide", number=2, approve=True).structured["state"] == "rejected"

    def test_hears_which_expenses_there_are(self, era: str) -> None:
        app = Client(approvals.app, ui=True, era=era).as_app("expenses")
        assert "no expense 9" in app.call("decide", number=9, approve=True).failure


def test_a_client_without_apps_is_not_shown_what_decides() -> None:
    client = Client(approvals.app, capabilities={"elicitation": {}})
    assert [tool["name"] for tool in client.request("tools/list").result["tools"]] == ["expenses"]


def test_a_model_that_decides_is_asked_too() -> None:
    assert Client(approvals.app).flow("decide", number=1, approve=True).start().asks.keys() == {"confirm"}


@needs_curl
def test_the_lines_of_the_docstring_work(start: Start) -> None:
    asked, done = replies(approvals, start("approvals").url)
    assert asked["result"]["inputRequests"]["confirm"]["params"]["message"] == "Pay 310 € to Bo for a monitor?"
    assert done["result"]["structuredContent"] == approvals.EXPENSES[2].model_dump() | {"state": "approved"}
