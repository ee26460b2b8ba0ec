"""Connections that come together are accepted together, by uvloop too, and nobody listens when the server has ended."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette

from mrtr_server.uvicorn_http.accepting import ACCEPTS, Server

TURNS = 4
"""How many turns of the event loop may pass until connections are accepted that wait."""


async def scene() -> None:
    config = uvicorn.Config(Starlette(), port=0, log_config=None, lifespan="off")
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    address = server.servers[0].sockets[0].getsockname()
    with ExitStack() as stack:
        for _ in range(ACCEPTS):  # the loop does not run meanwhile
            stack.enter_context(socket.create_connection(address))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        accepted = len(server.server_state.connections)
    await server.shutdown()
    assert accepted == ACCEPTS
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_that_wait_are_accepted_together(new_loop: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())
