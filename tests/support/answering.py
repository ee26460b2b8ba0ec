"""Servers of one function, which replies to a client's messages as no good server would."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .serving import in_thread

Handler = Callable[[Request, Any], Awaitable[Response]]
"""Replies to a message."""


def replied(id: Any, result: Any) -> Response:
    """Return a reply with a result."""
    return JSONResponse({"jsonrpc": "2.0", "id": id, "result": result})


def completed(id: Any, text: str = "done") -> Response:
    """Return the reply of a tool that is done."""
    return replied(id, {"content": [{"type": "text", "text": text}]})


def asks(id: Any, state: str, **params: Any) -> Response:
    """Return a reply that asks for an elicitation: an empty form, if nothing else is said of it."""
    question = {
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"properties": {}}, **params},
    }
    return replied(id, {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": state})


async def breaks_off(_: Any) -> Response:
    """Return the beginning of a reply, and no more."""

    async def stream() -> AsyncIterator[bytes]:
        yield b": hello\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@contextmanager
def serving(handler: Handler) -> Iterator[tuple[str, list[Any]]]:
    """Serve a handler of messages; return its URL, and what it got."""
    got: list[Any] = []

    async def endpoint(request: Request) -> Response:
        message = json.loads(await request.body())
        got.append(message)
        return await handler(request, message)

    methods = ["POST"]
    routes = [Route("/mcp", endpoint, methods=methods), Route("/other", endpoint, methods=methods)]
    with in_thread(Starlette(routes=routes)) as port:
        yield f"http://127.0.0.1:{port}/mcp", got
