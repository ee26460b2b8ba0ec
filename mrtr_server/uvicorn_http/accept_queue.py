"""The end of uvicorn's listening sockets: what waits in them is served first.

The system completes connections by itself, and keeps them until the process accepts them. It resets those that are left
when the socket closes. A proxy that has sent a request over one of them can't send a POST again, and returns a 502.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

FIRST_REQUEST_SECONDS = 0.5  # for a connection to send its first request, before uvicorn closes it


async def close_listeners(server: Any) -> None:
    """Close the sockets of a uvicorn that we know, and serve the connections that waited in them.

    What is left is the moment between the last accepted connection and the system call that closes the socket.
    """
    if not is_known(server):
        return
    servers = server.servers
    listening = [socket.socket(fileno=os.dup(each.fileno())) for one in servers for each in one.sockets or ()]
    for one in servers:
        one.close()
    for _ in range(3):  # in the second turn of the loop uvloop closes its own descriptors
        await asyncio.sleep(0)
    for each in listening:
        each.setblocking(False)
        for connection in _take(each):
            await _serve(server, connection)
    await _first_requests(server)


def is_known(server: Any) -> bool:
    return all(getattr(server, name, None) for name in ("servers", "server_state", "lifespan", "config"))


def _take(listening: socket.socket) -> list[socket.socket]:
    waiting: list[socket.socket] = []
    with listening:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # there are no more, or none can be taken
                return waiting
            waiting.append(connection)


async def _serve(server: Any, connection: socket.socket) -> None:
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(protocols_of(server, loop), connection, ssl=server.config.ssl)


def protocols_of(server: Any, loop: asyncio.AbstractEventLoop) -> Callable[[], Any]:
    config, state, lifespan = server.config, server.server_state, server.lifespan
    return lambda: config.http_protocol_class(config=config, server_state=state, app_state=lifespan.state, _loop=loop)


async def _first_requests(server: Any) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FIRST_REQUEST_SECONDS
    while loop.time() < deadline and any(each.cycle is None for each in _connections(server)):  # noqa: ASYNC110  uvicorn has no event
        await asyncio.sleep(0.01)


def _connections(server: Any) -> list[Any]:
    return [each for each in server.server_state.connections if hasattr(each, "cycle")]  # not those of WebSockets
