"""Who may read a SQLite file: the user of this process alone, if we make it."""

import os
import stat
from contextlib import suppress

COMPANIONS = ("", "-wal", "-shm", "-journal")
"""What SQLite puts behind the name of a file for those that it keeps beside it, with the mode of the file itself."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: str) -> None:
    """Make a file that its owner alone may read and write, if there is none.

    Raises:
        OSError: it can't be made.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def open_to_others(path: str) -> list[str]:
    """Return what of a file and its companions others than the owner may read or write, each with its mode."""
    if os.name != "posix":
        return []
    found = []
    for companion in COMPANIONS:
        try:
            mode = stat.S_IMODE(os.stat(path + companion).st_mode)
        except OSError:
            continue
        if mode & _OTHERS:
            found.append(f"{path}{companion} ({mode:o})")
    return found
