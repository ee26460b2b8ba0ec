"""Programs of Debian that the tests run: proxies, a pooler, and what reads the rules of Prometheus."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from .serving import TIMEOUT, listens, wait_until


def find_program(name: str, unknown: str, package: str = "") -> str:
    """Return a program; skip the test where there is none, and fail where there must be.

    Args:
        name: its name.
        unknown: what nobody knows without it.
        package: that of Debian; named as the program where it is empty.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        missing = f"{name} is not installed, so nobody knows whether {unknown}: apt install {package or name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def running_program(
    command: Sequence[str], port: int, output: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until the block is left; return its process once it listens.

    Args:
        command: the program and its arguments.
        port: where it listens.
        output: the file that what it prints goes to.
        log: the file that says why it does not listen.
        environment: its variables; None for ours.
    """
    with output.open("wb") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=printed, env=environment)
    try:

        def listening() -> bool:
            assert process.poll() is None, log.read_text()
            return listens(port)

        wait_until(listening, f"{command[0]} to listen")
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT)
