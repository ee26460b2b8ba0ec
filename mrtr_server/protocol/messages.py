"""Calls, outcomes and notes: what dialects and the engine exchange, the same in every version of the protocol."""

import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, dataclass_transform

from ..crypto.digests import digest, digest_bytes
from ..errors import RequestError
from ..well_formed import is_well_formed, well_formed
from .callers import NO_SCOPES, Caller, ClientInfo, Principal
from .trace import Trace

JSON = dict[str, Any]

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

ASKING_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests that may ask; all others are answered in one round (Multi Round-Trip Requests, Supported Requests)."""

TASK_RESULT = "tasks/result"  # a request that stays open in the handshake era while the task asks
LISTEN = "subscriptions/listen"  # a request whose response is a stream of changes
STREAM_EVENTS = "events/stream"  # a request whose response is a stream of events
EVENT_NOTIFICATIONS = "notifications/events/"  # begins the methods of what comes on that stream
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"  # in `_meta` there: the id of the request
EVENTS = "io.modelcontextprotocol/events"
"""The extension by which clients subscribe to events."""
OPEN_METHODS = ASKING_METHODS | {TASK_RESULT}  # requests that stay open in the handshake era
STATE_METHODS = ASKING_METHODS | {TASK_RESULT, "tasks/answer"}  # requests that may carry a state


PIECE = "notifications/tools/content"  # carries a piece of a result: ours, since no revision of the protocol has one

UNNAMED, FIRST = "", "\n"
"""Names of an answer to a task that names no question; see `Questions.answered_by`. With `FIRST`, its client was
shown one question alone, the first that is open. No key is a line break."""

TaskSupport = Literal["forbidden", "optional", "required"]
"""Whether the calls of a tool become tasks: never, for clients that take them, or always."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a call continues as a task (Tasks, Extension Identifier)."""

NEEDS_TASKS: JSON = {"extensions": {TASKS: {}}}  # declared by clients for that, in the shape of `ClientCapabilities`


class NamedChoices(list[JSON]):
    """Titled choices of a form whose author wrote `enumNames`: versions that have these send them as written."""


class TaskOffer(NamedTuple):
    """The client takes a task in place of a result."""

    ttl: float | None = None  # how long it would like the task to be kept, in seconds; None to leave that to the server
    # Whether it would rather wait for the first ask, or the end, than get a reply that work has begun.
    first_ask: bool = False
    at_once: bool = False  # whether it takes nothing but a task, and that before anything runs


SHORT_MESSAGE = 256  # characters of a message whose digest is remembered


@lru_cache(maxsize=128)
def _message_digest(message: str) -> str:
    return digest_bytes(message.encode())  # most messages of a tool are always the same


_ACTIONS = frozenset({"accept", "decline", "cancel"})


def kind_of(question: str) -> str:
    """Return the kind of a question, with which its digest begins."""
    return question.partition(".")[0]


def action_of(answer: JSON | None) -> str:
    """Return the outcome of a question, in a word."""
    if answer is None:
        return "missing"
    action = answer.get("action")
    return action if type(action) is str and action in _ACTIONS else "answered"


PAGE = ("elicitation.url",)  # declared by a client that may be sent to a page


@dataclass(slots=True)
class Question:
    """An ask as it goes to the client."""

    kind: str  # the name of its `AskKind`
    method: str  # the request that the client is to fulfil, such as `"elicitation/create"`
    params: JSON  # its parameters; a `message` in them is what the person reads
    needs: tuple[str, ...]  # the capabilities that the client must have declared, each as a dotted path
    shape: str = ""  # digest of all of `params` but the message
    page: str = ""  # names a page that reports back, by the name that its report is stored under; empty for all else
    task: str = ""  # the id of the task that asks, where its client needs it; empty otherwise
    through_model: bool = False  # whether a model may ask the person in the place of a page
    digest: str = field(init=False)  # kind, message and shape, each of which must be the same for an answer to count
    written: bytes = field(default=b"", init=False, repr=False, compare=False)
    """The request as JSON, once a dialect has written it: the same question may go out many times."""
    dumped: bytes = field(default=b"", init=False, repr=False, compare=False)
    """Its parts as JSON, once they were written; likewise."""

    def __post_init__(self) -> None:
        if not self.shape:
            self.shape = digest({name: value for name, value in self.params.items() if name != "message"})
        message = self.params.get("message", "")
        if not is_well_formed(message):  # mended now, since the digest is of what the person reads
            message = well_formed(message)
            self.params = {**self.params, "message": message}
        read = _message_digest(message) if len(message) <= SHORT_MESSAGE else digest_bytes(message.encode())
        self.digest = f"{self.kind}.{read}.{self.shape}"

    def dump(self) -> tuple[Any, ...]:
        """Return the parts from which `Question.load` rebuilds this question, in the format of every release."""
        parts = (self.kind, self.method, self.params, " ".join(self.needs), self.shape)
        return (*parts, self.page) if self.page else parts  # earlier releases have five

    @classmethod
    def load(cls, kind: str, method: str, params: JSON, needs: str, shape: str, page: str = "") -> "Question":
        """Return the question whose parts `dump` returned."""
        return cls(kind, method, params, tuple(needs.split()), shape, page)

    def because(self, reason: str) -> "Question":
        """Return the question with a reason before its message. The digest stays, so that its answer still counts."""
        # Both are in one line, since some clients drop line breaks.
        if not reason or "message" not in self.params:
            return self
        message = f"{' '.join(reason.split()).removesuffix('.')} — {self.params['message']}"
        again = Question(self.kind, self.method, {**self.params, "message": message}, self.needs, self.shape)
        again.digest = self.digest
        return again

    def open_to_models(self) -> "Question":
        """Return a copy that a model may ask the person. The digest stays."""
        opened = copy(self)
        opened.through_model = True
        return opened

    def having(self, **params: Any) -> "Question":
        """Return a copy with more parameters, which differ from flow to flow. The digest stays."""
        led = copy(self)
        led.params = {**self.params, **params}
        led.written = led.dumped = b""
        return led


C = TypeVar("C")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def request(cls: type[C]) -> type[C]:
    """Make a dataclass whose fields nobody assigns, as type checkers see to."""
    # One that is frozen at run time, too, takes 3 µs more to make, which is paid for every call.
    return dataclass(slots=True)(cls)


@request
class Call:
    """One request, read and checked by its dialect. Facts that are found while it is served are in its trace."""

    method: str
    params: Mapping[str, Any]
    target: str = ""  # the tool's or prompt's name, or the resource's URI; empty for other methods
    arguments: JSON = field(default_factory=dict)  # the arguments of a tool or prompt, as sent
    answers: Mapping[str, JSON] | None = None  # `inputResponses` by key, each an object; None where there are none
    state: Any = None  # `requestState`, as sent; None where there is none
    client: ClientInfo = field(default_factory=ClientInfo)
    principal: Principal | None = None
    user: Any = None  # what the authentication layer made of the credentials, if there is one
    progress_token: str | int | None = None
    log_level: LogLevel | None = None  # the least severe messages that are wanted; None for none
    request_id: str | int = 0
    headers: Mapping[bytes, bytes] = field(default_factory=dict)  # the HTTP headers, by lower-case name
    task: TaskOffer | None = None  # whether the client takes a task; None if it must not get one
    # Whether the client's dialect lets it send the call again with a state, and so continue elsewhere.
    can_retry: bool = True
    root: str = ""  # the path that the application is mounted at; empty where it is not
    scopes: frozenset[str] = NO_SCOPES  # what the credentials are good for
    session: str = ""  # names the client's session in the store; empty for none
    # The address and port that it came from, as the web server names them; None where there is none.
    peer: tuple[str, int] | None = None
    must_mirror: bool = False  # whether headers must mirror the arguments that a tool says; if not, they may
    refusal: RequestError | None = None  # why it is not served, which is only for callers who may know its tool
    # By how much the expiry of the state is put off, in seconds, since its answers are known to have come before.
    grace: float = 0.0
    trace: Trace = field(default_factory=Trace, repr=False, compare=False)
    # Through what its client is asked. Where it can't be asked itself, each state of its flow is redeemed once, from
    # its first question on.
    asked_by: Literal["client", "page", "model"] = "client"
    # Whether the call ends with its result alone, and never leaves the server for an answer. Its state is the
    # journal as it is.
    stays_open: bool = False

    def having(self, **changed: Any) -> "Call":
        """Return a copy with other values in some fields, at half the cost of `dataclasses.replace`."""
        values: list[Any] = [*_values(self)]
        for name, value in changed.items():
            values[_PLACES[name]] = value
        return Call(*values)

    def let_go(self) -> None:
        """Hold nothing large, since the call stays open for long, and these fields are not read again."""
        changed: Any = self  # as no other code may change it
        changed.params, changed.arguments, changed.state, changed.answers = {}, {}, None, None
        self.trace.let_go()

    @property
    def caller(self) -> Caller:
        """Who calls."""
        return Caller(self.principal, self.user, self.scopes)

    @property
    def takes_pieces(self) -> bool:
        """Whether its client wants a result in pieces: it sent `stream: {}` (Response Types, Streaming)."""
        # No revision of the protocol has this, so only code with pieces reads it.
        return isinstance(self.params.get("stream"), dict)


_PLACES = {each.name: place for place, each in enumerate(fields(Call))}
_values = attrgetter(*_PLACES)


@dataclass(slots=True)
class Complete:
    """The request is done."""

    body: JSON  # the method's own result fields
    ttl: float | None = None  # how long a client may keep it, in seconds; None where the method has no such hint
    scope: Literal["public", "private"] = "private"  # who may share a kept one


class YieldReason(Enum):
    """Why a round ends with its journal alone, to be continued by another round."""

    DRAINING = "the server drains"
    FULL = "the server has too much to do, and another replica may have less"
    STATE_FIRST = "the client needs a state before anything has an effect"
    LEASE_IN_DOUBT = "another replica or worker may run the same round by now"
    OWN_STATE = "the handler keeps a state of its own, and is to run again"
    BUSY = "the server can't go on with the flow now, and what it has done goes with the client"


@dataclass(slots=True)
class NeedsInput:
    """The request is to be sent again, with answers."""

    questions: dict[str, Question]  # what the client is to fulfil first, by key; at least one
    # The sealed journal; of a call that stays open, the journal as it is: it leaves sealed with the call.
    state: str = field(repr=False)
    expires: float = math.inf  # how long the state can be used, in seconds since the epoch
    epoch: str = ""  # of a call that stays open, the epoch of the store that the state names; empty where it names none


@dataclass(slots=True)
class HandedOver:
    """The request is to be sent again at once: its flow continues in another round, here or elsewhere."""

    state: str = field(repr=False)
    expires: float = math.inf
    # Why it continues in another round; None of one that was recorded, or comes from the event of a stream.
    why: YieldReason | None = None
    epoch: str = ""


Unfinished = NeedsInput | HandedOver  # the request is to be sent again, with a state


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the server can do. Many requests share one, so nothing in it may be changed."""

    capabilities: JSON  # in the shape of `ServerCapabilities`
    instructions: str  # how a model should use the server; empty for none
    ttl: float  # how long a client may keep it, in seconds
    scope: Literal["public", "private"]  # who may share a kept one


@dataclass(slots=True)
class Listening:
    """The request stays open and carries changes."""

    changes: "Subscription"  # yields what has changed; its `close` ends the subscription


TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]


@dataclass(slots=True)
class Task:
    """A flow in the background, as its client may see it (Tasks)."""

    id: str  # names it; unguessable
    status: TaskStatus
    created: float
    updated: float
    ttl: float  # how long it is kept, from its creation, in seconds
    poll: float  # how often to ask for it, in seconds
    message: str = ""  # what it is doing, in words; empty for nothing to say
    # What the client is to fulfil, by a key that is never used again; while input is required.
    questions: dict[str, Question] = field(default_factory=dict)
    # The name of each of them, by that key, for clients that answer by names; see `Questions.shown`.
    names: dict[str, str] = field(default_factory=dict)
    needs_names: bool = False  # whether an answer without a name could be meant for another question
    outcome: Complete | RequestError | None = None  # the result, or the error, once it is completed or failed
    first_ask: bool = False  # whether its client waited for the first ask when it called; see `TaskOffer`
    tool: str = ""  # the tool that it is a call of
    reference: str = ""  # what the log calls it; never sent


@dataclass(slots=True)
class TaskCreated:
    """The request continues as a task."""

    task: Task


@dataclass(slots=True)
class TaskStatusResult:
    """How a task is doing."""

    task: Task


@dataclass(slots=True)
class TaskResult:
    """What a task has for its client, in a dialect with a request of its own for that: its questions, or its result."""

    task: Task
    state: str = ""  # what the client is to retry with at once, since the task is still running; empty otherwise


@dataclass(slots=True)
class TaskPage:
    """Some of the tasks of a caller."""

    tasks: list[Task]
    cursor: str = ""  # where the next page begins; empty if there is none


@dataclass(slots=True)
class Acknowledged:
    """The reply to a message about a task that has arrived."""

    task_id: str
    task: Task | None = None  # its state afterwards, for a dialect that returns it; None if it was not looked up
    had_ended: bool = False  # whether the message came too late to change anything


Outcome = (
    Complete
    | NeedsInput
    | HandedOver
    | Discovery
    | Listening
    | TaskCreated
    | TaskStatusResult
    | TaskResult
    | TaskPage
    | Acknowledged
)


class Progress(NamedTuple):
    """How far a call has come (Progress). `progress` must grow from note to note."""

    token: str | int
    progress: float  # how far it has come
    total: float | None = None  # what `progress` will be at the end; None if that is not known
    message: str | None = None  # what is being done, in words; None for nothing to say
    task: str = ""  # the task that the call has become; empty for none


class LogMessage(NamedTuple):
    """A message for the client's log (Logging)."""

    level: LogLevel
    data: Any
    logger: str | None = None


class PageReported(NamedTuple):
    """A page that the person was asked to open has reported back (Elicitation, Completion Notifications)."""

    page: str
    task: str = ""  # the task that asked for it, where its client is to know; empty otherwise


class ComeBack(NamedTuple):
    """The client of an open call need not wait: it is to come back for the result (Transports, Sending Messages)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the result of a tool, sent as it comes. No revision of the protocol has it."""

    request_id: str | int  # of the request that gets it
    index: int  # which piece of the result it is, from 0
    block: int  # which block of the result's `content` it is, or is added to: texts of one block are one text
    content: JSON  # the piece, a block of content
    task: str = ""  # the task whose result it is of; empty for none


Note = Progress | LogMessage | PageReported | ComeBack | Piece


@dataclass(slots=True, eq=False)  # a frozen one would take three times as long to make
class Change:
    """Something changed on the server. Two of one kind, about one thing, are equal."""

    # `"tools"`, `"prompts"` or `"resources"` for the lists, `"resource"` for one resource, `"task"` for one task,
    # `"run"` for what the client of a task did to it, which its worker is to hear of, `"progress"` for how far a
    # task has come, `"piece"` for pieces of its result; for open calls `"answer"` and `"cancelled"`, for sessions
    # `"session"` and `"stream"`, `"page"` for a page that has reported back, `"event"` for one type of event, by its
    # name, `"subscription"` for who is told of any, and `"forgotten"` for somebody who was forgotten.
    kind: Literal[
        "tools",
        "prompts",
        "resources",
        "resource",
        "task",
        "run",
        "progress",
        "piece",
        "answer",
        "cancelled",
        "session",
        "stream",
        "page",
        "event",
        "subscription",
        "forgotten",
    ]
    uri: str = ""  # the resource, or the id of what has changed
    # How it is doing now, by the time that its listener hears of it; a fan-out carries the id alone.
    task: Task | None = None
    note: str = ""  # what saves its listener a look in the store, sealed. A fan-out need not carry it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Change) and (self.uri, self.kind) == (other.uri, other.kind)

    def __hash__(self) -> int:
        return hash(self.uri or self.kind)


@dataclass(slots=True, eq=False)
class EventFrame(Change):
    """A message on the stream of a subscription to events: `uri` is its notification, without what all begin with."""

    params: JSON = field(default_factory=dict)


class Subscription(Protocol):
    """The changes that one listener asked for."""

    @property
    def wanted(self) -> frozenset[Change]:
        """What it asked for."""
        ...

    async def next(self) -> list[Change]:
        """Wait for changes; each change that happened since the last call is there once."""
        ...

    def close(self) -> None:
        """End the subscription. Safe to call twice."""
        ...


class Nothing:
    """An awaitable that is done at once. Unlike a coroutine, it need not be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


NOTHING = Nothing()


class Turn:
    """An awaitable that yields to the event loop once. Unlike a coroutine, it need not be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield


TURN = Turn()


class Outlet(Protocol):
    """Where a running call sends its notes."""

    def send(self, note: Note) -> Awaitable[None]:
        """Send a note: it is on its way when this returns. Return something to await.

        Awaiting gives the note time to be written, and never waits for the client: a client that reads too slowly
        gets only the newest progress, and loses log messages. A piece of a result is never dropped: awaiting waits
        until there is room for the next one. It is `NOTHING` if its client can't have pieces.
        """
        ...


Dispatch = Callable[[Call, Outlet], Awaitable[Outcome]]  # answers a call, or says what it needs


def timestamp(seconds: float) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
