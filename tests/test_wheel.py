"""The wheel works by itself: whoever has nothing but it can make a project, call its tool, and build its image."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .support.serving import ROOT, TIMEOUT


@pytest.mark.processes
def test_a_new_user_can_do_with_the_wheel_what_is_printed(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path / "dist", ROOT], check=True, timeout=TIMEOUT)
    pins = re.findall(r"^[\w.\[\]-]+==[^ ]+", (ROOT / "requirements" / "test.txt").read_text(), re.MULTILINE)
    (tmp_path / "pins.txt").write_text("\n".join(pins))  # what comes out tomorrow is not what is tested here
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "try_wheel.py", tmp_path / "dist"],
        # To compile all of what is installed would take longest, and most of it is never run.
        env={**os.environ, "PIP_CONSTRAINT": str(tmp_path / "pins.txt"), "PIP_COMPILE": "0"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * TIMEOUT,
    )
    assert done.returncode == 0, done.stdout
    for line in ("order title=Dune", "pytest", "mypy", "ruff check", "pip install --no-cache-dir wheels/"):
        assert re.search(rf" s  .*{re.escape(line)}", done.stdout), done.stdout
