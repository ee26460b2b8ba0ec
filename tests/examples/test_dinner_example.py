"""examples/dinner.py; the printed messages are in tests/protocol/transcripts/draft-tasks."""

import datetime
import re

import pytest

from examples import dinner

from ..support.wire import Wire, request, text_of
from .conftest import Start
from .pasting import needs_curl, replies

CONFIRMED = re.compile(
    r"✓ Reservation confirmed for 4 people on November 22nd at 7:00 PM at Chez Claude\. Confirmation #: RES-2025-\d{3}"
)


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("dinner")


def test_the_tool_is_listed_as_printed(wire: Wire) -> None:
    (listed,) = wire.draft(request("tools/list")).result["tools"]
    assert (listed["name"], listed["description"]) == ("book_dinner", "Book a dinner reservation.")
    assert listed["annotations"] == {"taskHint": "always"}


@pytest.mark.parametrize(
    ("day", "said"),
    [
        (1, "May 1st"),
        (2, "May 2nd"),
        (3, "May 3rd"),
        (4, "May 4th"),
        (11, "May 11th"),
        (13, "May 13th"),
        (31, "May 31st"),
    ],
)
def test_days_are_said_as_people_say_them(day: int, said: str) -> None:
    assert dinner._day(datetime.date(2025, 5, day)) == said


@pytest.mark.parametrize(("at", "said"), [("00:05", "12:05 AM"), ("12:00", "12:00 PM"), ("19:00", "7:00 PM")])
def test_hours_are_said_as_people_say_them(at: str, said: str) -> None:
    assert dinner._clock(datetime.time.fromisoformat(at)) == said


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire) -> None:
    asked, completed, result = replies(dinner, wire.url)
    assert asked["result"]["status"] == "input_required"
    assert completed["result"]["status"] == "completed"
    assert CONFIRMED.fullmatch(text_of(result))
