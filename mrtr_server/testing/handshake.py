"""The handshake by which clients of the handshake era begin."""

import asyncio
from collections.abc import Awaitable, Callable

from ..protocol.handshake_versions import BY_NAME
from ..wire.requests import write_request
from .failure import Unexpected
from .replies import Reply
from .wire import INITIALIZED, Caller, write_initialize

__tracebackhide__ = True  # pytest then shows the test's line instead

_GIVEN_LEVEL = "info"
"""What a session gets that sets no level."""

Post = Callable[[bytes], Awaitable[Reply]]
"""Posts a message on behalf of the client's user, with the headers of the session so far."""


class Handshake:
    """Begins the session of a client, once, before its first request.

    Args:
        caller: the client.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._one_at_a_time = asyncio.Lock()
        self.reply: Reply | None = None
        """The reply to `initialize`; None before it."""
        self.headers: dict[str, str] = {}
        """The headers of each request since."""

    async def begin(self, post: Post, number: Callable[[], int]) -> Reply:
        """Begin the session, unless it has begun.

        Args:
            post: posts the messages that it takes.
            number: returns the id of a new request.

        Raises:
            Unexpected: the server does not speak this version, or begins no session.
        """
        async with self._one_at_a_time:
            if self.reply is None:
                self.reply = await self._begin(post, number)
        return self.reply

    async def _begin(self, post: Post, number: Callable[[], int]) -> Reply:
        era = self._caller.era
        reply = await post(write_initialize(self._caller, number()))
        if BY_NAME[era].structures:  # the header came with these (Transports, Protocol Version Header)
            self.headers["MCP-Protocol-Version"] = era
        if reply.status != 200:  # the next request is refused for the same reason, and the test sees that
            return reply
        if "result" not in reply.message:
            raise Unexpected(f"The server begins no session of {era}. {reply}")
        if (agreed := reply.result.get("protocolVersion")) != era:
            raise Unexpected(f"The server does not speak {era}: it agrees to {agreed}")
        if session := reply.headers.get("mcp-session-id"):
            self.headers["Mcp-Session-Id"] = session
        initialized = await post(INITIALIZED)
        if initialized.status != 202:
            raise Unexpected(f"The server does not take notifications/initialized. {initialized}")
        level = self._caller.log_level or "emergency"  # there is no way to ask for none
        if level != _GIVEN_LEVEL and "logging" in reply.result.get("capabilities", {}):
            await post(write_request(number(), "logging/setLevel", {"level": level}))
        return reply
