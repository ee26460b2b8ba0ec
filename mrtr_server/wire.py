"""A client's side of the wire, for the client of programs and the test kit: requests, events, and rounds of a call."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, NamedTuple, TypeVar

from .errors import BadReply, HeaderMismatch, MissingCapability, UnknownMethod, UnsupportedVersion
from .protocol.dialect import VERSION_FIELD
from .protocol.envelope import NAME_FIELDS
from .protocol.handshake import HandshakeDialect
from .protocol.handshake_versions import BY_NAME
from .protocol.header_params import HeaderParameter, decode_header
from .protocol.messages import JSON, LogLevel
from .protocol.v2026_07_28 import ModernDialect
from .well_formed import well_formed, write_json

_LONGEST_RETRY = 10

_EMPTY_LINES = re.compile(rb"(\n\r?\n)(?:\r?\n)+")

ACCEPTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

MODERN = ModernDialect.name

# Versions whose clients begin with a handshake, and answer questions while a call is open; the newest first.
HANDSHAKES = HandshakeDialect.versions

HEADER_MISMATCH = ModernDialect.codes[HeaderMismatch][1]
UNSUPPORTED_VERSION = ModernDialect.codes[UnsupportedVersion][1]
UNKNOWN_METHOD = ModernDialect.codes[UnknownMethod][1]

# Codes of errors that no server of the handshake era sends.
MODERN_CODES = frozenset({HEADER_MISMATCH, UNSUPPORTED_VERSION, ModernDialect.codes[MissingCapability][1]})

_PREFIX = VERSION_FIELD.rpartition("/")[0] + "/"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    id: str = ""  # where a client continues that lost the stream after it
    kind: str = "message"  # its type
    data: str = ""  # as a rule a JSON-RPC message
    retry: int | None = None  # when the client is to come back if the stream ends, in milliseconds
    raw: bytes = b""  # its bytes, with the comments before it, and without further empty lines


E = TypeVar("E", bound=Event)


class EventReader(Generic[E]):
    comments = 0

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind
        # New bytes are added, and the whole is never copied: a server may send it byte by byte.
        self._rest = bytearray()
        self._raw = bytearray()
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[E]:
        self._rest += data
        if b"\n" not in data:
            return []
        # Empty lines that end no event are skipped all at once: a server may send nothing else.
        text = _EMPTY_LINES.sub(rb"\1", self._rest if self._raw else self._rest.lstrip(b"\r\n"))
        # Not splitlines(): a line ends at a line feed, and U+2028 is a character like any other.
        *lines, rest = text.split(b"\n")
        self._rest = bytearray(rest)
        events = []
        for line in lines:
            self._raw += line
            self._raw += b"\n"
            name, _, value = line.removesuffix(b"\r").decode().partition(":")
            if name:
                self._note(name, value.removeprefix(" "))
            elif value or line.startswith(b":"):
                self.comments += 1
            elif self._fields:
                events.append(self._event())
        return events

    def _note(self, name: str, value: str) -> None:
        self._fields[name] = value
        if name == "data":
            self._data.append(value)

    def _event(self) -> E:
        fields, data, raw = self._fields, "\n".join(self._data), bytes(self._raw)
        self._fields, self._data, self._raw = {}, [], bytearray()
        retry = fields.get("retry", "")
        return self._kind(
            fields.get("id", ""),
            fields.get("event", "message"),
            data,
            int(retry) if retry.isdecimal() and len(retry) < _LONGEST_RETRY else None,
            raw,
        )


class Progress(NamedTuple):
    """A note on how far a call has come.

    Args:
        progress: how far, in the unit of the server.
        total: what it will be at the end; None if that is not known.
        message: what is being done, in words of the server.
    """

    progress: float
    total: float | None = None
    message: str | None = None


class About(NamedTuple):
    """A client, as each of its requests describes it (Overview, `_meta`)."""

    info: JSON
    capabilities: Mapping[str, Any]
    log_level: LogLevel | None = None


def write_modern(
    about: About, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter] = ()
) -> tuple[dict[str, str], bytes]:
    meta: JSON = {
        VERSION_FIELD: ModernDialect.version,
        _PREFIX + "clientInfo": about.info,
        _PREFIX + "clientCapabilities": about.capabilities,
        "progressToken": number,
    }
    if about.log_level is not None:
        meta[_PREFIX + "logLevel"] = about.log_level
    headers = {**ACCEPTED, "MCP-Protocol-Version": ModernDialect.version, "Mcp-Method": method}
    if (field := NAME_FIELDS.get(method)) is not None:
        headers["Mcp-Name"] = _header(params[field])
    for parameter in mirrored:
        value: Any = params.get("arguments")
        for part in parameter.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            headers[parameter.header] = _header(value)
    return headers, write_request(number, method, {**params, "_meta": meta})


def write_request(number: int, method: str, params: JSON) -> bytes:
    return write_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def write_message(**message: Any) -> bytes:
    """Return the body of a notification, or of the response to a question."""
    return write_json({"jsonrpc": "2.0", **message})


def write_of_session(number: int, method: str, params: JSON) -> bytes:
    """Return the body of a request of a session: what a handshake said once, no request says again."""
    return write_request(number, method, {**params, "_meta": {"progressToken": number}})


def handshake_params(era: str, about: About) -> JSON:
    return {"protocolVersion": era, "capabilities": about.capabilities, "clientInfo": about.info}


def session_headers(era: str, session: str | None) -> dict[str, str]:
    """Return the headers of all that a session sends after its handshake."""
    # The version's header came with structured results (Transports, Protocol Version Header).
    version = {"MCP-Protocol-Version": era} if BY_NAME[era].structures else {}
    return {**version, **({"Mcp-Session-Id": session} if session else {})}


def resume_headers(event: str) -> dict[str, str]:
    """Return those of a client that comes back to a stream (Transports, Resumability and Redelivery)."""
    return {"Accept": "text/event-stream", "Last-Event-ID": event}


def _header(value: Any) -> str:
    """Encode a header's value; what no header can hold goes into the Base64 sentinel (Value Encoding)."""
    text = well_formed(value) if isinstance(value, str) else write_json(value).decode()
    if text.isascii() and decode_header(text.encode()) == text:
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="


_SHORTEST_POLL, _USUAL_POLL, _LONGEST_POLL = 0.05, 1.0, 60.0
"""How long to wait before a task is looked at again, in seconds, whatever the server says."""


class Rounds:
    """One call of a tool, a prompt or a resource, from its first round to its result; as a task, if it becomes one."""

    def __init__(
        self,
        method: str,
        target: str,  # the tool's or prompt's name, or the resource's URI
        arguments: Mapping[str, Any],
        *,
        task: str | None = None,  # the id of the task that the call is already
        most: int = 50,  # questions that one round may have
    ) -> None:
        self.method = method
        self.target = target
        self.arguments = dict(arguments)
        self.task = task
        self.state: str | None = None
        self.questions: JSON = {}
        self.pause = 0.0
        self.is_over = False
        self.answered: set[str] = set()
        """The keys of a task's questions that were answered."""
        self._most = most
        self._idle = 0

    def first(self) -> JSON:
        params: JSON = {NAME_FIELDS[self.method]: self.target}
        if self.arguments or self.method == "tools/call":
            params["arguments"] = self.arguments
        return params

    def params(self, answers: Mapping[str, Any]) -> JSON:
        params = self.first()
        if answers:
            params["inputResponses"] = answers
        if self.state is not None:
            params["requestState"] = self.state
        return params

    def about_task(self, method: str, **params: Any) -> tuple[str, JSON]:
        return method, {"taskId": self.task, **params}

    def next(self, answers: Mapping[str, Any]) -> tuple[str, JSON]:
        """Return the method and the parameters of the next request; the result of `tasks/update` is nothing to take."""
        self.questions, self.pause = {}, 0.0
        if self.task is None:
            return self.method, self.params(answers)
        self.answered |= answers.keys()
        return self.about_task("tasks/update", inputResponses=answers) if answers else self.about_task("tasks/get")

    def take(self, result: JSON) -> None:
        """Note where the result of a round, or of a look at the task, leaves the call. Raises `BadReply`."""
        if self.task is not None:
            self._take_task(result)
            return
        match result.get("resultType", "complete"):
            case "complete":
                self.is_over = True
            case "input_required":
                self._take_round(result)
            case "task" if self.method == "tools/call":
                if not isinstance(result.get("taskId"), str):
                    raise BadReply("The call has become a task without a taskId")
                self.task = result["taskId"]
            case _:
                raise BadReply("The result is of no kind that this client knows")

    def _take_round(self, result: JSON) -> None:
        self.questions, state = self._requests_in(result), result.get("requestState")
        if not isinstance(state, str | None) or (state is None and not self.questions):
            raise BadReply("The server wants another round, and says neither what it asks nor where it is")
        self.state = state
        self._idle = 0 if self.questions else self._idle + 1
        if self._idle > 1:  # the first time at once: another replica may continue
            self.pause = min(_SHORTEST_POLL * 2**self._idle, _USUAL_POLL)

    def _take_task(self, result: JSON) -> None:
        status = result.get("status")
        self.is_over = status not in ("working", "input_required")
        asked = self._requests_in(result) if status == "input_required" else {}
        self.questions = {key: each for key, each in asked.items() if key not in self.answered}
        if not self.questions:
            poll = number_of(result.get("pollIntervalMs"))
            self.pause = _USUAL_POLL if poll is None else min(max(poll / 1000, _SHORTEST_POLL), _LONGEST_POLL)

    def _requests_in(self, result: JSON) -> JSON:
        requests = result.get("inputRequests") or {}
        if not isinstance(requests, dict) or len(requests) > self._most:
            raise BadReply(f"The questions are none, or more than {self._most}")
        return requests


def number_of(value: Any) -> float | None:
    """Return a number that a server sent; None if it is none, or has no end."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None
