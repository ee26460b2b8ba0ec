"""One flow, walked round by round."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic

from ..protocol.headers import NAME_FIELDS
from .answers import Answerable, write
from .asked import Asks, listed
from .failure import Unexpected
from .observing import Log
from .replies import Reply
from .script import Answers, Script, Scripted
from .session import NONE, Many, One, Session
from .transports import Server, Transport, transports
from .wire import Request

__tracebackhide__ = True  # pytest then shows the test's line instead

_MOST_ROUNDS = 100
"""Where a server would go on for ever; every real one has a budget below."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
"""How long to wait before a task is looked at again, in seconds: it grows from the first to the longest."""


def flipped(state: str) -> str:
    """Change one character in the middle of a state."""
    middle = len(state) // 2
    return f"{state[:middle]}{'A' if state[middle] != 'A' else 'B'}{state[middle + 1 :]}"


class Flow(Generic[One, Many]):
    """One flow: the same call, sent round by round, to the servers and as the user that the test chooses.

    If the client accepts tasks (`tasks=True`), a flow may become one: `task` is then its id, and one round is what
    happens between two times that the task asks.

    The next round is sent with the attributes `state`, `arguments`, `token` and `headers`, which you may change between
    rounds. A round that is refused leaves the flow where it was.

    Args:
        client: who sends it.
        method: the protocol's method.
        target: the tool's or prompt's name, or the resource's URI.
        arguments: of the tool or prompt.
    """

    def __init__(self, client: Session[One, Many], method: str, target: str, arguments: Mapping[str, Any]) -> None:
        self._client = client
        self._method = method
        self._target = target
        self.arguments = dict(arguments)
        self.token = client.token
        self.headers = dict(client.headers)
        self.state: str | None = None
        self.task: str | None = None
        self.replies: list[Reply] = []
        self._servers = client.transports
        self._turn = 0
        self._at: Reply | None = None  # what it goes on from: the last reply that is no error
        self._before: tuple[str | None, Reply | None] = (None, None)
        self._tampering: Callable[[str], str] | None = None

    @property
    def log(self) -> Log:
        """What the server's log said in all rounds so far."""
        return Log(record for reply in self.replies for record in reply.log.records)

    @property
    def last(self) -> Reply:
        """The reply to the last round."""
        if not self.replies:
            raise Unexpected("The flow has not begun: call start() first")
        return self.replies[-1]

    @property
    def _open(self) -> Asks:
        return self._at.asks if self._at is not None else Asks()

    # Rounds

    def start(self, answers: Mapping[str, Answerable] = NONE, /, **named: Answerable) -> One:
        """Send the call for the first time.

        Args:
            answers: by key, for a client that answers before it is asked; as a rule none.
            named: answers by key, too.

        Returns:
            The reply to this round.
        """
        self.state = self.task = self._at = None
        return self.send({**answers, **named})

    def answer(self, answers: Mapping[str, Answerable] = NONE, /, **named: Answerable) -> One:
        """Send the next round, with answers to what is asked; some, all, or none where there is only a state.

        Use `send` for a key that is not asked.

        Args:
            answers: by key: fields of a form or an instance of its model, `accept(...)`, `decline`, `cancel`, `yes`,
                `no`, `sampled(...)`, `roots(...)`, or a function of what is asked that returns one of these.
            named: answers by key, too.

        Returns:
            The reply to this round.

        Raises:
            Unexpected: a key is not asked, nothing is, or the flow has not begun.
        """
        last, given = self.last, {**answers, **named}
        self._check_open(given)
        if self._at is not None and not self._at.needs_input:
            raise Unexpected(f"There is nothing to answer. {last}")
        return self.send(given)

    def send(self, answers: Mapping[str, Answerable] = NONE, /, *, wait: bool = True) -> One:
        """Send a round with any answers, asked for or not, and with the state that the flow has.

        Args:
            answers: by key; see `answer`.
            wait: whether to wait, in a task, for what comes of the answers. If not, you may look at the task, wait for
                it or cancel it while it works on them.

        Returns:
            The reply to this round; in a task that is not waited for, the acknowledgement of the answers.

        Raises:
            Unexpected: the server can't be reached, or did not reply in time.
        """
        return self._client.run_one(self._round(self._written(answers), wait))

    def finish(self, answers: Answers = NONE, /, **named: Scripted) -> One:
        """Send rounds to the end with scripted answers, from the first round if nothing has been sent.

        Args:
            answers: by key; see `answer`. A list has the answers to questions that come under one key in turn.
            named: answers by key, too.

        Returns:
            The last reply, with the steps, log and notes of all rounds that were sent.

        Raises:
            Unexpected: no answer is scripted for an ask, a scripted one is never asked for, or the flow does not end.
        """
        return self._client.run_one(self._finish({**answers, **named}))

    # A flow that has become a task

    def look(self) -> One:
        """Ask how the task is doing, once.

        Returns:
            The reply; `task` says, `asks` has what it asks, and `text` and the like what came of it.

        Raises:
            Unexpected: the flow has not become a task.
        """
        return self._client.run_one(self._look())

    def wait(self) -> One:
        """Ask how the task is doing until it asks something or has ended.

        Returns:
            The last reply.

        Raises:
            Unexpected: the flow has not become a task, or it neither asks nor ends within the client's `timeout`.
        """
        return self._client.run_one(self._wait())

    def cancel(self) -> One:
        """Cancel the task.

        Returns:
            The acknowledgement.

        Raises:
            Unexpected: the flow has not become a task.
        """
        return self._client.run_one(self._about_task("tasks/cancel", {}))

    # What goes wrong between rounds

    def replay(self, reply: Reply | None = None) -> One:
        """Send the request behind a reply again, byte for byte. The flow stays where it is.

        Args:
            reply: one of this flow's, or of another; the last one if left out.

        Returns:
            The reply to the replayed request.

        Raises:
            Unexpected: the flow has not begun.
        """
        return self._client.run_one(self._deliver((reply or self.last).request, self._next_server()))

    def drop(self) -> One:
        """Lose the last reply: send its request again, as a client does that never received the reply.

        Returns:
            The reply to the second delivery, from which the flow continues.

        Raises:
            Unexpected: the flow has not begun.
        """
        return self._client.run_one(self._drop())

    def race(self, answers: Mapping[str, Answerable] = NONE, /, **named: Answerable) -> Many:
        """Send the next round to all servers of the flow at once, byte for byte the same; twice, if there is only one.

        Args:
            answers: by key; see `answer`. Here, too, a key that is not asked fails the test.
            named: answers by key, too.

        Returns:
            The replies, in the order of the servers. The flow continues from the first that is not an error. In a task
            they are the acknowledgements of the answers; `wait` for what comes of them.

        Raises:
            Unexpected: a key is not asked.
        """
        given = {**answers, **named}
        self._check_open(given)
        return self._client.run_all(self._race(self._written(given)))

    def tamper(self, change: Callable[[str], str] = flipped) -> None:
        """Change the state on its way to the server, in the next round only.

        Args:
            change: returns the changed state; by default, one character in the middle is another.

        Raises:
            Unexpected: the flow has no state yet.
        """
        if self.state is None:
            raise Unexpected("The flow has no state to tamper with: it has not been asked anything yet")
        self._tampering = change

    def move_to(self, *servers: Server) -> None:
        """Send the next rounds to another replica, another version, or a server with other keys.

        Args:
            servers: applications or URLs; several take turns.
        """
        self._servers = transports(servers, self._client.path, self._client.timeout)
        self._turn = 0

    # How it is done

    def _check_open(self, answers: Mapping[str, Answerable]) -> None:
        """Fail the test if a key is not asked."""
        if unasked := answers.keys() - self._open.keys():
            hint = ""
            if self._at is not None and self._at.is_under_way:
                hint = f"; the task is {self._at.task.status}, so wait() for what it asks"
            raise Unexpected(f"{min(unasked)!r} was not asked; the server asks {listed(self._open.values())}{hint}")

    def _written(self, answers: Mapping[str, Answerable]) -> dict[str, Any]:
        return {key: write(answer, self._open.get(key)) for key, answer in answers.items()}

    async def _round(self, answers: Mapping[str, Any], wait: bool = True) -> Reply:
        if self.task is not None:
            reply = await self._about_task("tasks/update", {"inputResponses": dict(answers)})
            return await self._wait() if wait and "error" not in reply.message else self._take(reply)
        server = self._next_server()
        request = await self._request(answers, server)
        return self._take(await self._deliver(request, server))

    async def _about_task(self, method: str, params: Mapping[str, Any]) -> Reply:
        server = self._next_server()
        return await self._deliver(await self._task_request(method, params, server), server)

    async def _task_request(self, method: str, params: Mapping[str, Any], server: Transport) -> Request:
        if self.task is None:
            raise Unexpected(f"The flow has not become a task. {self.last}")
        given = {NAME_FIELDS[method]: self.task, **params}
        return await self._client.prepare(method, given, server, self.token, self.headers)

    async def _look(self) -> Reply:
        return self._take(await self._about_task("tasks/get", {}))

    async def _wait(self) -> Reply:
        pause, waited = _FIRST_PAUSE, 0.0
        while (reply := await self._about_task("tasks/get", {})).is_task and reply.task.status == "working":
            if self._client.timeout is not None and waited > self._client.timeout:
                raise Unexpected(f"The task neither asked nor ended within {self._client.timeout} s. {reply}")
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)
        return self._take(reply)

    async def _drop(self) -> Reply:
        request = self.last.request
        self.replies.pop()
        self.state, self._at = self._before
        return self._take(await self._deliver(request, self._next_server()))

    async def _race(self, answers: Mapping[str, Any]) -> list[Reply]:
        servers = self._servers if len(self._servers) > 1 else self._servers * 2
        if self.task is not None:
            request = await self._task_request("tasks/update", {"inputResponses": dict(answers)}, servers[0])
        else:
            request = await self._request(answers, servers[0])
        replies = await asyncio.gather(*(self._deliver(request, server) for server in servers))
        self._take(next((reply for reply in replies if "result" in reply.message), replies[0]))
        return list(replies)

    async def _finish(self, answers: Answers) -> Reply:
        script = Script(answers, self._client.answers)
        ran: list[Reply] = []
        reply = self._at
        while reply is None or reply.needs_input or reply.is_under_way:
            if len(ran) == _MOST_ROUNDS:
                raise Unexpected(f"The flow has not ended after {_MOST_ROUNDS} rounds. {reply}")
            if reply is not None and reply.is_under_way and not reply.needs_input:
                reply = await self._wait()
            else:
                reply = await self._round(script.answer(reply) if reply is not None else {})
            ran.append(reply)
        script.check_used(reply)
        return Reply.of_all(ran) if ran else reply

    async def _request(self, answers: Mapping[str, Any], server: Transport) -> Request:
        params: dict[str, Any] = {NAME_FIELDS[self._method]: self._target}
        if self.arguments or self._method == "tools/call":
            params["arguments"] = self.arguments
        if answers:
            params["inputResponses"] = dict(answers)
        if self.state is not None:
            params["requestState"] = self._tampering(self.state) if self._tampering is not None else self.state
            self._tampering = None
        return await self._client.prepare(self._method, params, server, self.token, self.headers)

    async def _deliver(self, request: Request, server: Transport) -> Reply:
        before, rounds = (self.last.asked if self.replies else None), len(self.replies) + 1
        return Reply(request, [await server.send(request)], before, rounds)

    def _take(self, reply: Reply) -> Reply:
        self._before = (self.state, self._at)
        self.replies.append(reply)
        if "result" in reply.message:
            self._at = reply
        if reply.is_task:
            self.task = reply.task.id
        elif reply.needs_input:
            self.state = reply.message["result"].get("requestState")
        return reply

    def _next_server(self) -> Transport:
        self._turn += 1
        return self._servers[(self._turn - 1) % len(self._servers)]
