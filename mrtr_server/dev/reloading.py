"""The process that watches the files of an application, and restarts it when one changes."""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .effects import shown_path
from .process import NOT_LOADED, DevProcess
from .terminal import Terminal

_NOT_WATCHED = ("node_modules", "__pycache__", "build", "dist", "site-packages")
_MOST_NAMED = 3


def watch_and_serve(process: DevProcess, folders: Sequence[str], patterns: Sequence[str], listening: Any) -> None:
    """Serve an application, and restart it whenever one of its files changes, until a signal ends it.

    Args:
        process: serves it.
        folders: which are watched, with all below them.
        patterns: of further files besides `*.py`.
        listening: the socket, which stays open while the process is replaced.
    """
    import uvicorn
    from uvicorn.supervisors import ChangeReload

    terminal = Terminal()
    chooses = find_spec("watchfiles") is not None  # else uvicorn looks at the times of *.py files
    if patterns and not chooses:
        terminal.write(f"{terminal.head('warning', 'yellow')} --include needs watchfiles: pip install watchfiles")
    config = uvicorn.Config(
        process.app,
        reload=True,
        reload_dirs=list(folders),
        reload_includes=["*.py", *patterns] if chooses else None,
        reload_excludes=[*left_out(folders)] if chooses else None,
        log_config=None,
    )
    reloader = ChangeReload(config, target=process, sockets=[listening])
    reloader.startup()
    told_end = False
    for changes in reloader:
        if changes:
            terminal.write(f"{terminal.head('changed', 'yellow')} {changed_names(changes)}")
            reloader.target, told_end = replace(process, changed=time.time()), False
            reloader.restart()
        elif not told_end and _has_broken_off(reloader):
            told_end = True
            code = reloader.process.exitcode
            terminal.write(
                f"{terminal.head('ended', 'red')} the process has ended by itself, with the exit code {code}. It "
                "starts again when a file changes"
            )
    reloader.shutdown()


def _has_broken_off(reloader: Any) -> bool:
    """Return whether the serving process has ended, without a reason of its own and without a signal."""
    return not reloader.should_exit.is_set() and reloader.process.exitcode not in (None, NOT_LOADED)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; the port stays taken while one process makes way for the next.

    Raises:
        OSError: the address can't be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
        listening.set_inheritable(True)
    except OSError:
        listening.close()
        raise
    return listening


def left_out(folders: Iterable[str]) -> Iterator[str]:
    """Return the folders of what is installed or built, in which nobody writes code."""
    for folder in map(Path, folders):
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            if each.is_dir() and (each.name in _NOT_WATCHED or each.name[0] == "." or (each / "pyvenv.cfg").exists()):
                yield str(each.resolve())


def changed_names(changes: Iterable[Path]) -> str:
    """Return the names of some of the files that have changed."""
    names = sorted(shown_path(str(path)) for path in changes)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
