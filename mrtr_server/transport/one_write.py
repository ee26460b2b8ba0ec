"""uvicorn's HTTP protocol, with the head of a response and the first part of its body in one write.

uvicorn writes them one after the other, and so makes two system calls for each response. ASGI has a server wait with
the head for the first part of the body, so they can go out together. Run a server with it by

    uvicorn --http mrtr_server.transport.one_write:OneWriteProtocol module:app

What uvicorn does stays as it is: this changes only when the bytes are handed to the transport. Where this uvicorn is
not one that we know, the name stands for uvicorn's own protocol.

With httptools, the endpoint hands over a short response as a whole; see `whole_responses`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

whole_responses: Callable[[Any], Any] | None
try:
    from .whole_responses import whole_responses
except ImportError:  # there is no httptools, or uvicorn has another one
    whole_responses = None

_STATUS_LINE = b"HTTP/1.1 "
_LENGTH = b"\r\ncontent-length: "


class JoiningTransport:
    """A transport that holds back the head of a response, until what comes next can go with it.

    Heads of responses without a `content-length` are not held: those are streams.

    Args:
        transport: the real one.
    """

    __slots__ = ("_held", "is_closing", "transport", "write_now")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_closing = transport.is_closing
        self.write_now = transport.write
        """Write bytes while nothing is held back."""
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write bytes, behind what was held back."""
        if self._held:
            data, self._held = self._held + data, b""
        elif data.startswith(_STATUS_LINE) and _LENGTH in data:
            self._held = data
            return
        self.write_now(data)

    def flush(self) -> None:
        """Write what is held back, since nothing comes that could go with it."""
        if self._held:
            self.write(b"")

    def close(self) -> None:
        """Write what is held back, and close."""
        self.flush()
        self.transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def one_write(base: Any) -> Any:
    """Return an HTTP protocol of uvicorn with joined writes; `base` itself where it lacks what this needs."""
    if not all(hasattr(base, name) for name in ("connection_made", "on_response_complete", "handle_websocket_upgrade")):
        return base

    class OneWriteProtocol(base):  # type: ignore[misc]
        """uvicorn's own HTTP protocol, on a transport that joins head and body."""

        transport: Any

        def connection_made(self, transport: asyncio.Transport) -> None:
            """Begin to serve a connection."""
            super().connection_made(JoiningTransport(transport))

        def on_response_complete(self) -> None:
            """End a response: one without a body, such as that to HEAD, has not been written yet."""
            self.transport.flush()
            super().on_response_complete()

        def handle_websocket_upgrade(self, *event: Any) -> None:
            """Hand the connection over to the protocol of WebSockets, as it was."""
            self.transport = self.transport.transport
            super().handle_websocket_upgrade(*event)

    return OneWriteProtocol if whole_responses is None else whole_responses(OneWriteProtocol)


OneWriteProtocol = one_write(AutoHTTPProtocol)
"""The class to give to uvicorn as `http`."""
