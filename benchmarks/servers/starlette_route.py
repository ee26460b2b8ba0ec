"""A bare Starlette route that parses the request and gives the answer of our server. Nothing is checked."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def add(a: int, b: int) -> str:
    return str(a + b)


async def endpoint(request: Request) -> JSONResponse:
    message = await request.json()
    text = await add(**message["params"]["arguments"])
    return JSONResponse(
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


app = Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])])
