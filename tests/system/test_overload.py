"""Three full replicas: what they answer comes in time, and everything else is told at once, with real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BUSY_MACHINE = 5.0
"""How many times as long all may take on a machine that has other things to do; without shedding it takes ten times."""


@pytest.mark.alone
def test_five_times_the_load_is_answered_in_time_or_told_at_once() -> None:
    command = [sys.executable, "benchmarks/overload.py", "waits", "--at-once", "1", "--seconds", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout)
    assert found["failed"] == [], "each call got a result or a refusal"
    assert found["probes_failed"] == 0
    assert found["answered"] > found["capacity"] / 2, "what can be done is done"
    assert found["told_share"] > 0.5
    assert found["requests_a_call"] < 1.5, "a call that is handed over everywhere would take two"
    assert found["answered_p99"] < BUSY_MACHINE * found["bound"]
    assert found["told_p99"] < BUSY_MACHINE * found["bound"]
