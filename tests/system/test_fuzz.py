"""A short run of scripts/fuzz: nothing crashes, nothing opens for somebody else, and nothing is an error of ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.serving import ROOT


@pytest.mark.parametrize("database", [None, "sqlite"])
def test_requests_that_nobody_should_send_find_nothing(tmp_path: Path, database: str | None) -> None:
    stored = [] if database is None else ["--database", f"sqlite:///{tmp_path}/fuzz.db"]
    count = "2500" if database is None else "500"
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--count", count, "--seed", "7", *stored]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["findings"] == {}
    assert report["requests"] == int(count)
    assert {"200", "202", "400", "405"} <= report["statuses"].keys()
    assert report["streams_held"] > 0
    assert min(report["tokens"].values()) > 0
    assert report["memory_kb_before"] > 0
    assert report["memory_kb_after"] > 0
