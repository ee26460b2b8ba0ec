"""A client's side of the wire: requests as a conforming client of each era sends them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from .._version import __version__
from ..protocol.all_dialects import CANCELLED, HandshakeDialect, ModernDialect, SepDraftDialect
from ..protocol.handshake_versions import BY_NAME
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, LogLevel
from ..wire.requests import ACCEPTED, About, write_modern, write_request

EVERYTHING: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
"""The capabilities of a client that can do whatever it is asked."""

MODERN = ModernDialect.name

HANDSHAKES = HandshakeDialect.versions
"""The versions whose clients begin with a handshake, and answer questions while a call is open; the newest first."""

_INFO = {"name": "mrtr_server.testing", "version": __version__}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client that sends the requests, as it describes itself.

    Args:
        era: the version of the protocol that it speaks, or the name of a dialect.
        capabilities: what it declares.
        log_level: the least severe messages that it wants; None for none.
    """

    era: str = MODERN
    capabilities: Mapping[str, Any]
    log_level: LogLevel | None


def write(
    caller: Caller, number: int, method: str, params: JSON, headers: Iterable[HeaderParameter] = ()
) -> tuple[dict[str, str], bytes]:
    """Return a request as it goes over the wire.

    Args:
        caller: who sends it.
        number: its id, and the token of its progress.
        method: the protocol's method.
        params: its parameters, without `_meta`.
        headers: the arguments that headers mirror.

    Returns:
        The headers, and the body.
    """
    return _WRITERS[caller.era](caller, number, method, params, headers)


def _write_modern(
    caller: Caller, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter]
) -> tuple[dict[str, str], bytes]:
    about = About(_INFO, caller.capabilities, caller.log_level)
    return write_modern(about, number, method, params, mirrored)


def _write_unversioned(
    caller: Caller, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter]
) -> tuple[dict[str, str], bytes]:
    return _post(number, method, {**params, "_meta": {"progressToken": number}}, {})


_WRITERS: dict[str, Callable[..., tuple[dict[str, str], bytes]]] = {
    MODERN: _write_modern,
    # What those of a handshake say once, no request says again; `Handshake` adds the headers of the session.
    **dict.fromkeys(HANDSHAKES, _write_unversioned),
    SepDraftDialect.name: _write_unversioned,
}
ERAS = tuple(_WRITERS)
"""The versions that the kit speaks."""


def capabilities_of(era: str) -> JSON:
    """Return the capabilities of a client that can do whatever clients of its version can be asked."""
    version = BY_NAME.get(era)
    if version is None or version.enriches:
        return EVERYTHING
    older: JSON = {"sampling": {}, "roots": {}}
    return {"elicitation": {}, **older} if version.structures else older


def write_initialize(caller: Caller, number: int) -> bytes:
    """Return the body of the request that begins a handshake (Lifecycle, Initialization).

    Args:
        caller: who sends it.
        number: its id.
    """
    params = {"protocolVersion": caller.era, "capabilities": caller.capabilities, "clientInfo": _INFO}
    return write_request(number, "initialize", params)


INITIALIZED = to_json({"jsonrpc": "2.0", "method": "notifications/initialized"})


def write_answer(id: str | int, answer: Any) -> bytes:
    """Return the body of the response to a question.

    Args:
        id: of the question.
        answer: the result.
    """
    return to_json({"jsonrpc": "2.0", "id": id, "result": answer})


def write_cancellation(id: str | int) -> bytes:
    """Return the body of the notification that cancels a request (Cancellation).

    Args:
        id: of the request.
    """
    return to_json({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id}})


def _post(number: int, method: str, params: JSON, headers: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    return {**ACCEPTED, **headers}, write_request(number, method, params)
