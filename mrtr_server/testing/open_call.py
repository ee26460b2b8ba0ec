"""Calls that stay open: questions come on the stream of the call, and each answer is a request of its own."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import from_json
from typing_extensions import override

from ..protocol.dialect import LONGEST_TTL
from ..protocol.handshake import CANCELLED
from ..wire import write_message
from .answers import Answer, Asked, Unexpected
from .replies import Reply, Request, Response, Standing
from .session import Session
from .streams import HeldStream, TaskStream, is_stream
from .transports import Stream, Transport, within
from .walk import Position, Walk, slowest

__tracebackhide__ = True  # pytest then shows the test's line instead

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a client knew at some moment."""

    at: Reply | None = None
    event: str = ""
    unanswered: Mapping[str, Asked] = field(default_factory=dict)


class OpenCall(Walk):
    """Walks a flow whose call stays open, as a client of the handshake era.

    A client that has lost its stream comes back to it with its next request, at the server whose turn it is.
    """

    def __init__(self, position: Position, client: Session[Any, Any]) -> None:
        super().__init__(position, client)
        self.begin()

    @override
    def begin(self) -> None:
        self.position.state = self.position.at = None
        self._held: HeldStream | None = None
        self._lost: HeldStream | None = None
        """A stream that was lost, until its server has noticed: which of two holders runs a round should be plain."""
        self._called: Request | None = None
        self._at_once: Reply | None = None  # to a call that was answered, or refused, without a stream
        self._number = 0
        self._unanswered: Mapping[str, Asked] = {}
        self._asked: dict[str, Asked] = {}
        self._before = _Moment()  # what the client knew before the last reply

    @override
    async def round(self, answers: Mapping[str, Answer], wait: bool = True) -> Reply:
        return await self._in_time(self._round(answers, wait), slowest(answers))

    async def _round(self, answers: Mapping[str, Answer], wait: bool) -> Reply:
        posted: list[Response] = []
        request: Request | None = None
        if self._called is None:
            if answers:
                raise Unexpected(f"In era={self.client.era!r} nobody can answer before being asked")
            await self._call()
        elif answers:
            request, posted = await self._post(answers)
            if posted[-1].status != 202:
                return self._take(self.position.reply(request, posted))
            if not wait:
                standing = Standing(self._unanswered, self.position.state or "", True)
                return self._take(self.position.reply(request, posted, standing))
        return await self._next(posted, request)

    @override
    async def wait(self) -> Reply:
        """Read on until something new comes."""
        if self._called is None:
            raise Unexpected("The flow has not begun: call start() first")
        return await self._in_time(self._next(until_new=True))

    @override
    async def cancel(self) -> Reply:
        self.position.last  # noqa: B018  it has begun
        request = self._message(write_message(method=CANCELLED, params={"requestId": self._number}))
        return self.position.reply(request, [await self.position.next_server().send(request)])

    @override
    def break_stream(self) -> None:
        if self._held is None or self._held.has_ended:
            raise Unexpected(f"There is no open stream. {self.position.last}")
        self._leave()

    @override
    async def resume(self) -> Reply:
        if self._held is not None:
            self._leave()
        return await self._in_time(self._next(always=True))

    @override
    async def replay(self, request: Request) -> Reply:
        return await self._in_time(self._replay(request))

    async def _replay(self, request: Request) -> Reply:
        stream = await self.position.next_server().open(request)
        if not is_stream(stream):
            return self.position.reply(request, [await stream.read_whole()])
        held = self._hold(request, stream, request.headers.get("last-event-id", ""), self._unanswered)
        try:
            return self.position.reply(request, [await held.read()], held.standing)
        finally:
            held.close()

    @override
    async def drop(self) -> Reply:
        self.position.last  # noqa: B018  it has begun
        if self._held is not None:
            self._leave()
        self.position.replies.pop()
        before, called = self._before, self._called
        self.position.at, self.position.state, self._unanswered = before.at, before.event or None, before.unanswered
        if not before.event and called is not None:  # it knows no event to come back to
            return await self._in_time(self._again(called))
        return await self._in_time(self._next())

    async def _again(self, called: Request) -> Reply:
        await self._open(called, self.position.next_server())
        return await self._next()

    @override
    async def race(self, answers: Mapping[str, Answer]) -> list[Reply]:
        return await self._in_time(self._race(answers), slowest(answers))

    async def _race(self, answers: Mapping[str, Answer]) -> list[Reply]:
        position = self.position
        servers = position.servers if len(position.servers) > 1 else position.servers * 2
        if self._held is not None:
            self._leave()
        opened = [await self._come_back(server) for server in servers]
        holds = [held for held in opened if isinstance(held, HeldStream)]
        refused = [reply for reply in opened if isinstance(reply, Reply)]
        await asyncio.gather(*(held.read() for held in holds))
        request, posted = await self._post(answers)
        if not holds or posted[-1].status != 202:
            return [*refused, self._take(position.reply(request, posted))]
        for held in holds:
            held.unanswered = dict(self._unanswered)
        came = await asyncio.gather(*(held.read() for held in holds))
        replies = [
            position.reply(held.request, [response], held.standing) for held, response in zip(holds, came, strict=True)
        ]
        self._held, *others = holds
        for held in others:
            held.close()
        self._take(replies[0])
        return [*replies, *refused]

    # How it is done

    async def _call(self) -> None:
        position, server = self.position, self.position.next_server()
        params = position.first()
        request = await self.client.prepare(position.method, params, server, position.token, position.headers)
        self._called, self._number = request, from_json(request.body)["id"]
        await self._open(request, server)

    async def _open(self, request: Request, server: Transport) -> None:
        stream = await server.open(request)
        if is_stream(stream):
            self._held = self._hold(request, stream)
        else:
            response = await stream.read_whole()
            self._at_once = self.position.reply(request, [response])

    def _hold(
        self, request: Request, stream: Stream, event: str = "", unanswered: Mapping[str, Asked] = {}
    ) -> HeldStream:
        return HeldStream(request, self._number, stream, event, unanswered)

    async def _come_back(self, server: Transport) -> HeldStream | Reply:
        """Send a `GET` for the stream; return it, or the reply that refuses it."""
        position = self.position
        if not position.state:
            raise Unexpected(f"There is no event to come back to. {position.last}")
        await self._noticed()
        request = self.client.prepare_resume(position.tampered(position.state), position.token, position.headers)
        stream = await server.open(request)
        if is_stream(stream):
            return self._hold(request, stream, position.state, self._unanswered)
        return position.reply(request, [await stream.read_whole()])

    async def _post(self, answers: Mapping[str, Answer]) -> tuple[Request, list[Response]]:
        """Send answers, each in a request of its own, the quickest first; stop where one is refused."""
        await self._noticed()
        posted: list[Response] = []
        waited = 0.0
        for key, answer in sorted(answers.items(), key=lambda item: item[1].after):
            if key not in self._asked:
                raise Unexpected(f"{key!r} was never asked, so an answer to it could go by no id")
            await asyncio.sleep(answer.after - waited)
            waited = answer.after
            request = self._message(write_message(id=self.position.tampered(self._asked[key].id), result=answer.raw))
            posted.append(await self.position.next_server().send(request))
            if posted[-1].status != 202:
                break
            self._unanswered = {name: asked for name, asked in self._unanswered.items() if name != key}
        return request, posted

    async def _next(
        self,
        posted: Sequence[Response] = (),
        request: Request | None = None,
        *,
        until_new: bool = False,
        always: bool = False,
    ) -> Reply:
        """Return the next reply: where the call stands when the server waits for its client, or its outcome."""
        position = self.position
        if (reply := self._at_once) is not None:
            self._at_once = None
            return self._take(reply)
        if self._held is None or self._held.has_ended:
            if self._held is not None and self._held.is_over:
                raise Unexpected(f"The call has ended. {position.last}")
            held = await self._come_back(position.next_server())
            if isinstance(held, Reply):
                return self._take(held)
            self._held = held
            always = True
        held = self._held
        held.unanswered = dict(self._unanswered)
        before = _Moment(position.at, position.state or "", self._unanswered)
        if self._unanswered and not (until_new or always):  # the others are still awaited
            came = Response(200, {}, b"")
        else:
            came = await held.read()
        self._before = before
        return self._take(position.reply(request or held.request, [*posted, came], held.standing))

    def _take(self, reply: Reply) -> Reply:
        position = self.position
        position.replies.append(reply)
        if reply.standing is not None:
            position.at = reply
            position.state = reply.standing.event or None
            self._unanswered = reply.standing.asks
            self._asked |= reply.standing.asks
        elif "result" in reply.message:
            position.at = reply
        return reply

    def _leave(self) -> None:
        if self._held is not None:
            self._held.close()
            self._lost, self._held = self._held, None

    async def _noticed(self) -> None:
        if self._lost is not None:
            await self._lost.noticed()
            self._lost = None

    def _message(self, body: bytes) -> Request:
        return self.client.prepare_message(body, self.position.token, self.position.headers)

    async def _in_time(self, work: Awaitable[T], more: float = 0.0) -> T:
        timeout = self.client.timeout
        return await within(None if timeout is None else timeout + more, work)


class TaskCall(OpenCall):
    """Walks the call of a tool as a task, if the tool has tasks; see `OpenCall`."""

    @override
    def begin(self) -> None:
        super().begin()
        self.position.task = None
        self._tokens: tuple[int, ...] = ()

    @override
    async def look(self) -> Reply:
        return await self.about_task("tasks/get")

    @override
    async def cancel(self) -> Reply:
        return await (super().cancel() if self.position.task is None else self.about_task("tasks/cancel"))

    @override
    async def _call(self) -> None:
        position, server = self.position, self.position.next_server()
        if not await self.client.takes_task(server, position.target):
            await super()._call()
            return
        params = {**position.first(), "task": {"ttl": LONGEST_TTL}}  # an empty one would wait for the first question
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
        request = await self.task_request("tasks/result", server)
        self._number = from_json(request.body)["id"]
        stream = await server.open(request)
        if is_stream(stream):
            return self._hold(request, stream)
        return self.position.reply(request, [await stream.read_whole()])

    @override
    def _hold(
        self, request: Request, stream: Stream, event: str = "", unanswered: Mapping[str, Asked] = {}
    ) -> HeldStream:
        if self.position.task is None:
            return super()._hold(request, stream, event, unanswered)
        held = TaskStream(request, self._number, stream, event, unanswered)
        held.task, held.tokens = self.position.task, (*self._tokens, self._number)
        return held
