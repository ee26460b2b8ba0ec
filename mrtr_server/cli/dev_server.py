"""The process that serves an application while its author looks on, and the one that replaces it when code changes."""

import importlib.util
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..addresses import root_url
from ..concurrency.shutdown import DEFAULT
from ..deployment.lifecycle import note_page_is_shown
from ..dev.console import Console, RefusedRequests, configure_log, list_counts
from ..dev.effects import EffectWatch, shown_path
from ..dev.rounds import Terminal
from ..errors import SetupError
from ..logs.failures import format_import_failure, is_raised_by_author, origin_of
from ..methods.middleware import everywhere
from ..server import MRTRServer

NOT_LOADED = 3  # the exit code where the application can't be imported or start; the process has said why

Find = Callable[[str, str], Any]

_NOT_WATCHED = ("node_modules", "__pycache__", "build", "dist", "site-packages")

_MOST_NAMED = 3


@dataclass(frozen=True)
class DevProcess:
    """Serves an application on a socket; it goes to a new process as it is."""

    find: Find
    app: str  # `module:attribute`
    app_dir: str  # the folder in which to look for the module; empty for the working directory
    host: str
    level: str
    full_tracebacks: bool
    keys: str  # what is to be said of the keys, in words
    watched: str  # the files whose change restarts it, in words; empty where nothing does
    # When the change came that made it take over, in seconds since the epoch; 0 for the first process.
    changed: float = 0.0

    def __call__(self, sockets: list[socket.socket] | None) -> None:
        terminal = Terminal()
        configure_log(terminal, self.level, full_tracebacks=self.full_tracebacks)
        effects = EffectWatch(_packages_of(self.app))
        everywhere.append(Console(terminal, effects).middleware)
        effects.install()
        note_page_is_shown()
        try:
            found = self.find(self.app, self.app_dir)
        except Exception as error:
            self._give_up(terminal, self._why_not(error))
        if not callable(found):
            self._give_up(terminal, f"{self.app} is a {type(found).__name__}, not an MRTRServer or an ASGI application")
        self._serve(found, sockets or [], terminal)

    def _give_up(self, terminal: Terminal, why: str = "") -> None:
        if why:
            terminal.write(f"{terminal.head('error', 'red')} {why}")
        if self.watched:
            terminal.write(f"{terminal.head('waiting', 'yellow')} for a change of the code")
        raise SystemExit(NOT_LOADED)

    def _why_not(self, error: Exception) -> str:
        if isinstance(error, SetupError) and not is_raised_by_author(error):
            return str(error)
        return f"{self.app} can't be imported:\n{self._format(error)}"

    def _format(self, error: Exception) -> str:
        if self.full_tracebacks:
            return "".join(traceback.format_exception(error)).rstrip()
        return format_import_failure(error)

    def _serve(self, found: Any, sockets: list[socket.socket], terminal: Terminal) -> None:
        import uvicorn

        say = self._banner
        longest = max((server.shutdown_seconds for _, server in servers_in(found)), default=DEFAULT)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                if self.started and not self.should_exit:
                    say(found, sockets or [], terminal)

        config = uvicorn.Config(
            RefusedRequests(found, terminal),
            loop="asyncio",  # uvloop connects in C, which no audit hook sees
            http="mrtr_server.uvicorn_http.bounded_protocol:BoundedProtocol",
            ws="none",
            reload=bool(self.watched),
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=max(1, int(longest)),
        )
        server = Server(config)
        server.run(sockets=sockets)
        if not server.started:
            self._give_up(terminal)  # the server has said why

    def _banner(self, found: Any, sockets: list[socket.socket], terminal: Terminal) -> None:
        if self.changed:
            terminal.write(f"{terminal.head('reloaded', 'green')} in {time.time() - self.changed:.1f} s")
            return
        root = root_url(self.host, sockets[0].getsockname()[1])
        servers = list(servers_in(found))
        for path, server in servers:
            name, counts = terminal.style(server.name, "bold"), list_counts(offered_counts(server))
            terminal.write(f"{terminal.head('serving', 'green')} {name}: {counts}")
            terminal.write(f"{terminal.head('endpoint', 'green')} {root}{path}{server.path}")
            if (page := docs_page(server)) is not None:
                terminal.write(f"{terminal.head('page', 'green')} {root}{path}{page}")
        if not servers:
            terminal.write(f"{terminal.head('serving', 'green')} {self.app} at {root}")
        if self.keys:
            terminal.write(f"{terminal.head('keys', 'dim')} {self.keys}")
        if self.watched:
            terminal.write(f"{terminal.head('watching', 'dim')} {self.watched}")


def offered_counts(server: MRTRServer) -> Mapping[str, int]:
    offered = server.registry
    resources = len(offered.records("resources")) + len(offered.records("resourceTemplates"))
    return {"tool": len(offered.tools), "prompt": len(offered.prompts), "resource": resources}


def docs_page(server: MRTRServer) -> str | None:
    return server._parts.page or None  # noqa: SLF001  nobody else shows it


def servers_in(app: Any, path: str = "") -> Iterator[tuple[str, MRTRServer]]:
    if isinstance(app, MRTRServer):
        yield path, app
        return
    routes = getattr(app, "routes", None)
    if routes is None and (inner := getattr(app, "app", None)) is not None:  # a middleware around it
        yield from servers_in(inner, path)
    for route in routes or ():
        inner = getattr(route, "app", None)
        if inner is not None:
            yield from servers_in(inner, f"{path}{getattr(route, 'path', '')}".rstrip("/"))


def _packages_of(app: str) -> frozenset[str]:
    """Return the installed package that an application is in, if it is in one: that is the author's, too."""
    name = app.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return frozenset()
    file = "" if spec is None else spec.origin or os.devnull
    return (
        frozenset([name]) if file and origin_of(file) == name and name not in sys.builtin_module_names else frozenset()
    )


def watch_and_serve(process: DevProcess, folders: Sequence[str], patterns: Sequence[str], listening: Any) -> None:
    """Serve, and restart when a file changes, until a signal ends it; `patterns` are of files besides `*.py`."""
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
    """Return a socket that listens; the port stays taken while one process makes way for the next."""
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
    for folder in map(Path, folders):
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            if each.is_dir() and (each.name in _NOT_WATCHED or each.name[0] == "." or (each / "pyvenv.cfg").exists()):
                yield str(each.resolve())


def changed_names(changes: Iterable[Path]) -> str:
    names = sorted(shown_path(str(path)) for path in changes)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
