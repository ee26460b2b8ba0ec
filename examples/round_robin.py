"""A proxy to try several replicas: each request goes to the next one, and the reply says which one it was.

It reads as little HTTP as possible: one request for each connection, and it passes the reply on as it comes, streams
included, with an `X-Served-By` header added. For anything but a try, use a real load balancer.

    export MRTR_KEYS=$(mrtr-server keygen)
    uvicorn examples.weather:app --port 8001 &
    uvicorn examples.weather:app --port 8002 &
    python -m examples.round_robin 8001 8002 --port 8000

Then try the curl lines of examples/weather.py, with `-i` to see which replica answered.
"""

import argparse
import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

MOST_HEADERS = 64 * 1024
CHUNK = 64 * 1024

HOP_BY_HOP = (b"connection:", b"keep-alive:", b"expect:")
"""Headers for the front alone, which are not passed on."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One of the servers.

    Args:
        port: where it listens, on 127.0.0.1.
        name: what `X-Served-By` says.
    """

    port: int
    name: str


class RoundRobin:
    """The proxy. It skips a replica that it can't reach.

    Args:
        replicas: who serves, in turn.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._next = 0

    async def listen(self, port: int = 0) -> asyncio.Server:
        """Start to listen on 127.0.0.1; on a free port by default."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MOST_HEADERS)

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        with closing(to_client), suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                start, headers, body = await _read_request(client, to_client)
            except ValueError as error:
                to_client.write(_head(b"HTTP/1.1 400 " + str(error).encode(), [], b"Content-Length: 0"))
            else:
                await self._forward(_head(start, headers) + body, client, to_client)
            await to_client.drain()
        with suppress(ConnectionError):
            await to_client.wait_closed()

    async def _forward(self, request: bytes, client: StreamReader, to_client: StreamWriter) -> None:
        first = self._next
        for turn in range(first, first + len(self._replicas)):  # each once, whatever turns others take meanwhile
            self._next = max(self._next, turn + 1)
            replica = self._replicas[turn % len(self._replicas)]
            with suppress(OSError):
                server, to_server = await asyncio.open_connection("127.0.0.1", replica.port, limit=MOST_HEADERS)
                break
        else:
            to_client.write(_head(b"HTTP/1.1 502 No replica is there", [], b"Content-Length: 0"))
            return
        gone = asyncio.create_task(_close_when_gone(client, to_server))
        try:
            to_server.write(request)
            start, headers = await _read_head(server)
            to_client.write(_head(start, headers, b"X-Served-By: " + replica.name.encode()))
            while data := await server.read(CHUNK):
                to_client.write(data)
                await to_client.drain()
        finally:
            gone.cancel()
            to_server.close()


async def _read_request(client: StreamReader, to_client: StreamWriter) -> tuple[bytes, list[bytes], bytes]:
    start, headers = await _read_head(client)
    if _find(headers, b"transfer-encoding:"):
        raise ValueError("A body needs a Content-Length here")
    if _find(headers, b"expect:"):
        to_client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return start, headers, await client.readexactly(int(_find(headers, b"content-length:") or 0))


async def _read_head(reader: StreamReader) -> tuple[bytes, list[bytes]]:
    """Read up to the body; return the first line and the headers."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("Too many headers") from None
    start, *headers = head[:-4].split(b"\r\n")
    return start, headers


def _find(headers: list[bytes], name: bytes) -> bytes:
    return next((line[len(name) :].strip() for line in headers if line.lower().startswith(name)), b"")


def _head(start: bytes, headers: list[bytes], *more: bytes) -> bytes:
    """Write a first line and headers, with one request a connection."""
    passed_on = [line for line in headers if not line.lower().startswith(HOP_BY_HOP)]
    return b"\r\n".join([start, *passed_on, *more, b"Connection: close", b"", b""])


async def _close_when_gone(client: StreamReader, to_server: StreamWriter) -> None:
    """Let the server know when the client leaves before the reply is complete."""
    with suppress(ConnectionError):
        await client.read()
    to_server.close()


async def _main(port: int, replicas: list[Replica]) -> None:
    async with await RoundRobin(replicas).listen(port) as front:
        print(f"Round robin on http://127.0.0.1:{port} over {', '.join(r.name for r in replicas)}", flush=True)
        await front.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send each HTTP request to the next of several local servers.")
    parser.add_argument("ports", type=int, nargs="+", metavar="PORT", help="where the servers listen")
    parser.add_argument("--port", type=int, default=8000, help="where to listen (default: 8000)")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(given.port, [Replica(port, f"127.0.0.1:{port}") for port in given.ports]))
