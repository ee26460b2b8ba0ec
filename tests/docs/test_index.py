"""The index of the tests lists every file, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TEXT = (TESTS / "README.md").read_text()
SECTIONS = dict(re.findall(r"^## tests/?(\w*)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
FOLDERS = sorted({path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} | {"support"})
PACKAGES = {path.parent.name for path in (TESTS.parent / "mrtr_server").glob("*/__init__.py")}
OF_ALL = {"docs", "examples", "system", "support"}
"""Folders that are about the whole."""

MODULES = re.findall(r"^\| ((?:`methods/\w+\.py`(?:, )?)+) \| (`.+`) \|$", SECTIONS["methods"], re.MULTILINE)
"""Modules of `methods` without a test of their own, and the files that hold their rules."""

RULES = re.findall(r"^\| (\d+\. .+?) \| (`Test.+?) \| (.+) \|$", TEXT, re.MULTILINE)
"""Of each rule of a flow: the rule, the classes with their files, and where more of it is."""


def listed(section: str) -> list[str]:
    return re.findall(r"^\| `(\w+\.py)` \| .+ \|$", section, re.MULTILINE)


def test_every_folder_is_there() -> None:
    assert sorted(name or "." for name in SECTIONS) == FOLDERS


def test_every_package_has_its_folder_and_every_other_folder_is_said_to_be_about_all() -> None:
    assert {folder for folder in FOLDERS if folder != "."} == PACKAGES | OF_ALL
    introduction = TEXT.partition("\n## ")[0]
    assert [folder for folder in sorted(OF_ALL) if f"`{folder}` (" not in introduction] == []


def test_every_method_has_its_tests_or_says_where_they_are() -> None:
    there = {path.name for path in (TESTS.parent / "mrtr_server" / "methods").glob("[a-z]*.py")}
    tested = {name.removeprefix("test_") for name in listed(SECTIONS["methods"])}
    elsewhere = [name for names, _ in MODULES for name in re.findall(r"`methods/(\S+?)`", names)]
    assert there <= {*tested, *elsewhere}
    assert set(elsewhere) <= there
    assert [
        file for _, files in MODULES for file in re.findall(r"`(\S+?)`", files) if not (TESTS / file).is_file()
    ] == []


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
