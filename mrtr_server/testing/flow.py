"""One flow, walked round by round."""

from collections.abc import Callable, Mapping
from typing import Any, Generic

from ..wire import HANDSHAKES
from .answers import Answer, Answerable, Answers, Scripted, Unexpected, listed, write
from .open_call import OpenCall, TaskCall
from .replies import Reply
from .servers import Log
from .session import NONE, Many, One, Session
from .transports import Server
from .walk import Position, Retries, Walk

__tracebackhide__ = True  # pytest then shows the test's line instead


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
        self._at = Position(client, method, target, arguments)
        as_task = TaskCall if client.tasks and method == "tools/call" else OpenCall
        self._walk: Walk = (as_task if client.era in HANDSHAKES else Retries)(self._at, client)

    # What the next request carries

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the tool or prompt."""
        return self._at.arguments

    @arguments.setter
    def arguments(self, arguments: dict[str, Any]) -> None:
        self._at.arguments = arguments

    @property
    def token(self) -> str | None:
        """The bearer token of the user."""
        return self._at.token

    @token.setter
    def token(self, token: str | None) -> None:
        self._at.token = token

    @property
    def headers(self) -> dict[str, str]:
        """Further HTTP headers."""
        return self._at.headers

    @headers.setter
    def headers(self, headers: dict[str, str]) -> None:
        self._at.headers = headers

    @property
    def state(self) -> str | None:
        """What the client returns to the server: the `requestState`, or the id of the last event of an open call."""
        return self._at.state

    @state.setter
    def state(self, state: str | None) -> None:
        self._at.state = state

    @property
    def task(self) -> str | None:
        """The id of the task that the flow has become."""
        return self._at.task

    @task.setter
    def task(self, task: str | None) -> None:
        self._at.task = task

    # What came

    @property
    def replies(self) -> list[Reply]:
        """The replies to the rounds so far."""
        return self._at.replies

    @property
    def last(self) -> Reply:
        """The reply to the last round."""
        return self._at.last

    @property
    def log(self) -> Log:
        """What the server's log said in all rounds so far."""
        return Log(record for reply in self.replies for record in reply.log.records)

    # Rounds

    def start(self, answers: Mapping[str, Answerable] = NONE, /, **named: Answerable) -> One:
        """Send the call for the first time.

        Args:
            answers: by key, for a client that answers before it is asked; as a rule none.
            named: answers by key, too.

        Returns:
            The reply to this round.
        """
        self._walk.begin()
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
        if (at := self._at.at) is not None and not at.needs_input:
            raise Unexpected(f"There is nothing to answer. {last}")
        return self.send(given)

    def send(self, answers: Mapping[str, Answerable] = NONE, /, *, wait: bool = True) -> One:
        """Send a round with any answers, asked for or not, and with the state that the flow has.

        Args:
            answers: by key; see `answer`.
            wait: whether to wait, in a task or an open call, for the result of the answers. If not, you may look at the
                task, wait for it or cancel it while it works on them.

        Returns:
            The reply to this round; if it is not waited for, the acknowledgement of the answers.

        Raises:
            Unexpected: the server can't be reached, or did not reply in time.
        """
        return self._client.run_one(self._walk.round(self._written(answers), wait))

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
        return self._client.run_one(self._walk.finish({**answers, **named}))

    # An open call: in the handshake era a call has a stream, and its questions come on that

    def break_stream(self) -> None:
        """Lose the stream of the call, as a client does whose connection breaks.

        The client comes back to it with its next request, or with `resume`.

        Raises:
            Unexpected: there is no open stream.
        """
        self._walk.break_stream()

    def resume(self) -> One:
        """Come back to the stream of the call, at the server whose turn it is.

        A stream that is open is lost first.

        Returns:
            The reply: what is still asked, or the outcome of the call meanwhile.

        Raises:
            Unexpected: no event has come that the client could come back to.
        """
        return self._client.run_one(self._walk.resume())

    # A flow that has become a task

    def look(self) -> One:
        """Ask how the task is doing, once.

        Returns:
            The reply; `task` says, `asks` has what it asks, and `text` and the like its outcome.

        Raises:
            Unexpected: the flow has not become a task.
        """
        return self._client.run_one(self._walk.look())

    def wait(self) -> One:
        """Wait until the task asks something or has ended; or until something new comes on the stream of an open call.

        Returns:
            The last reply.

        Raises:
            Unexpected: the flow is neither a task nor an open call, or nothing comes within the client's `timeout`.
        """
        return self._client.run_one(self._walk.wait())

    def cancel(self) -> One:
        """Cancel the task, or the open call.

        Returns:
            The acknowledgement.

        Raises:
            Unexpected: the flow is neither a task nor an open call.
        """
        return self._client.run_one(self._walk.cancel())

    # What goes wrong between rounds

    def replay(self, reply: Reply | None = None) -> One:
        """Send the request behind a reply again, byte for byte. The flow stays where it is.

        Of an open call, that is the one that called, the one that came back, or the last answer.

        Args:
            reply: one of this flow's, or of another; the last one if left out.

        Returns:
            The reply to the replayed request.

        Raises:
            Unexpected: the flow has not begun.
        """
        return self._client.run_one(self._walk.replay((reply or self.last).request))

    def drop(self) -> One:
        """Lose the last reply: send its request again, as a client does that never received the reply.

        The client of an open call comes back to the event before the reply instead; if it knows none, it calls again.

        Returns:
            The reply to the second delivery, from which the flow continues.

        Raises:
            Unexpected: the flow has not begun.
        """
        return self._client.run_one(self._walk.drop())

    def race(self, answers: Mapping[str, Answerable] = NONE, /, **named: Answerable) -> Many:
        """Send the next round to all servers of the flow at once, byte for byte the same; twice, if there is only one.

        The client of an open call loses its stream, comes back to it at all of them at once, and answers.

        Args:
            answers: by key; see `answer`. Here, too, a key that is not asked fails the test.
            named: answers by key, too.

        Returns:
            The replies, in the order of the servers. The flow continues from the first that is not an error. In a task
            they are the acknowledgements of the answers; `wait` for their result.

        Raises:
            Unexpected: a key is not asked.
        """
        given = {**answers, **named}
        self._check_open(given)
        return self._client.run_all(self._walk.race(self._written(given)))

    def tamper(self, change: Callable[[str], str] = flipped) -> None:
        """Change the state on its way to the server, in the next round only.

        Of an open call, that is the id of the question that is answered next, or of the event that is resumed from.

        Args:
            change: returns the changed state; by default, one character in the middle is another.

        Raises:
            Unexpected: the flow has no state yet.
        """
        if self.state is None:
            raise Unexpected("The flow has no state to tamper with: it has not been asked anything yet")
        self._at.tampering = change

    def move_to(self, *servers: Server) -> None:
        """Send the next rounds to another replica, another version, or a server with other keys.

        Args:
            servers: applications or URLs; several take turns.
        """
        self._at.servers = self._client.ways(servers)

    # How it is done

    def _check_open(self, answers: Mapping[str, Answerable]) -> None:
        at, asks = self._at.at, self._at.asks
        if unasked := answers.keys() - asks.keys():
            hint = ""
            if at is not None and at.is_under_way:
                hint = f"; the task is {at.task.status}, so wait() for what it asks"
            raise Unexpected(f"{min(unasked)!r} was not asked; the server asks {listed(asks.values())}{hint}")

    def _written(self, answers: Mapping[str, Answerable]) -> dict[str, Answer]:
        return {key: write(answer, self._at.asks.get(key)) for key, answer in answers.items()}
