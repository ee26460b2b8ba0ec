"""A webhook for tests: it takes what a server sends, checks each signature, and fails as it is told."""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import BadWebhook
from ..events.signatures import SECRET_PREFIX, read_webhook

WITHIN = 10.0
"""Seconds to wait for a message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that came to a webhook.

    Args:
        id: its `webhook-id`.
        body: what it says.
        headers: its headers, by lower-case name.
        status: what it was answered with.
    """

    id: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    status: int


class WebhookReceiver:
    """A webhook on this machine; `webhook_receiver` makes it.

    Args:
        secret: what its messages are signed with.
    """

    def __init__(self, secret: str | None = None) -> None:
        self.secret = secret or new_secret()
        """What a client sends as `delivery.secret`."""
        self.url = ""
        """Where it is, for `delivery.url`."""
        self.sent: list[Sent] = []
        """All messages so far, with those that it has failed."""
        self.verifies = True
        """Whether it says that it wants messages."""
        self._failures: list[int] = []
        self._came = asyncio.Condition()

    @property
    def origin(self) -> str:
        """What `Webhooks(allow=[...])` has to allow."""
        return self.url.rpartition("/")[0]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that it has taken, in the order in which they came."""
        return [each.body for each in self.sent if "type" not in each.body and each.status < _REDIRECTED]

    def fail(self, *statuses: int) -> None:
        """Answer the next messages that are no verification with errors.

        Args:
            statuses: the HTTP status of each, such as 503.
        """
        self._failures += statuses

    async def wait(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many events have been taken.

        Args:
            count: how many, since the beginning.

        Returns:
            The events.

        Raises:
            TimeoutError: they did not come in ten seconds.
        """
        async with asyncio.timeout(WITHIN), self._came:
            await self._came.wait_for(lambda: len(self.events) >= count)
        return self.events

    async def wait_for(self, type: str) -> dict[str, Any]:
        """Wait for a message that is no event.

        Args:
            type: `"gap"`, `"terminated"` or `"verification"`.

        Returns:
            The first such message.

        Raises:
            TimeoutError: none came in ten seconds.
        """

        def found() -> list[dict[str, Any]]:
            return [each.body for each in self.sent if each.body.get("type") == type]

        async with asyncio.timeout(WITHIN), self._came:
            await self._came.wait_for(lambda: bool(found()))
        return found()[0]

    async def _serve(self, request: Request) -> Response:
        body = await request.body()
        try:
            read_webhook(request.headers, body, self.secret)
        except BadWebhook as error:
            return JSONResponse({"error": str(error)}, status_code=_UNSIGNED)
        message = json.loads(body)
        is_asked = message.get("type") == "verification"
        status = self._failures.pop(0) if self._failures and not is_asked else _OK
        async with self._came:
            headers = dict(request.headers)
            self.sent.append(Sent(headers["webhook-id"], message, headers, status))
            self._came.notify_all()
        if is_asked and self.verifies:
            return JSONResponse({"challenge": message["challenge"]})
        return Response(status_code=status)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, as an ASGI application."""
        await (await self._serve(Request(scope, receive)))(scope, receive, send)


_OK, _REDIRECTED, _UNSIGNED = 200, 300, 401


def new_secret() -> str:
    """Make a secret, as a client sends it with a subscription.

    Returns:
        The secret, which begins with `whsec_`.
    """
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


@asynccontextmanager
async def webhook_receiver(secret: str | None = None, *, port: int = 0) -> AsyncIterator[WebhookReceiver]:
    """Run a webhook on this machine for as long as a block lasts.

    The server under test must allow it: `webhooks=Webhooks(allow=[receiver.origin])`.

    Args:
        secret: what its messages are signed with. Default: a new one.
        port: where it listens. Default: one that is free.

    Returns:
        The webhook.
    """
    import uvicorn  # only here: the kit needs nothing of it otherwise

    class Server(uvicorn.Server):
        """A server within an event loop, which leaves the signals of the process alone."""

        is_up = asyncio.Event()

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            self.is_up.set()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    receiver = WebhookReceiver(secret)
    config = uvicorn.Config(receiver, host="127.0.0.1", port=port, log_level="warning", lifespan="off")
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        await server.is_up.wait()
        address: Sequence[Any] = server.servers[0].sockets[0].getsockname()
        receiver.url = f"http://127.0.0.1:{address[1]}/hook"
        yield receiver
    finally:
        server.should_exit = True
        await serving
