"""scripts/mutants makes small changes of what runs, and its reviewed list fits the code."""

import ast
import sys
import time
import tomllib
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from mutants import (  # noqa: E402
    KILLED,
    SURVIVED,
    TYPES,
    UNCOVERED,
    Kills,
    Runner,
    Verdict,
    changed,
    environment,
    share,
)
from mutants_code import Mutant, mutants  # noqa: E402
from mutants_forks import FAILED, NOT_POSSIBLE, PASSED, Forks  # noqa: E402

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


def test_what_runs_at_import_is_told_from_what_runs_in_a_function(found: list[Mutant]) -> None:
    assert {mutant.first for mutant in found if mutant.at_import} == {3}


def test_what_says_that_something_always_holds_stays(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def pair(a, b):\n    assert_never(a)\n    zip(a, b, strict=True)\n")
    assert [mutant.diff[-1].strip() for mutant in mutants(tmp_path, "module.py")] == ["+    pass"]


TESTS = """
from pathlib import Path
from module import take

def test_always_fails():
    assert False

def test_fails_the_first_time():
    ran = Path("ran")
    before, _ = ran.exists(), ran.touch()
    assert before

def test_doubles():
    assert take([4]) == 8

def test_waits_for_what_never_comes():
    while take([4]) != 8:
        pass
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("tests", "end"),
    [
        (["test_always_fails", "test_doubles"], KILLED),
        (["test_fails_the_first_time"], SURVIVED),
        (["test_waits_for_what_never_comes", "test_always_fails"], KILLED),
        ([], UNCOVERED),
    ],
)
def test_a_test_kills_that_fails_with_the_mutant_each_time_and_passes_without_it(
    tmp_path: Path, tests: list[str], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mutants.START", 5.0 if "test_waits_for_what_never_comes" in tests else 120.0)
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "test_module.py").write_text(TESTS)
    (halved,) = (each for each in mutants(tmp_path, "module.py") if "    return (taken // 2)" in each.source)
    names = [f"test_module.py::{name}" for name in tests]
    kills = Kills(tmp_path / "kills.json", {"test_module.py": "as it is"})
    coverage = SimpleNamespace(covering=lambda _: names, took=dict.fromkeys(names, 0.1), kills=kills)
    with closing(Runner(coverage, [tmp_path], budget=600, until=time.monotonic() + 600)) as runner:  # type: ignore[arg-type]
        verdict = runner.judge(halved)
    assert verdict is not None
    assert verdict.end == end
    assert (tmp_path / "module.py").read_text() == MODULE
    assert kills.has(halved) == (end == KILLED)


@pytest.mark.processes
def test_each_mutant_runs_without_those_before(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "other.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    (tmp_path / "test_module.py").write_text("import other\n" + TESTS)
    names = ["test_module.py::test_doubles"]
    kills = Kills(tmp_path / "kills.json", {"test_module.py": "as it is"})
    coverage = SimpleNamespace(covering=lambda _: names, took=dict.fromkeys(names, 0.1), kills=kills)
    with closing(Runner(coverage, [tmp_path], budget=600, until=time.monotonic() + 600)) as runner:  # type: ignore[arg-type]
        halved = next(each for each in mutants(tmp_path, "module.py") if "return (taken // 2)" in each.source)
        verdicts = [runner.judge(each) for each in (halved, *mutants(tmp_path, "other.py"))]
    assert [each and each.end for each in verdicts] == [KILLED, *[SURVIVED] * 4]


NESTED = """
LIMIT = 3

def adds(number):
    def add(other):
        return other + number
    return add

add_two = adds(2)

class Kept:
    @property
    def limit(self):
        return LIMIT + 1

    def above(self):
        return type(self).__base__ and self.limit

class Under(Kept):
    def above(self):
        super().above()
        return 5
"""

TESTS_OF_NESTED = """
import subprocess, sys, time
from module import Under, adds, add_two

def test_of_what_lives_already():
    assert add_two(1) == 3

def test_of_what_is_made_anew():
    assert adds(1)(1) == 2

def test_of_a_property():
    assert Under().limit == 4

def test_of_another_process():
    code = "import module; print(module.Under().limit)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"4\\n"

def test_that_takes_long():
    time.sleep(60)
"""


@pytest.mark.processes
def test_forks_run_what_is_imported_already(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(NESTED)
    (tmp_path / "test_module.py").write_text(TESTS_OF_NESTED)
    every = list(mutants(tmp_path, "module.py"))
    with closing(Forks(tmp_path, ["test_module.py"], environment(tmp_path))) as forks:
        forks.wait()

        def run(change: str, *tests: str, seconds: float = 60.0) -> tuple[str, str]:
            source = next(each.source for each in every if change in each.source) if change else None
            module.write_text(source or NESTED)
            end, test = forks.run("module.py", source, {f"test_module.py::test_{name}": seconds for name in tests})
            return end, test.removeprefix("test_module.py::test_")

        four = "of_what_lives_already", "of_what_is_made_anew", "of_a_property", "of_another_process"
        assert run("", *four) == (PASSED, "")
        assert run("other - number", *four) == (FAILED, "of_what_lives_already")
        assert run("other - number", "of_a_property", "of_what_is_made_anew") == (FAILED, "of_what_is_made_anew")
        assert run("LIMIT - 1", *four) == (FAILED, "of_a_property")
        assert run("LIMIT - 1", "of_another_process") == (FAILED, "of_another_process")
        assert run("", *four) == (PASSED, ""), "the next one finds all as it was"
        assert run("", "that_takes_long", seconds=0.5) == (FAILED, "that_takes_long")
        assert run("LIMIT = (4)", "of_a_property") == (NOT_POSSIBLE, ""), "it ran at import"
        assert run("        pass\n        return 5", "of_a_property") == (NOT_POSSIBLE, ""), "it needs no `super` now"
        assert run("", "that_is_nowhere") == (NOT_POSSIBLE, "")


@pytest.mark.processes
@pytest.mark.parametrize(("tests", "end"), [([], TYPES), (["test_always_fails"], TYPES), (["test_doubles"], KILLED)])
def test_mypy_refuses_what_no_test_kills(tmp_path: Path, tests: list[str], end: str) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "test_module.py").write_text(TESTS)
    (nothing,) = (each for each in mutants(tmp_path, "module.py") if "    return None" in each.source)
    names = [f"test_module.py::{name}" for name in tests]
    kills = Kills(tmp_path / "kills.json", {"test_module.py": "as it is"})
    coverage = SimpleNamespace(covering=lambda _: names, took=dict.fromkeys(names, 0.1), kills=kills)
    with closing(Runner(coverage, [tmp_path], budget=600, until=time.monotonic() + 600)) as runner:  # type: ignore[arg-type]
        verdict = runner.judge(nothing)
    assert verdict is not None
    assert verdict.end == end
    assert (tmp_path / "module.py").read_text() == MODULE


def test_a_kill_counts_until_the_mutant_or_the_file_of_its_test_changes(tmp_path: Path, found: list[Mutant]) -> None:
    file, tests = tmp_path / "kills.json", {"test_module.py": "one", "test_other.py": "two"}
    Kills(file, tests).add(found[0], "test_module.py::test_it")
    assert [Kills(file, tests).has(mutant) for mutant in found[:2]] == [True, False]
    assert Kills(file, {**tests, "test_other.py": "changed"}).has(found[0])
    assert not Kills(file, {**tests, "test_module.py": "changed"}).has(found[0])


def test_the_share_is_of_what_differs_and_counts_the_killed_alone(found: list[Mutant]) -> None:
    ends = [*["killed"] * 5, "types", "survived", "timeout", "equivalent", "equivalent"]
    assert share([Verdict(found[0], end) for end in ends]) == 6 / 8


@pytest.mark.processes  # as slow on every Python
def test_what_is_listed_as_equivalent_is_a_mutant_of_the_code_as_it_is() -> None:
    listed = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["equivalent"]
    there = {file: set(map(changed, mutants(ROOT, file))) for file in {each["file"] for each in listed}}
    for each in listed:
        assert (each["before"], each["after"]) in there[each["file"]], each
        assert each["why"]
