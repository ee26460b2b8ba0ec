"""Hosts that draw apps and elicit nothing, by the requests that public captures show of them.

Each program plays the model, which calls tools, and the page of a question, in which the person answers. What a capture
does not show is as the specification has it.
"""

import itertools
import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import httpx
from probe import LIMIT, fill_in, probe, run

UI = "io.modelcontextprotocol/ui"
CAPABILITIES = {"extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
ASK = "mrtr-server/ask"
PAGE = "ui://mrtr/question.html"


@dataclass
class Wire:
    """What is special in the requests of a host.

    Args:
        agent: the header `User-Agent`.
        client: `clientInfo`.
        meta: `_meta` of each call of a tool.
        echoes: whether the session id of `initialize` comes back with what follows.
        discovers: whether it sends `server/discover` before.
        repeats: whether each call of a tool has an `initialize` of its own.
        user: the bearer token, at the endpoint for known users; none at the one for everybody.
        captures: where the requests can be read.
    """

    agent: str
    client: dict[str, str]
    captures: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    echoes: bool = False
    discovers: bool = False
    repeats: bool = False
    user: str = ""


WIRES = {
    "chatgpt": Wire(
        agent="openai-mcp/1.0.0",
        client={"name": "openai-mcp", "version": "1.0.0"},
        meta={
            "openai/userAgent": "ChatGPT",
            "openai/locale": "en-US",
            "openai/session": "v1/conversation",
            "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
        },
        repeats=True,
        captures=(
            "https://github.com/modelcontextprotocol/ext-apps/issues/647",
            "https://github.com/openai/openai-apps-sdk-examples/issues/201",
        ),
    ),
    "claude": Wire(
        agent="Claude-User",
        client={"name": "Anthropic/ClaudeAI", "version": "1.0.0"},
        discovers=True,
        user="token of ann",
        captures=(
            "https://github.com/anthropics/claude-ai-mcp/issues/975",
            "https://github.com/anthropics/claude-ai-mcp/issues/76",
            "https://github.com/modelcontextprotocol/modelcontextprotocol/pull/2398",
        ),
    ),
    "goose": Wire(
        agent="goose/1.36.0",
        client={"name": "goose", "version": "1.36.0"},
        meta={"agent-session-id": "20260814_1", "progressToken": 0},
        echoes=True,
        captures=("https://github.com/airbytehq/PyAirbyte/pull/1104",),
    ),
}
ERA = "2025-11-25"


class Host:
    """A host with one connection for lists and pages, and one for calls of the model."""

    def __init__(self, url: str, wire: Wire) -> None:
        self._url = url.replace("/mcp", "/users/mcp") if wire.user else url
        self._wire = wire
        self._ids = itertools.count()
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": wire.agent}
        if wire.user:
            headers["Authorization"] = f"Bearer {wire.user}"
        self._http = httpx.AsyncClient(headers=headers, timeout=LIMIT, trust_env=False)
        self._session = ""

    async def _post(self, method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if not method.startswith("notifications/"):
            message["id"] = next(self._ids)
        return await self._http.post(self._url, json=message, headers=headers)

    async def send(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request; return its result. Raises `ValueError` with what an error says."""
        headers = {"MCP-Protocol-Version": ERA}
        if self._wire.echoes:
            headers["Mcp-Session-Id"] = self._session
        response = await self._post(method, params, **headers)
        body = response.text
        if "event-stream" in response.headers["content-type"]:
            body = re.findall(r"^data: (.*)$", body, re.MULTILINE)[-1]
        reply = json.loads(body)
        if "error" in reply:
            raise ValueError(reply["error"]["message"])
        return reply["result"]

    async def connect(self) -> None:
        """Begin, as the capture does."""
        if self._wire.discovers:
            await self._post("server/discover", {})
        offered = {"protocolVersion": ERA, "capabilities": CAPABILITIES, "clientInfo": self._wire.client}
        response = await self._post("initialize", offered)
        self._session = response.headers["mcp-session-id"]
        headers = {"Mcp-Session-Id": self._session} if self._wire.echoes else {}
        await self._post("notifications/initialized", {}, **headers)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool as the model does, have its questions answered in their page, and return what came of it."""
        result = await self._call(name, arguments)
        asked = re.match(r"mrtr-ask: (\S+)", result["content"][0]["text"])
        if not asked:
            return result
        await self._draw(result["_meta"][ASK])
        return await self._call("mrtr_result", {"ask": asked[1]})

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self._wire.repeats:
            await self.connect()
        return await self.send("tools/call", {"name": name, "arguments": arguments, "_meta": self._wire.meta})

    async def _draw(self, ask: dict[str, Any]) -> None:
        """Be the page of a question, and the person in front of it."""
        (page,) = (await self.send("resources/read", {"uri": PAGE}))["contents"]
        (key,) = set(re.findall(r'"([0-9a-f]{32})"', page["text"]))
        while ask:
            answers = {
                each["key"]: {"action": "accept", "content": await fill_in(each["schema"])} for each in ask["questions"]
            }
            sent = {"ask": ask["id"], "token": ask["token"], "page": key, "answers": answers}
            ask = (await self._call("mrtr_answer", sent))["structuredContent"].get("ask")


async def main(url: str) -> None:
    """Be the host that was asked for."""
    host = Host(url, WIRES[sys.argv[2]])
    await host.connect()
    await probe(
        host.call,
        tools=lambda: host.send("tools/list", {}),
        prompts=lambda: host.send("prompts/list", {}),
        resources=lambda: host.send("resources/list", {}),
        elicits=True,
        era=ERA,
    )


run(main)
