"""The demonstration runs, and says what it shows."""

import re
import subprocess
import sys

from .serving import ROOT


def test_it_shows_rounds_on_three_processes_and_a_task_whose_worker_is_killed() -> None:
    done = subprocess.run([sys.executable, "scripts/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rounds, 3 processes." in done.stdout
    killed = re.findall(r"SIGKILL +for process (\d+)", done.stdout)
    pages = re.findall(r"(\w+) of Q3, by process (\d+)", done.stdout)
    assert [chapter for chapter, _ in pages] == ["sales", "costs", "people", "plans"]
    assert [pid for _, pid in pages][:2] == killed * 2
    assert killed[0] not in [pid for _, pid in pages][2:]
