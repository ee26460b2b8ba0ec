"""What scripts/mutants runs: a sample of mutants, each against the tests that cover its line.

Why not mutmut or cosmic-ray: mutmut puts a trampoline in place of every function, which the tests of signatures, layers
and tracebacks see. cosmic-ray runs one fixed command for every mutant, so all tests. Neither samples each package.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock

from coverage import CoverageData
from mutants_code import Mutant, mutants
from mutants_forks import FAILED, NOT_POSSIBLE, PASSED, Forks

ROOT = Path(__file__).parent.parent
PACKAGE = "mrtr_server"
COPIED = (
    "mrtr_server",
    "tests",
    "examples",
    "scripts",
    "benchmarks",
    "docs",
    "requirements",
    "pyproject.toml",
    "README.md",
)
# Whole programs and fleets: quicker tests cover their lines, too, and no test's name reaches other processes.
IGNORED = ("tests/docs/", "tests/examples/", "tests/system/")
BESIDE = {
    "flow": (
        "auth",
        "callbacks",
        "live",
        "logs",
        "methods",
        "registration",
        "telemetry",
        "system/test_rolling_upgrades.py",
        "transport/test_bad_input.py",
        "transport/test_pieces.py",
    ),
    "tasks": ("live", "telemetry", "cli/test_tasks.py", "methods/test_authorized_changes.py"),
    "storage": ("cli", "live", "telemetry"),
}
"""Where else than in its own folder the rules of a package are held."""
AIM = 0.95
SETTINGS = """
[run]
source = mrtr_server
parallel = true
patch = subprocess
data_file = {data}
"""

START, SLOWNESS = 6.0, 4.0
"""How many seconds a test may take besides, and how many times what it took when it was measured."""

IMPORTS = 30.0
"""How many seconds a process of its own may take besides its tests."""

KILLED, TYPES, SURVIVED = "killed", "types", "survived"
EQUIVALENT, TIMEOUT, UNCOVERED = "equivalent", "timeout", "not covered"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Args:
        mutant: which one.
        end: `killed`, `types`, which no test has killed, but mypy refuses it, `survived`, `equivalent`, `timeout` or
            `not covered`.
        tests: how many test functions were chosen for it, of how many that cover its line.
    """

    mutant: Mutant
    end: str
    tests: tuple[int, int] = (0, 0)


def copied(into: Path) -> Path:
    """Copy what the tests need into a directory of its own, and return it."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, into / name)
    return into


def environment(root: Path, **more: str) -> dict[str, str]:
    """Return an environment in which Python finds the package in this directory, in other processes, too."""
    path = os.pathsep.join([str(root), str(ROOT / "scripts")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


class Coverage:
    """Which tests cover which lines: measured for a state of the package, and again for files of tests that change.

    Args:
        jobs: how many processes measure it side by side.
        tests: the files and folders of tests that count.
    """

    def __init__(self, jobs: int, tests: list[str]) -> None:
        shared = [
            *(ROOT / PACKAGE).rglob("*.py"),
            *(ROOT / "tests" / "support").glob("*.py"),
            ROOT / "tests/conftest.py",
        ]
        self._folder = ROOT / "build" / "mutants" / digest(*sorted(shared))
        state = self._folder / "state.json"
        known = json.loads(state.read_text()) if state.exists() else {"files": {}, "took": {}}
        files = {name: digest(ROOT / name) for name in test_files(tests)}
        self.kills = Kills(self._folder / "kills.json", files)
        new = [name for name, of in files.items() if known["files"].get(name) != of]
        if new:
            took = {test: seconds for test, seconds in known["took"].items() if test.partition("::")[0] not in new}
            took |= self._measure(jobs, new)
            known = {"files": known["files"] | files, "took": took}
            state.write_text(json.dumps(known))
        self.took: dict[str, float] = {
            test: seconds for test, seconds in known["took"].items() if test.partition("::")[0] in files
        }
        self._data = CoverageData(str(self._folder / "coverage"))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def covering(self, mutant: Mutant) -> list[str]:
        """Return the names of the tests that run a changed line: those of its module first, then those of its package.

        Of these the quickest come first. Tests of a module are in a file with its name, or in one that imports it.

        Those of a line that runs when its module is imported are all of its package, and all in the files of which any
        test runs the module: whichever happens to import it first says nothing, and some look at signatures alone. The
        same holds for a line that runs while tests are collected, for their parameters.
        """
        if mutant.path not in self._lines:
            self._lines[mutant.path] = self._lines_of(mutant.path)
        lines = self._lines[mutant.path]
        tests = {test for line in range(mutant.first, mutant.last + 1) for test in lines.get(line, ())}
        own = f"tests/{Path(mutant.path).parts[1]}/"
        if mutant.at_import or not tests:
            files = {test.partition("::")[0] for each in lines.values() for test in each}
            tests = {test for test in self.took if test.partition("::")[0] in files or test.startswith(own)}
        tests &= self.took.keys()
        meant = {file for file in {test.partition("::")[0] for test in tests} if _is_of(file, mutant.path)}
        return sorted(
            tests,
            key=lambda test: (test.partition("::")[0] not in meant, not test.startswith(own), self.took[test]),
        )

    def _lines_of(self, module: str) -> dict[int, list[str]]:
        """Return the tests that run each line of a module. It was measured in a directory of its own each time."""
        lines: dict[int, list[str]] = {}
        for path in self._data.measured_files():
            if path.endswith(f"/{module}"):
                for line, tests in self._data.contexts_by_lineno(path).items():
                    lines.setdefault(line, []).extend(tests)
        return lines

    def _measure(self, jobs: int, tests: list[str]) -> dict[str, float]:
        """Measure what these files of tests cover; return how many seconds each test took that passed."""
        print(f"Measuring what {len(tests)} files of tests cover; this takes some minutes, once.", flush=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as place:
            root = copied(Path(place))
            (root / "coverage.ini").write_text(SETTINGS.format(data=self._folder / "coverage"))
            took = root / "took.json"
            run = [sys.executable, "-m", "coverage", "run", "--rcfile=coverage.ini", "-m", "pytest", "-q"]
            run += ["-p", "mutants_contexts", "-p", "no:cacheprovider", "--numprocesses", str(jobs), "--dist=loadfile"]
            took_in = environment(root, MUTANTS_TOOK=str(took))
            done = subprocess.run([*run, *tests], cwd=root, env=took_in)  # noqa: S603
            if done.returncode not in (0, 1):  # what fails unchanged is left out
                sys.exit(done.returncode)
            combine = [sys.executable, "-m", "coverage", "combine", "--append", "--quiet", "--rcfile=coverage.ini"]
            subprocess.run(combine, cwd=root, check=True)  # noqa: S603
            measured: dict[str, float] = json.loads(took.read_text())
            return measured


@cache
def _is_of(test: str, module: str) -> bool:
    """Return whether a file of tests is that of a module: by its name, or since it imports it."""
    package, name = Path(module).parent.name, Path(module).stem
    imports = rf"^from [\w.]*\b{package}(\.{name}\b| import .*\b{name}\b)"
    file = ROOT / test
    return Path(test).stem == f"test_{name}" or bool(re.search(imports, file.read_text(), re.MULTILINE))


def digest(*files: Path) -> str:
    """Return a digest of what is in these files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def test_files(names: list[str]) -> list[str]:
    """Return these files of tests, and those in these folders that don't start whole programs."""
    found: list[str] = []
    for name in names:
        inside = (str(path.relative_to(ROOT)) for path in sorted((ROOT / name).rglob("test_*.py")))
        found += [name] if (ROOT / name).is_file() else [path for path in inside if not path.startswith(IGNORED)]
    return found


class Kills:
    """Which test has killed which mutant of this state of the package, so that it need not do so again.

    Args:
        file: where that is kept.
        tests: the digests of the files of tests: a kill counts until its file changes.
    """

    def __init__(self, file: Path, tests: dict[str, str]) -> None:
        self._file = file
        self._tests = tests
        self._kills: dict[str, tuple[str, str]] = json.loads(file.read_text()) if file.exists() else {}
        self._guard = Lock()

    def has(self, mutant: Mutant) -> bool:
        """Return whether a test has killed a mutant that is still as it was."""
        name, version = self._kills.get(_key(mutant), ("", ""))
        return bool(name) and self._tests.get(name) == version

    def add(self, mutant: Mutant, test: str) -> None:
        """Note that a test has killed a mutant."""
        name = test.partition("::")[0]
        with self._guard:
            self._kills[_key(mutant)] = (name, self._tests[name])
            self._file.write_text(json.dumps(self._kills))


def _key(mutant: Mutant) -> str:
    return hashlib.sha256(f"{mutant.path}\0{mutant.source}".encode()).hexdigest()


def own_tests(packages: list[str]) -> list[str]:
    """Return the folders and files of the tests of packages, or of the packages that modules are in."""
    names = {Path(package).parts[0] for package in packages}
    places = (Path("tests") / place for name in names for place in (name, *BESIDE.get(name, ())))
    return sorted({str(place) if (ROOT / place).exists() else "tests" for place in places})


class Runner:
    """Runs mutants, each in a copy of the tree that nobody else uses meanwhile.

    A mutant is killed by a test that fails with it, fails with it again, and passes without it. So neither a flaky test
    nor one that fails on this machine counts. What no test kills is given to mypy, which scripts/test runs as well.
    Tests run in forks; where that is not possible, in a process of their own.

    Args:
        coverage: which tests cover what.
        copies: the directories.
        budget: how many seconds of tests a mutant is given, as they took unchanged.
        until: when no more are begun, by the monotonic clock.
    """

    def __init__(self, coverage: Coverage, copies: list[Path], budget: float, until: float) -> None:
        self._coverage = coverage
        self._budget = budget
        self._until = until
        self._copies: SimpleQueue[Path] = SimpleQueue()
        files = sorted({test.partition("::")[0] for test in coverage.took})
        self._forks = {root: Forks(root, files, environment(root)) for root in copies}
        for each in copies:
            self._forks[each].wait()
            self._copies.put(each)
        self._known: list[dict[str, str]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["equivalent"]
        self._passing: set[str] = set()
        self._typed: dict[Path, bool] = {}
        """Whether mypy finds nothing in the copy as it is."""
        self._print = Lock()

    def judge(self, mutant: Mutant) -> Verdict | None:
        """Run a mutant; return what became of it, or None if the time is over."""
        if time.monotonic() > self._until:
            return None
        verdict = self._judge(mutant)
        with self._print:
            print(f"{verdict.end:12} {mutant.path}:{mutant.first}  ({verdict.tests[0]} of {verdict.tests[1]} tests)")
            if verdict.end not in (KILLED, TYPES, EQUIVALENT):
                print("", *mutant.diff, sep="\n    ", end="\n\n")
            sys.stdout.flush()
        return verdict

    def _judge(self, mutant: Mutant) -> Verdict:
        if any(
            each["file"] == mutant.path and changed(mutant) == (each["before"], each["after"]) for each in self._known
        ):
            return Verdict(mutant, EQUIVALENT)
        covering = self._coverage.covering(mutant)
        chosen: list[str] = []
        seconds = 0.0
        for test in covering:
            if chosen and seconds + self._coverage.took[test] > self._budget:
                break
            chosen.append(test)
            seconds += self._coverage.took[test]
        if self._coverage.kills.has(mutant):
            return Verdict(mutant, KILLED, (len(chosen), len(covering)))
        root = self._copies.get()
        try:
            end = self._end_of(mutant, root, chosen) if chosen else UNCOVERED
            if end != KILLED and self._is_refused_by_types(mutant, root):
                end = TYPES
            return Verdict(mutant, end, (len(chosen), len(covering)))
        finally:
            self._copies.put(root)

    def _is_refused_by_types(self, mutant: Mutant, root: Path) -> bool:
        """Return whether mypy refuses the mutant, and takes the module as it is."""
        if root not in self._typed:
            self._typed[root] = _has_types(root, mutant.path)
        with written(mutant, root):
            return self._typed[root] and not _has_types(root, mutant.path)

    def _end_of(self, mutant: Mutant, root: Path, chosen: list[str]) -> str:
        """Run the chosen tests until one of them is seen to kill the mutant."""
        tests = chosen.copy()
        while tests:
            code, failed = self._run_with(mutant, root, tests)
            if code in (None, 0):
                return TIMEOUT if code is None else SURVIVED
            # A file that can't be imported fails as a whole. A broken conftest.py names nothing.
            test = next((test for test in tests if test == failed or test.startswith(f"{failed}::")), tests[0])
            again, _ = self._run_with(mutant, root, [test])
            if again is None:
                return TIMEOUT
            if again and self._passes(root, test):
                self._coverage.kills.add(mutant, test)
                return KILLED
            print(f"  {test} fails now and then, or always: it does not count", flush=True)
            tests.remove(test)
        return SURVIVED

    def _passes(self, root: Path, test: str) -> bool:
        """Return whether a test passes on the unchanged tree."""
        if test not in self._passing and self._forks[root].run("", None, {test: self._longest(test)})[0] == PASSED:
            self._passing.add(test)
        return test in self._passing

    def _run_with(self, mutant: Mutant, root: Path, tests: list[str]) -> tuple[int | None, str]:
        """Run tests with a mutant; return what `_run` does."""
        with written(mutant, root):
            if not mutant.at_import:
                longest = {test: self._longest(test) for test in tests}
                end, failed = self._forks[root].run(mutant.path, mutant.source, longest)
                if end != NOT_POSSIBLE:
                    return int(end == FAILED), failed
            return self._run(root, tests)

    def _longest(self, test: str) -> float:
        """Return after how many seconds a test fails that still runs."""
        return SLOWNESS * self._coverage.took[test] + START

    def _run(self, root: Path, tests: list[str]) -> tuple[int | None, str]:
        """Run tests in a process of their own until one fails; return its exit code, and what failed.

        The code is None after the timeout.

        A test fails, too, that waits for what never comes: after so long that no busy machine explains it.
        """
        (root / "tests.txt").write_text("\n".join(tests))
        failed = root / "failed.txt"
        failed.write_text("")
        took = [self._coverage.took[test] for test in tests]
        longest = max(map(self._longest, tests))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutants_failed"]
        command += ["-o", f"faulthandler_timeout={longest:.0f}", "-o", "faulthandler_exit_on_timeout=true"]
        process = subprocess.Popen(  # noqa: S603
            [*command, "@tests.txt"],
            cwd=root,
            env=environment(root, MUTANTS_FAILED=str(failed)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(IMPORTS + SLOWNESS * sum(took) + longest)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            end(process)
        return code, failed.read_text()

    def close(self) -> None:
        """End the processes that fork."""
        for each in self._forks.values():
            each.close()


def _has_types(root: Path, module: str) -> bool:
    """Return whether mypy finds nothing in the package that a module is in, or in the module alone."""
    command = [sys.executable, "-m", "mypy", "--cache-dir=.mypy_cache", "--no-error-summary", Path(module).parts[0]]
    # Without the path of `environment`: mypy would find the package a second time.
    done = subprocess.run(command, cwd=root, capture_output=True)  # noqa: S603
    return done.returncode == 0


@contextmanager
def written(mutant: Mutant, root: Path) -> Iterator[None]:
    """Put a mutant in the place of its module for a while."""
    module = root / mutant.path
    original = module.read_text()
    module.write_text(mutant.source)
    try:
        yield
    finally:
        module.write_text(original)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run of pytest, and whatever it has started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def changed(mutant: Mutant) -> tuple[str, str]:
    """Return what a mutant changes: the lines before and after, without their indentation."""
    before = " ".join(line[1:].strip() for line in mutant.diff if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in mutant.diff if line.startswith("+"))
    return before, after


def modules(package: str) -> list[str]:
    """Return the modules of a package, or the one module that it is."""
    place = ROOT / PACKAGE / package
    found = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [str(path.relative_to(ROOT)) for path in found]


def table(verdicts: dict[str, list[Verdict]]) -> str:
    """Return the table of CONTRIBUTING: a row for each package, and one for all."""
    heads = ["package", "mutants", "killed by tests", "by types", "timed out", "equivalent", "not covered", "survived"]
    rows = [f"| {' | '.join(heads)} | killed of what differs |", "|---|" + "--:|" * len(heads)]
    for name, judged in [*verdicts.items(), ("all", list(chain(*verdicts.values())))]:
        ends = Counter(verdict.end for verdict in judged)
        counts = [len(judged), *(ends[end] for end in (KILLED, TYPES, TIMEOUT, EQUIVALENT, UNCOVERED, SURVIVED))]
        rows.append(f"| {name} | {' | '.join(map(str, counts))} | {share(judged):.0%} |")
    return "\n".join(rows)


def share(verdicts: list[Verdict]) -> float:
    """Return the share that was killed of what is not equivalent: one that only took too long is not."""
    differing = [verdict for verdict in verdicts if verdict.end != EQUIVALENT]
    return sum(verdict.end in (KILLED, TYPES) for verdict in differing) / len(differing) if differing else 1.0


def main() -> int:
    """Run the sample, and print the survivors and the table."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description="See whether the tests notice small changes.")
    parser.add_argument("packages", nargs="*", default=["flow", "crypto", "tasks", "storage"])
    parser.add_argument("--sample", type=int, default=20, help="mutants of each package; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="another number, another sample")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for each mutant")
    parser.add_argument("--minutes", type=float, default=60, help="after these, no more mutants are begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many run side by side")
    parser.add_argument("--tests", nargs="+", help="run these, and not those of the packages alone")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    coverage = Coverage(options.jobs, options.tests or own_tests(options.packages))
    samples: dict[str, list[Mutant]] = {}
    for package in options.packages:
        every = [mutant for path in modules(package) for mutant in mutants(ROOT, path)]
        size = min(options.sample or len(every), len(every))
        samples[package] = random.Random(options.seed).sample(every, size)  # noqa: S311
        print(f"{package}: {size} of {len(every)} mutants", flush=True)
    with TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        copies = [copied(Path(place) / str(number)) for number in range(options.jobs)]
        with closing(Runner(coverage, copies, options.budget, until)) as runner:
            judged = {package: list(pool.map(runner.judge, sample)) for package, sample in samples.items()}
    verdicts = {package: [each for each in every if each is not None] for package, every in judged.items()}
    print()
    left_out = sum(each is None for each in chain(*judged.values()))
    if left_out:
        print(f"{left_out} mutants were not begun: the time was over. --minutes gives more.\n")
    print(table(verdicts))
    return 0 if share(list(chain(*verdicts.values()))) >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
