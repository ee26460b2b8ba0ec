"""`mrtr-server new` makes a project whose tests and checks pass at once, and refuses what would go wrong."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution as Distribution
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft7Validator

from mrtr_server import SetupError, __version__
from mrtr_server.cli import main
from mrtr_server.cli.new_project import WHEEL, installed_from, make_project, package_of
from mrtr_server.cli.run import run as run_command

from ..support.serving import ROOT, without_settings

MYPY = ["--disable-error-code=empty-body", f"--cache-dir={ROOT / '.mypy_cache' / 'of-users'}"]
"""Options that share what tests/test_typing.py has found of the package, which takes longest."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the command's."""
    folder = tmp_path_factory.mktemp("projects") / "book-shop"
    done = CliRunner().invoke(main, ["new", str(folder)])
    assert done.exit_code == 0, done.output
    assert "mrtr-server dev book_shop.server:app" in done.output
    return folder


@pytest.mark.processes
@pytest.mark.parametrize(
    "command",
    [
        ["pytest", "-p", "no:cacheprovider", "-W", "error"],
        ["ruff", "check", "--no-cache"],
        ["ruff", "format", "--no-cache", "--check"],
        ["mypy", *MYPY],
        ["mrtr_server", "check", "book_shop.server:app"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_its_checks_pass_at_once(project: Path, command: list[str]) -> None:
    run(command, project)


def run(command: list[str], project: Path) -> None:
    """Run a module of Python in a project; it must end well."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=without_settings(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_to_try_it_is_named(project: Path, tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["new", str(tmp_path / "tea-shop")]).output
    assert "open the address of the page that it prints" in printed
    assert "the address of the page that it prints" in (project / "README.md").read_text()


COMMIT = "1" * 40


@pytest.mark.parametrize(
    ("noted", "origin"),
    [
        ('{"url": "file:///src/of%20ann", "dir_info": {}}', "/src/of ann"),
        (
            '{"url": "https://example.com/mrtr_server-0.1.0.zip", "archive_info": {}}',
            "https://example.com/mrtr_server-0.1.0.zip",
        ),
        (
            f'{{"url": "https://example.com/m.git", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}',
            f"git+https://example.com/m.git@{COMMIT}",
        ),
        (None, ""),
    ],
)
def test_what_did_not_come_from_an_index_becomes_part_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: str | None, origin: str
) -> None:
    """An index may not have this release: then the image and CI install the wheel that the printed command makes."""
    monkeypatch.setattr(Distribution, "read_text", lambda *_: noted)
    assert installed_from() == origin
    printed = CliRunner().invoke(main, ["new", str(tmp_path / "tea-shop")]).output
    assert (f"pip wheel --no-deps --wheel-dir wheels {shlex.quote(origin)}\n" in printed) == bool(origin)
    install = f"pip install {WHEEL} -e '.[dev]'" if origin else "pip install -e '.[dev]'"
    assert f"  {install}\n" in printed
    for name in ("README.md", ".github/workflows/ci.yml"):
        assert install in (tmp_path / "tea-shop" / name).read_text()
    image = (tmp_path / "tea-shop" / "Dockerfile").read_text()
    assert (f"COPY wheels ./wheels\nRUN /venv/bin/pip install --no-cache-dir {WHEEL} .\n" in image) == bool(origin)


@pytest.mark.processes
def test_what_agents_are_told_to_write_passes_all_checks(tmp_path: Path) -> None:
    make_project(tmp_path / "book-shop")
    page = (tmp_path / "book-shop" / "AGENTS.md").read_text()
    tool, tests = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    server = tmp_path / "book-shop" / "book_shop" / "server.py"
    imports, _, code = tool.partition("\n\n\n")
    assert imports == "from typing import Literal"
    server.write_text(f"{server.read_text().replace('import Annotated', 'import Annotated, Literal')}\n\n{code}")
    (tmp_path / "book-shop" / "tests" / "test_cancel.py").write_text(f'"""Cancelling."""\n\n{tests}')
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for command in commands.replace(" && ", "\n").splitlines():
        program, *arguments = shlex.split(command)
        run([program.replace("-", "_"), *arguments, *(MYPY if program == "mypy" else [])], tmp_path / "book-shop")


def test_no_name_is_left_to_fill_in(project: Path) -> None:
    written = [path for path in project.rglob("*") if path.is_file() and not path.name.endswith(".pyc")]
    assert len(written) >= 9
    for path in written:
        text = path.read_text()
        assert not any(mark in text for mark in ("@name@", "@package@", "@version@", "@wheel@", "wheels@")), path


def test_it_needs_this_release_and_names_its_package(project: Path) -> None:
    made = tomllib.loads((project / "pyproject.toml").read_text())
    assert made["project"]["name"] == "book-shop"
    assert made["project"]["dependencies"] == [f"mrtr_server[fast]>={__version__}"]
    assert made["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["book_shop"]
    assert (project / "book_shop" / "server.py").is_file()


def test_its_workflow_is_one_and_runs_all_checks(project: Path) -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "github-workflows.json"
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    as_json = {"on" if key is True else key: value for key, value in workflow.items()}  # YAML 1.1 reads a flag
    Draft7Validator(json.loads(schema.read_text())).validate(as_json)
    ran = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {"pytest", "mypy", "ruff check", "ruff format --check", "docker build -t book-shop ."} <= set(ran)


def test_its_image_runs_a_command_that_there_is(project: Path) -> None:
    text = (project / "Dockerfile").read_text()
    command = json.loads(text.rpartition("\nCMD ")[2])
    assert command[:2] == ["mrtr-server", "run"]
    context = run_command.make_context("run", [*command[2:], "book_shop.server:app"])
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 8000)
    copied = [
        shlex.split(line)[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    # The wheel of a checkout, as this one is, is made by a command that is printed.
    assert all((project / path).exists() for paths in copied for path in paths if path != "wheels")
    assert "MRTR_APP=book_shop.server:app" in text


class TestWhatItRefuses:
    @pytest.mark.parametrize("name", ["Shop", "1shop", "book shop", "shop-", "-shop", "book--shop", "s" * 41, "büch"])
    def test_names_that_are_no_names(self, name: str) -> None:
        with pytest.raises(SetupError, match="lower-case letters, digits, - and _"):
            package_of(name)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("class", "is a word of Python's own"),
            ("match", "is a word of Python's own"),
            ("json", "There is a module 'json' already"),
            ("pydantic", "There is a module 'pydantic' already"),
            ("mrtr-server", "There is a module 'mrtr_server' already"),
            ("tests", "There is a module 'tests' already"),
        ],
    )
    def test_names_of_something_else(self, name: str, said: str) -> None:
        with pytest.raises(SetupError, match=said):
            package_of(name)

    def test_a_folder_that_is_not_empty(self, tmp_path: Path) -> None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "kept.txt").write_text("kept")
        done = CliRunner().invoke(main, ["new", str(tmp_path / "shop")])
        assert done.exit_code == 1
        assert "is not empty; choose another name, or an empty folder" in done.output
        assert [path.name for path in (tmp_path / "shop").iterdir()] == ["kept.txt"]

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "shop").write_text("")
        done = CliRunner().invoke(main, ["new", str(tmp_path / "shop")])
        assert done.exit_code == 1
        assert "is a file; choose another name" in done.output

    def test_a_place_that_can_not_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        done = CliRunner().invoke(main, ["new", str(tmp_path / "file" / "shop")])
        assert done.exit_code == 1
        assert "can't be written: " in done.output


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert make_project(tmp_path / "shop") == "shop"
    assert (tmp_path / "shop" / "tests" / "test_server.py").is_file()
