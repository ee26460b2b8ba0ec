"""Runs tests against mutants in forks of one process, which has imported and collected everything once.

A fork puts the code of a mutant in the place of that which runs, and runs some of the tests: so most mutants take a
tenth of a second, where a process of their own takes five. What runs when a module is imported has run by then, so
mutants of that need such a process.

`Forks` starts pytest with this module as a plugin, and writes a line of JSON to it for each run.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutants_contexts import name_of

PIPES = "MUTANTS_PIPES"
"""The variable with the numbers of the pipes that runs come by, and go by."""

PASSED, FAILED, NOT_POSSIBLE = "passed", "failed", "not possible"


class Forks:
    """The process that forks, in a copy of the tree: it is made at once, and imports the tree as it is then.

    Args:
        root: the copy.
        files: the files of tests to collect.
        environment: that of the process.
    """

    def __init__(self, root: Path, files: list[str], environment: dict[str, str]) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        (root / "files.txt").write_text("\n".join(files))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants_forks", "@files.txt"],
            cwd=root,
            env={**environment, PIPES: f"{theirs_in} {theirs_out}"},
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._runs, self._ends = os.fdopen(ours_out, "w"), os.fdopen(ours_in)

    def wait(self) -> None:
        """Wait until everything is imported and collected: nothing in the copy may change before."""
        self._ends.readline()

    def run(self, module: str, source: str | None, tests: dict[str, float]) -> tuple[str, str]:
        """Run tests until one fails.

        Args:
            module: the one that the mutant is of, relative to the copy.
            source: that of the mutant; None to run it as it is.
            tests: how long each may take at most, in seconds, by its name.

        Returns:
            `PASSED`, `FAILED` with the name of the test that failed or took too long, or `NOT_POSSIBLE` where the
            code can't be put in its place.
        """
        print(json.dumps([module, source, tests]), file=self._runs, flush=True)
        end, test = json.loads(self._ends.readline())
        return end, test

    def close(self) -> None:
        """End the process."""
        self._runs.close()
        self._ends.close()
        self._process.wait()


# In the process that forks


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what comes by the pipe, in a fork each."""
    if PIPES not in os.environ:
        return None
    runs, ends = map(int, os.environ[PIPES].split())
    root = str(session.config.rootpath)
    items: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        items.setdefault(name_of(item.nodeid), []).append(item)
    functions: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(root):
            functions.setdefault(each.__code__.co_filename, []).append(each)
    gc.collect()
    gc.freeze()  # so that no fork copies what lives already, to count who refers to it
    originals = {path: Path(path).read_text() for path in functions}
    with os.fdopen(runs) as lines, os.fdopen(ends, "w") as answers:
        print(file=answers, flush=True)
        for line in lines:
            module, source, tests = json.loads(line)
            path = f"{root}/{module}"
            bodies = (
                list(_bodies(functions[path], path, originals[path], source)) if source and path in functions else []
            )
            run = [(item, seconds) for test, seconds in tests.items() for item in items.get(test, [])]
            possible = run and (source is None or bodies)
            print(json.dumps(_forked(bodies, run) if possible else (NOT_POSSIBLE, "")), file=answers, flush=True)
    return True


def _bodies(
    functions: list[FunctionType], path: str, original: str, source: str
) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield the functions of a module, each with its code in a mutant of it."""
    before, after = (_codes(compile(text, path, "exec")) for text in (original, source))
    pairs = {
        _key(code): changed
        for name, codes in before.items()
        if len(codes) == len(after.get(name, []))
        for code, changed in zip(codes, after[name], strict=True)
    }
    for function in functions:
        code = pairs.get(_key(function.__code__))
        if code is not None and code != function.__code__:
            yield function, code


def _codes(module: CodeType) -> dict[str, list[CodeType]]:
    """Return the code of all functions in a module, by their qualified names."""
    found: dict[str, list[CodeType]] = {}
    below = [module]
    while below:
        inside = [each for each in below.pop().co_consts if isinstance(each, CodeType)]
        below += inside
        for code in inside:
            found.setdefault(code.co_qualname, []).append(code)
    return found


def _key(code: CodeType) -> tuple[str, int, bytes]:
    return code.co_qualname, code.co_firstlineno, code.co_code


def _forked(bodies: list[tuple[FunctionType, CodeType]], run: list[tuple[pytest.Item, float]]) -> tuple[str, str]:
    """Run tests in a fork until one fails, with other code in the place of some functions."""
    told, tells = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(told)
        try:
            os.setsid()  # what it starts ends with it
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            os._exit(_run_here(bodies, run, tells))
        finally:  # whatever else ends a test ends it here
            os._exit(1)
    os.close(tells)
    limit = time.monotonic() + sum({name_of(item.nodeid): seconds for item, seconds in run}.values())
    names = b""
    try:
        while select.select([told], [], [], max(0.0, limit - time.monotonic()))[0]:
            more = os.read(told, 65536)
            if not more:
                break
            names += more
    finally:
        _end_group(process)
        os.waitpid(process, 0)
        os.close(told)
    *_, test = ["", *names.decode().splitlines()]
    if test == NOT_POSSIBLE:
        return NOT_POSSIBLE, ""
    return (PASSED, "") if test == PASSED else (FAILED, test)


def _end_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # before its first line
        os.kill(process, signal.SIGKILL)


def _run_here(bodies: list[tuple[FunctionType, CodeType]], run: list[tuple[pytest.Item, float]], tells: int) -> int:
    """Run the tests; report the name of each as it begins, and in the end that all have passed."""

    def tell(text: str) -> None:
        os.write(tells, f"{text}\n".encode())

    try:
        for function, code in bodies:
            function.__code__ = code
    except ValueError:  # it has other variables of the function around it
        tell(NOT_POSSIBLE)
        return 0
    session = run[0][0].session
    session.config.pluginmanager.register(_EndsWithTheFirstFailure())
    current = ""
    for (item, seconds), (following, _) in zip(run, [*run[1:], (None, 0.0)], strict=True):
        if name_of(item.nodeid) != current:
            current = name_of(item.nodeid)
            tell(current)
            signal.setitimer(signal.ITIMER_REAL, seconds)  # which ends the process
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    tell(PASSED)
    return 0


class _EndsWithTheFirstFailure:
    """A plugin: nothing is run, and nothing torn down, after a test that failed."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os._exit(1)
