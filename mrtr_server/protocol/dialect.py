"""What the dialects share: the errors, the results, and the fields that are the same in all of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from pydantic_core import to_json

from .. import errors
from ..crypto.codec import UrlSafe
from ..limits import LONGEST_KEY, LONGEST_NAME, check_length, too_long
from ..well_formed import write_json
from . import messages
from .callers import Sender
from .envelope import NAME_FIELDS, VERSION_HEADER, Envelope
from .messages import JSON, Call, timestamp
from .sessions import Sessions

METHODS = messages.ASKING_METHODS | {
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "completion/complete",
}
"""The methods of every version. Each dialect has a list of its own, since there are those that only another one has."""

WITH_ARGUMENTS = frozenset({"tools/call", "prompts/get"})  # in other methods, a parameter of that name is ignored


VERSION_FIELD = "io.modelcontextprotocol/protocolVersion"

RELATED_TASK = "io.modelcontextprotocol/related-task"  # the member of `_meta` that names the task of a message


NO_METHOD_CODE = -32601  # a request is not known
_LONGEST_REASON = 200  # characters of a client's words for why it did not answer

# Codes of our own, outside the range that JSON-RPC reserves.
DECLINED = -31001  # the user declined
BUSY = -31002  # the server can't take the request now
FORBIDDEN = -31003  # the credentials lack scopes


class Reply(NamedTuple):
    """An answer as it goes out: an HTTP status, a body of single-line JSON, and headers that it needs."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Surface(NamedTuple):
    """What a dialect must know about the server."""

    info: JSON  # the server's name, version and so on, in the shape of `Implementation`
    versions: list[str]  # the protocol versions that are served, the preferred one first
    task_support: Callable[[str], messages.TaskSupport]  # returns whether a tool's calls become tasks
    # Returns the schema of a tool's results; None if they are text and content.
    output_schema: Callable[[str], JSON | None] = lambda tool: None
    sessions: Sessions | None = None  # makes and opens session ids; None where no served version has any
    takes_tasks: Callable[[], bool] = lambda: False  # returns whether the server has tasks, or may have them later
    single_use: Callable[[str], bool] = lambda tool: False  # returns whether each state of a tool is redeemed once
    # What a client must have declared for each method of an extension; empty for nothing.
    extensions: Mapping[str, JSON] = MappingProxyType({})


def names_version(envelope: Envelope) -> bool:
    """Return whether a message names a version of the protocol in its `_meta`."""
    meta = envelope.params.get("_meta")
    return isinstance(meta, dict) and VERSION_FIELD in meta


def unclaimed(envelope: Envelope, versions: list[str]) -> errors.RequestError:
    """Return the error for a message that no served dialect claims."""
    if not envelope.has_headers and envelope.method != "initialize":
        return errors.InvalidParams(
            f"The message names no version: set {VERSION_FIELD} in params._meta, or initialize first"
        )
    requested = envelope.headers.get(VERSION_HEADER, b"").decode("latin-1") or envelope.params.get("protocolVersion")
    if requested or envelope.method == "initialize" or not versions:
        kind = errors.HandshakeNotServed if envelope.method == "initialize" else errors.UnsupportedVersion
        return kind(requested if isinstance(requested, str) else "", versions)
    return errors.HeaderMismatch("Header mismatch: MCP-Protocol-Version is missing")


class Dialect(ABC):
    """How messages of some versions look: it loads calls from envelopes, and dumps outcomes to bytes."""

    name: ClassVar[str]
    version: ClassVar[str] = ""  # advertised; empty for none
    versions: ClassVar[tuple[str, ...]] = ()  # served
    header: ClassVar[bytes] = b""
    """`MCP-Protocol-Version` where a message can be of no other dialect; empty if that can't be known."""

    codes: ClassVar[Mapping[type[errors.RequestError], tuple[int, int]]] = {
        errors.ParseError: (400, -32700),
        errors.InvalidRequest: (400, -32600),
        errors.PayloadTooLarge: (413, -32600),
        errors.UnknownMethod: (404, -32601),
        errors.OverBudget: (400, -32602),
        errors.InvalidParams: (400, -32602),
        errors.HeaderMismatch: (400, -32020),
        errors.MissingCapability: (400, -32021),
        errors.UnsupportedVersion: (400, -32022),
        errors.HandshakeNotServed: (200, -32022),  # a client that shows HTTP errors alone would hide what it says
        errors.SessionEnded: (404, -32600),
        errors.ProtocolError: (200, -32603),
        errors.AnswerNotShared: (503, -32603),
        errors.Declined: (200, DECLINED),
        errors.InsufficientScope: (403, FORBIDDEN),
        errors.Busy: (503, BUSY),
        errors.OverShare: (429, BUSY),
        errors.RateLimited: (429, BUSY),
        errors.Unavailable: (503, -32603),
        errors.CutOff: (503, -32603),
        errors.InternalFault: (500, -32603),
        errors.ExtensionError: (200, -32603),  # which has a code of its own
        errors.RequestError: (500, -32603),
    }
    """HTTP status and JSON-RPC code of each error; the nearest class in its ancestry counts."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.spoken = self.version  # the version of what it writes; empty where that has none

    @abstractmethod
    def claims(self, envelope: Envelope) -> bool:
        """Return whether a message is of this dialect."""

    @abstractmethod
    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Check a request, and return the call in it. Raises `RequestError`."""

    @abstractmethod
    def dump_outcome(self, call: Call, outcome: messages.Outcome) -> bytes:
        """Return the JSON-RPC response that carries an outcome; empty for a 202. Raises `RequestError`."""
        # The error that a task ended with is an outcome: the request that fetches it has not failed itself.

    def error(self, request_id: str | int | None, error: errors.RequestError) -> Reply:
        """Return the response that carries an error. An id that could not be read is left out, and never null."""
        status, written = self.dump_error(error)
        body: JSON = {"jsonrpc": "2.0", "error": written}
        if request_id is not None:
            body["id"] = request_id
        later = ((b"retry-after", b"%d" % math.ceil(error.retry_after)),) if isinstance(error, errors.Busy) else ()
        return Reply(status, write_json(body), later)

    def refuse(self, error: errors.RequestError) -> Reply:
        """Return the HTTP error for a message that is no request, so has no reply, or could not be read as one."""
        return self.error(error.request_id, error)._replace(status=_code_of(error, Dialect.codes)[0])

    def dump_error(self, error: errors.RequestError) -> tuple[int, JSON]:
        """Return an error's HTTP status, and its JSON-RPC error object."""
        status, code = _code_of(error, self.codes)
        written: JSON = {"code": code, "message": error.message}
        if error.data is not None:
            written["data"] = error.data
        return status, written

    def note(self, note: messages.Note) -> bytes:
        """Return the notification that carries a note; empty where this dialect has none."""
        if isinstance(note, (messages.PageReported, messages.ComeBack)):
            return b""
        if isinstance(note, messages.Progress):
            return notification("notifications/progress", progress_params(note))
        if isinstance(note, messages.Piece):
            return notification(messages.PIECE, piece_params(note))
        named = {} if note.logger is None else {"logger": note.logger}
        return notification("notifications/message", {"level": note.level, "data": note.data, **named})

    def listening(self, call: Call, subscription: messages.Subscription) -> "ListenWriter":
        """Return the writer for the messages of an open subscription. Raises `UnknownMethod`."""
        raise errors.UnknownMethod(call.method)


def _code_of(error: errors.RequestError, codes: Mapping[type[errors.RequestError], tuple[int, int]]) -> tuple[int, int]:
    status, code = next(codes[kind] for kind in type(error).__mro__ if kind in codes)
    return status, error.code if isinstance(error, errors.ExtensionError) else code


class ListenWriter(ABC):
    """Writes the messages of one subscription."""

    @abstractmethod
    def opened(self) -> bytes:
        """Return the first message."""

    @abstractmethod
    def changed(self, change: Any) -> bytes:
        """Return the message for one change."""

    @abstractmethod
    def closed(self) -> bytes:
        """Return the last message, for when the server ends the subscription."""


def notification(method: str, params: JSON) -> bytes:
    """Return a notification as bytes."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return write_json(message, fallback=str, inf_nan_mode="null")  # one NaN would make it unreadable


def progress_params(note: messages.Progress) -> JSON:
    """Return the parameters of the notification of a call's progress."""
    fields = {"total": note.total, "message": note.message}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"progressToken": note.token, "progress": note.progress, **given}


def piece_params(note: messages.Piece) -> JSON:
    """Return the parameters of the notification of a piece of a result."""
    params: JSON = {"requestId": note.request_id, "index": note.index, "block": note.block, "content": note.content}
    return with_related(params, note.task)


def related_to(task: str) -> JSON:
    """Return the `_meta` of a message that belongs to a task (Associating Task-Related Messages)."""
    return {RELATED_TASK: {"taskId": task}}


def with_related(body: JSON, task: str) -> JSON:
    """Return a result, or parameters, that belong to a task; as they are without one."""
    return {**body, "_meta": {**body.get("_meta", {}), **related_to(task)}} if task else body


def read_response(message: JSON) -> JSON:
    """Return the answer in a response to a question: its result; or that the client lacks it, or why it failed."""
    if "result" in message:
        return {"result": message["result"]}
    error = message["error"]
    if error.get("code") == NO_METHOD_CODE:
        return {"lacks": True}
    return {"failed": str(error.get("message"))[:_LONGEST_REASON]}


def with_stream(envelope: Envelope) -> JSON:
    """Return the parameters of a request with the `stream` that is printed beside them (Response Types, Streaming)."""
    stream = envelope.message.get("stream")
    return envelope.params if stream is None else {**envelope.params, "stream": stream}


def request(id: str, method: str, params: JSON) -> bytes:
    """Return a request of the server's own as bytes."""
    return write_json({"jsonrpc": "2.0", "id": id, "method": method, "params": params}, inf_nan_mode="null")


def request_of(id: str, question: messages.Question) -> bytes:
    """Return the request that asks a client, put together from a question that may have been written before."""
    return b'{"jsonrpc":"2.0","id":%b,%b' % (to_json(id), (question.written or _write(question))[1:])


def result(call: Call, body: JSON) -> bytes:
    """Return a response as bytes."""
    return write_json({"jsonrpc": "2.0", "id": call.request_id, "result": body}, inf_nan_mode="null")


def result_of_tool(call: Call, body: JSON, before: bytes, after: bytes) -> bytes:
    """Return the response with the result of a tool, put together as `needs_input` does it."""
    content, written = body["content"], b""
    if len(body) == 2 and len(content) == 1 and body.get("isError") is False:
        block = content[0]
        if len(block) == 2 and block.get("type") == "text" and type(text := block.get("text")) is str:
            # As nearly always; a third of the time.
            written = b'"content":[{"type":"text","text":' + write_json(text) + b'}],"isError":false'
    written = written or write_json(body, inf_nan_mode="null")[1:-1]
    return b"".join((b'{"jsonrpc":"2.0","id":', to_json(call.request_id), b',"result":{', before, written, after))


def needs_input(call: Call, outcome: messages.NeedsInput | messages.HandedOver, before: bytes, after: bytes) -> bytes:
    """Return the response after which a request is sent again, put together from questions written before."""
    parts = [b'{"jsonrpc":"2.0","id":', to_json(call.request_id), b',"result":{', before]
    if isinstance(outcome, messages.NeedsInput):
        begins = b'"inputRequests":{'
        for key, question in outcome.questions.items():
            parts += begins, to_json(key), b":", question.written or _write(question)
            begins = b","
        parts.append(b"},")
    parts += b'"requestState":"', _write_state(outcome.state), b'"', after
    return b"".join(parts)


def _write_state(state: str) -> bytes:
    return state.encode() if type(state) is UrlSafe else to_json(state)[1:-1]


def _write(question: messages.Question) -> bytes:
    request = {"method": question.method, "params": question.params}
    question.written = write_json(request, inf_nan_mode="null")
    return question.written


def requests(questions: Mapping[str, messages.Question]) -> JSON:
    """Return questions as `inputRequests` (Multi Round-Trip Requests)."""
    return {key: {"method": question.method, "params": question.params} for key, question in questions.items()}


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, and at least 1: to a client, 0 would be no duration."""
    return max(1, round(seconds * 1000))


def written_task(task: messages.Task, status: str, message: str, *, ttl: str, poll: str) -> JSON:
    """Return a task, with its durations under the names that a version has for them."""
    body: JSON = {
        "taskId": task.id,
        "status": status,
        "createdAt": timestamp(task.created),
        "lastUpdatedAt": timestamp(task.updated),
        ttl: milliseconds(task.ttl),
        poll: milliseconds(task.poll),
    }
    return {**body, "statusMessage": message} if message else body


# Reading


def read_target(method: str, params: Mapping[str, Any]) -> str:
    """Return the name or URI that a request is about; empty for methods that have none. Raises `InvalidParams`."""
    field = NAME_FIELDS.get(method)
    if field is None:
        return ""
    target = params.get(field)
    if not isinstance(target, str):
        raise errors.InvalidParams(f"params.{field} must be a string")
    if len(target) > LONGEST_NAME:
        raise too_long(field, LONGEST_NAME)
    return target


def check_declared(capabilities: JSON, needs: JSON) -> None:
    """Check that a client has declared the extension that a method is of. Raises `MissingCapability`."""
    declared = capabilities.get("extensions")
    for id in needs.get("extensions", ()):
        if not isinstance(declared, dict) or not isinstance(declared.get(id), dict):
            raise errors.MissingCapability(needs)


def read_arguments(params: Mapping[str, Any]) -> JSON:
    """Return the arguments of a request. Raises `InvalidParams`."""
    arguments = params.get("arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise errors.InvalidParams("params.arguments must be an object")
    return arguments


_NO_ANSWERS = "inputResponses must be an object whose values are objects"


def read_answers(answers: Any) -> dict[str, JSON]:
    """Return `inputResponses`, checked to be a map of objects. Raises `InvalidParams`."""
    if not isinstance(answers, dict):
        raise errors.InvalidParams(_NO_ANSWERS)
    for key, answer in answers.items():
        if not isinstance(answer, dict):
            raise errors.InvalidParams(_NO_ANSWERS)
        if len(key) > LONGEST_KEY:
            raise too_long("inputResponses", LONGEST_KEY)
    return answers


LONGEST_TTL = 2**53  # milliseconds; larger numbers are not exact in every JSON reader


def read_task_ttl(params: Mapping[str, Any]) -> float | None:
    """Return how long a task is to be kept, in seconds; None to leave that to the server. Raises `InvalidParams`."""
    wanted = params["task"]
    if not isinstance(wanted, dict):
        raise errors.InvalidParams("params.task must be an object")
    ttl = wanted.get("ttl")
    if ttl is None:
        return None
    if type(ttl) not in (int, float) or not 0 < ttl < math.inf:
        raise errors.InvalidParams("params.task.ttl must be a positive number of milliseconds")
    return float(min(ttl, LONGEST_TTL)) / 1000


def lacks_tasks(error: errors.RequestError) -> bool:
    """Return whether a call can only become a task, and its client takes none."""
    return isinstance(error, errors.MissingCapability) and error.data == _LACKS_TASKS


_LACKS_TASKS = {"requiredCapabilities": messages.NEEDS_TASKS}


def read_progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """Return the progress token in a request's `_meta` (Progress). Raises `InvalidParams`."""
    token = meta.get("progressToken")
    if token is not None and type(token) not in (str, int):
        raise errors.InvalidParams("_meta.progressToken must be a string or an integer")
    if token is not None:
        check_length(token, LONGEST_KEY, "progressToken")
    return token
