"""The index of the tests lists every file, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TEXT = (TESTS / "README.md").read_text()
SECTIONS = dict(re.findall(r"^## tests/?(\w*)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
FOLDERS = sorted({path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} | {"support"})
RULES = re.findall(r"^\| (\d+\. .+?) \| (`Test.+?) \| (.+) \|$", TEXT, re.MULTILINE)
"""Of each rule of a flow: the rule, the classes with their files, and where more of it is."""


def listed(section: str) -> list[str]:
    return re.findall(r"^\| `(\w+\.py)` \| .+ \|$", section, re.MULTILINE)


def test_every_folder_is_there() -> None:
    assert sorted(name or "." for name in SECTIONS) == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_there_once(folder: str) -> None:
    pattern = "*.py" if folder == "support" else "test_*.py"
    there = sorted(path.name for path in (TESTS / folder).glob(pattern) if path.name != "__init__.py")
    assert listed(SECTIONS[folder if folder != "." else ""]) == there


def test_every_rule_of_a_flow_names_its_class_and_its_file() -> None:
    classes = {
        (node.name, path.relative_to(TESTS).as_posix())
        for folder in ("flow", "tasks")
        for path in (TESTS / folder).glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.startswith("TestRule")
    }
    named = [each for _, held, _ in RULES for each in re.findall(r"`(\w+)` in `(\S+)`", held)]
    assert sorted(named) == sorted(classes)
    assert [file for _, _, more in RULES for file in re.findall(r"`(\S+)`", more) if not (TESTS / file).is_file()] == []
