"""A load generator for clients that begin with a handshake: each has a session, reads event streams, and answers.

As a program it takes what to do from standard input, as `load.py` does: `handshake_load.py PORT SECONDS CONNECTIONS`.
It is slower than the servers that it measures, so compare the time that these compute, and not their rates.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from load import UnexpectedResponseError
from scenarios import Scenario

VERSION = "2025-11-25"
INITIALIZE = {
    "protocolVersion": VERSION,
    "capabilities": {"elicitation": {"form": {}}},
    "clientInfo": {"name": "bench", "version": "1"},
}


class Connection:
    """A connection that is kept alive.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._chunked, self._left = False, 0
        self.status = 0
        self.headers: dict[str, str] = {}

    async def send(self, message: Any, session: str = "") -> None:
        """Send a message, and read the head of the response."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = json.dumps(message, separators=(",", ":")).encode()
        named = f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {VERSION}\r\n" if session else ""
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{named}Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0][9:12])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self._chunked = self.headers.get("transfer-encoding") == "chunked"
        self._left = int(self.headers.get("content-length", 0))

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the response: those of its events, or the one that it is."""
        is_stream = self.headers.get("content-type", "").startswith("text/event-stream")
        rest = b""
        async for part in self._parts():
            rest += part
            if is_stream:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and (data := line[5:].strip()):
                        yield json.loads(data)
        if rest and not is_stream:
            yield json.loads(rest)

    async def _parts(self) -> AsyncIterator[bytes]:
        reader = self._reader
        assert reader is not None
        if not self._chunked:
            yield await reader.readexactly(self._left)
            return
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")

    async def reply(self, message: Any, session: str = "") -> dict[str, Any]:
        """Send a request, and return the last message of its response; empty for none."""
        await self.send(message, session)
        last: dict[str, Any] = {}
        async for each in self.messages():
            last = each
        return last

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()


class Client:
    """One client of a server.

    Args:
        port: of the server.
        number: names it, so that no two requests are alike.
    """

    def __init__(self, port: int, number: int) -> None:
        self._connection, self._other = Connection(port), Connection(port)
        self._session = ""
        self._n = number * 10_000_000

    async def begin(self) -> None:
        """Begin the session."""
        await self.initialize()
        self._session = self._connection.headers["mcp-session-id"]
        await self._connection.reply({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._session)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._other.close()

    async def initialize(self) -> None:
        """Begin another session, and do nothing with it."""
        self._n += 1
        request = {"jsonrpc": "2.0", "id": self._n, "method": "initialize", "params": INITIALIZE}
        reply = await self._connection.reply(request)
        if reply.get("result", {}).get("protocolVersion") != VERSION or reply.get("id") != self._n:
            raise UnexpectedResponseError(f"{self._connection.status} {reply}")

    async def call(self) -> None:
        """Call a tool that asks nothing."""
        self._check(await self._connection.reply(self._request("add", a=self._n, b=7), self._session), self._n + 6)

    async def ask(self) -> None:
        """Call a tool that asks, and answer on another connection."""
        city = f"City {self._n}"
        await self._connection.send(self._request("get_weather_live", location=city), self._session)
        asked, last = False, {}
        async for message in self._connection.messages():
            last = message
            if message.get("method") == "elicitation/create" and not asked:
                asked = True
                result = {"action": "accept", "content": {"name": "octocat"}}
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                await self._other.reply(answer, self._session)
                if self._other.status != 202:
                    raise UnexpectedResponseError(f"{self._other.status} for an answer")
        self._check(last, f"Current weather in {city} for octocat: 72 degrees, partly cloudy")

    def _request(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self._n += 1
        params = {"name": tool, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": self._n, "method": "tools/call", "params": params}

    def _check(self, reply: dict[str, Any], text: object) -> None:
        result = reply.get("result", {})
        if (
            reply.get("id") != self._n
            or result.get("isError")
            or result.get("content", [{}])[0].get("text") != f"{text}"
        ):
            raise UnexpectedResponseError(f"{self._connection.status} {reply}")


class Held(Client):
    """A client whose call waits for an answer that does not come."""

    async def open(self) -> Connection:
        """Begin a session, and call a tool that asks; return the connection once the question is there."""
        await self.begin()
        await self._connection.send(self._request("get_weather_live", location="Oslo"), self._session)
        async for message in self._connection.messages():
            if message.get("method") == "elicitation/create":
                return self._connection
        raise UnexpectedResponseError("nothing was asked")


def doing(client: Client, scenario: Scenario) -> Callable[[], Awaitable[None]]:
    """Return what a client does in a scenario."""
    return {"initialize": client.initialize, "call": client.call, "ask": client.ask}[scenario.handshake]


def check(scenario: Scenario, port: int) -> None:
    """Do it once.

    Raises:
        UnexpectedResponseError: a response is not the right answer.
    """

    async def once() -> None:
        client = Client(port, 0)
        await client.begin()
        await doing(client, scenario)()
        client.close()

    asyncio.run(once())


async def measure(scenario: Scenario, port: int, seconds: float, connections: int) -> dict[str, float]:
    """Load the server for `seconds` and return the figures, under the names that `load.py` gives them."""
    clients = [Client(port, number) for number in range(1, connections + 1)]
    for client in clients:
        await client.begin()
    latencies: list[float] = []
    errors: list[Exception] = []
    started = time.perf_counter()

    async def work(client: Client) -> None:
        do = doing(client, scenario)
        while (began := time.perf_counter()) < started + seconds:
            try:
                await do()
            except (UnexpectedResponseError, OSError, EOFError, ValueError) as error:
                errors.append(error)
                return
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*map(work, clients))
    elapsed = time.perf_counter() - started
    for client in clients:
        client.close()
    if errors:
        print(f"unexpected response: {errors[0]!r}", file=sys.stderr)
    latencies.sort()
    shown = latencies or [0.0]
    return {
        "complete": len(latencies),
        "errors": len(errors),
        "seconds": elapsed,
        "p50_ms": 1000 * shown[len(shown) // 2],
        "p99_ms": 1000 * shown[len(shown) * 99 // 100],
    }


def main() -> None:
    """Run what standard input says; print the figures."""
    port, seconds, connections = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    scenario = Scenario(**json.load(sys.stdin))
    print("RESULT", json.dumps(asyncio.run(measure(scenario, port, seconds, connections))))


if __name__ == "__main__":
    main()
