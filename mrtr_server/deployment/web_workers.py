"""The number of worker processes that the web server runs, as far as one of them can tell."""

import os
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import PurePath
from types import FrameType
from typing import Any

DECLARED = "MRTR_WORKERS"
"""How many workers there are, where `mrtr-server run` or an operator says so."""

ENVIRONMENT = "WEB_CONCURRENCY"
"""How many workers uvicorn starts, where nothing else says so."""

_OURS = ("mrtr-server", "mrtr_server")
_SERVERS = ("uvicorn", "gunicorn", "hypercorn", "granian")


def worker_count() -> int:
    """Return the number of workers that the web server was told to start; 1 where nothing says otherwise.

    What is said first counts: by `MRTR_WORKERS`; by the arguments of the command, which new processes inherit; by the
    settings of the server, which loads the application, so that its own frames are on the stack; by `WEB_CONCURRENCY`.
    """
    declared = _in_environment(DECLARED) or _in_arguments(sys.argv) or _in_frames()
    return declared or (_in_environment(ENVIRONMENT) if "uvicorn" in sys.modules else 0) or 1


def _in_environment(name: str) -> int:
    given = os.environ.get(name, "")
    return max(1, int(given)) if given.isdecimal() else 0  # anything else is refused by whoever starts workers


def _in_arguments(arguments: Sequence[str]) -> int:
    """Return the number that a command was given; 0 where it was given none, or is no command of a web server."""
    path = PurePath(arguments[0])
    command = path.parent.name if path.name == "__main__.py" else path.stem
    if command in _OURS or (command == "uvicorn" and "--reload" in arguments):
        return 1
    if command not in _SERVERS:
        return 0
    for argument, following in zip_longest(arguments[1:], arguments[2:], fillvalue=""):
        given = following if argument in ("--workers", "-w") else argument.removeprefix("--workers=").removeprefix("-w")
        if given != argument and given.isdecimal():
            return int(given)
    return 0


def _in_frames() -> int:
    """Return the number in the settings of the server that is on the stack, such as those in a file; 0 if none is."""
    most = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        most = max(most, *(_in_settings(frame.f_locals.get(name)) for name in ("self", "config")))
        frame = frame.f_back
    return most


def _in_settings(owner: Any) -> int:
    packages = {each.__module__.partition(".")[0] for each in type(owner).__mro__}
    if packages.isdisjoint(_SERVERS):
        return 0
    if "uvicorn" in packages and getattr(owner, "reload", False):  # there is one, whatever its settings say
        return 1
    found = getattr(getattr(owner, "cfg", owner), "workers", 0)  # a worker of gunicorn has its settings
    return found if isinstance(found, int) else 0
