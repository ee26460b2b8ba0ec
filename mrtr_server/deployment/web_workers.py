"""The number of worker processes that the web server runs, as far as one of them can tell."""

import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

ENVIRONMENT = "WEB_CONCURRENCY"
"""How many workers uvicorn starts, where nothing else says so."""

_declared: int | None = None


def declare_workers(count: int) -> None:
    """Note how many workers there will be, before the application is imported and they are started.

    Args:
        count: the number.
    """
    global _declared
    _declared = count


def worker_count() -> int:
    """Return the number of workers that the web server was told to start; 1 where nothing says otherwise.

    The application is imported while the web server loads it in a worker, so the server's own frames are on the
    stack, and they hold its settings. (The parent process says nothing: with `--reload` there is one for a single
    worker, too.) Where no server is on the stack, as in a script that starts uvicorn later, `WEB_CONCURRENCY` counts.
    A server that is loaded in any other way is not recognized.
    """
    most = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        most = max(most, _count_in(frame.f_globals.get("__name__", ""), frame.f_locals))
        frame = frame.f_back
    if _declared is not None:
        return max(most, _declared)
    return most or (_count_in_environment() if "uvicorn" in sys.modules else 1)


def _count_in_environment() -> int:
    try:
        return max(1, int(os.environ.get(ENVIRONMENT, "1")))
    except ValueError:  # uvicorn itself will refuse it
        return 1


def _count_in(module: Any, names: Mapping[str, Any]) -> int:
    """Return the number of workers that one frame knows of; 0 if none.

    Args:
        module: the name of the frame's module.
        names: its local variables.
    """
    owner = names.get("self")
    modules = {cls.__module__ for cls in type(owner).__mro__}
    packages = {each.partition(".")[0] for each in modules}
    found: Any = 0
    if "uvicorn" in packages:  # its Config
        found = 1 if getattr(owner, "reload", False) else getattr(owner, "workers", 0)
    elif "gunicorn" in packages:  # a worker, which has its settings
        found = getattr(getattr(owner, "cfg", None), "workers", 0)
    elif "granian.server.mp" in modules:  # its server, where a worker is a fork; one of threads shares our memory
        found = getattr(owner, "workers", 0)
    elif module == "granian.server.mp":  # where a worker is a new process: workers are numbered from 1
        found = names.get("worker_id", 0)
    elif isinstance(module, str) and module.partition(".")[0] == "hypercorn":
        found = getattr(names.get("config"), "workers", 0)
    return found if isinstance(found, int) else 0
