"""What the clients of scripts/clients call: three replicas behind a round robin, or a server of somebody else's."""

import re
import secrets
from argparse import ArgumentTypeError
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import SplitResult, urlsplit

from demo_fleet import running

from examples.round_robin import Replica, RoundRobin

REPLICAS = 3
SCRIPTS = Path(__file__).resolve().parent


class Front(RoundRobin):
    """A round robin that notes in which version of the protocol tools were called.

    Args:
        replicas: who serves, in turn.
        path: where the endpoint is.
    """

    def __init__(self, replicas: Sequence[Replica], path: str) -> None:
        super().__init__(replicas)
        self._path = path
        self._port = 0
        self._offered = ""
        self.versions: set[str] = set()
        """What the headers of `tools/call` said; where there are none, the `initialize` before."""

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"http://127.0.0.1:{self._port}{self._path}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Front"]:
        """Serve on a free port until the context ends."""
        server = await self.listen()
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _forward(self, request: bytes, client: StreamReader, to_client: StreamWriter) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        header = re.search(rb"^mcp-protocol-version: *(\S+)", head, re.IGNORECASE | re.MULTILINE)
        if offered := re.search(rb'"method": ?"initialize".*"protocolVersion": ?"([^"]+)"', body, re.DOTALL):
            self._offered = offered[1].decode()
        if re.search(rb'"method": ?"tools/call"', body) and (
            version := header[1].decode() if header else self._offered
        ):
            self.versions.add(version)
        await super()._forward(request, client, to_client)


@asynccontextmanager
async def replicas(database: str, target: str = "clients_server:site", folder: Path = SCRIPTS) -> AsyncIterator[Front]:
    """Run a server of ours in three processes, with one key and one database, until the context ends.

    Args:
        database: `sqlite` or `postgresql`; a new one, which is gone afterwards.
        target: the application, as an import string.
        folder: where that is imported from.
    """
    async with AsyncExitStack() as stack:
        if database == "postgresql":
            from tests.support.databases import running_postgresql

            url = stack.enter_context(running_postgresql()).url()
        else:
            url = f"sqlite:///{stack.enter_context(TemporaryDirectory())}/clients.db"
        variables = {"MRTR_KEYS": secrets.token_hex(32), "MRTR_DATABASE_URL": url}
        servers = [running(number, target, folder, **variables) for number in range(1, REPLICAS + 1)]
        started = [(await stack.enter_async_context(server)).replica for server in servers]
        yield await stack.enter_async_context(Front(started, "/mcp").serving())


def read_address(text: str) -> SplitResult:
    """Read the address of a server of this machine.

    Raises:
        ArgumentTypeError: it is none.
    """
    url = urlsplit(text)
    if url.scheme != "http" or url.hostname not in ("127.0.0.1", "localhost") or url.port is None:
        raise ArgumentTypeError(f"a server has an address such as http://127.0.0.1:8000/mcp, not {text}")
    return url


@asynccontextmanager
async def foreign(url: SplitResult) -> AsyncIterator[Front]:
    """Lead to a server of this machine that somebody else runs.

    Args:
        url: its endpoint.
    """
    async with Front([Replica(url.port or 80, "server")], url.path or "/").serving() as front:
        yield front
