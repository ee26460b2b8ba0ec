"""How many worker processes the server runs in, as far as it can be seen from within one."""

import sys
from types import FrameType
from typing import Any


def worker_count() -> int:
    """Give the number of workers that uvicorn was told to start; 1 where nothing says otherwise.

    The application is imported while uvicorn's `Config` loads it, so its frame is on the stack. (The parent process
    says nothing: there is one under `--reload`, too, with a single worker.)
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        if type(owner).__module__.partition(".")[0] == "uvicorn" and isinstance(getattr(owner, "workers", None), int):
            return 1 if owner.reload else int(owner.workers)
        frame = frame.f_back
    return 1
