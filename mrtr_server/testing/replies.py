"""What a client sends, and what comes back, as a test looks at it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import from_json

from .. import wire
from ..protocol.messages import JSON, PIECE, LogMessage, TaskStatus
from .answers import Asked, Asks, Unexpected, listed
from .servers import Log, Observed

__tracebackhide__ = True  # pytest then shows the test's line instead


@dataclass(frozen=True, slots=True)
class Event(wire.Event):
    """An event of a stream.

    Args:
        id: where a client continues that lost the stream after it; empty if it has none.
        kind: its type.
        data: what it carries; as a rule a JSON-RPC message.
        retry: when the client is to come back if the stream ends, in milliseconds; None if that was not said.
        raw: its bytes, with the comments before it.
    """

    @property
    def message(self) -> JSON:
        """The JSON-RPC message. One that is none fails the test."""
        try:
            message: Any = from_json(self.data)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Unexpected(f"An event has no JSON-RPC message: {self.data[:300]}")
        return message


class EventReader(wire.EventReader[Event]):
    def __init__(self) -> None:
        super().__init__(Event)


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, ready to be sent, and to be sent again byte for byte.

    Args:
        headers: its headers, by lower-case name.
        body: its body.
        method: that of HTTP.
    """

    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"


class Error(NamedTuple):
    """A JSON-RPC error.

    Args:
        code: its number.
        message: what is wrong.
        data: what the protocol adds, as plain JSON.
    """

    code: int
    message: str
    data: Any = None


class TaskView(NamedTuple):
    """How a task is doing.

    Args:
        id: names it.
        status: where it is.
        message: what it is doing, in words.
    """

    id: str
    status: TaskStatus
    message: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response.

    Args:
        status: its status code.
        headers: by lower-case name.
        body: its body.
        seen: what was observed of the request inside the server; None if the server runs elsewhere.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    seen: Observed | None = None

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def texts(self) -> list[bytes]:
        """The texts that carry JSON-RPC messages: the data of each event of a stream, or the body."""
        if not self.is_stream:
            return [self.body]
        return [event.data.encode() for event in self.events if event.data]

    @property
    def events(self) -> list[Event]:
        return EventReader().feed(self.body) if self.is_stream else []


@dataclass(frozen=True, slots=True)
class Standing:
    """How a call stands that is still open, or was until now; in the handshake era.

    Args:
        asks: the questions that have no answer yet, by key.
        event: the id of the last event of its stream; empty if there was none.
        is_open: whether the call has not ended: it asks, or continues when its client comes back.
    """

    asks: Mapping[str, Asked]
    event: str
    is_open: bool


class Reply:
    """The reply to one round of a flow, or to a call that was run to its end.

    Of a call, `steps`, `log`, `progress` and `messages` are those of all its rounds. An attribute that the reply does
    not have fails the test, with a message that says what came instead.

    Args:
        request: what was sent.
        responses: the responses; of a call of several rounds, that of each.
        before: what the flow was asked in earlier rounds.
        rounds: how many rounds the flow has had so far, with this one.
        standing: how the call stands, where its questions come while it is open.
    """

    def __init__(
        self,
        request: Request,
        responses: Sequence[Response],
        before: Mapping[str, Asked] | None = None,
        rounds: int = 1,
        standing: Standing | None = None,
    ) -> None:
        self.standing = standing
        self.request = request
        self.rounds = rounds
        self.responses = responses
        self._before = before or {}

    @classmethod
    def of_all(cls, replies: "Sequence[Reply]") -> "Reply":
        """Combine the replies to several rounds: what was observed is that of all of them.

        Args:
            replies: in the order of the rounds.

        Returns:
            The last reply, with what was observed in all rounds.
        """
        responses = [response for reply in replies for response in reply.responses]
        asked = {key: each for reply in replies for key, each in reply.asked.items()}
        return cls(replies[-1].request, responses, asked, replies[-1].rounds, replies[-1].standing)

    # The response

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.responses[-1].status

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, by lower-case name."""
        return self.responses[-1].headers

    @property
    def body(self) -> bytes:
        """The HTTP body."""
        return self.responses[-1].body

    @cached_property
    def message(self) -> JSON:
        """The JSON-RPC response, whole; empty if the body is none."""
        found = [message for message in _messages(self.responses[-1]) if "method" not in message]
        return found[-1] if found and "jsonrpc" in found[-1] else {}

    @property
    def received(self) -> list[JSON]:
        """All JSON-RPC messages that came, in their order."""
        return [message for response in self.responses for message in _messages(response)]

    @property
    def events(self) -> list[Event]:
        """The events that came, in their order; of a response that is no stream there are none."""
        return [event for response in self.responses for event in response.events]

    @property
    def result(self) -> JSON:
        """The result, whole; of a task that is completed, what the call came to."""
        if "result" not in self.message:
            raise Unexpected(f"There is no result. {self}")
        return dict(self._ended if self.is_task and self.complete else self.message["result"])

    @property
    def error(self) -> Error:
        """The JSON-RPC error: of the request, or the one that a task failed with."""
        error = self.message.get("error") or self.message.get("result", {}).get("error")
        if error is None:
            raise Unexpected(f"There is no JSON-RPC error. {self}")
        return Error(error["code"], error["message"], error.get("data"))

    # A need for input

    @property
    def needs_input(self) -> bool:
        """Whether the call needs its client to continue: for answers, or only to come back."""
        if self.standing is not None:
            return self.standing.is_open
        return bool({"inputRequests", "requestState"} & self.message.get("result", {}).keys())

    @property
    def asks(self) -> Asks:
        """What this round asks, by key."""
        if self.standing is not None:
            return Asks(self.standing.asks.values(), self)
        requests = self.message.get("result", {}).get("inputRequests", {})
        asked = (Asked(key, each["method"], each.get("params") or {}) for key, each in requests.items())
        return Asks(asked, self)

    @property
    def questions(self) -> dict[str, str]:
        """What the person reads of each ask of this round, by key."""
        return {key: asked.message for key, asked in self.asks.items()}

    @property
    def asked(self) -> Asks:
        """What the flow was asked so far, in this round and those before, by key."""
        return Asks([*self._before.values(), *self.asks.values()])

    @property
    def state(self) -> str:
        """The `requestState`; of a call that stays open, the id of the last event, by which its client comes back."""
        if self.standing is not None and self.standing.event:
            return self.standing.event
        if "requestState" not in self.message.get("result", {}):
            raise Unexpected(f"There is no requestState. {self}")
        return str(self.message["result"]["requestState"])

    # A task

    @property
    def is_task(self) -> bool:
        """Whether the reply is about a task: the call has become one, or the test looked at it."""
        return "taskId" in self._task_fields

    @property
    def task(self) -> TaskView:
        """How the task is doing: its `id`, `status` and `message`."""
        if not self.is_task:
            raise Unexpected(f"There is no task. {self}")
        fields = self._task_fields
        return TaskView(fields["taskId"], fields["status"], fields.get("statusMessage", ""))

    @property
    def _task_fields(self) -> JSON:
        result: JSON = self.message.get("result", {})
        fields = result.get("task")  # as the reply to a call of the handshake era has it
        return fields if isinstance(fields, dict) else result

    @property
    def is_under_way(self) -> bool:
        """Whether a task has more to say than this reply: it works, or the reply only names it."""
        return self.is_task and (self.task.status == "working" or self._names_a_task)

    @property
    def _names_a_task(self) -> bool:
        # The reply to a start says how the task is, but neither what it asks nor its outcome.
        result = self.message["result"]
        return result.get("resultType") == "task" or result is not self._task_fields

    @property
    def _ended(self) -> JSON:
        """What the call came to: the result, or what the task has as its own; empty if there is none."""
        result: JSON = self.message.get("result", {})
        return result.get("result", {}) if self.is_task else result

    # The end of a call

    @property
    def complete(self) -> bool:
        """Whether the call has ended with a result; a tool may yet have failed."""
        if self.is_task:
            return self.task.status == "completed" and not self._names_a_task
        return "result" in self.message and not self.needs_input

    @property
    def failed(self) -> bool:
        """Whether a tool failed with a message for the model."""
        return self.complete and self._ended.get("isError") is True

    @property
    def text(self) -> str:
        """The text of what the call gave: of a tool's content, a prompt's messages or a resource's contents."""
        if not self._has_content or self.failed:
            raise Unexpected(f"There is no text. {self}")
        return self._text

    @property
    def content(self) -> list[JSON]:
        """The content blocks of the result: of a tool, also if it failed; of a prompt's messages; of a resource."""
        if not self._has_content:
            raise Unexpected(f"There is no content. {self}")
        return self._blocks

    @property
    def structured(self) -> Any:
        """The structured content that a tool gave."""
        if self.failed or "structuredContent" not in self._ended:
            raise Unexpected(f"There is no structured content. {self}")
        return self._ended["structuredContent"]

    @property
    def failure(self) -> str:
        """What a tool that failed says to the model."""
        if not self.failed:
            raise Unexpected(f"The tool did not fail. {self}")
        return self._text

    @property
    def _has_content(self) -> bool:
        return self.complete and bool({"content", "messages", "contents"} & self._ended.keys())

    @property
    def _blocks(self) -> list[JSON]:
        result = self._ended
        parts = [each.get("content", each) for each in result.get("messages") or result.get("contents") or ()]
        return list(result.get("content", parts))

    @property
    def _text(self) -> str:
        return "\n".join(block["text"] for block in self._blocks if "text" in block)

    # What came before the end

    @cached_property
    def progress(self) -> list[wire.Progress]:
        """The notes on progress."""
        noted = (params for method, params in self._notes() if method == "notifications/progress")
        return [wire.Progress(each["progress"], each.get("total"), each.get("message")) for each in noted]

    @cached_property
    def pieces(self) -> list[JSON]:
        """The pieces of the result that came before it, as blocks of content: for a client with `stream=True`."""
        return [params["content"] for method, params in self._notes() if method == PIECE]

    @cached_property
    def messages(self) -> list[LogMessage]:
        """The messages for the client's log."""
        noted = (params for method, params in self._notes() if method == "notifications/message")
        return [LogMessage(each["level"], each["data"], each.get("logger")) for each in noted]

    def _notes(self) -> Iterator[tuple[str, JSON]]:
        for response in self.responses:
            for message in _messages(response):
                if "method" in message:
                    yield message["method"], message.get("params", {})

    # What happened inside

    @property
    def steps(self) -> list[str]:
        """The steps that ran, as they began, by the name of the function or their own key."""
        return self._seen("the steps").ran

    @property
    def replayed(self) -> list[str]:
        """The steps that had run in an earlier round, and only gave their results."""
        return self._seen("the steps").replayed

    @property
    def rolled_back(self) -> list[str]:
        """The dependencies that were left by `FlowContinues`, in a round without a result, as they were left."""
        return self._seen("what was rolled back").rolled_back

    @property
    def log(self) -> Log:
        """What the server's log, the logger `mrtr_server`, said. It takes what that logger's level lets through."""
        return Log(self._seen("the log").records)

    def _seen(self, what: str) -> Observed:
        seen = [response.seen for response in self.responses if response.seen is not None]
        if not seen:
            raise Unexpected(f"{what.capitalize()} can't be seen over HTTP: pass the application to the client instead")
        return seen[0] if len(seen) == 1 else Observed(*seen)

    def __str__(self) -> str:
        return self._described() + self.described_log()

    def _described(self) -> str:
        is_json_rpc = isinstance(self.message.get("error", {}), dict)  # a body of 401 or 403 has a string there
        if not is_json_rpc or not (self.message or self.needs_input):
            return f"HTTP {self.status}: {self.body[:300].decode(errors='replace')}"
        if "error" in self.message:
            code, message, data = self.error
            return f"The request was refused with {code}: {message}{f' {data}' if data is not None else ''}"
        if self.is_task and not self.complete:
            asks = f" and asks {listed(self.asks.values())}" if self.asks else ""
            rest = "; wait() for its outcome" if self._names_a_task and self.task.status != "working" else ""
            return f"The task is {self.task.status}{asks}{rest}: {self.task.message or 'it has no message'}"
        if self.asks:
            return f"The server asks {listed(self.asks.values())}."
        if self.needs_input:
            if self.standing is not None:
                return "The stream has ended, and the call continues when its client comes back."
            return "The server asks nothing, and expects the same call again, with its state."
        text = self._text or str(self.result)
        return f"The tool failed: {text}" if self.failed else f"The call is complete: {text}"

    def described_log(self) -> str:
        """Return the server's log for the message of a failed test; empty if nothing was logged."""
        records = [record for response in self.responses if response.seen for record in response.seen.records]
        return f"\nThe log says:\n{Log(records).text}" if records else ""

    def __repr__(self) -> str:
        return f"<Reply: {self._described()}>"


def _messages(response: Response) -> Iterator[JSON]:
    for text in response.texts:
        try:
            message = from_json(text)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message
