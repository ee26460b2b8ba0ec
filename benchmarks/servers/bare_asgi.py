"""A bare ASGI app that parses the request with pydantic_core and gives the answer of our server. Nothing is checked."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic_core import from_json, to_json

Message = MutableMapping[str, Any]


async def add(a: int, b: int) -> str:
    return str(a + b)


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    assert scope["type"] == "http"
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    message = from_json(body)
    text = await add(**message["params"]["arguments"])
    reply = to_json(
        {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": {
                "resultType": "complete",
                "content": [{"type": "text", "text": text}],
                "isError": False,
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "bench", "version": "0.0.0"}},
            },
        }
    )
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})
