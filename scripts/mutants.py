"""What scripts/mutants runs: a sample of mutants, each against the tests that cover its line.

Why not mutmut or cosmic-ray: mutmut puts a trampoline in place of every function, which the tests of signatures, layers
and tracebacks see. cosmic-ray runs one fixed command for every mutant, so all tests. Neither samples each package.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock

from coverage import CoverageData
from mutants_code import Mutant, mutants

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
IGNORED = ("tests/docs", "tests/examples", "tests/system")
AIM = 0.95
SETTINGS = """
[run]
source = mrtr_server
parallel = true
patch = subprocess
data_file = {data}
"""

KILLED, SURVIVED, EQUIVALENT, TIMEOUT, UNCOVERED = "killed", "survived", "equivalent", "timeout", "not covered"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Args:
        mutant: which one.
        end: `killed`, `survived`, `equivalent`, `timeout` or `not covered`.
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
    """Which tests cover which lines, measured once for a state of the tree.

    Args:
        jobs: how many processes measure it side by side.
        tests: the files and folders of tests that count.
    """

    def __init__(self, jobs: int, tests: list[str]) -> None:
        files = sorted(path for name in (PACKAGE, "tests") for path in (ROOT / name).rglob("*.py"))
        digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
        self._tests = tests
        self._folder = ROOT / "build" / "mutants" / "-".join([digest, *(each.replace("/", ".") for each in tests)])
        if not (self._folder / "took.json").exists():
            self._measure(jobs)
        self.took: dict[str, float] = json.loads((self._folder / "took.json").read_text())
        self._data = CoverageData(str(self._folder / "coverage"))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._paths = {str(Path(*Path(each).parts[Path(each).parts.index(PACKAGE) :])): each for each in self._files()}

    def covering(self, mutant: Mutant) -> list[str]:
        """Return the names of the tests that run a changed line, the quickest first.

        Those of a line that runs when its module is imported are all that run the module.
        """
        if mutant.path not in self._lines:
            path = self._paths.get(mutant.path)
            self._lines[mutant.path] = self._data.contexts_by_lineno(path) if path else {}
        lines = self._lines[mutant.path]
        tests = {test for line in range(mutant.first, mutant.last + 1) for test in lines.get(line, ())}
        if tests == {""}:
            tests = {test for each in lines.values() for test in each}
        return sorted((test for test in tests if test in self.took), key=self.took.__getitem__)

    def _files(self) -> list[str]:
        return [path for path in self._data.measured_files() if PACKAGE in Path(path).parts]

    def _measure(self, jobs: int) -> None:
        print("Measuring which tests cover what; this takes some minutes, once.", flush=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with TemporaryDirectory() as place:
            root = copied(Path(place))
            (root / "coverage.ini").write_text(SETTINGS.format(data=self._folder / "coverage"))
            took = self._folder / "took.json.new"
            command = [
                sys.executable,
                "-m",
                "coverage",
                "run",
                "--rcfile=coverage.ini",
                "-m",
                "pytest",
                "-q",
                *self._tests,
            ]
            command += ["-p", "mutants_contexts", "-p", "no:cacheprovider", *(f"--ignore={each}" for each in IGNORED)]
            command += ["--numprocesses", str(jobs), "--dist", "loadfile"]
            done = subprocess.run(command, cwd=root, env=environment(root, MRTR_TESTS_TOOK=str(took)))  # noqa: S603
            if done.returncode not in (0, 1):  # what fails unchanged is left out
                sys.exit(done.returncode)
            combine = [sys.executable, "-m", "coverage", "combine", "--quiet", "--rcfile=coverage.ini"]
            subprocess.run(combine, cwd=root, check=True)  # noqa: S603
            took.rename(self._folder / "took.json")


class Runner:
    """Runs mutants, each in a copy of the tree that nobody else uses meanwhile.

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
        for each in copies:
            self._copies.put(each)
        self._known: list[dict[str, str]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["equivalent"]
        self._print = Lock()

    def judge(self, mutant: Mutant) -> Verdict | None:
        """Run a mutant; return what became of it, or None if the time is over."""
        if time.monotonic() > self._until:
            return None
        verdict = self._judge(mutant)
        with self._print:
            print(
                f"{verdict.end:12} {mutant.path}:{mutant.first}  ({verdict.tests[0]} of {verdict.tests[1]} tests)",
                flush=True,
            )
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
        if not chosen:
            return Verdict(mutant, UNCOVERED)
        root = self._copies.get()
        module = root / mutant.path
        original = module.read_text()
        try:
            module.write_text(mutant.source)
            return Verdict(mutant, self._run(root, chosen, 30 + 4 * seconds), (len(chosen), len(covering)))
        finally:
            module.write_text(original)
            self._copies.put(root)

    def _run(self, root: Path, tests: list[str], timeout: float) -> str:
        (root / "tests.txt").write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "@tests.txt"]
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=root,
            env=environment(root),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return TIMEOUT
        finally:
            end(process)
        return SURVIVED if code == 0 else KILLED


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
    rows = ["| package | mutants | killed | timed out | equivalent | not covered | survived | killed of what differs |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for name, judged in [*verdicts.items(), ("all", list(chain(*verdicts.values())))]:
        ends = Counter(verdict.end for verdict in judged)
        counts = [len(judged), *(ends[end] for end in (KILLED, TIMEOUT, EQUIVALENT, UNCOVERED, SURVIVED))]
        rows.append(f"| {name} | {' | '.join(map(str, counts))} | {share(judged):.0%} |")
    return "\n".join(rows)


def share(verdicts: list[Verdict]) -> float:
    """Return the share that was noticed of what is not equivalent."""
    differing = [verdict for verdict in verdicts if verdict.end != EQUIVALENT]
    return sum(verdict.end in (KILLED, TIMEOUT) for verdict in differing) / len(differing) if differing else 1.0


def main() -> int:
    """Run the sample, and print the table and the survivors."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description="See whether the tests notice small changes.")
    parser.add_argument("packages", nargs="*", default=["flow", "crypto", "tasks", "storage"])
    parser.add_argument("--sample", type=int, default=20, help="mutants of each package; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="another number, another sample")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for each mutant")
    parser.add_argument("--minutes", type=float, default=60, help="after these, no more mutants are begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many run side by side")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="count these alone, for a quick look")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    coverage = Coverage(options.jobs, options.tests)
    samples: dict[str, list[Mutant]] = {}
    for package in options.packages:
        every = [mutant for path in modules(package) for mutant in mutants(ROOT, path)]
        size = min(options.sample or len(every), len(every))
        samples[package] = random.Random(options.seed).sample(every, size)  # noqa: S311
        print(f"{package}: {size} of {len(every)} mutants", flush=True)
    with TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        copies = [copied(Path(place) / str(number)) for number in range(options.jobs)]
        runner = Runner(coverage, copies, options.budget, until)
        judged = {package: list(pool.map(runner.judge, sample)) for package, sample in samples.items()}
    verdicts = {package: [each for each in every if each is not None] for package, every in judged.items()}
    print()
    for each in chain(*verdicts.values()):
        if each.end not in (SURVIVED, UNCOVERED):
            continue
        print(f"{each.mutant.path}:{each.mutant.first}: {each.end} {each.tests[0]} of {each.tests[1]} tests")
        print("\n".join(each.mutant.diff), end="\n\n")
    left_out = sum(each is None for each in chain(*judged.values()))
    if left_out:
        print(f"{left_out} mutants were not begun: the time was over. --minutes gives more.\n")
    print(table(verdicts))
    return 0 if share(list(chain(*verdicts.values()))) >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
