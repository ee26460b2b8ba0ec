"""Calls of the handshake era that become tasks at once: `tasks/result` asks what a task asks, and brings its result."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json
from typing_extensions import override

from ..protocol.dialect import LONGEST_TTL
from ..protocol.messages import JSON
from .asked import Asked
from .events import Event
from .failure import Unexpected
from .held_stream import HeldStream, is_stream, read_whole
from .open_call import OpenCall
from .replies import Reply
from .retries import params_of
from .transports import Stream, Transport
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

RELATED = "io.modelcontextprotocol/related-task"


class TaskStream(HeldStream):
    """The stream of a request for the result of a task; see `HeldStream`.

    Attributes:
        task: the id of the task, which each question on the stream names.
        tokens: the progress tokens of the call, and of the request.
    """

    task = ""
    tokens: tuple[int, ...] = ()

    @override
    def _ask(self, event: Event, message: JSON) -> bool:
        params = message.get("params") or {}
        if params.get("_meta", {}).get(RELATED) != {"taskId": self.task}:
            raise Unexpected(f"A question that does not name its task: {message}")
        if not isinstance(message["id"], str) or not event.id:
            raise Unexpected(f"A question that nobody could come back to: it has no ids of its own: {message}")
        self._move_to(event)
        key = message["id"].rpartition(".")[0]
        self.unanswered[key] = Asked(key, message["method"], params, message["id"])
        return True  # a task asks the next when it comes to that

    @override
    def _is_own(self, token: Any) -> bool:
        return token in self.tokens


class TaskCall(OpenCall):
    """Walks the call of a tool as a task, if the tool has tasks; see `OpenCall`."""

    @override
    def begin(self) -> None:
        super().begin()
        self.position.task = None
        self._tokens: tuple[int, ...] = ()

    @override
    async def look(self) -> Reply:
        return await self._about_task("tasks/get")

    @override
    async def cancel(self) -> Reply:
        return await (super().cancel() if self.position.task is None else self._about_task("tasks/cancel"))

    @override
    async def _call(self) -> None:
        position, server = self.position, self.position.next_server()
        if not await self.client.takes_task(server, position.target):
            await super()._call()
            return
        params = {**params_of(position), "task": {"ttl": LONGEST_TTL}}  # an empty one would wait for the first question
        request = await self.client.prepare(position.method, params, server, position.token, position.headers)
        self._called = request
        self._tokens = (from_json(request.body)["id"],)
        reply = self._at_once = position.reply(request, [await server.send(request)])
        if reply.is_task:
            position.task = reply.task.id

    @override
    async def _come_back(self, server: Transport) -> HeldStream | Reply:
        if self.position.task is None or self.position.state:
            return await super()._come_back(server)
        await self._noticed()
        request = await self._request("tasks/result", server)
        self._number = from_json(request.body)["id"]
        stream = await server.open(request)
        if is_stream(stream):
            return self._hold(request, stream)
        return self.position.reply(request, [await read_whole(stream)])

    @override
    def _hold(
        self, request: Request, stream: Stream, event: str = "", unanswered: Mapping[str, Asked] = {}
    ) -> HeldStream:
        if self.position.task is None:
            return super()._hold(request, stream, event, unanswered)
        held = TaskStream(request, self._number, stream, event, unanswered)
        held.task, held.tokens = self.position.task, (*self._tokens, self._number)
        return held

    async def _about_task(self, method: str) -> Reply:
        server = self.position.next_server()
        request = await self._request(method, server)
        return self.position.reply(request, [await server.send(request)])

    async def _request(self, method: str, server: Transport) -> Request:
        position = self.position
        if position.task is None:
            raise Unexpected(f"The flow has not become a task. {position.last}")
        return await self.client.prepare(method, {"taskId": position.task}, server, position.token, position.headers)
