"""PgBouncer in front of a PostgreSQL of the tests."""

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from .programs import find_program, running_program
from .serving import free_ports

CONFIGURATION = """
[databases]
* = host={directory} user=postgres
[pgbouncer]
{user}
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
logfile = {log}
"""


class PgBouncer:
    """A running pooler.

    Args:
        port: where it listens.
        process: what runs it.
    """

    def __init__(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        self._port = port
        self._process = process

    def url(self, direct: str) -> str:
        """Return the URL of a database through the pooler.

        Args:
            direct: the URL of the same database without it.
        """
        return f"postgresql://postgres@127.0.0.1:{self._port}{urlsplit(direct).path}"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nothing, and close nothing, for as long as the block lasts."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


def find_pgbouncer() -> str:
    """Return the program; skip the test where there is none, and fail where there must be."""
    return find_program("pgbouncer", "a pooler is noticed")


@contextmanager
def running_pgbouncer(direct: str, mode: str, size: int = 4) -> Iterator[PgBouncer]:
    """Run PgBouncer in front of a server, as the user of the server.

    Args:
        direct: the URL of one of its databases, with the directory of its socket.
        mode: `"session"`, `"transaction"` or `"statement"`.
        size: how many connections to the server it has for each database.
    """
    program = find_pgbouncer()
    (directory,) = parse_qs(urlsplit(direct).query)["host"]
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="mrtr-") as files:
        place = Path(files)
        place.chmod(0o777)
        user = f"user = {pwd.getpwuid(Path(directory).stat().st_uid).pw_name}" if os.geteuid() == 0 else ""
        log = place / "log"
        configuration = place / "pgbouncer.ini"
        configuration.write_text(
            CONFIGURATION.format(directory=directory, user=user, port=port, mode=mode, size=size, log=log)
        )
        command = [program, "-q", str(configuration)]
        with running_program(command, port, place / "output", log) as process:
            yield PgBouncer(port, process)
