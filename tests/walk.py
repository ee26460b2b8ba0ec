"""Walks flows in process: sends the rounds of one call to an app, over its real ASGI interface."""

from collections.abc import Mapping
from typing import Any

import httpx

from mrtr_server import MRTRServer

VERSION = "2026-07-28"
ALL_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}


def accept(**content: Any) -> dict[str, Any]:
    """An accepted form."""
    return {"action": "accept", "content": content}


YES = accept(confirm=True)
NO = accept(confirm=False)
DECLINE = {"action": "decline"}
CANCEL = {"action": "cancel"}


def sampled(text: str) -> dict[str, Any]:
    """A message of the client's model."""
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "m"}


class Walk:
    """One flow: the same call, round after round.

    Parameters:
        apps: the replicas; each round goes to the next one.
        target: the tool's or prompt's name, or the resource's URI.
        arguments: its arguments.
        method: the protocol's method.
        capabilities: what the client declares.
        headers: HTTP headers of every request, besides those of the protocol.
    """

    def __init__(
        self,
        *apps: MRTRServer,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        method: str = "tools/call",
        capabilities: Mapping[str, Any] = ALL_CAPABILITIES,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.apps = apps
        self.method = method
        self.target = target
        self.arguments = dict(arguments or {})
        self.capabilities = dict(capabilities)
        self.headers = dict(headers or {})
        self.state: str | None = None
        self.rounds = 0
        self.reply: dict[str, Any] = {}

    async def send(self, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the next round, with the state of the last one; give the JSON-RPC reply."""
        app = self.apps[self.rounds % len(self.apps)]
        self.rounds += 1
        name = "uri" if self.method == "resources/read" else "name"
        params: dict[str, Any] = {
            name: self.target,
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": VERSION,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            },
        }
        if self.method != "resources/read":
            params["arguments"] = self.arguments
        if answers is not None:
            params["inputResponses"] = dict(answers)
        if self.state is not None:
            params["requestState"] = self.state
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": self.method, "Mcp-Name": self.target, **self.headers}
        message = {"jsonrpc": "2.0", "id": self.rounds, "method": self.method, "params": params}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            response = await client.post("/mcp", json=message, headers=headers)
        self.reply = response.json()
        self.state = self.reply.get("result", {}).get("requestState", self.state)
        return self.reply

    async def questions(self, answers: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Send the next round, which must need input; give the message of each question by key."""
        result = (await self.send(answers))["result"]
        assert result["resultType"] == "input_required", result
        return {
            key: request["params"].get("message", request["method"])
            for key, request in result.get("inputRequests", {}).items()
        }

    async def text(self, answers: Mapping[str, Any] | None = None) -> str:
        """Send the next round, which must complete the call; give its text."""
        result = (await self.send(answers))["result"]
        assert result["resultType"] == "complete", result
        assert not result["isError"], result
        return str(result["content"][0]["text"])

    async def failure(self, answers: Mapping[str, Any] | None = None) -> str:
        """Send the next round, which must fail for the model; give what it says."""
        result = (await self.send(answers))["result"]
        assert result["isError"], result
        return str(result["content"][0]["text"])

    async def error(self, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the next round, which must be refused; give the JSON-RPC error."""
        reply = await self.send(answers)
        assert "error" in reply, reply
        return dict(reply["error"])
