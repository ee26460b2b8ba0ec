"""How a flow gets from one round to the next: what is the same in every era, and calls that are sent again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

from typing_extensions import override

from ..wire import Rounds
from .answers import Answer, Answerable, Answers, Asked, Asks, Scripted, Unexpected, is_function, write
from .replies import Reply, Request, Response, Standing
from .session import Session
from .transports import Transport

__tracebackhide__ = True  # pytest then shows the test's line instead


class Script:
    """The answers to one flow, each to be used once."""

    def __init__(self, answers: Answers, defaults: Mapping[str, Answerable]) -> None:
        self._defaults = defaults
        self._functions = {key: each for key, each in answers.items() if is_function(each)}
        self._left = {key: _listed(each) for key, each in answers.items() if key not in self._functions}
        self._asked: dict[str, Asked] = {}

    def answer(self, reply: Reply) -> dict[str, Answer]:
        """Return the answers to what a reply asks. Fails the test if there is none for a question."""
        return {key: write(self._next(asked, reply), asked) for key, asked in reply.asks.items()}

    def _next(self, asked: Asked, reply: Reply) -> Answerable:
        key = asked.key
        before = self._asked.get(key)
        self._asked[key] = asked
        if key in self._functions:
            return self._functions[key]
        if self._left.get(key):
            return self._left[key].pop(0)
        if key in self._defaults and key not in self._left:
            return self._defaults[key]
        if key in self._left:
            again = f", after {before.message!r}" if before is not None and before.message != asked.message else ""
            raise Unexpected(f"No answer is left for {asked}, which was asked again{again}.{reply.described_log()}")
        known = ", ".join(map(repr, [*self._left, *self._functions, *self._defaults])) or "none"
        raise Unexpected(f"No answer is scripted for {asked}. Answers are given for: {known}.{reply.described_log()}")

    def check_used(self, reply: Reply) -> None:
        """Fail the test if an answer was never asked for."""
        unused = [key for key, left in self._left.items() if left] + [
            k for k in self._functions if k not in self._asked
        ]
        if unused:
            raise Unexpected(f"Answers were never asked for: {', '.join(map(repr, unused))}. {reply}")


def _listed(scripted: Scripted) -> list[Answerable]:
    return list(scripted) if isinstance(scripted, list | tuple) else [cast(Answerable, scripted)]


class Position(Rounds):
    """Where a flow is, and what its next request carries."""

    def __init__(self, client: Session[Any, Any], method: str, target: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(method, target, arguments)
        self.token = client.token
        self.headers = dict(client.headers)
        self.replies: list[Reply] = []
        self.at: Reply | None = None
        self.tampering: Callable[[str], str] | None = None
        self._servers = client.transports
        self._turn = 0

    @property
    def last(self) -> Reply:
        if not self.replies:
            raise Unexpected("The flow has not begun: call start() first")
        return self.replies[-1]

    @property
    def asks(self) -> Asks:
        return self.at.asks if self.at is not None else Asks()

    @property
    def servers(self) -> list[Transport]:
        """Where its requests go, in turn."""
        return self._servers

    @servers.setter
    def servers(self, servers: list[Transport]) -> None:
        self._servers = servers
        self._turn = 0

    def next_server(self) -> Transport:
        self._turn += 1
        return self._servers[(self._turn - 1) % len(self._servers)]

    def tampered(self, sealed: str) -> str:
        """Return what the server sealed as it is sent back; changed, if the test said so, this time only."""
        change, self.tampering = self.tampering, None
        return change(sealed) if change is not None else sealed

    def reply(self, request: Request, responses: list[Response], standing: Standing | None = None) -> Reply:
        """Return the reply to the next round."""
        before = self.last.asked if self.replies else None
        return Reply(request, responses, before, len(self.replies) + 1, standing)


_MOST_ROUNDS = 100  # where a server would never stop; every real one has a budget below


class Walk(ABC):
    """Leads a flow from one round to the next."""

    def __init__(self, position: Position, client: Session[Any, Any]) -> None:
        self.position = position
        self.client = client

    @abstractmethod
    def begin(self) -> None:
        """Forget what came before the first round."""

    @abstractmethod
    async def round(self, answers: Mapping[str, Answer], wait: bool = True) -> Reply:
        """Send a round; see `Flow.send`."""

    async def finish(self, answers: Answers) -> Reply:
        script = Script(answers, self.client.answers)
        ran: list[Reply] = []
        reply = self.position.at
        while reply is None or reply.needs_input or reply.is_under_way:
            if len(ran) == _MOST_ROUNDS:
                raise Unexpected(f"The flow has not ended after {_MOST_ROUNDS} rounds. {reply}")
            if reply is not None and reply.is_under_way and not reply.needs_input:
                reply = await self.wait()
            else:
                reply = await self.round(script.answer(reply) if reply is not None else {})
            ran.append(reply)
        script.check_used(reply)
        return Reply.of_all(ran) if ran else reply

    async def look(self) -> Reply:
        raise Unexpected(f"The flow has not become a task. {self.position.last}")

    @abstractmethod
    async def wait(self) -> Reply:
        """Wait for what comes next; see `Flow.wait`."""

    async def deliver(self, request: Request, server: Transport) -> Reply:
        return self.position.reply(request, [await server.send(request)])

    async def task_request(self, method: str, server: Transport, **params: Any) -> Request:
        position = self.position
        if position.task is None:
            raise Unexpected(f"The flow has not become a task. {position.last}")
        about = position.about_task(method, **params)
        return await self.client.prepare(*about, server, position.token, position.headers)

    async def about_task(self, method: str, **params: Any) -> Reply:
        server = self.position.next_server()
        return await self.deliver(await self.task_request(method, server, **params), server)

    @abstractmethod
    async def cancel(self) -> Reply:
        """Cancel the task, or the open call; see `Flow.cancel`."""

    @abstractmethod
    async def replay(self, request: Request) -> Reply:
        """Send a request again; see `Flow.replay`."""

    @abstractmethod
    async def drop(self) -> Reply:
        """Lose the last reply; see `Flow.drop`."""

    @abstractmethod
    async def race(self, answers: Mapping[str, Answer]) -> list[Reply]:
        """Send a round to all servers; see `Flow.race`."""

    def break_stream(self) -> None:
        raise self._no_stream()

    async def resume(self) -> Reply:
        raise self._no_stream()

    def _no_stream(self) -> Unexpected:
        return Unexpected(f"In era={self.client.era!r} no stream stays open between rounds: drop() loses a reply")


_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds before a task is looked at again: from the first to the longest


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
            reply = await self.about_task("tasks/update", inputResponses=raw)
            return await self.wait() if wait and "error" not in reply.message else self._take(reply)
        server = self.position.next_server()
        request = await self._request(raw, server)
        return self._take(await self.deliver(request, server))

    @override
    async def look(self) -> Reply:
        return self._take(await self.about_task("tasks/get"))

    @override
    async def wait(self) -> Reply:
        pause, waited, timeout = _FIRST_PAUSE, 0.0, self.client.timeout
        while (reply := await self.about_task("tasks/get")).is_task and reply.task.status == "working":
            if timeout is not None and waited > timeout:
                raise Unexpected(f"The task neither asked nor ended within {timeout} s. {reply}")
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)
        return self._take(reply)

    @override
    async def cancel(self) -> Reply:
        return await self.about_task("tasks/cancel")

    @override
    async def replay(self, request: Request) -> Reply:
        return await self.deliver(request, self.position.next_server())

    @override
    async def drop(self) -> Reply:
        position = self.position
        request = position.last.request
        position.replies.pop()
        position.state, position.at = self._before
        return self._take(await self.deliver(request, position.next_server()))

    @override
    async def race(self, answers: Mapping[str, Answer]) -> list[Reply]:
        raw = await _given(answers)
        servers = self.position.servers
        if len(servers) == 1:
            servers = servers * 2
        if self.position.task is not None:
            request = await self.task_request("tasks/update", servers[0], inputResponses=raw)
        else:
            request = await self._request(raw, servers[0])
        replies = await asyncio.gather(*(self.deliver(request, server) for server in servers))
        self._take(next((reply for reply in replies if "result" in reply.message), replies[0]))
        return list(replies)

    async def _request(self, answers: Mapping[str, Any], server: Transport) -> Request:
        position = self.position
        params = position.params(answers)
        if position.state is not None:
            params["requestState"] = position.tampered(position.state)
        return await self.client.prepare(position.method, params, server, position.token, position.headers)

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


def slowest(answers: Mapping[str, Answer]) -> float:
    """Return how long the slowest answer takes, in seconds."""
    return max((answer.after for answer in answers.values()), default=0.0)


async def _given(answers: Mapping[str, Answer]) -> dict[str, Any]:
    if after := slowest(answers):
        await asyncio.sleep(after)
    return {key: answer.raw for key, answer in answers.items()}
