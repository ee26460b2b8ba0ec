"""Lines of the log: text for people, JSON for programs, and the facts of a record in both."""

import json
import logging
import logging.config
import sys
from pathlib import Path
from typing import Any

import pytest

from mrtr_server.logs.formats import JSONFormatter, TextFormatter, log_config


def record(message: str = "Served %s", *values: object, fields: Any = None, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("mrtr_server", logging.INFO, "x.py", 1, message, values, None)
    made.created = 1_763_800_000.1239
    vars(made).update(more, **({} if fields is None else {"fields": fields}))
    return made


def test_json_has_time_level_logger_message_and_fields() -> None:
    line = JSONFormatter().format(record("Served %s", "deploy", fields={"tool": "deploy", "milliseconds": 1.5}))
    assert json.loads(line) == {
        "time": "2025-11-22T08:26:40.123Z",
        "level": "INFO",
        "logger": "mrtr_server",
        "message": "Served deploy",
        "tool": "deploy",
        "milliseconds": 1.5,
    }


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    text = 'a\nb\r\u2028"c" {"level": "ERROR"}'
    line = JSONFormatter().format(record("%s", text, fields={"tool": text}))
    assert line.splitlines() == [line]
    assert json.loads(line)["tool"] == text == json.loads(line)["message"]


@pytest.mark.parametrize("value", ["Grüße", "\ud800", {"a": [1, None]}, Path("x")], ids=ascii)
def test_a_line_of_json_is_ascii_whatever_a_field_is(value: object) -> None:
    line = JSONFormatter().format(record("x", fields={"tool": value}))
    assert line.isascii()
    assert json.loads(line)["tool"] == (str(value) if isinstance(value, Path) else value)


def test_no_field_takes_the_place_of_what_every_line_has() -> None:
    line = json.loads(JSONFormatter().format(record("x", fields={"level": "ERROR", "message": "forged", "round": 2})))
    assert (line["level"], line["message"], line["round"]) == ("INFO", "x", 2)


def test_fields_that_are_no_mapping_are_left_out() -> None:
    assert "fields" not in json.loads(JSONFormatter().format(record("x", fields="text")))


@pytest.mark.parametrize("formatter", [JSONFormatter(), TextFormatter()])
def test_an_exception_is_in_it(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        failed = record("x", exc_info=sys.exc_info())
    assert "ValueError: wrong" in formatter.format(failed)


def test_text_is_a_line_with_its_fields() -> None:
    line = TextFormatter().format(record("Served %s", "it", fields={"tool": "a b", "round": 2, "new": True, "who": ""}))
    assert line == '2025-11-22T08:26:40.123Z INFO mrtr_server: Served it tool="a b" round=2 new=true who=""'


def test_a_field_forges_no_line() -> None:
    line = TextFormatter().format(record("x", fields={"tool": "a\nERROR mrtr_server: forged"}))
    assert line.splitlines() == [line]


def test_the_configuration_logs_us_at_a_level_and_others_from_warnings_on() -> None:
    config = log_config("json", "INFO")
    logging.config.DictConfigurator(config)  # it is one
    assert config["loggers"]["mrtr_server"]["level"] == "INFO"
    assert config["root"]["level"] == "WARNING"
    assert config["loggers"]["uvicorn.access"]["level"] == "CRITICAL"
    assert log_config("json", "INFO", access_log=True)["loggers"]["uvicorn.access"]["level"] == "INFO"


NASTY = "a\x1b[2J\x9b31m\x7f\u202eb\u2066"


@pytest.mark.parametrize("name", ["mrtr_server", "somebody.else"])
def test_text_sends_nothing_to_the_terminal_but_text(name: str) -> None:
    made = record("said %s", NASTY, fields={"tool": NASTY, "other": "ä\x1b"}, name=name)
    line = TextFormatter().format(made)
    assert line.isprintable()
    assert "said a\\x1b[2J" in line
