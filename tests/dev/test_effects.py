"""Effects outside of steps are told with the author's line, once, where the flow will repeat them; nothing else is."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from mrtr_server.dev.effects import DESCRIBED, EffectWatch, describe_statement

from ..support.serving import ROOT, without_settings

pytestmark = pytest.mark.processes

APP = ROOT / "tests" / "support" / "effectful_app.py"

QUIET = {
    *("in_step.txt", "in_thread.txt", "after.txt", "never.txt", "plain.txt", "last.txt", "counted.txt"),
    *("imported.txt", "log.txt", "audit.txt"),
}
"""Files that were written without being told."""

DRIVER = """
import json, socket, sys
from mrtr_server.dev.effects import EffectWatch
from mrtr_server.dev.rounds import SeenRound, current_round
from mrtr_server.methods.middleware import everywhere, watch
from mrtr_server.testing import Client, yes

told = []

class Observer:
    def __init__(self):
        self.watch = EffectWatch()

    def begin(self, call, outlet):
        seen = SeenRound(call)
        current_round.set(seen)
        if seen.is_round:
            self.watch.begin(seen)
        return seen

    def end(self, call, outlet, seen, came):
        current_round.set(None)
        for place, what in self.watch.repeated(seen).items():
            told.append([call.target, call.trace.rounds + 1, place.file, place.line, what])

observer = Observer()
observer.watch.install()
everywhere.append(watch(observer.begin, observer.end))

from tests.support.effectful_app import app

with socket.create_server(("127.0.0.1", 0)) as listening:
    port = listening.getsockname()[1]
    client = Client(app, tasks=True)
    for tool in [*app.registry.tools] * 2:
        arguments = {"port": port} if tool == "connections" else {}
        client.call(tool, arguments, answers={} if tool in ("never_asks", "plain") else {"confirm": yes})
    client.get_prompt("prompt", answers={"confirm": yes})
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str, int, str]]:
    """What a process is told whose handlers have all run to their end, twice: tool, round, file, line and effect."""
    folder = tmp_path_factory.mktemp("effects")
    (folder / "imported.py").write_text("open('imported.txt', 'w').close()")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env=without_settings(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE=""),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert set(os.listdir(folder)) >= QUIET
    return [tuple(each) for each in json.loads(done.stdout)]


def test_exactly_the_lines_whose_effects_a_flow_repeats_are_told(told: list[tuple[str, int, str, int, str]]) -> None:
    expected = {number for number, line in enumerate(APP.read_text().splitlines(), 1) if line.endswith("# told")}
    assert {file for _, _, file, _, _ in told} == {str(APP)}
    assert {line for _, _, _, line, _ in told} == expected


def test_each_is_told_once_at_the_first_round_that_asks(told: list[tuple[str, int, str, int, str]]) -> None:
    lines = [line for _, _, _, line, _ in told]
    assert len(lines) == len(set(lines))
    assert {number for tool, number, *_ in told if tool != "task"} == {1}


def test_each_is_named_in_words(told: list[tuple[str, int, str, int, str]]) -> None:
    said = {what for _, _, _, _, what in told}
    assert {
        "opens a for writing",
        "opens helper.txt for writing",
        "renames a to b",
        "removes b",
        "makes the folder folder",
        "removes the folder folder",
        "starts true",
        "opens the database local.db",
        "opens copy for writing",
        "writes to a database (INSERT)",
        "writes to a database (UPDATE)",
        "writes to a database (DELETE)",
        "writes to a database (REPLACE)",
    } <= {each.replace(str(APP.parent), "") for each in said}
    assert any(each.startswith("connects to 127.0.0.1:") for each in said)


@pytest.mark.parametrize(
    ("event", "arguments", "said"),
    [
        ("open", ("orders", "r", os.O_RDONLY), ""),
        ("open", (b"orders", "a", os.O_WRONLY | os.O_APPEND), "opens orders for writing"),
        ("open", (3, "w", os.O_WRONLY), ""),
        ("open", ("/dev/tty", "w", os.O_WRONLY), ""),
        ("open", (os.path.expanduser("~/.cache/library/x"), "w", os.O_WRONLY), ""),
        ("socket.sendto", (None, ("192.0.2.1", 53)), ""),
        ("socket.sendto", (None, ("2001:db8::1", 514, 0, 0)), "sends to [2001:db8::1]:514"),
        ("subprocess.Popen", (b"/bin/pay", ["pay", "--token=secret"], None, None), "starts /bin/pay"),
        ("os.system", (b"pay --token=secret",), "starts pay"),
        ("sqlite3.connect", ("file:shop.db?mode=ro",), ""),
        ("sqlite3.connect", ("shop.db",), "opens the database shop.db"),
        ("os.rename", ("a\x1b[31m", "b", -1, -1), "renames a\\x1b[31m to b"),
    ],
)
def test_an_event_in_words(event: str, arguments: tuple[Any, ...], said: str) -> None:
    assert DESCRIBED[event](*arguments) == said


def test_a_request_that_changes_something_is_an_effect_also_over_a_connection_that_is_open_already() -> None:
    class Connection:
        host = "shop.example"

    assert DESCRIBED["http.client.send"](Connection, b"POST /orders HTTP/1.1") == "sends a POST to shop.example"
    assert DESCRIBED["http.client.send"](Connection, b"GET /orders HTTP/1.1") == ""
    assert DESCRIBED["http.client.send"](Connection, b"the body") == ""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO orders VALUES ('secret')", "writes to a database (INSERT)"),
        ("\n  create table orders (item)", "writes to a database (CREATE)"),
        ("WITH old AS (SELECT 1) DELETE FROM orders", "writes to a database (DELETE)"),
        ("with old as (select 1) insert into orders select 1", "writes to a database (INSERT)"),
        ("SELECT item FROM orders WHERE item = 'INSERT INTO' FOR UPDATE", ""),
        ("WITH old AS (SELECT 1) SELECT deleted FROM old", ""),
        ("BEGIN", ""),
        ("COMMIT", ""),
        ("PRAGMA journal_mode", ""),
        ("", ""),
    ],
)
def test_a_statement_in_words(statement: str, said: str) -> None:
    assert describe_statement(statement) == said


def test_what_it_cannot_read_forbids_nothing() -> None:
    EffectWatch().on_audit_event("open", ())
    EffectWatch().on_audit_event("an.event.of.another.release", (1, 2))
