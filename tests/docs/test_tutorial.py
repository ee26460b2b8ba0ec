"""The tutorial, done as a reader does it: its files, its commands, and what they print."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mrtr_server.testing import Client, decline, yes

from ..support.serving import KEYS, ROOT, TIMEOUT, end, free_ports, is_ready, listens, wait_until, without_settings

pytestmark = pytest.mark.processes

PAGE = "".join((ROOT / "docs" / f"{part}.md").read_text() for part in ("tutorial", "tutorial-2"))
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """Return the text below a heading."""
    return re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(title: str, kind: str) -> list[str]:
    """Return the blocks of a kind, or of a title, below a heading."""
    found = BLOCK.findall(section(title))
    assert found, f"there is no {title!r}"
    return [code for language, name, code in found if kind == (name or language)]


def name_of(statement: ast.stmt) -> str:
    """Return what a statement at the top of a module defines."""
    if isinstance(statement, ast.ImportFrom):
        return f"import {statement.module}"
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return str(getattr(statement, "name", ""))


def pieces(code: str) -> dict[str, str]:
    """Return each definition of a module with its source and its decorators."""
    lines = code.splitlines()
    found: dict[str, str] = {}
    for statement in ast.parse(code).body:
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
        found[name_of(statement)] = "\n".join(lines[first - 1 : statement.end_lineno])
    return found


def changed(code: str, change: str) -> str:
    """Return a module after a change: a definition takes the place of its namesake, or comes at the end."""
    before = pieces(code)
    for name, source in pieces(change).items():
        code = code.replace(before[name], source) if name in before else f"{code}\n\n{source}\n"
    return code


class Terminal:
    """A running `mrtr-server dev`.

    Args:
        log: what it writes to.
        port: where it listens.
    """

    def __init__(self, log: Path, port: int) -> None:
        self._log, self._port = log, port
        self._read = 0

    def expect(self, printed: str) -> None:
        """Wait for lines of the page, which come in this order and with other times."""
        line = re.escape(printed.strip().replace("127.0.0.1:8000", f"127.0.0.1:{self._port}"))
        line = re.sub(r"\d\d:\d\d:\d\d", r"\\d\\d:\\d\\d:\\d\\d", line)
        line = re.sub(r"(?:\\ )+\d+\\\.\d\\ ms", r" +\\d+\\.\\d ms", line)
        line = re.sub(r"\b[0-9a-f]{8}\b", "[0-9a-f]{8}", line)
        pattern = re.compile(line.replace("token=…", r"token=[\w-]+"))
        try:
            wait_until(lambda: pattern.search(self._log.read_text(), self._read), "lines of the page")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{printed}\n{self._log.read_text()[self._read :]}") from None
        self._read = len(self._log.read_text())

    def expect_all(self, printed: str) -> None:
        """Wait for lines of the page in any order: a worker writes some of them, at the same time."""
        read = self._read
        for line in printed.strip().splitlines():
            self._read = read
            self.expect(line)

    def change(self, path: Path, code: str) -> None:
        """Write the code of the server, and wait until that is served."""
        before = self._log.read_text().count("reloaded")
        path.write_text(code)
        wait_until(lambda: self._log.read_text().count("reloaded") > before, "the server to reload")
        self._read = len(self._log.read_text())


@contextmanager
def developing(folder: Path, command: str, **variables: str) -> Iterator[tuple[Terminal, str]]:
    """Run the command of the page; return its terminal and the address of its endpoint."""
    (port,) = free_ports(1)
    log = folder.parent / "terminal"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / command.split()[0], *command.split()[1:], "--port", str(port)],
            cwd=folder,
            env=environment() | variables,
            stdout=output,
            stderr=output,
        )
    try:
        yield Terminal(log, port), f"http://127.0.0.1:{port}/mcp"
    finally:
        end(process)


def environment() -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return without_settings(PATH=path, PYTHONDONTWRITEBYTECODE="1")


@contextmanager
def in_background(commands: str, folder: Path, ports: list[int]) -> Iterator[None]:
    """Run what a shell starts in the background on these ports, until the block is left."""
    shell = subprocess.Popen(["bash", "-c", f"{commands}\nwait"], cwd=folder, env=environment(), start_new_session=True)
    try:
        yield
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(TIMEOUT)
        wait_until(lambda: not any(map(listens, ports)), "the servers to end")


def typed(command: str, folder: Path) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_everything_of_the_tutorial(tmp_path: Path) -> None:
    folder = tmp_path / "expenses"
    folder.mkdir()
    server = folder / "expenses.py"
    details = {"amount": 120, "kind": "travel"}

    (code,) = blocks("A tool that asks", "expenses.py")
    server.write_text(code)
    (command,) = blocks("A tool that asks", "sh")
    started, two_rounds = blocks("A tool that asks", "text")
    with developing(folder, command) as (terminal, url):
        terminal.expect(started)
        assert httpx.get(url.replace("/mcp", "/docs"), trust_env=False, timeout=TIMEOUT).status_code == 200
        Client(url).call("claim", what="a train to Bern", answers={"details": details})
        terminal.expect(two_rounds)

        (code,) = blocks("An effect, and a mistake", "expenses.py")
        terminal.change(server, code)
        flow = Client(url).flow("claim", what="a train to Bern")
        flow.start()
        asked = flow.answer(details=details)
        assert f"`{asked.questions['confirm']}`" in section("An effect, and a mistake")
        assert "number 2" in flow.answer(confirm=yes).questions["confirm"]
        assert flow.answer(confirm=decline).needs_input
        terminal.expect(blocks("An effect, and a mistake", "text")[0])

        (change,) = blocks("A step", "expenses.py, changed")
        terminal.change(server, code := changed(code, change))
        typed(blocks("A step", "sh")[0], folder)
        Client(url).call("claim", what="a train to Bern", answers={"details": details, "confirm": yes})
        terminal.expect(blocks("A step", "text")[0])
        flow = Client(url).flow("claim", what="a taxi")
        flow.start()
        flow.answer(details={"amount": 20, "kind": "travel"})
        twice = {reply.text for reply in flow.race(confirm=yes)}
        assert twice == {"Your manager decides on number 2."}

        (tests,) = blocks("A test", "test_claim.py")
        (folder / "test_claim.py").write_text(tests)
        (printed,) = blocks("A test", "text")
        assert printed.strip() in typed(f"{blocks('A test', 'sh')[0].strip()} -c {os.devnull} -W error", folder)
        (folder / "test_claim.py").unlink()  # the tool changes

    (change,) = blocks("The manager decides", "expenses.py, changed")
    server.write_text(code := changed(code, change))
    *exports, command = blocks("The manager decides", "sh")[0].splitlines()
    assert [line.partition("=")[0] for line in exports] == ["export MRTR_KEYS", "export MRTR_DATABASE_URL"]
    shared = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": exports[1].partition("=")[2]}
    with developing(folder, command, **shared) as (terminal, url):
        terminal.expect("14:15:00  watching  *.py below .")
        ann, manager = (Client(url, token=f"{each}-token", tasks=True) for each in ("ann", "max"))
        claimed, decided = blocks("The manager decides", "text")
        flow = ann.flow("claim", what="a book")
        flow.start()
        flow.answer(details={"amount": 30, "kind": "books"})
        assert flow.answer(confirm=yes).is_task
        terminal.expect_all(claimed)
        # The line is printed at the end of the round, a moment before the store has the wait.
        wait_until(lambda: manager.call("waiting").structured, "the wait to be listed")
        (waiting,) = manager.call("waiting").structured
        manager.call("review", ticket=waiting["ticket"], approve=True, answers={"confirm": yes})
        terminal.expect_all(decided)
        assert flow.wait().text == "Number 3 is approved."

        (change,) = blocks("A report in the background", "expenses.py, changed")
        terminal.change(server, code := changed(code, change))
        report = manager.flow("report")
        assert report.start().is_task
        assert report.wait().result["structuredContent"] == {"travel": 0, "meals": 0, "books": 30}

    (tests,) = blocks("Tests", "test_expenses.py")
    (folder / "test_expenses.py").write_text(tests)
    (printed,) = blocks("Tests", "text")
    # Not the options of the tests that run this; and no plugin but pytest's own.
    assert printed.strip() in typed(f"{blocks('Tests', 'sh')[0].strip()} -c {os.devnull} -W error", folder)

    ports = dict(zip(("8000", "8001", "8002"), map(str, free_ports(3)), strict=True))

    def here(text: str) -> str:
        """Return a text with the ports and the folder of the tests."""
        text = re.sub(r"\b800[012]\b", lambda found: ports[found[0]], text)
        return text.replace("../examples", str(ROOT / "examples"))

    start, run, look = blocks("Two replicas", "sh")
    replies, rows = blocks("Two replicas", "text")
    (program,) = blocks("Two replicas", "replicas.py")
    (folder / "replicas.py").write_text(here(program))
    with in_background("\n".join([*exports, here(start)]), folder, [*map(int, ports.values())]):
        wait_until(lambda: all(is_ready(int(port)) for port in list(ports.values())[1:]), "both replicas")
        wait_until(lambda: listens(int(ports["8000"])), "the front")
        assert typed(run, folder) == here(replies)
        assert typed(look, folder) == rows


def test_a_change_replaces_what_has_its_name_and_adds_the_rest() -> None:
    code = "from a import b\n\n@b\ndef f():\n    return 1\n\nx = 2\n"
    assert changed(code, "from a import b, c\n\n@c\ndef f():\n    return 3\n\ndef g(): ...\n") == (
        "from a import b, c\n\n@c\ndef f():\n    return 3\n\nx = 2\n\n\ndef g(): ...\n"
    )
