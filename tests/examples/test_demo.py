"""scripts/demo: three rounds by three processes, then a task whose worker is killed; nothing is left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..support.serving import ROOT, TIMEOUT, wait_until
from .pasting import needs_curl, paste

DEMO = ROOT / "scripts" / "demo.py"
TEXT = "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created."


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def servers(output: str) -> set[int]:
    """Return the processes of the servers that the demo started."""
    return {int(number) for number in re.findall(r"^  http://.* process (\d+)$", output, re.MULTILINE)}


def start(log: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start the demo in the environment of the tests, from another directory."""
    with log.open("wb") as output:
        command = [sys.executable, str(DEMO), *arguments]
        return subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=output, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", "WEB_CONCURRENCY": "4"}


def test_each_round_is_answered_by_another_process_a_task_survives_its_own_and_all_end_with_it(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=5 * TIMEOUT)
    assert done.returncode == 0, done.stderr
    rounds, task = done.stdout.split("Three servers with one key and one database")
    started = servers(rounds)
    answered = [int(number) for number in re.findall(r"^  replica \d, process (\d+)$", rounds, re.MULTILINE)]
    assert len(answered) == 3
    assert set(answered) == started
    assert TEXT in rounds
    assert len(servers(task)) == 3
    assert not any(map(is_running, servers(done.stdout)))
    # And the task: what was recorded before its worker was killed was done by that one, the rest by others.
    (killed,) = re.findall(r"SIGKILL +for process (\d+)", task)
    pages = re.findall(r"(\w+) of Q3, by process (\d+)", task)
    assert [chapter for chapter, _ in pages] == ["sales", "costs", "people", "plans"]
    assert [pid == killed for _, pid in pages] == [True, True, False, False]


@needs_curl
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminate"])
def test_the_lines_it_prints_work_as_pasted_until_it_is_ended(tmp_path: Path, number: int) -> None:
    log = tmp_path / "demo.log"
    process = start(log, "--serve")
    try:
        said = ""

        def has_said_all() -> bool:
            nonlocal said
            said = log.read_text()
            return process.poll() is not None or ("Round 3" in said and said.endswith("}'\n"))

        wait_until(has_said_all, "the demo to serve")
        output, shown = paste(said[said.index("echo 'Round 1") :])
        served = re.findall(r"^X-Served-By: replica \d, process (\d+)\s*$", shown + output, re.MULTILINE)
        assert {int(one) for one in served} == servers(said)
        assert TEXT in output
    finally:
        process.send_signal(number)
        code = process.wait(TIMEOUT)
    assert code == 0
    assert log.read_text().endswith("The servers have ended.\n")
    assert not any(map(is_running, servers(said)))


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps to see processes with")
def test_it_ends_its_servers_even_while_they_start(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    process = start(log)
    wait_until(lambda: "Three servers" in log.read_text(), "the demo to begin")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) in (0, 130)
    children = subprocess.run(["ps", "-A", "-o", "ppid="], check=True, capture_output=True, text=True).stdout.split()
    assert str(process.pid) not in children
