"""The log has no control characters of others, no line that somebody else has begun, and an end to each."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from mrtr_server import MRTRServer
from mrtr_server.logs.formats import LONGEST, PlainText, plain

from ..conftest import Serve
from ..support.wire import request

NASTY = "before\x1b[2J\x1b]0;title\x07\rover\nERROR: root: forged\x00\x7f\x9b31m\u2028\u202eevil\u2066 after"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the log of the package looks like where nobody has set anything special."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("mrtr_server")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def check(written: str) -> None:
    """Check that there is nothing in a log that a terminal obeys, and no record that somebody else has begun."""
    assert written
    assert CONTROL.findall(written) == []
    assert [line for line in written.splitlines() if line.startswith("ERROR: root")] == []


def logged(log: io.StringIO, *args: object, error: BaseException | None = None) -> str:
    logging.getLogger("mrtr_server").error(*args, exc_info=error)
    return log.getvalue()


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_what_a_message_was_given_is_on_one_line(log: io.StringIO) -> None:
    written = logged(log, "The name is %s", NASTY)
    check(written)
    assert written.count("\n") == 1
    assert (
        r"before\x1b[2J\x1b]0;title\x07\rover\nERROR: root: forged\x00\x7f\x9b31m\u2028\u202eevil\u2066 after"
        in written
    )


def test_all_else_is_left_as_it_is(log: io.StringIO) -> None:
    assert logged(log, "Grüße aus %s, 100 %% 日本 🎉 %d", "Åre\\n", 5) == "ERROR: Grüße aus Åre\\n, 100 % 日本 🎉 5\n"


def test_what_an_exception_says_is_on_one_line_of_its_traceback(log: io.StringIO) -> None:
    written = logged(log, "It failed", error=raised(ValueError(NASTY)))
    check(written)
    assert written.startswith("ERROR: It failed\nTraceback (most recent call last):\n  File ")
    assert r"ValueError: before\x1b[2J" in written.splitlines()[-1]


def test_what_led_to_an_exception_and_what_a_group_holds_are_on_one_line_each(log: io.StringIO) -> None:
    def chained() -> None:
        try:
            raise KeyError(NASTY)
        except KeyError:
            try:
                raise ValueError(NASTY)
            except ValueError as error:
                raise ExceptionGroup(NASTY, [RuntimeError(NASTY), OSError(5, NASTY)]) from error

    with pytest.raises(ExceptionGroup) as caught:
        chained()
    caught.value.add_note(f"note {NASTY}")
    written = logged(log, "It failed", error=caught.value)
    check(written)
    for kind in ("KeyError: ", "ValueError: ", "RuntimeError: ", "OSError: ", "note "):
        assert kind in written


def test_a_traceback_that_another_filter_has_made_is_cleaned_too() -> None:
    error = raised(ValueError("first\nERROR: root: second\x1b"))
    record = logging.LogRecord("mrtr_server", logging.ERROR, "x", 1, "It failed", (), (type(error), error, None))
    record.exc_text = f"Made by another\nValueError: {error}"
    assert PlainText().filter(record)
    assert record.exc_text == "Made by another\nValueError: first\\nERROR: root: second\\x1b"


@pytest.mark.parametrize("said", ["", "\n", ": ", "x"])
def test_an_exception_that_says_hardly_anything_keeps_its_traceback(log: io.StringIO, said: str) -> None:
    written = logged(log, "It failed", error=raised(ValueError(said)))
    assert f"{__name__.rpartition('.')[2]}.py" in written
    assert len(written.splitlines()) >= 4


def test_an_exception_that_can_not_say_anything_is_logged_all_the_same(log: io.StringIO) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in logged(log, "It failed", error=raised(Mute()))


def test_a_message_whose_arguments_do_not_fit_breaks_nothing() -> None:
    record = logging.LogRecord("mrtr_server", logging.ERROR, "x", 1, "%d and %s", ("one",), None)
    assert PlainText().filter(record)


def test_nothing_is_endless(log: io.StringIO) -> None:
    written = logged(log, "The name is %s", "x" * 5_000_000, error=raised(ValueError("y" * 5_000_000)))
    assert LONGEST < len(written) < 3 * LONGEST
    assert "…" in written


def test_what_is_plain_is_given_back() -> None:
    assert plain("plain, ü and 日本") == "plain, ü and 日本"
    assert plain("x" * LONGEST) == "x" * LONGEST
    assert len(plain("x" * (LONGEST + 1))) == LONGEST


class TestServer:
    """What a client sends, and what an author's code says of it, comes to the log like that."""

    @pytest.fixture
    def app(self) -> MRTRServer:
        app = MRTRServer("nasty", keys=[bytes(32)])

        @app.tool
        def fail(said: str) -> str:
            raise ValueError(f"can't use {said}")

        @app.resource("of://{+path}")
        def read(path: str) -> str:
            raise OSError(path)

        return app

    def test_an_argument_that_an_exception_repeats(self, app: MRTRServer, serve: Serve, log: io.StringIO) -> None:
        serve(app).draft(request("tools/call", {"name": "fail", "arguments": {"said": NASTY}}))
        check(log.getvalue())
        assert r"ValueError: can't use before\x1b[2J" in log.getvalue()

    def test_a_uri(self, app: MRTRServer, serve: Serve, log: io.StringIO) -> None:
        serve(app).draft(request("resources/read", {"uri": f"of://{NASTY}"}))
        check(log.getvalue())
        assert "OSError" in log.getvalue()

    def test_a_state(self, app: MRTRServer, serve: Serve, log: io.StringIO) -> None:
        serve(app).draft(request("tools/call", {"name": "fail", "arguments": {"said": "x"}, "requestState": NASTY}))
        check(log.getvalue())
