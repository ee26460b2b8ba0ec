"""nginx with the configuration of `examples/deploy`, in front of replicas on this machine."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .programs import find_program, running_program
from .serving import ROOT, free_ports

CONFIGURATION = ROOT / "examples" / "deploy" / "nginx.conf"

MAIN = """
daemon off;
{user}
worker_processes 2;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    log_format replies '$status $upstream_status $upstream_addr';
    access_log {directory}/access.log replies;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/tools.conf;
}}
"""


@dataclass
class Nginx:
    """A running nginx.

    Args:
        port: where it listens.
        directory: of its logs.
    """

    port: int
    directory: Path

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def replies(self) -> list[list[str]]:
        """The status of each reply so far, those of the replicas that were asked for it, and their addresses."""
        return [line.split(" ", 1) for line in (self.directory / "access.log").read_text().splitlines()]


def find_nginx() -> str:
    """Return the program; skip the test where there is none, and fail where there must be."""
    return find_program("nginx", "a rolling restart loses a request")


def configuration(port: int, replicas: Sequence[int]) -> str:
    """Return the configuration with other addresses, and nothing else."""
    text = CONFIGURATION.read_text().replace("listen 80;", f"listen 127.0.0.1:{port};")
    names = re.findall(r"server (tools-\d:8000) ", text)
    for place, name in enumerate(names):
        line = f"server 127.0.0.1:{replicas[place]} " if place < len(replicas) else "# "
        text = text.replace(f"server {name} ", line)
    assert not re.search(r"tools-\d|listen 80;", text)
    return text


@contextmanager
def running_nginx(directory: Path, replicas: Sequence[int]) -> Iterator[Nginx]:
    """Run nginx in front of replicas.

    Args:
        directory: for its files.
        replicas: their ports.
    """
    program = find_nginx()
    (port,) = free_ports(1)
    (directory / "tools.conf").write_text(configuration(port, replicas))
    main = directory / "nginx.conf"
    main.write_text(MAIN.format(directory=directory, user="user root;" if os.geteuid() == 0 else ""))
    error_log = directory / "error.log"
    command = [program, "-p", str(directory), "-e", str(error_log), "-c", str(main)]
    with running_program(command, port, directory / "output.log", error_log):
        yield Nginx(port, directory)
