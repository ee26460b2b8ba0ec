"""Walks flows in process, in the words that many tests were written in: a thin layer over `mrtr_server.testing`."""

from collections.abc import Mapping
from typing import Any

from mrtr_server import MRTRServer, testing
from mrtr_server.testing import Answer, AsyncClient, Flow, Reply, Unexpected

VERSION = "2026-07-28"
ALL_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}


def accept(**content: Any) -> dict[str, Any]:
    """An accepted form."""
    return {"action": "accept", "content": content}


YES: dict[str, Any] = testing.yes.raw
NO: dict[str, Any] = testing.no.raw
DECLINE: dict[str, Any] = testing.decline.raw
CANCEL: dict[str, Any] = testing.cancel.raw


def sampled(text: str) -> dict[str, Any]:
    """A message of the client's model."""
    raw: dict[str, Any] = testing.sampled(text).raw
    return raw


class Walk:
    """One flow: the same call, round after round.

    Args:
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
        self.target = target
        self.capabilities = dict(capabilities)
        client = AsyncClient(*apps, capabilities=self.capabilities, headers=headers or {}, log_level=None)
        self.flow = Flow(client, method, target, arguments or {})
        self.reply: dict[str, Any] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that the next round is sent with."""
        return self.flow.arguments

    @property
    def state(self) -> str | None:
        """The state that the next round is sent with."""
        return self.flow.state

    @state.setter
    def state(self, state: str | None) -> None:
        self.flow.state = state

    @property
    def rounds(self) -> int:
        """How many rounds were sent."""
        return len(self.flow.replies)

    async def _send(self, answers: Mapping[str, Any] | None) -> Reply:
        reply = await self.flow.send({key: Answer(raw) for key, raw in (answers or {}).items()})
        self.reply = reply.message
        return reply

    async def send(self, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the next round, with the state of the last one; give the JSON-RPC reply."""
        return (await self._send(answers)).message

    async def questions(self, answers: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Send the next round, which must need input; give the message of each question by key."""
        reply = await self._send(answers)
        if not reply.needs_input:
            raise Unexpected(f"Nothing is needed. {reply}")
        return {key: asked.params.get("message", asked.method) for key, asked in reply.asks.items()}

    async def text(self, answers: Mapping[str, Any] | None = None) -> str:
        """Send the next round, which must complete the call; give its text."""
        return (await self._send(answers)).text

    async def failure(self, answers: Mapping[str, Any] | None = None) -> str:
        """Send the next round, which must fail for the model; give what it says."""
        return (await self._send(answers)).failure

    async def error(self, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the next round, which must be refused; give the JSON-RPC error."""
        error = (await self._send(answers)).error
        return {name: value for name, value in error._asdict().items() if value is not None}
