"""The end of a login in the browser: one redirect to this machine (RFC 8252, section 7.3)."""

import asyncio
import hmac
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from ..errors import LoginFailed

_LARGEST = 16 * 1024  # bytes of a request's head
_READ_SECONDS = 10.0
_MOST_PARAMETERS = 20

_PATH = "/callback"

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{0}</title><p>{0}</p></html>"""


class Redirect:
    """Listens on 127.0.0.1 for the redirect that brings a state back. All else that comes is told no, and ignored."""

    def __init__(self, state: str, ports: Sequence[int]) -> None:
        self._state = state
        self._ports = ports
        self._port = 0
        self._server: asyncio.Server | None = None
        self._came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Listen on the first of the ports that is free. Raises `LoginFailed`."""
        for port in self._ports:
            with suppress(OSError):
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_LARGEST)
                self._port = self._server.sockets[0].getsockname()[1]
                return self
        raise LoginFailed(f"Nothing can listen on port {self._ports[0]} for the end of the login: it is taken")

    async def __aexit__(self, *raised: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{_PATH}"

    async def parameters(self) -> dict[str, str]:
        return await self._came

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            closing(writer),
            suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                is_it = self._take(head.split(b"\r\n", 1)[0].decode("ascii"))
                text = "You can close this page." if is_it else "This is not the login that is waited for."
                body = _PAGE.format(text).encode()
                writer.write(
                    f"HTTP/1.1 {'200 OK' if is_it else '404 Not Found'}\r\nContent-Type: text/html; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()

    def _take(self, line: str) -> bool:
        """Note the redirect, if a request is that. Raises `ValueError`."""
        method, target, _ = line.split(" ")
        parts = urlsplit(target)
        found = dict(parse_qsl(parts.query, max_num_fields=_MOST_PARAMETERS))
        if method != "GET" or parts.path != _PATH or self._came.done():
            return False
        if not hmac.compare_digest(found.get("state", "").encode(), self._state.encode()):
            return False
        self._came.set_result(found)
        return True
