"""Calls that are sent again, with answers and the state: one request for each round. And the tasks they become."""

import asyncio
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ..protocol.headers import NAME_FIELDS
from .answers import Answer
from .failure import Unexpected
from .replies import Reply
from .session import Session
from .transports import Transport
from .walk import Position, Walk
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
"""How long to wait before a task is looked at again, in seconds: it grows from the first to the longest."""


class Retries(Walk):
    """Walks a flow by sending its call again."""

    def __init__(self, position: Position, client: Session[Any, Any]) -> None:
        super().__init__(position, client)
        self._before: tuple[str | None, Reply | None] = (None, None)

    @override
    def begin(self) -> None:
        position = self.position
        position.state = position.task = position.at = None

    @override
    async def round(self, answers: Mapping[str, Answer], wait: bool = True) -> Reply:
        raw = await _given(answers)
        if self.position.task is not None:
            reply = await self._about_task("tasks/update", {"inputResponses": raw})
            return await self.wait() if wait and "error" not in reply.message else self._take(reply)
        server = self.position.next_server()
        request = await self._request(raw, server)
        return self._take(await self._deliver(request, server))

    @override
    async def look(self) -> Reply:
        return self._take(await self._about_task("tasks/get", {}))

    @override
    async def wait(self) -> Reply:
        pause, waited, timeout = _FIRST_PAUSE, 0.0, self.client.timeout
        while (reply := await self._about_task("tasks/get", {})).is_task and reply.task.status == "working":
            if timeout is not None and waited > timeout:
                raise Unexpected(f"The task neither asked nor ended within {timeout} s. {reply}")
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)
        return self._take(reply)

    @override
    async def cancel(self) -> Reply:
        return await self._about_task("tasks/cancel", {})

    @override
    async def replay(self, request: Request) -> Reply:
        return await self._deliver(request, self.position.next_server())

    @override
    async def drop(self) -> Reply:
        position = self.position
        request = position.last.request
        position.replies.pop()
        position.state, position.at = self._before
        return self._take(await self._deliver(request, position.next_server()))

    @override
    async def race(self, answers: Mapping[str, Answer]) -> list[Reply]:
        raw = await _given(answers)
        servers = self.position.servers
        if len(servers) == 1:
            servers = servers * 2
        if self.position.task is not None:
            request = await self._task_request("tasks/update", {"inputResponses": raw}, servers[0])
        else:
            request = await self._request(raw, servers[0])
        replies = await asyncio.gather(*(self._deliver(request, server) for server in servers))
        self._take(next((reply for reply in replies if "result" in reply.message), replies[0]))
        return list(replies)

    @override
    def break_stream(self) -> None:
        raise self._no_stream()

    @override
    async def resume(self) -> Reply:
        raise self._no_stream()

    def _no_stream(self) -> Unexpected:
        return Unexpected(f"In era={self.client.era!r} no stream stays open between rounds: drop() loses a reply")

    async def _about_task(self, method: str, params: Mapping[str, Any]) -> Reply:
        server = self.position.next_server()
        return await self._deliver(await self._task_request(method, params, server), server)

    async def _task_request(self, method: str, params: Mapping[str, Any], server: Transport) -> Request:
        position = self.position
        if position.task is None:
            raise Unexpected(f"The flow has not become a task. {position.last}")
        given = {NAME_FIELDS[method]: position.task, **params}
        return await self.client.prepare(method, given, server, position.token, position.headers)

    async def _request(self, answers: Mapping[str, Any], server: Transport) -> Request:
        position = self.position
        params = params_of(position)
        if answers:
            params["inputResponses"] = answers
        if position.state is not None:
            params["requestState"] = position.tampered(position.state)
        return await self.client.prepare(position.method, params, server, position.token, position.headers)

    async def _deliver(self, request: Request, server: Transport) -> Reply:
        return self.position.reply(request, [await server.send(request)])

    def _take(self, reply: Reply) -> Reply:
        position = self.position
        self._before = (position.state, position.at)
        position.replies.append(reply)
        if "result" in reply.message:
            position.at = reply
        if reply.is_task:
            position.task = reply.task.id
        elif reply.needs_input:
            position.state = reply.message["result"].get("requestState")
        return reply


def params_of(position: Position) -> dict[str, Any]:
    """Return the parameters of a flow's call, as it is sent first."""
    params: dict[str, Any] = {NAME_FIELDS[position.method]: position.target}
    if position.arguments or position.method == "tools/call":
        params["arguments"] = position.arguments
    return params


async def _given(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return answers as they go over the wire, once the slowest of them is there."""
    if after := max((answer.after for answer in answers.values()), default=0.0):
        await asyncio.sleep(after)
    return {key: answer.raw for key, answer in answers.items()}
