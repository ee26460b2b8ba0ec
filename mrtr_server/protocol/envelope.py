"""Envelopes: from the bytes of a body to a JSON-RPC message, and whether the headers around it say what it says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from ..errors import HeaderMismatch, InvalidRequest, OverBudget, ParseError, RequestError
from ..limits import LONGEST_KEY, LONGEST_RESPONSE_ID, check_depth, has_more_values, is_longer
from ..well_formed import read_json
from .ask_kinds import ASKABLE
from .header_params import decode_header
from .messages import JSON

NO_METHOD = "The message has no method"


@dataclass(slots=True)
class Envelope:
    """A JSON-RPC message with the protocol's headers."""

    message: JSON
    method: str  # its method; empty for a response, which answers a request of ours
    id: str | int | None  # its id; None for a notification
    params: JSON
    headers: Mapping[bytes, bytes]  # the HTTP headers, by lower-case name
    repeated: str = ""  # the name of a header of the protocol that was there twice; empty if none was
    has_headers: bool = True  # whether its transport has headers that must say what the message says


# What a body looks like: digits and plus signs are seen as 0, every E as e, and every bracket as {.
_TO_SHAPES = bytes.maketrans(b"123456789+E[", b"0000000000e{")


# A number can only overflow where one of these is: an exponent of three digits, or very many digits.
_LARGE_EXPONENT = b"0e000"
_MANY_DIGITS = b"0" * 40


_STATE = b'"requestState":"'

_LONG = 32 * 1024
"""Bytes of a body from which to walk its values takes less than to look at its bytes: it is long for its texts."""

_ALWAYS_SHORT = 10**18  # numbers below this are short enough for every id


ENDS = 1024  # bytes of each end of a body that are searched for the id of its request

_SHORT = rb'"(?:jsonrpc|id|method)"\s*:\s*(?:"[^"\\]*"|-?[0-9]+)'
_FIRST_MEMBERS = re.compile(rb"\s*\{(?:\s*" + _SHORT + rb"\s*,)*")
_LAST_MEMBERS = re.compile(rb"(?:,\s*" + _SHORT + rb"\s*)*\}\s*\Z")
_ID = re.compile(rb'"id"\s*:\s*("[^"\\]*"|-?[0-9]+)')


def find_request_id(head: bytes, tail: bytes) -> str | int | None:
    """Return the id of a request too large to be read, from its first and last members; None if it isn't there."""
    first, last = _FIRST_MEMBERS.match(head), _LAST_MEMBERS.search(tail)
    if first is None or last is None:
        return None
    members = first[0] + last[0]
    if b'"method"' not in members or (found := _ID.search(members)) is None:
        return None
    try:
        id: str | int = from_json(found[1])
    except ValueError:
        return None
    return None if is_longer(id, LONGEST_KEY) else id


def read_envelope(
    body: bytes, headers: Mapping[bytes, bytes], repeated: str, depth: int, values: int = 100_000
) -> Envelope:
    """Read a body as a JSON-RPC message. Raises `ParseError`, `OverBudget`, `InvalidRequest`, with the message's id."""
    if len(body) > values and has_more_values(body, values):
        raise _unread(OverBudget(f"The message holds more than {values} JSON values", "values", values), body)
    try:
        message = read_message(body)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise _unread(OverBudget(f"JSON nests deeper than {depth}", "json_depth", depth), body) from None
        raise ParseError("The body is not JSON") from None
    if not isinstance(message, dict):
        what = "a batch; send one request at a time" if isinstance(message, list) else "not an object"
        raise InvalidRequest(f"The message is {what}")
    request_id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if type(request_id) is not int or not 0 <= request_id < _ALWAYS_SHORT:
        request_id = _check_id(request_id, LONGEST_RESPONSE_ID if method is None else LONGEST_KEY)
    if len(body) > _LONG or _may_overflow(body, depth):
        try:
            check_depth(message, depth)
        except RequestError as error:
            error.request_id = None if method is None else request_id
            raise
    is_request = request_id is not None and type(method) is str and method and type(params) is dict
    if not (is_request and message.get("jsonrpc") == "2.0") and (problem := _problem_of(message, request_id)):
        raise InvalidRequest(problem, request_id)
    return Envelope(message, method or "", request_id, params, headers, repeated)


def _may_overflow(body: bytes, depth: int) -> bool:
    """Return whether a body may nest deeper, or hold a number that overflows, as far as its bytes show."""
    # The bytes clear nearly every request, without a walk through its values. A state, most of a retry, is left out:
    # where a body has `_STATE`, its last quote begins a string, and the part left out ends with the next quote at the
    # latest. (`find` takes half the time of `in`, which first asks whether bytes are a number.)
    state = body.find(_STATE)
    if state >= 0:
        body = body[:state] + body[body.find(b'"', state + len(_STATE)) :]
    shapes = body.translate(_TO_SHAPES)
    brackets = len(shapes) - len(shapes.replace(b"{", b""))  # twice as fast as `count`
    return brackets > depth or shapes.find(_LARGE_EXPONENT) >= 0 or shapes.find(_MANY_DIGITS) >= 0


def read_message(body: bytes) -> Any:
    """Return what a body holds; in a message, null for a member that may be left out is absent. Raises `ValueError`."""
    message = read_json(body, allow_inf_nan=False)
    may_have_nulls = len(body) > _LONG or body.find(b"null") >= 0
    return without_nulls(message) if may_have_nulls and isinstance(message, dict) else message


def _check_id(request_id: Any, longest: int) -> str | int | None:
    """Return an id; None for what can't be one. Raises `InvalidRequest` if it is too long."""
    if type(request_id) is not str and type(request_id) is not int:
        return None
    if is_longer(request_id, longest):
        # A client that matches responses by their ids alone would wait forever for one without.
        may_repeat = type(request_id) is str and len(request_id) <= LONGEST_RESPONSE_ID
        problem, data = f"The id is longer than {longest} characters", {"limit": "id", "value": longest}
        raise InvalidRequest(problem, request_id if may_repeat else None, data)
    return request_id


def _unread(error: RequestError, body: bytes) -> RequestError:
    error.request_id = find_request_id(body[:ENDS], body[-ENDS:])
    return error


def _problem_of(message: JSON, request_id: str | int | None) -> str:
    """Return why a message is neither a request, a notification nor a response; empty if it is one."""
    method = message.get("method")
    if message.get("jsonrpc") != "2.0":
        return 'The message is not JSON-RPC 2.0: "jsonrpc" must be "2.0"'
    if method is None and request_id is not None:
        given = message["result"] if "result" in message else message.get("error")
        is_one = ("result" in message) != ("error" in message)
        if is_one and type(given) is dict and isinstance(message.get("params", {}), dict):
            return ""
    if not isinstance(method, str) or not method:
        return NO_METHOD
    if "id" in message and request_id is None:
        return "The id must be a string or an integer"
    return "" if isinstance(message.get("params", {}), dict) else "params must be an object"


_EACH = "*"
_PREFIX = "io.modelcontextprotocol/"

_ANSWERS: JSON = {_EACH: {"_meta": {}, "result": {"_meta": {}}}}
_CAPABILITIES: JSON = {name: {_EACH: {_EACH: {}}} for name in (*ASKABLE, "tasks")}
_META: JSON = {
    _PREFIX + "clientCapabilities": _CAPABILITIES,
    **{_PREFIX + name: {} for name in ("related-task", "elicitation-response")},
}
_MESSAGE: JSON = {
    "params": {
        "_meta": _META,
        "inputResponses": _ANSWERS,
        "capabilities": _CAPABILITIES,
        **{name: {} for name in ("argument", "context", "notifications", "ref", "task")},
    },
    "result": {"_meta": _META},
    "error": {},
    "_meta": _META,
    "inputResponses": _ANSWERS,
    **{name: {} for name in ASKABLE},
}
"""The objects whose members are the protocol's. In all others, such as arguments, null is a value of the author's,
the model's or the person's."""


_MEANT = frozenset({"ttlMs"})
"""Members whose null means something else than their absence: a subscription without an end (Events)."""


def without_nulls(message: JSON) -> JSON:
    """Return a message without nulls for members that may be left out; its `id` stays, or it were a notification."""
    without = _without(message, _MESSAGE)
    return {**without, "id": None} if message.get("id", 0) is None else without


def _without(holder: Mapping[str, Any], places: JSON) -> JSON:
    return {
        name: _inner(value, places.get(name, places.get(_EACH)))
        for name, value in holder.items()
        if value is not None or name in _MEANT
    }


def _inner(value: Any, places: JSON | None) -> Any:
    if places is None:
        return value
    if isinstance(value, list):
        return [_inner(item, places) for item in value]
    return _without(value, places) if isinstance(value, dict) else value


_METHOD_HEADER = b"mcp-method"
_NAME_HEADER = b"mcp-name"
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

_PLACES = {field: f"params.{field}" for field in NAME_FIELDS.values()}


def check_headers(envelope: Envelope, *, required: bool) -> None:
    """Check that headers say what the body says (Streamable HTTP, Server Validation). Raises `HeaderMismatch`."""
    # Headers that mirror arguments are checked by whoever knows the tool (`check_mirrored`): their error reveals that
    # there is such a tool.
    method, headers = envelope.method, envelope.headers
    if not (required or envelope.repeated or _METHOD_HEADER in headers or _NAME_HEADER in headers):
        return
    if envelope.repeated or headers.get(_METHOD_HEADER) != method.encode():
        check_method(envelope, required=required)
    field = NAME_FIELDS.get(method)
    if field is not None:
        name, header = envelope.params.get(field), headers.get(_NAME_HEADER)
        # The header of nearly every tool is the name itself; any other needs a closer look.
        if type(name) is not str or not (name.isidentifier() and name.isascii() and header == name.encode()):
            # Clients must send it with a task's id, too, for gateways. Some do not, and here any replica can answer.
            needed = required and field != "taskId"
            check_name(envelope, name, _PLACES[field], required=needed)


def check_method(envelope: Envelope, *, required: bool) -> None:
    """Check that no header is there twice, and that `Mcp-Method` is the method. Raises `HeaderMismatch`."""
    if envelope.repeated:
        raise HeaderMismatch(f"Header mismatch: {envelope.repeated[:200]} occurs twice")
    method = envelope.headers.get(_METHOD_HEADER)
    if method is None:
        if required:
            raise HeaderMismatch("Header mismatch: Mcp-Method is missing")
    elif method.strip(b" \t") != envelope.method.encode():
        raise HeaderMismatch("Header mismatch: Mcp-Method is not the method of the body")


def check_name(envelope: Envelope, name: Any, where: str, *, required: bool) -> None:
    """Check that `Mcp-Name` is the name, URI or task that the body has there. Raises `HeaderMismatch`."""
    header = envelope.headers.get(_NAME_HEADER)
    if header is None:
        if required:
            raise HeaderMismatch("Header mismatch: Mcp-Name is missing")
    elif decode_header(header) != name:
        raise HeaderMismatch(f"Header mismatch: Mcp-Name is not {where} of the body")
