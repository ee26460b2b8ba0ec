"""What is missing is named, with a command that installs it wherever the package itself came from."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mrtr_server.errors import EXTRAS, lacking

ROOT = Path(__file__).parent.parent

APP = """
import sys
sys.modules[{missing!r}] = None
from mrtr_server import Context, MRTRServer

app = MRTRServer("app", keys=[bytes(32)])

@app.tool(task="optional", single_use=True)
async def work(ctx: Context) -> str:
    return "done"
"""


def run(folder: Path, missing: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an application's module in its folder, in an environment without one of its libraries."""
    (folder / "app.py").write_text(APP.format(missing=missing))
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    for extra, requirements in EXTRAS.items():
        own = [each for each in declared[extra] if not each.startswith(project["name"])]
        inner = [re.findall(r"\[(\w+)\]", each)[0] for each in declared[extra] if each.startswith(project["name"])]
        assert list(requirements) == [*(each for name in inner for each in declared[name]), *own]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_names_no_package_of_our_name_which_somebody_else_may_publish(extra: str) -> None:
    said = str(lacking("It", extra, ModuleNotFoundError("No module named 'x'", name="x")))
    command = said.rpartition("pip install ")[2]
    assert "mrtr" not in command
    assert command == " ".join(f"'{each}'" for each in EXTRAS[extra])
    assert said.startswith(f"It needs x. Install the extra '{extra}', or: ")


def test_what_a_library_itself_misses_is_named_instead_of_the_library(tmp_path: Path) -> None:
    error = ImportError("async_timeout, please")
    error.__cause__ = ModuleNotFoundError("No module named 'async_timeout.x'", name="async_timeout.x")
    assert str(lacking("postgresql://", "postgres", error)).startswith("postgresql:// needs async_timeout. ")


def test_a_library_that_is_too_old_is_not_said_to_be_missing() -> None:
    said = str(lacking("postgresql://", "postgres", ImportError("cannot import name 'Pool' from 'asyncpg'")))
    assert said.startswith("postgresql:// can't use what is installed: cannot import name 'Pool' from 'asyncpg'. ")


@pytest.mark.parametrize("missing", ["asyncpg"])
class TestAServerWithADatabase:
    DATABASE = {"MRTR_DATABASE_URL": "postgresql://u@localhost/x"}  # noqa: RUF012

    def test_says_at_start_what_it_needs(self, missing: str, tmp_path: Path) -> None:
        done = run(tmp_path, missing, "-c", "import app", **self.DATABASE)
        assert re.search(rf"SetupError: MRTR_DATABASE_URL: \S+( database)? needs {missing}\. Install", done.stderr)

    def test_with_several_workers_says_just_that(self, missing: str, tmp_path: Path) -> None:
        code = """
from uvicorn import Config
Config("app:app", workers=3).load()
import app
print(app.app._parts.shared.refusal)
"""
        done = run(tmp_path, missing, "-c", code, **self.DATABASE)
        assert f"needs {missing}. Install" in done.stdout
        assert "Give them a database" not in done.stdout + done.stderr
        assert "no shared store" not in done.stderr

    def test_its_worker_says_just_that_with_several_workers(self, missing: str, tmp_path: Path) -> None:
        code = "from mrtr_server.cli import main; main(['worker', 'app:app'])"
        done = run(tmp_path, missing, "-c", code, **self.DATABASE)
        assert done.returncode == 1
        assert f"needs {missing}. Install" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_host_with_yaml_says_what_it_needs(tmp_path: Path) -> None:
    code = "from mrtr_server.cli import main; main(['install', 'goose', 'app:app', '--config', 'config.yaml', '--yes'])"
    done = run(tmp_path, "yaml", "-c", code)
    assert done.returncode == 1
    assert "A configuration in YAML needs yaml. Install the extra 'skills'" in done.stderr
    assert "Traceback" not in done.stderr
