"""The manager's agent of `examples/purchases.py`: a webhook tells it what waits, it asks the manager, and approves.

Nobody has to look: the server tells the agent when a purchase waits, and again each day. The agent keeps nothing. What
it has missed while it was not there is in the list of the tool `approvals`. It needs the extra `client`.

    python -m examples.purchases_agent

The server must allow the address of this webhook, since it is on the same machine (`MRTR_WEBHOOKS_ALLOW`).
"""

import argparse
import asyncio
import sys
import threading
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_bytes
from typing import Any, Literal

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mrtr_server import BadWebhook, read_webhook
from mrtr_server.client import Client, ClientError, Form

TOKEN = "max-token"
SECRET = "whsec_" + b64encode(token_bytes(32)).decode()
HALF_A_DAY, A_MOMENT = 43_200, 1
"""Seconds."""


class Agent:
    """Hears of purchases that wait, one after the other.

    Args:
        server: the endpoint of the server.
        hook: the address at which this agent hears of them.
    """

    def __init__(self, server: str, hook: str) -> None:
        self.server = server
        self.hook = hook
        self.tickets = asyncio.Queue[str]()
        self.typed = asyncio.Queue[str]()

    async def subscribe(self) -> None:
        """Subscribe, and again before the subscription ends, which is a day at most."""
        delivery = {"mode": "webhook", "url": self.hook, "secret": SECRET}
        version: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        wants: dict[str, Any] = {"name": "wait.requested", "arguments": {"wait": "approval"}, "delivery": delivery}
        params = {"_meta": version, **wants}
        request = {"jsonrpc": "2.0", "id": 1, "method": "events/subscribe", "params": params}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "events/subscribe"}
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}", **headers}) as http:
            while True:
                try:
                    reply = (await http.post(self.server, json=request)).raise_for_status().json()
                except httpx.HTTPError as error:
                    print(f"Not subscribed: {error}", flush=True)
                    await asyncio.sleep(A_MOMENT)
                else:
                    print(f"Refused: {reply['error']}" if "error" in reply else "Told of what waits", flush=True)
                    await asyncio.sleep(HALF_A_DAY)

    async def hear(self, request: Request) -> Response:
        """Take a message of the server."""
        try:
            message = read_webhook(request.headers, await request.body(), SECRET)
        except BadWebhook as error:
            return JSONResponse({"error": str(error)}, 401)
        if message.type == "verification":
            return JSONResponse({"challenge": message.challenge})
        if message.type == "event" and message.data is not None:
            self.tickets.put_nowait(str(message.data["ticket"]))
        return Response(status_code=204)

    async def work(self) -> None:
        """Approve what the manager approves."""
        async with Client(self.server, token=TOKEN, on_elicit=self.ask) as client:
            while True:
                ticket = await self.tickets.get()
                try:
                    print((await client.call("approve", ticket=ticket)).text, flush=True)
                except ClientError as error:  # a no, or it was answered already, as with an event that came twice
                    print(error, flush=True)

    async def ask(self, form: Form) -> dict[str, Any] | Literal["decline"]:
        """Ask the manager what the server asks."""
        print(f"{form.message} [yes/no]", flush=True)
        return {str(form.confirms): True} if await self.typed.get() == "yes" else "decline"

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take what the manager types."""
        for line in sys.stdin:
            loop.call_soon_threadsafe(self.typed.put_nowait, line.strip().lower())


async def run(server: str, port: int) -> None:
    """Serve the webhook until Ctrl-C."""
    agent = Agent(server, f"http://127.0.0.1:{port}/hook")
    threading.Thread(target=agent.read, args=(asyncio.get_running_loop(),), daemon=True).start()
    jobs = list[asyncio.Task[None]]()

    @asynccontextmanager
    async def working(app: Starlette) -> AsyncGenerator[None]:
        jobs.extend(map(asyncio.create_task, (agent.subscribe(), agent.work())))
        yield
        for job in jobs:
            job.cancel()

    routes = [Route("/hook", agent.hear, methods=["POST"])]
    app = Starlette(routes=routes, lifespan=working)
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning")).serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="?", default="http://127.0.0.1:8000/mcp", help="its endpoint (%(default)s)")
    parser.add_argument("--port", type=int, default=9000, help="of the webhook (%(default)s)")
    options = parser.parse_args()
    asyncio.run(run(options.server, options.port))
