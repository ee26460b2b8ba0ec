"""How many worker processes the server runs in, as far as it can be seen from within one."""

import sys
from types import FrameType
from typing import Any


def worker_count() -> int:
    """Give the number of workers that uvicorn or gunicorn was told to start; 1 where nothing says otherwise.

    The application is imported while uvicorn's `Config`, or a worker of gunicorn's, loads it, so that one's frame is
    on the stack. (The parent process says nothing: there is one under `--reload`, too, with a single worker.)
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        packages = {cls.__module__.partition(".")[0] for cls in type(owner).__mro__}
        workers = getattr(owner, "workers", None)
        if "uvicorn" in packages and isinstance(workers, int):
            return 1 if owner.reload else workers
        workers = getattr(getattr(owner, "cfg", None), "workers", None)
        if "gunicorn" in packages and isinstance(workers, int):
            return workers
        frame = frame.f_back
    return 1
