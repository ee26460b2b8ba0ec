"""examples/seats.py: a form that a page draws for those who draw forms by pages, and a form for all others."""

from typing import Any

import pytest

from examples import seats
from mrtr_server.testing import Client, accept, decline

from .conftest import Start
from .pasting import needs_curl, replies

UI = "io.modelcontextprotocol/ui"
MIME_TYPES = ["text/html;profile=mcp-app"]
DRAWS: dict[str, Any] = {
    "elicitation": {"form": {}},
    "extensions": {UI: {"mimeTypes": MIME_TYPES, "elicitation": {}}},
}
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}
DRAWS_ALONE: dict[str, Any] = {"extensions": {UI: {"mimeTypes": MIME_TYPES}}}
ERAS = ("2026-07-28", "2025-11-25")


@pytest.fixture(autouse=True)
def _flights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "TAKEN", {flight: dict(taken) for flight, taken in seats.TAKEN.items()})


@pytest.mark.parametrize("era", ERAS)
class TestTheQuestion:
    def test_is_the_same_form_with_the_page_or_without(self, era: str) -> None:
        asked = []
        for capabilities in (DRAWS, ASKS):
            flow = Client(seats.app, era=era, capabilities=capabilities).flow("book_seat", flight="MR12")
            asked.append(dict(flow.start().asks["seat"].params))
            seat = f"{len(asked)}C"
            assert flow.answer(seat={"seat": seat}).text == f"Booked {seat} on MR12"
        drawn, native = asked
        assert drawn["_meta"]["ui"]["resourceUri"].startswith("ui://seats/v-")
        assert "_meta" not in native
        offered = [each["requestedSchema"]["properties"]["seat"]["enum"] for each in asked]
        assert {"1C", "2C"} <= set(offered[0])
        assert not {"1A", "1B", "2D", "4C"} & set(offered[0])
        assert set(offered[0]) - set(offered[1]) == {"1C"}

    def test_takes_no_seat_that_it_did_not_offer_and_no_answer_for_a_no(self, era: str) -> None:
        client = Client(seats.app, era=era, capabilities=ASKS)
        flow = client.flow("book_seat", flight="MR12")
        flow.start()
        assert flow.answer(seat=accept(seat="1A")).asks.keys() == {"seat"}
        assert flow.answer(seat=decline).failed
        assert seats.TAKEN["MR12"].keys() == {"1A", "1B", "2D", "4C"}

    def test_is_not_asked_where_nothing_is_free(self, era: str) -> None:
        client = Client(seats.app, era=era, capabilities=ASKS)
        assert client.call("book_seat", flight="MR34").failure == "No seat is free on MR34."


def test_who_was_slower_books_nothing() -> None:
    flow = Client(seats.app, capabilities=ASKS).flow("book_seat", flight="MR12")
    flow.start()
    seats.TAKEN["MR12"]["3C"] = "another passenger"
    assert "taken meanwhile" in flow.answer(seat={"seat": "3C"}).failure


def test_an_answer_that_comes_twice_books_once() -> None:
    flow = Client(seats.app, capabilities=ASKS).flow("book_seat", flight="MR12")
    flow.start()
    assert {flow.answer(seat={"seat": "3C"}).text, flow.replay().text} == {"Booked 3C on MR12"}


def test_a_host_that_draws_apps_and_cannot_ask_gets_the_list_in_a_page() -> None:
    client = Client(seats.app, capabilities=DRAWS_ALONE)
    assert client.page("book_seat").uri == "ui://mrtr/question.html"


@needs_curl
def test_the_lines_of_the_docstring_work(start: Start) -> None:
    asked, done = replies(seats, start("seats").url)
    question = asked["result"]["inputRequests"]["seat"]["params"]
    assert question["_meta"]["ui"]["resourceUri"].startswith("ui://seats/v-")
    assert done["result"]["content"][0]["text"] == "Booked 3C on MR12"
