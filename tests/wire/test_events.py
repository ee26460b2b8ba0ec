"""Server-sent events are read as they come, in whatever pieces, as the standard says."""

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.wire.events import Event, EventReader

STREAM = (
    b": a comment\n\n"
    b"id: 7\nevent: message\nretry: 1500\ndata: first\ndata: second\n\n"
    b"data:unspaced\r\n\r\n"
    b"data: \xe2\x80\xa8 is no end of a line\n\n"
)
EVENTS = [("7", "message", "first\nsecond", 1500), ("", "message", "unspaced", None)]
EVENTS.append(("", "message", "\u2028 is no end of a line", None))


def read(*parts: bytes) -> list[Event]:
    reader = EventReader(Event)
    return [event for part in parts for event in reader.feed(part)]


def seen(events: list[Event]) -> list[tuple[str, str, str, int | None]]:
    return [(event.id, event.kind, event.data, event.retry) for event in events]


def test_a_stream_is_read_whole() -> None:
    assert seen(read(STREAM)) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_however_it_is_cut(cuts: list[int]) -> None:
    parts = [STREAM[start:end] for start, end in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert seen(read(*parts)) == EVENTS


def test_an_event_has_its_bytes_with_the_comments_before_it() -> None:
    assert b"".join(event.raw for event in read(STREAM)) == STREAM


def test_an_event_comes_with_its_empty_line_and_not_before() -> None:
    reader = EventReader(Event)
    assert reader.feed(b"data: x\n") == []
    assert [event.data for event in reader.feed(b"\n")] == ["x"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_further_empty_lines_are_skipped_and_not_kept(end: bytes) -> None:
    reader, many = EventReader(Event), end * 40_000
    began = process_time()
    for _ in range(50):
        assert reader.feed(many) == []
        assert [event.raw for event in reader.feed(b"data: x" + end + many)] == [b"data: x" + end * 2]
    assert process_time() - began < 1
    assert [event.data for event in reader.feed(b"data: y\n\n" + many + b"data: z\n\n")] == ["y", "z"]


def test_comments_are_counted() -> None:
    reader = EventReader(Event)
    assert reader.feed(b": one\n:\n\ndata: x\n: three\n\n")[0].data == "x"
    assert reader.comments == 3


def test_the_class_of_the_events_is_that_of_the_reader() -> None:
    class Special(Event):
        """Another kind."""

    assert [type(event) for event in EventReader(Special).feed(b"data: x\n\n")] == [Special]


@pytest.mark.parametrize(
    ("said", "retry"),
    [
        ("0", 0),
        ("999999999", 999_999_999),
        ("1" * 10, None),
        ("1" * 10_000, None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
    ],
)
def test_a_time_to_come_back_after_is_a_number_of_a_few_digits(said: str, retry: int | None) -> None:
    (event,) = read(f"retry: {said}\ndata: x\n\n".encode())
    assert event.retry == retry
