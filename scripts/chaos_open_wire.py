"""A client of scripts/chaos that answers while its call is open, and comes back to a stream that has broken."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import httpx
from chaos_wire import ANSWERS, BACKOFF, REQUEST_PATIENCE, Story, named, think

from mrtr_server.testing.replies import EventReader

_ACCEPT = "application/json, text/event-stream"
_QUIET = 40.0
"""How long a stream may be without a byte, in seconds; a server sends a comment every 15."""


class OpenWire:
    """Calls a tool, answers its questions, and comes back to the stream of the call until there is a result.

    Args:
        port: where to.
        era: the version that it speaks.
    """

    def __init__(self, port: int, era: str) -> None:
        self.resumed = 0
        """How often it came back to a stream."""
        self.repeated = 0
        """How often it called again, since the stream broke before there was an event to come back to."""
        self.not_acknowledged = 0
        """Answers that got no acknowledgement. They are not sent again."""
        self.is_acknowledged = True
        """Whether the last answer of the call got one."""
        self.story = Story()
        """Of the call that it makes."""
        self._url = f"http://127.0.0.1:{port}/mcp"
        self._era = era
        self._headers: dict[str, str] = {}
        self._ids = 0
        self._last = ""
        """The id of the last event of the call."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; return the result. Raises `LookupError` if it is an error."""
        timeout = httpx.Timeout(REQUEST_PATIENCE, read=_QUIET)
        async with httpx.AsyncClient(timeout=timeout, trust_env=False, verify=False) as http:  # noqa: S501  it is HTTP
            if not self._headers:
                await self._begin(http)
            self._ids += 1
            message = _request(self._ids, "tools/call", {"name": tool, "arguments": arguments})
            self._last, self.is_acknowledged, wait = "", True, BACKOFF[0]
            while True:
                result = await self._read(http, message)
                if result is not None:
                    return result
                if self._last:
                    self.resumed += 1
                else:
                    self.repeated += 1
                await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311
                wait = min(wait * 2, BACKOFF[1])

    async def _begin(self, http: httpx.AsyncClient) -> None:
        params = {"protocolVersion": self._era, "capabilities": {"elicitation": {}}, "clientInfo": _INFO}
        initialize, wait = _request(0, "initialize", params), BACKOFF[0]
        while True:
            with suppress(httpx.HTTPError):
                response = await http.post(self._url, json=initialize, headers={"Accept": _ACCEPT})
                if response.status_code == 200:
                    break
            await asyncio.sleep(wait)
            wait = min(wait * 2, BACKOFF[1])
        self._headers = {
            "Accept": _ACCEPT,
            "MCP-Protocol-Version": self._era,
            "Mcp-Session-Id": response.headers["mcp-session-id"],
        }

    async def _read(self, http: httpx.AsyncClient, message: dict[str, Any]) -> dict[str, Any] | None:
        """Read the stream of a call until it breaks or ends; return the result, if it has come.

        Args:
            http: the connections.
            message: the call.
        """
        self.story.note(f"GET after {named(self._last)}" if self._last else "POST of the call")
        try:
            async with self._stream(http, message) as response:
                self.story.note(f"HTTP {response.status_code}{served(response)}")
                if response.status_code >= 500 or response.status_code == 429:
                    return None
                if response.status_code != 200:
                    raise LookupError(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
                async for heard in self._messages(response):
                    if "error" in heard:
                        raise LookupError(f"the call ended with {heard['error']}")
                    if "result" in heard:
                        return dict(heard["result"])
                    if "id" in heard:
                        await think()
                        await self._answer(http, heard["id"])
            self.story.note("the stream ended")
        except httpx.HTTPError as error:
            self.story.note(f"the stream broke: {type(error).__name__}")
        return None

    async def _messages(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """Read the messages of a stream, and the ids to come back to."""
        reader = EventReader()
        async for data in response.aiter_bytes():
            for event in reader.feed(data):
                if event.id:
                    self._last = event.id
                    self.story.note(f"event {named(self._last)}, {self._last.rpartition('.')[2]}")
                if event.data:
                    yield event.message

    def _stream(self, http: httpx.AsyncClient, message: dict[str, Any]) -> AbstractAsyncContextManager[httpx.Response]:
        if self._last:
            return http.stream("GET", self._url, headers={**self._headers, "Last-Event-ID": self._last})
        return http.stream("POST", self._url, headers=self._headers, json=message)

    async def _answer(self, http: httpx.AsyncClient, question: str) -> None:
        """Answer a question, once."""
        key = question.partition(".")[0]
        name = f"the answer to {key} ({named(question)})"
        self.story.note(name)
        answer = {"jsonrpc": "2.0", "id": question, "result": ANSWERS[key]}
        self.is_acknowledged = False
        try:
            response = await http.post(self._url, json=answer, headers=self._headers)
        except httpx.HTTPError as error:
            self.story.note(f"{name} was not acknowledged: {type(error).__name__}")
        else:
            self.story.note(f"{name} got HTTP {response.status_code}{served(response)}")
            self.is_acknowledged = response.status_code == 202
        self.not_acknowledged += not self.is_acknowledged


def served(response: httpx.Response) -> str:
    """Return who served a response, as the front says."""
    return f" from {response.headers.get('x-served-by', 'nobody')}"


_INFO = {"name": "chaos", "version": "1"}


def _request(id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
