"""scripts/clients: real clients, at their defaults, against three replicas; and the table of their page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..support.serving import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import Client, read_clients
from clients_table import BEGIN, END, HEADINGS, PAGE, Result, read_rows, write_rows

CLIENTS = read_clients()
QUICK = [client.name for client in CLIENTS if client.quick]


def run_script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / "clients.py"), "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What became of the quick clients, by name."""
    done = run_script("--quick")
    assert done.stdout, done.stderr
    return {each["client"]: each for each in json.loads(done.stdout)}


@pytest.mark.parametrize("name", QUICK)
def test_a_client_does_all_that_it_can_at_any_replica(found: dict[str, dict[str, Any]], name: str) -> None:
    assert not found[name]["missing"]
    assert not found[name]["failed"]


@pytest.mark.parametrize("name", QUICK)
def test_a_client_that_cannot_be_asked_hears_what_is_missing(found: dict[str, dict[str, Any]], name: str) -> None:
    for ask, capability in {"elicit": "form elicitation", "sample": "sampling"}.items():
        if ask in found[name]["cannot"]:
            assert capability in found[name]["outcomes"][ask]["said"]


class TestThePage:
    ROWS = read_rows(PAGE.read_text("utf-8"))

    def test_has_each_client_in_the_version_that_is_listed(self) -> None:
        assert [row[:2] for row in self.ROWS.values()] == [(client.name, client.version) for client in CLIENTS]

    def test_says_of_each_what_its_user_sets(self) -> None:
        text = PAGE.read_text("utf-8")
        assert [client.name for client in CLIENTS if f"- `{client.name}`: {client.note}\n" not in text] == []

    def test_shows_no_failure(self) -> None:
        assert [row for row in self.ROWS.values() if "FAIL" in " ".join(row) or "not" in " ".join(row[2:])] == []

    @pytest.mark.parametrize("name", QUICK)
    def test_says_what_a_run_finds(self, found: dict[str, dict[str, Any]], name: str) -> None:
        client = next(client for client in CLIENTS if client.name == name)
        result = Result(client, era=found[name]["era"], outcomes=found[name]["outcomes"])
        assert self.ROWS[name][:-1] == result.row[:-1]  # the last column is measured in more than a minute


class TestAClientThatDoesNotWork:
    @pytest.fixture
    def listed(self, tmp_path: Path) -> Path:
        """A list of clients of which none does its work."""
        (tmp_path / "hang.py").write_text(
            "import os, pathlib, time\n"
            f"pathlib.Path({str(tmp_path / 'process')!r}).write_text(str(os.getpid()))\n"
            "time.sleep(600)\n"
        )
        (tmp_path / "wrong.py").write_text("""print('{"call": {"ok": false, "said": "no such tool"}}')""")
        file = tmp_path / "clients.toml"
        file.write_text(
            'as_of = "2026-11-22"\n'
            '[[client]]\nname = "hangs"\nrun = ["hang.py"]\npip = ["six==1.17.0"]\nnote = ""\n'
            '[[client]]\nname = "is wrong"\nrun = ["wrong.py"]\npip = ["six==1.17.0"]\nnote = ""\n'
            '[[client]]\nname = "is missing"\nrun = ["wrong.py"]\npip = ["six==0.0.0"]\nnote = ""\n'
        )
        return file

    def run(self, listed: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = run_script("--clients", str(listed), "--server", "http://127.0.0.1:9/mcp", *arguments)  # where nobody is
        assert done.stdout, done.stderr
        (found,) = json.loads(done.stdout)
        return done.returncode, found

    def test_is_ended_when_its_time_is_up(self, listed: Path) -> None:
        code, found = self.run(listed, "--only", "hangs", "--limit", "3")
        assert code == 1
        assert found["failed"] == {"run": "It did not end within 3 s"}
        with pytest.raises(ProcessLookupError):
            os.kill(int((listed.parent / "process").read_text()), 0)

    def test_is_a_failure_with_what_it_said_and_what_it_did_not_try(self, listed: Path) -> None:
        code, found = self.run(listed, "--only", "is wrong")
        assert code == 1
        assert found["failed"]["call"] == "no such tool"
        assert "before" in found["failed"]["elicit"]

    @pytest.mark.parametrize(("more", "code"), [((), 1), (("--allow-missing",), 0)])
    def test_has_a_row_that_says_that_it_could_not_be_installed(
        self, listed: Path, more: tuple[str, ...], code: int
    ) -> None:
        ended, found = self.run(listed, "--only", "is missing", *more)
        assert ended == code
        assert found["missing"]


class TestWritingTheTable:
    def test_keeps_the_rows_of_clients_that_were_not_run_and_waits_that_were_not_measured(self, tmp_path: Path) -> None:
        page = tmp_path / "clients.md"
        page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
        one, other = CLIENTS[:2]
        worked = {what: {"ok": True} for what in ("tools", "prompts", "resources", "call", "elicit", "sample")}

        def write(client: Client, patience: float) -> None:
            outcomes = {**worked, "patience": {"ok": False, "seconds": 60.1}}
            result = Result(client, era="2025-11-25", outcomes=outcomes, patience=patience)
            write_rows([one, other], {client.name: result}, page)

        write(one, 75)
        write(other, 75)
        write(other, 0)
        rows = read_rows(page.read_text())
        expected = ("2025-11-25", "all", "yes", "yes", "yes", "", "60 s")
        assert rows == {client.name: (client.name, client.version, *expected) for client in (one, other)}
        assert len(expected) + 2 == len(HEADINGS)
        assert page.read_text().startswith("before\n")
        assert page.read_text().endswith("after\n")
