"""The web servers that `mrtr-server run` starts, with limits that they do not have by themselves."""

import logging
import logging.config
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from ..errors import SetupError

logger = logging.getLogger("mrtr_server")

MOST_CONNECTIONS = 16_384

OTHER_FILES = 64  # that a process has open besides its connections: listening sockets, a database, logs, those of tools

WORKER_START_SECONDS = 60  # without an answer to its supervisor, as while it starts on a busy machine

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a process that a second Ctrl-C has ended, before its calls have

LISTEN_FDS_START = 3  # the first descriptor that systemd passes (sd_listen_fds)


@dataclass(frozen=True)
class Serving:
    app: str
    host: str
    port: int
    uds: str | None
    workers: int
    reload: bool
    server: str
    max_connections: int
    backlog: int
    keep_alive: float
    forwarded_allow_ips: str
    root_path: str
    log_config: dict[str, Any]
    shutdown_seconds: float | None = None

    @property
    def whole_shutdown_seconds(self) -> int | None:
        """The same in whole seconds, at least one, as web servers take them."""
        return None if self.shutdown_seconds is None else max(1, int(self.shutdown_seconds))


def raise_file_limit(wanted: int | None) -> int:
    """Raise the limit of open files of this process and its workers; return how many connections are taken."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted or MOST_CONNECTIONS
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != most:
        with suppress(ValueError, OSError):  # as where a sandbox forbids it, or a system has yet another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            files = most
    room = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(OTHER_FILES, files - OTHER_FILES)
    if room < (wanted or MOST_CONNECTIONS):
        logger.warning(
            "This process may open %d files, which is enough for %d connections, and not for %d. Raise its hard limit: "
            "LimitNOFILE= of systemd, nofile of a container, or `ulimit -Hn`",
            files,
            room,
            wanted or MOST_CONNECTIONS,
        )
    return wanted or min(MOST_CONNECTIONS, room)


def inherited_socket(environment: Mapping[str, str] = os.environ) -> socket.socket | None:
    """Return the socket that systemd has passed, if any; it stays open while the process is replaced."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    if environment.get("LISTEN_FDS") != "1":
        raise SetupError(f"LISTEN_FDS={environment.get('LISTEN_FDS')}: the unit must pass one socket")
    return socket.socket(fileno=LISTEN_FDS_START)


def serve_with_uvicorn(serving: Serving, listening: socket.socket | None) -> None:
    import uvicorn

    from ..uvicorn_http.accepting import Server
    from ..uvicorn_http.bounded_protocol import BoundedProtocol

    config = uvicorn.Config(
        serving.app,
        host=serving.host,
        port=serving.port,
        uds=serving.uds,
        workers=serving.workers,
        reload=serving.reload,
        http="mrtr_server.uvicorn_http.bounded_protocol:BoundedProtocol",
        ws="none",
        limit_concurrency=serving.max_connections,
        backlog=serving.backlog,
        timeout_keep_alive=int(serving.keep_alive),
        timeout_graceful_shutdown=serving.whole_shutdown_seconds,
        proxy_headers=True,
        forwarded_allow_ips=serving.forwarded_allow_ips,
        root_path=serving.root_path,
        server_header=False,
        log_config=serving.log_config,
        **_if_taken(uvicorn.Config, timeout_worker_healthcheck=WORKER_START_SECONDS),
    )
    _note_protocol(BoundedProtocol)
    server = Server(config)
    sockets = None if listening is None else [listening]
    if config.should_reload or serving.workers > 1:
        from uvicorn.supervisors import ChangeReload

        sockets = sockets or [config.bind_socket()]
        if config.should_reload:
            ChangeReload(config, target=server.run, sockets=sockets).run()
        else:
            _supervisor(config, server, sockets).run()
    else:
        with suppress(KeyboardInterrupt):  # which uvicorn raises once more when it has ended in order
            server.run(sockets=sockets)
        if server.force_exit:
            sys.exit(INTERRUPTED)
        if not server.started:
            sys.exit(1)


def _note_protocol(protocol: Any) -> None:
    from ..uvicorn_http.bounded_protocol import RequestBounds
    from ..uvicorn_http.one_write import why_slower

    if not issubclass(protocol, RequestBounds):
        logger.warning(
            "There is no timeout for receiving requests, because this release does not support uvicorn %s. Install a "
            "supported version, or set the timeouts in a proxy",
            version("uvicorn"),
        )
    elif why := why_slower(protocol):
        logger.info("Requests are served in uvicorn's own way, which takes longer: %s", why)


def _supervisor(config: Any, server: Any, sockets: list[socket.socket]) -> Any:
    """Return uvicorn's supervisor of workers, which closes its own copy of the socket before they close theirs.

    Otherwise the system would complete connections that no worker accepts any more, and reset them at the end.
    """
    from uvicorn.supervisors import Multiprocess

    class Supervisor(Multiprocess):
        def terminate_all(self) -> None:
            for each in self.sockets:
                each.close()
            super().terminate_all()

    return Supervisor(config, sockets=sockets, **_if_taken(Multiprocess, target=server.run))


def _if_taken(function: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Return the arguments that this release of a web server takes."""
    taken = signature(function).parameters
    return {name: value for name, value in given.items() if name in taken}


def serve_with_granian(serving: Serving, listening: socket.socket | None) -> None:
    try:
        from granian.constants import Interfaces
        from granian.http import HTTP1Settings
        from granian.server import Server
    except ImportError as error:
        raise SetupError("--server granian needs granian. Install it: pip install granian") from error
    if listening is not None:
        raise SetupError("granian can't take over a socket (LISTEN_FDS); use --server uvicorn")
    logging.config.dictConfig(serving.log_config)
    how: dict[str, Any] = {"uds": serving.uds} if serving.uds else {"address": serving.host, "port": serving.port}
    Server(
        serving.app,
        interface=Interfaces.ASGI,
        workers=serving.workers,
        reload=serving.reload,
        backlog=serving.backlog,
        backpressure=serving.max_connections,
        http1_settings=HTTP1Settings(header_read_timeout=10_000, keep_alive=serving.keep_alive > 0),
        websockets=False,
        workers_kill_timeout=serving.whole_shutdown_seconds,
        log_dictconfig=serving.log_config,
        url_path_prefix=serving.root_path or None,
        **how,
    ).serve(target_loader=partial(_load_behind_proxies, serving.forwarded_allow_ips))


def _load_behind_proxies(trusted: str, app: str) -> Any:
    """Import an application, with the addresses of clients as trusted proxies have them, which granian leaves to it."""
    from granian.utils.proxies import wrap_asgi_with_proxy_headers

    return wrap_asgi_with_proxy_headers(resolve_name(app), trusted_hosts=trusted)


SERVERS: Mapping[str, Callable[[Serving, socket.socket | None], None]] = {
    "uvicorn": serve_with_uvicorn,
    "granian": serve_with_granian,
}
