"""examples/itinerary.py: a result in pieces, with a question in the middle."""

import json

import pytest

from examples import itinerary
from mrtr_server.testing import Client

from ..support.wire import Wire
from .conftest import Start
from .pasting import commands, needs_curl, paste

DAYS = ["3 days in Lisbon.\n", "Day 1: the castle.\n", "Day 2: the old town.\n", "Day 3: the river.\n"]
EVENING = "Each evening: a concert.\n"


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("itinerary")


def test_the_pieces_come_once_and_the_result_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itinerary, "PACE", 0)
    flow = Client(itinerary.app, stream=True).flow("plan", city="Lisbon", days=3)
    assert [piece["text"] for piece in flow.start().pieces] == DAYS
    done = flow.answer(taste={"evening": "music"})
    assert [piece["text"] for piece in done.pieces] == [EVENING]
    assert done.text == "".join([*DAYS, EVENING])
    assert done.replayed == ["plan_day", "plan_day", "plan_day"]


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    started, rounds = commands(itinerary)
    assert started == ["uvicorn examples.itinerary:app"]
    output, shown = paste(rounds.replace("http://127.0.0.1:8000/mcp", wire.url))
    first, second = (
        [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")] for text in (shown, output)
    )
    assert [each["params"]["content"]["text"] for each in first[:-1]] == DAYS
    assert first[-1]["result"]["inputRequests"].keys() == {"taste"}
    (piece, done) = second
    assert (piece["params"]["index"], piece["params"]["content"]["text"]) == (4, EVENING)
    assert done["result"]["content"] == [{"type": "text", "text": "".join([*DAYS, EVENING])}]
