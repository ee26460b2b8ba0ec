"""uvicorn's HTTP protocol, with the head of a response and the first part of its body in one write.

uvicorn writes them one after the other, and so makes two system calls for each response. ASGI has a server wait with
the head for the first part of the body, so they can go out together. Run a server with it by

    uvicorn --http mrtr_server.uvicorn_http.one_write:OneWriteProtocol module:app

What uvicorn does stays as it is: this changes only when the bytes are handed to the transport, and what becomes of
trailers. Where this uvicorn is not one that we know, the name stands for uvicorn's own protocol.

With httptools, requests are made with less, too; see `whole_responses` and `heads`. A request that asks for
another protocol, as some clients do in passing, is served all the same; see `heads`.
"""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from .grouped_writes import GroupedTransport, group_here

repeated_heads: Callable[[Any], Any] | None
ignoring_upgrades: Callable[[Any], Any] | None
try:
    from .heads import ignoring_upgrades, repeated_heads
except (ImportError, AttributeError):  # there is no httptools, or uvicorn has another one
    repeated_heads = ignoring_upgrades = None

_STATUS_LINE = b"HTTP/1.1 "
_BLANK_LINE = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length: "


class JoiningTransport(GroupedTransport):
    """Holds back the head of a response, until what comes next can go with it; one without a length is a stream's."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        if not self.held and data.startswith(_STATUS_LINE) and data.endswith(_BLANK_LINE) and _LENGTH in data:
            self.held = data
            return
        super().write(data)


def one_write(base: Any) -> Any:
    if not all(hasattr(base, name) for name in ("connection_made", "on_response_complete", "handle_websocket_upgrade")):
        return base
    if ignoring_upgrades is not None:
        base = ignoring_upgrades(base)

    class OneWriteProtocol(base):  # type: ignore[misc]
        loop: asyncio.AbstractEventLoop
        transport: Any
        headers: Any

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(JoiningTransport(transport, group_here()))

        def on_response_complete(self) -> None:
            """End a response: one without a body, such as that to HEAD, has not been written yet."""
            self.transport.flush()
            super().on_response_complete()

        def on_chunk_header(self) -> None:
            """Begin a chunk. Headers after the last one (trailers) are no headers of the request, as with h11."""
            self.headers = self.headers.copy()

        def handle_websocket_upgrade(self, *event: Any) -> None:
            self.transport.flush()
            self.transport = self.transport.transport
            super().handle_websocket_upgrade(*event)

    return OneWriteProtocol if repeated_heads is None else repeated_heads(OneWriteProtocol)


def why_slower(protocol: Any) -> str:
    """Return why uvicorn serves requests in its own way, and what to do about it; nothing where it does not."""
    if any(each.__name__ == "RepeatedHeads" for each in protocol.__mro__):
        return ""
    if find_spec("httptools") is None:
        return "httptools is not installed: pip install mrtr_server[fast]"
    return f"this release does not know uvicorn {uvicorn.__version__}: pip install -U uvicorn mrtr_server"


OneWriteProtocol = one_write(AutoHTTPProtocol)  # the class to give to uvicorn as `http`
