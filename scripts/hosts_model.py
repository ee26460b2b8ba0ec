"""A stand-in for a model, on this machine: it calls the tool that the person names, and keeps what that returned."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from hosts_apis import APIS, MODEL, Body, Call, Move, Said
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

WORDS = "So says the stand-in model."
"""What it says unless it is to call a tool: to a sampling, for example."""


@dataclass(frozen=True)
class Order:
    """What the person tells the model: to call this tool.

    Args:
        number: tells orders apart; a host repeats the earlier ones.
        server: the server, as the host's settings name it.
        tool: the tool.
        arguments: words and whole numbers. There are no quotes, since some hosts escape them; a name with dots is one
            within an object.
    """

    number: int
    server: str
    tool: str
    arguments: Mapping[str, str | int]

    def __str__(self) -> str:
        arguments = (f" {name}={value}" for name, value in self.arguments.items())
        return f"Call {self.number}: {self.server}/{self.tool}{''.join(arguments)}"

    @property
    def done(self) -> str:
        """What the model says when the tool has returned."""
        return f"Call {self.number} is done."

    @property
    def nested(self) -> dict[str, Any]:
        """The arguments as the tool gets them."""
        found: dict[str, Any] = {}
        for name, value in self.arguments.items():
            *path, last = name.split(".")
            level = found
            for each in path:
                level = level.setdefault(each, {})
            level[last] = value
        return found

    @classmethod
    def read(cls, text: str) -> "Order | None":
        """Return the last order in a text."""
        orders = re.findall(r"Call (\d+): (\w+)/(\w+)((?: [\w.]+=[\w.-]+)*)", text)
        if not orders:
            return None
        number, server, tool, given = orders[-1]
        arguments = dict(argument.split("=") for argument in given.split())
        read = {name: int(value) if value.isdecimal() else value for name, value in arguments.items()}
        return cls(int(number), server, tool, read)


def find_tool(names: Iterable[str], order: Order) -> str | None:
    """Return the tool of an order, as the host names it: after its server, in the host's spelling."""
    named = re.compile(rf"(^|\W|_){order.server}(\W|_)+{order.tool}$")
    return min(filter(named.search, names), key=len, default=None)


class Model:
    """The model, as a server on this machine."""

    def __init__(self) -> None:
        self._returned: dict[int, asyncio.Future[str | None]] = {}
        self.port = 0
        """Where it listens."""
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])
        """The application."""

    @property
    def url(self) -> str:
        """Its address, without the path of an API."""
        return f"http://127.0.0.1:{self.port}"

    def returned(self, order: Order) -> "asyncio.Future[str | None]":
        """Return what the tool of an order returned, once the host has told; None if the host offers no such tool."""
        return self._returned.setdefault(order.number, asyncio.get_running_loop().create_future())

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path.endswith("/models"):
            return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "nobody"}]})
        for api in APIS.values():
            if request.method == "POST" and api.path.search(path):
                body: Body = await request.json()
                move = self.move(list(api.tools(body)), list(api.said(body)))
                if body.get("stream") or "stream" in path:
                    return Response(api.stream(move), media_type="text/event-stream")
                return JSONResponse(api.whole(move))
        return JSONResponse({"error": {"type": "not_found", "message": f"There is no {path} here"}}, 404)

    def move(self, tools: list[str], said: list[Said]) -> Move:
        """Do what the person's last order asks for.

        Args:
            tools: the tools that the host offers.
            said: the conversation.
        """
        order, results = None, list[str]()
        for who, text in said:
            if who == "user" and (newer := Order.read(text)):
                order, results = newer, []
            elif who == "tool":
                results.append(text)
        if order is None or not (tools or results):  # the host has the conversation named, for example
            return WORDS
        tool = find_tool(tools, order)
        if tool and not results:
            return Call(tool, order.nested)
        returned = self.returned(order)
        if not returned.done():
            returned.set_result(results[-1] if results else None)
        return order.done if results else WORDS

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Model"]:
        """Serve on a free port until the context ends."""
        server = _Server(uvicorn.Config(self.app, log_level="warning", access_log=False, lifespan="off"))
        with socket.create_server(("127.0.0.1", 0)) as listening:  # from here on; it is answered in a moment
            self.port = listening.getsockname()[1]
            running = asyncio.create_task(server.serve([listening]))
            try:
                yield self
            finally:
                server.should_exit = server.force_exit = True
                await running


class _Server(uvicorn.Server):
    """A server that leaves the signals to the script."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
