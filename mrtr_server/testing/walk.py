"""How a flow gets from one round to the next: what is the same in every era."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from .answers import Answer
from .asked import Asks
from .failure import Unexpected
from .replies import Reply, Response, Standing
from .script import Answers, Script
from .session import Session
from .transports import Transport
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

_MOST_ROUNDS = 100
"""Where a server would never stop; every real one has a budget below."""


class Position:
    """Where a flow is, and what its next request carries.

    Args:
        client: who sends it.
        method: the protocol's method.
        target: the tool's or prompt's name, or the resource's URI.
        arguments: of the tool or prompt.
    """

    def __init__(self, client: Session[Any, Any], method: str, target: str, arguments: Mapping[str, Any]) -> None:
        self.method = method
        self.target = target
        self.arguments = dict(arguments)
        self.token = client.token
        self.headers = dict(client.headers)
        self.state: str | None = None
        self.task: str | None = None
        self.replies: list[Reply] = []
        self.at: Reply | None = None
        """The reply from which it continues: the last one that is no error."""
        self.tampering: Callable[[str], str] | None = None
        self._servers = client.transports
        self._turn = 0

    @property
    def last(self) -> Reply:
        """The reply to the last round."""
        if not self.replies:
            raise Unexpected("The flow has not begun: call start() first")
        return self.replies[-1]

    @property
    def asks(self) -> Asks:
        """What is asked, by key."""
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
        """Return the server whose turn it is."""
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


class Walk(ABC):
    """Leads a flow from one round to the next.

    Args:
        position: where the flow is.
        client: who sends it.
    """

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
        """Send rounds to the end; see `Flow.finish`."""
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

    @abstractmethod
    async def look(self) -> Reply:
        """Look at the task; see `Flow.look`."""

    @abstractmethod
    async def wait(self) -> Reply:
        """Wait for what comes next; see `Flow.wait`."""

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

    @abstractmethod
    def break_stream(self) -> None:
        """Lose the stream; see `Flow.break_stream`."""

    @abstractmethod
    async def resume(self) -> Reply:
        """Come back to the stream; see `Flow.resume`."""
