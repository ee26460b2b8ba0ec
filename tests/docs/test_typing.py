"""What the pages and the examples show is typed as strictly as mypy and pyright know how.

Each runs once for all of it, in a folder that has a module for every block, and the examples.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .test_pages import PAGES, ROOT, programs

STRICT: dict[str, Any] = {
    "include": ["."],
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    # The blocks of a page share the imports of the first.
    "reportUnusedImport": "none",
}

BLOCKS = {
    f"{page.stem.lower().replace('-', '_')}_{number}.py": code
    for page in PAGES
    for number, code in enumerate(programs(page))
}
EXAMPLES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.py"))]
Problems = dict[str, list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all that is to be checked into one folder."""
    folder = tmp_path_factory.mktemp("typed")
    for name, code in BLOCKS.items():
        (folder / name).write_text(code)
    for name in EXAMPLES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "pyrightconfig.json").write_text(json.dumps(STRICT))
    return folder


@pytest.fixture(scope="module")
def mypy(folder: Path) -> Problems:
    """Check the folder with mypy; return what it says of each file."""
    # The package itself has been checked before, in most cases.
    how = ["--strict", f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
    command = [sys.executable, "-m", "mypy", *how, *BLOCKS, *EXAMPLES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found: Problems = defaultdict(list)
    for name, problem in re.findall(r"^([\w/]+\.py):(\d+: error: .+)$", done.stdout, re.MULTILINE):
        found[name].append(problem)
    assert re.findall(r"(\d+) source files\)?$", done.stdout) == [str(len(BLOCKS) + len(EXAMPLES))], done.stdout
    return found


@pytest.fixture(scope="module")
def pyright(folder: Path) -> Problems:
    """Check the folder with pyright; return what it says of each file."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", "."]
    # It would look whether there is a newer one.
    offline = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=offline)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(BLOCKS) + len(EXAMPLES)
    found: Problems = defaultdict(list)
    for each in report["generalDiagnostics"]:
        path, line = Path(each["file"]).resolve(), each["range"]["start"]["line"]
        shown = path.read_text().splitlines()[line]
        problem = f"{line + 1}: {shown.strip()}: {each['message']} {each.get('rule', '')}"
        found[str(path.relative_to(folder.resolve()))].append(problem)
    return found


@pytest.mark.parametrize("name", [*BLOCKS, *EXAMPLES])
def test_mypy_finds_nothing(name: str, mypy: Problems) -> None:
    assert mypy[name] == []


@pytest.mark.parametrize("name", [*BLOCKS, *EXAMPLES])
def test_pyright_finds_nothing(name: str, pyright: Problems) -> None:
    assert pyright[name] == []


def test_both_find_a_mistake_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def count(names: list[str]) -> str:\n    return len(names)\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT))
    for checker in (["mypy", "--strict", "wrong.py"], ["pyright", "--outputjson", "--project", "."]):
        done = subprocess.run([sys.executable, "-m", *checker], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert "wrong.py" in done.stdout
