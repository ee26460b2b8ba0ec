"""What the dialects share: JSON-RPC, headers, and the fields that are the same in all of them."""

import math
import re
from abc import ABC, abstractmethod
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json, to_json

from ..errors import (
    Busy,
    CutOff,
    Declined,
    HeaderMismatch,
    InternalFault,
    InvalidParams,
    InvalidRequest,
    MissingCapability,
    OverBudget,
    ParseError,
    PayloadTooLarge,
    ProtocolError,
    RequestError,
    Unavailable,
    UnknownMethod,
    UnsupportedVersion,
)
from ..limits import LONGEST_KEY, LONGEST_NAME, LONGEST_RESPONSE_ID, check_length, is_longer, too_long
from .header_params import HeaderParameter
from .json_size import has_more_values
from .messages import ASKING_METHODS, JSON, Call, Note, Outcome, Principal, Progress, Question, Subscription

METHODS = ASKING_METHODS | {
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "completion/complete",
}
"""The methods of every version. Each dialect has a list of its own, since there are those that only another one has."""

WITH_ARGUMENTS = frozenset({"tools/call", "prompts/get"})
"""The methods that have arguments. In other methods, a parameter of that name is ignored."""

METHOD_HEADER = b"mcp-method"
NAME_HEADER = b"mcp-name"
VERSION_HEADER = b"mcp-protocol-version"
SESSION_HEADER = b"mcp-session-id"

NAME_FIELDS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that `Mcp-Name` mirrors (Streamable HTTP, Standard Request Headers; Tasks, Routing Headers)."""

VERSION_FIELD = "io.modelcontextprotocol/protocolVersion"

NO_METHOD = "The message has no method"

# Codes of our own, outside the range that JSON-RPC reserves.
DECLINED = -31001
"""The user declined."""

BUSY = -31002
"""The server can't take the request now."""


class Reply(NamedTuple):
    """An answer as it goes out: an HTTP status, a body of single-line JSON, and headers that it needs."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Surface:
    """What a dialect must know about the server.

    Args:
        info: the server's name, version and so on, in the shape of `Implementation`.
        versions: the protocol versions that are served, the preferred one first.
        header_parameters: returns the parameters of a tool that headers mirror.
        may_be_task: returns whether a tool's calls may become tasks.
    """

    info: JSON
    versions: list[str]
    header_parameters: Callable[[str], tuple[HeaderParameter, ...]]
    may_be_task: Callable[[str], bool]


@dataclass(slots=True)
class Envelope:
    """A JSON-RPC message with the protocol's headers.

    Args:
        message: the whole message.
        method: its method; empty for a response, which answers a request of ours.
        id: its id; None for a notification.
        params: its parameters.
        headers: the HTTP headers, by lower-case name.
        repeated: the name of a header of the protocol that was there twice; empty if none was.
    """

    message: JSON
    method: str
    id: str | int | None
    params: JSON
    headers: Mapping[bytes, bytes]
    repeated: str = ""


def names_version(envelope: Envelope) -> bool:
    """Return whether a message names a version of the protocol in its `_meta`."""
    meta = envelope.params.get("_meta")
    return isinstance(meta, dict) and VERSION_FIELD in meta


def unclaimed(envelope: Envelope, versions: list[str]) -> RequestError:
    """Return the error for a message that no served wire form claims."""
    requested = envelope.headers.get(VERSION_HEADER, b"").decode("latin-1") or envelope.params.get("protocolVersion")
    if requested or envelope.method == "initialize" or not versions:
        return UnsupportedVersion(requested if isinstance(requested, str) else "", versions)
    return HeaderMismatch("Header mismatch: MCP-Protocol-Version is missing")


class Dialect(ABC):
    """One wire form: it loads calls from envelopes, and dumps outcomes to bytes.

    Args:
        surface: what to know about the server.
    """

    name: ClassVar[str]
    version: ClassVar[str] = ""
    """The version that it advertises; empty for none."""

    codes: ClassVar[Mapping[type[RequestError], tuple[int, int]]] = {
        ParseError: (400, -32700),
        InvalidRequest: (400, -32600),
        PayloadTooLarge: (413, -32600),
        UnknownMethod: (404, -32601),
        OverBudget: (400, -32602),
        InvalidParams: (400, -32602),
        HeaderMismatch: (400, -32020),
        MissingCapability: (400, -32021),
        UnsupportedVersion: (400, -32022),
        ProtocolError: (200, -32603),
        Declined: (200, DECLINED),
        Busy: (503, BUSY),
        Unavailable: (503, -32603),
        CutOff: (503, -32603),
        InternalFault: (500, -32603),
        RequestError: (500, -32603),
    }
    """HTTP status and JSON-RPC code of each error; the nearest class in its ancestry counts."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface

    @abstractmethod
    def claims(self, envelope: Envelope) -> bool:
        """Return whether a message is of this wire form."""

    @abstractmethod
    def load_call(self, envelope: Envelope, principal: Principal | None, user: Any) -> Call:
        """Check a request, and return the call in it.

        Args:
            envelope: the message with its headers.
            principal: on whose behalf it comes; None without authentication.
            user: what the authentication layer made of the credentials.

        Raises:
            RequestError: it is not a valid request of this wire form.
        """

    @abstractmethod
    def dump_outcome(self, call: Call, outcome: Outcome) -> bytes:
        """Return the JSON-RPC response that carries an outcome.

        Raises:
            RequestError: the error that a task ended with.
        """

    def reply(self, call: Call, outcome: Outcome) -> Reply:
        """Return the HTTP response that carries an outcome."""
        return Reply(200, self.dump_outcome(call, outcome))

    def error(self, request_id: str | int | None, error: RequestError) -> Reply:
        """Return the response that carries an error. An id that could not be read is left out, and never null."""
        status, written = self.dump_error(error)
        body: JSON = {"jsonrpc": "2.0", "error": written}
        if request_id is not None:
            body["id"] = request_id
        later = ((b"retry-after", b"%d" % math.ceil(error.retry_after)),) if isinstance(error, Busy) else ()
        return Reply(status, to_json(body), later)

    def dump_error(self, error: RequestError) -> tuple[int, JSON]:
        """Return an error's HTTP status, and its JSON-RPC error object."""
        status, code = next(self.codes[kind] for kind in type(error).__mro__ if kind in self.codes)
        written: JSON = {"code": code, "message": error.message}
        if error.data is not None:
            written["data"] = error.data
        return status, written

    def note(self, note: Note) -> bytes:
        """Return the notification that carries a note."""
        if isinstance(note, Progress):
            fields = {"total": note.total, "message": note.message}
            given = {name: value for name, value in fields.items() if value is not None}
            params: JSON = {"progressToken": note.token, "progress": note.progress, **given}
            return notification("notifications/progress", params)
        named = {} if note.logger is None else {"logger": note.logger}
        return notification("notifications/message", {"level": note.level, "data": note.data, **named})

    def listening(self, call: Call, subscription: Subscription) -> "ListenWriter":
        """Return the writer for the messages of an open subscription.

        Raises:
            UnknownMethod: this wire form has no subscriptions.
        """
        raise UnknownMethod(call.method)


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
    return to_json(message, fallback=str, inf_nan_mode="null")  # one NaN would make it unreadable


def result(call: Call, body: JSON) -> bytes:
    """Return a response as bytes."""
    return to_json({"jsonrpc": "2.0", "id": call.request_id, "result": body}, inf_nan_mode="null")


def requests(questions: Mapping[str, Question]) -> JSON:
    """Return questions as `inputRequests` (Multi Round-Trip Requests)."""
    return {key: {"method": question.method, "params": question.params} for key, question in questions.items()}


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, and at least 1: to a client, 0 would be no duration."""
    return max(1, round(seconds * 1000))


def timestamp(seconds: float) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Reading

# With every digit a 0 and every E an e, a number can only overflow where one of these is: an exponent of three digits,
# or so many digits that one of two is enough. Looking for them costs a fraction of a regular expression.
_TO_NUMBERS = bytes.maketrans(b"123456789E", b"000000000e")
_MAY_OVERFLOW = (b"0e000", b"0e+000", b"0" * 200)
# Few bodies have five characters of a number in a row, which each of these has. Seen alike, brackets count as one.
_TO_SHAPES = bytes.maketrans(b"123456789eE+[", b"000000000000{")
_LONG_NUMBER = b"0" * 5


def read_envelope(
    body: bytes, headers: Mapping[bytes, bytes], repeated: str, depth: int, values: int = 100_000
) -> Envelope:
    """Read a body as a JSON-RPC message.

    Args:
        body: the HTTP body.
        headers: the HTTP headers, by lower-case name.
        repeated: the name of a header of the protocol that was there twice.
        depth: how deep arrays and objects may nest.
        values: how many values it may hold.

    Raises:
        ParseError: it is not JSON, or holds NaN, an infinity or a number that overflows.
        OverBudget: it nests too deep, or holds too many values.
        InvalidRequest: it is not a JSON-RPC request or notification, or its id is too long to be repeated.
        Each error has the message's id, if one can be read.
    """
    if len(body) > values and has_more_values(body, values):
        raise OverBudget(f"The message holds more than {values} JSON values", "values", values)
    try:
        message = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise OverBudget(f"JSON nests deeper than {depth}", "json_depth", depth) from None
        raise ParseError("The body is not JSON") from None
    if not isinstance(message, dict):
        what = "a batch; send one request at a time" if isinstance(message, list) else "not an object"
        raise InvalidRequest(f"The message is {what}")
    request_id = message.get("id")
    if type(request_id) is not str and type(request_id) is not int:
        request_id = None
    elif is_longer(request_id, longest := LONGEST_KEY if "method" in message else LONGEST_RESPONSE_ID):
        raise InvalidRequest(f"The id is longer than {longest} characters", None, {"limit": "id", "value": longest})
    # Nearly every request can be cleared by its bytes, without the walk.
    shapes = body.translate(_TO_SHAPES)
    if shapes.count(b"{") > depth or (_LONG_NUMBER in shapes and _may_overflow(body)):
        try:
            _check(message, depth, depth)
        except RequestError as error:
            error.request_id = request_id
            raise
    if problem := _problem_of(message, request_id):
        raise InvalidRequest(problem, request_id)
    return Envelope(message, message.get("method") or "", request_id, message.get("params", {}), headers, repeated)


def _problem_of(message: JSON, request_id: str | int | None) -> str:
    """Return why a message is neither a request, a notification nor a result; empty if it is one."""
    method = message.get("method")
    if message.get("jsonrpc") != "2.0":
        return 'The message is not JSON-RPC 2.0: "jsonrpc" must be "2.0"'
    if method is None and request_id is not None and "error" not in message and type(message.get("result")) is dict:
        return ""
    if not isinstance(method, str) or not method:
        return NO_METHOD
    if "id" in message and request_id is None:
        return "The id must be a string or an integer"
    return "" if isinstance(message.get("params", {}), dict) else "params must be an object"


def _may_overflow(body: bytes) -> bool:
    numbers = body.translate(_TO_NUMBERS)
    return any(shape in numbers for shape in _MAY_OVERFLOW)


def _check(value: Any, depth: int, limit: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ParseError("The body holds a number that overflows")
    elif isinstance(value, dict | list):
        if depth == 0:
            raise OverBudget(f"JSON nests deeper than {limit}", "json_depth", limit)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth - 1, limit)


def read_target(envelope: Envelope) -> str:
    """Return the name or URI that a request is about; empty for methods that have none. Raises `InvalidParams`."""
    field = NAME_FIELDS.get(envelope.method)
    if field is None:
        return ""
    target = envelope.params.get(field)
    if not isinstance(target, str):
        raise InvalidParams(f"params.{field} must be a string")
    if len(target) > LONGEST_NAME:
        raise too_long(field, LONGEST_NAME)
    return target


def read_arguments(params: Mapping[str, Any]) -> JSON:
    """Return the arguments of a request. Raises `InvalidParams`."""
    arguments = params.get("arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise InvalidParams("params.arguments must be an object")
    return arguments


def read_answers(answers: Any) -> dict[str, JSON]:
    """Return `inputResponses`, checked to be a map of objects. Raises `InvalidParams`."""
    if not isinstance(answers, dict) or not all(isinstance(answer, dict) for answer in answers.values()):
        raise InvalidParams("inputResponses must be an object whose values are objects")
    for key in answers:
        check_length(key, LONGEST_KEY, "inputResponses")
    return answers


def read_progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """Return the progress token in a request's `_meta` (Progress). Raises `InvalidParams`."""
    token = meta.get("progressToken")
    if token is not None and type(token) not in (str, int):
        raise InvalidParams("_meta.progressToken must be a string or an integer")
    if token is not None:
        check_length(token, LONGEST_KEY, "progressToken")
    return token


# Headers

_HEADER_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_INTEGER = re.compile(r"-?[0-9]{1,32}(\.0{1,32})?")


def decode_header(value: bytes) -> str | None:
    """Decode a header's value: whitespace around it trimmed, the Base64 sentinel resolved (Value Encoding).

    Returns:
        The value, or None if it has characters that no header may have, or is not what the sentinel says it is.
    """
    if value.translate(None, b"_-./:").isalnum():  # as nearly every name is; it needs no closer look
        return value.decode("ascii")
    value = value.strip(b" \t")
    if not _HEADER_VALUE.fullmatch(value):
        return None
    if not (value.startswith(b"=?base64?") and value.endswith(b"?=") and len(value) >= 11):
        return value.decode("ascii")
    try:
        return a2b_base64(value[9:-2], strict_mode=True).decode("utf-8")
    except (Base64Error, ValueError):
        return None


def check_headers(envelope: Envelope, surface: Surface, *, required: bool) -> HeaderMismatch | None:
    """Check that the headers say what the body says (Streamable HTTP, Server Validation).

    Args:
        envelope: the request.
        surface: knows which parameters headers mirror.
        required: whether they must be there; those that are there must match in every dialect.

    Returns:
        What is wrong with those that mirror a tool's arguments, which tells that there is such a tool.

    Raises:
        HeaderMismatch: the others do not.
    """
    check_method(envelope, required=required)
    field = NAME_FIELDS.get(envelope.method)
    if field is not None:
        # Clients must send it with a task's id, too, for gateways. Some do not, and here any replica can answer.
        needed = required and field != "taskId"
        check_name(envelope, envelope.params.get(field), f"params.{field}", required=needed)
    return _check_parameters(envelope, surface, required) if envelope.method == "tools/call" else None


def check_method(envelope: Envelope, *, required: bool) -> None:
    """Check that no header is there twice, and that `Mcp-Method` is the method. Raises `HeaderMismatch`."""
    if envelope.repeated:
        raise HeaderMismatch(f"Header mismatch: {envelope.repeated[:200]} occurs twice")
    method = envelope.headers.get(METHOD_HEADER)
    if method is None:
        if required:
            raise HeaderMismatch("Header mismatch: Mcp-Method is missing")
    elif method.strip(b" \t") != envelope.method.encode():
        raise HeaderMismatch("Header mismatch: Mcp-Method is not the method of the body")


def check_name(envelope: Envelope, name: Any, where: str, *, required: bool) -> None:
    """Check that `Mcp-Name` is the name, URI or task that the body has there. Raises `HeaderMismatch`."""
    header = envelope.headers.get(NAME_HEADER)
    if header is None:
        if required:
            raise HeaderMismatch("Header mismatch: Mcp-Name is missing")
    elif decode_header(header) != name:
        raise HeaderMismatch(f"Header mismatch: Mcp-Name is not {where} of the body")


def _check_parameters(envelope: Envelope, surface: Surface, required: bool) -> HeaderMismatch | None:
    tool = envelope.params.get("name")
    mirrored = surface.header_parameters(tool) if isinstance(tool, str) else ()
    for parameter in mirrored:
        value: Any = envelope.params.get("arguments")
        for part in parameter.path:
            value = value.get(part) if isinstance(value, dict) else None
        header = envelope.headers.get(parameter.header.encode())
        where = ".".join(parameter.path)
        if header is None:
            if required and value is not None:
                return HeaderMismatch(f"Header mismatch: {parameter.header} is missing, arguments.{where} is there")
        elif not _same(decode_header(header), value):
            return HeaderMismatch(f"Header mismatch: {parameter.header} is not arguments.{where} of the body")
    return None


def _same(header: str | None, value: object) -> bool:
    if header is None or value is None:
        return False
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    if isinstance(value, int | float):
        return _INTEGER.fullmatch(header) is not None and int(header.partition(".")[0]) == value
    return header == value if isinstance(value, str) else False
