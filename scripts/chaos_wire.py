"""Requests of scripts/chaos: each on a connection of its own, and again until there is a whole response."""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

THINKING = (0.2, 1.0)
"""How long a person thinks about an answer, in seconds."""

BACKOFF = (0.05, 2.0)
"""How long a client waits before it tries again: the first time, and at most, in seconds."""

REQUEST_PATIENCE = 30.0

ANSWERS: dict[str, Any] = {
    "wish": {"action": "accept", "content": {"item": "a kettle"}},
    "confirm": {"action": "accept", "content": {"confirm": True}},
}


class NoResponse(Exception):
    """There was no whole response, or one that says to come back later."""


class Story:
    """What has happened to a flow, to be told if it breaks: times and ids, and nothing of what was answered."""

    def __init__(self) -> None:
        self._began = time.time()
        self._noted: list[str] = []

    def note(self, what: str) -> None:
        """Note what has happened now."""
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        self._noted.append(f"    {clock}.{int(now * 1000) % 1000:03} +{now - self._began:.3f} {what}")

    def tell(self, problem: str) -> str:
        """Return a problem, with all that led to it."""
        return "\n".join([problem, *self._noted])

    @contextmanager
    def until_told(self, problems: list[str], name: str) -> Iterator[None]:
        """Report if the flow is given up meanwhile, since it takes too long."""
        try:
            yield
        except asyncio.CancelledError:
            problems.append(self.tell(f"{name} did not end"))
            raise


class Wire:
    """Sends requests, and sends again what got no response.

    Args:
        port: where to.
        extensions: what the client can do besides asking a person.
        token: who it is; empty for nobody.
    """

    def __init__(self, port: int, extensions: dict[str, Any] | None = None, token: str = "") -> None:
        self.retries = 0
        self.handed_over = 0
        """Calls that a server which drains has given back, for another one to go on with."""
        self.story = Story()
        """Of the flow that it serves."""
        self.port = port
        self.token = token
        capabilities = {"elicitation": {}, "extensions": extensions or {}}
        self._meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool, and answer what it asks, until there is a result or a task. Raises `LookupError`, too."""
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        while True:
            result = await self.request("tools/call", name, params)
            if result["resultType"] in ("complete", "task"):
                return result
            params.pop("inputResponses", None)
            params["requestState"] = result["requestState"]
            asked = result.get("inputRequests")
            self.story.note(f"state {named(result['requestState'])}, which asks for {list(asked or ())}")
            if asked:
                await think()
                params["inputResponses"] = {key: ANSWERS[key] for key in asked}
            else:
                self.handed_over += 1

    async def request(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request until there is a response; return the result. Raises `LookupError` if it is an error."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": self._meta}}
        body = json.dumps(message).encode()
        wait, longest = BACKOFF
        while True:
            try:
                self.story.note(f"{method} {name}")
                reply = await _post(self.port, body, method, name, self.token)
                if "error" in reply:
                    raise LookupError(f"{method} was refused: {reply['error']}")
                result: dict[str, Any] = reply["result"]
                return result
            except NoResponse as why:
                self.story.note(f"no response: {why}")
            self.retries += 1
            await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311
            wait = min(wait * 2, longest)


def text_of(result: dict[str, Any]) -> str:
    """Return the text of a result."""
    return str(result["content"][0]["text"])


def named(sealed: str) -> str:
    """Return a short name for something sealed."""
    return hashlib.sha256(sealed.encode()).hexdigest()[:8]


async def think() -> None:
    """Take the time that a person takes for an answer."""
    await asyncio.sleep(random.uniform(*THINKING))  # noqa: S311


async def _post(port: int, body: bytes, method: str, name: str, token: str = "") -> dict[str, Any]:
    who = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        "POST /mcp HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: {method}\r\nMcp-Name: {name}\r\nContent-Length: {len(body)}\r\n"
        f"{who}\r\n"
    )
    try:
        async with asyncio.timeout(REQUEST_PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode() + body)
                received = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise NoResponse(type(error).__name__) from None
    start, _, content = received.partition(b"\r\n\r\n")
    lines = start.lower().split(b"\r\n")
    served = next((line[13:].decode() for line in lines if line.startswith(b"x-served-by: ")), "nobody")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), -1)
    if length != len(content):
        raise NoResponse(f"cut off after {received[:60]!r} from {served}")
    status = int(lines[0].split()[1])
    if status >= 500 or status == 429:
        raise NoResponse(f"{status} from {served}")
    reply: dict[str, Any] = json.loads(content)
    return reply
