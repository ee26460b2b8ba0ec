"""The environments of the scripts are made once, however many scripts begin at the same time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .support.serving import ROOT, TIMEOUT

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "made"
version = "1"
"""

SCRIPT = """\
set -eu
. scripts/environment.sh
make_environment .venv-made "$1" build
exec .venv-made/bin/python -c 'import made, hatchling; print("It can be used.")'
"""


@pytest.mark.processes
def test_of_scripts_that_begin_at_once_one_makes_the_environment_and_all_use_it(tmp_path: Path) -> None:
    for name in ("scripts/environment.sh", "requirements/build.txt"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").touch()

    def begin() -> subprocess.Popen[str]:
        command = ["sh", "-c", SCRIPT, "sh", sys.executable]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def said(scripts: int) -> list[str]:
        begun = [begin() for _ in range(scripts)]
        printed = [each.communicate(timeout=4 * TIMEOUT)[0] for each in begun]
        assert [each.returncode for each in begun] == [0] * scripts, printed
        return sorted("".join(printed).splitlines())

    making = "Making the environment .venv-made; this takes a moment, once."
    assert said(3) == [*["It can be used."] * 3, making]
    (tmp_path / "pyproject.toml").write_text(f'{PROJECT}description = "changed"\n')
    assert said(3) == [*["It can be used."] * 3, making]
