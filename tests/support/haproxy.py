"""HAProxy with the configuration of `examples/deploy`, in front of replicas on this machine."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .programs import find_program, running_program
from .serving import ROOT, free_ports

CONFIGURATION = ROOT / "examples" / "deploy" / "haproxy.cfg"

REPLY = re.compile(r" tools/(\S+) \S+ (\d{3}) .*\n")
"""A line of its log about a reply: the replica, or `<NOSRV>` if it asked none, and the status."""


@dataclass
class HAProxy:
    """A running HAProxy.

    Args:
        port: where it listens.
        log: the file that it writes to.
    """

    port: int
    log: Path

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def replies(self) -> list[list[str]]:
        """The status of each reply so far, and the replica that it came from."""
        return [[status, replica] for replica, status in REPLY.findall(self.log.read_text())]


def find_haproxy() -> str:
    """Return the program; skip the test where there is none, and fail where there must be."""
    return find_program("haproxy", "its configuration works")


@contextmanager
def running_haproxy(directory: Path, replicas: Sequence[int]) -> Iterator[HAProxy]:
    """Run HAProxy in front of three replicas, with other addresses and nothing else changed.

    Args:
        directory: for its files.
        replicas: their ports.
    """
    program = find_haproxy()
    (port,) = free_ports(1)
    text = CONFIGURATION.read_text().replace("bind :80\n", f"bind 127.0.0.1:{port}\n")
    for name, replica in zip(re.findall(r" (tools-\d:8000)\n", text), replicas, strict=True):
        text = text.replace(f" {name}\n", f" 127.0.0.1:{replica}\n")
    file, log = directory / "haproxy.cfg", directory / "haproxy.log"
    file.write_text(text)
    with running_program([program, "-f", str(file)], port, log, log):
        yield HAProxy(port, log)
