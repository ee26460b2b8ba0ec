"""scripts/mutants makes small changes of what runs, and its reviewed list fits the code."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from mutants_code import Mutant, mutants  # noqa: E402

MODULE = '''"""A module with one of each."""

LIMIT: int = 3

def take(items: list[int], limit: int = LIMIT) -> int:
    """Take some."""
    taken = 0
    for item in items:
        if item < limit and not taken:
            break
        taken += item
    if taken == 5:
        raise ValueError(f"{taken + 1}")
    return taken * 2
'''


@pytest.fixture
def found(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "module.py").write_text(MODULE)
    return list(mutants(tmp_path, "module.py"))


def test_every_kind_of_change_is_made(found: list[Mutant]) -> None:
    changed = {line[1:].strip() for mutant in found for line in mutant.diff if line.startswith("+")}
    assert changed == {
        "LIMIT: int = (4)",
        "taken = (1)",
        "if (item < limit or not taken):",
        "if (item < limit):",
        "if (not taken):",
        "if (item <= limit) and not taken:",
        "if item < limit and (taken):",
        "continue",
        "pass",
        "if (taken != 5):",
        "if taken == (6):",
        "return None",
        "return (taken // 2)",
        "return taken * (3)",
    }


def test_each_changes_one_place_and_is_python(found: list[Mutant]) -> None:
    for mutant in found:
        ast.parse(mutant.source)
        before, after = MODULE.splitlines(), mutant.source.splitlines()
        assert len(before) == len(after)
        assert [number for number, lines in enumerate(zip(before, after, strict=True), 1) if len({*lines}) > 1] == [
            mutant.first
        ]


def test_what_is_listed_as_equivalent_is_still_in_the_code() -> None:
    for each in tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["equivalent"]:
        assert each["before"] in " ".join((ROOT / each["file"]).read_text().split()), each
        assert each["why"]
