"""How many connections are accepted at once: uvloop accepts one in a turn of the event loop.

Where many clients come back together, who comes last would wait for all that is done for those before. asyncio's own
loop accepts what waits. uvloop accepts one connection for each listener, and listeners may have copies of one socket.
"""

import asyncio
import os
import socket

import uvicorn
from typing_extensions import override

from .accept_queue import is_known, protocols_of

ACCEPTS = 16  # connections that are accepted in a turn of the event loop


class Server(uvicorn.Server):
    """uvicorn's server. It accepts several connections in a turn of the event loop, whichever loop that is."""

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        if type(loop).__module__ != "uvloop" or not is_known(self):
            return
        make, config = protocols_of(self, loop), self.config
        listening = [each for one in self.servers for each in one.sockets if each.family != socket.AF_UNIX]
        for each in listening * (ACCEPTS - 1):
            copy = socket.socket(fileno=os.dup(each.fileno()))
            self.servers.append(await loop.create_server(make, sock=copy, ssl=config.ssl, backlog=config.backlog))
