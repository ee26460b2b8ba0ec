"""A client's side of the wire: requests as a conforming client of each dialect sends them."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from .._version import __version__
from ..protocol.all_dialects import ModernDialect, SepDraftDialect
from ..protocol.dialect import VERSION_FIELD
from ..protocol.header_params import HeaderParameter
from ..protocol.headers import NAME_FIELDS, decode_header
from ..protocol.messages import JSON, LogLevel

EVERYTHING: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
"""The capabilities of a client that can do whatever it is asked."""

MODERN = ModernDialect.name

_PREFIX = VERSION_FIELD.rpartition("/")[0] + "/"
_INFO = {"name": "mrtr_server.testing", "version": __version__}


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, ready to be sent, and to be sent again byte for byte.

    Args:
        headers: its headers, by lower-case name.
        body: its body.
    """

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client that sends the requests, as it describes itself.

    Args:
        dialect: the name of the dialect.
        capabilities: what it declares.
        log_level: the least severe messages that it wants; None for none.
    """

    dialect: str = MODERN
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
    return _WRITERS[caller.dialect](caller, number, method, params, headers)


def _write_modern(
    caller: Caller, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter]
) -> tuple[dict[str, str], bytes]:
    meta: JSON = {
        VERSION_FIELD: ModernDialect.version,
        _PREFIX + "clientInfo": _INFO,
        _PREFIX + "clientCapabilities": caller.capabilities,
        "progressToken": number,
    }
    if caller.log_level is not None:
        meta[_PREFIX + "logLevel"] = caller.log_level
    headers = {"MCP-Protocol-Version": ModernDialect.version, "Mcp-Method": method}
    if (field := NAME_FIELDS.get(method)) is not None:
        headers["Mcp-Name"] = _header(params[field])
    for parameter in mirrored:
        value: Any = params.get("arguments")
        for part in parameter.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            headers[parameter.header] = _header(value)
    return _post(number, method, {**params, "_meta": meta}, headers)


def _write_unversioned(
    caller: Caller, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter]
) -> tuple[dict[str, str], bytes]:
    return _post(number, method, {**params, "_meta": {"progressToken": number}}, {})


_WRITERS: dict[str, Callable[..., tuple[dict[str, str], bytes]]] = {
    MODERN: _write_modern,
    SepDraftDialect.name: _write_unversioned,
}
DIALECTS = tuple(_WRITERS)
"""The names of the dialects that the kit speaks."""


def _post(number: int, method: str, params: JSON, headers: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return {**accepted, **headers}, to_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def _header(value: Any) -> str:
    """Encode a header's value; what no header can hold goes into the Base64 sentinel (Value Encoding)."""
    text = value if isinstance(value, str) else to_json(value).decode()
    if text.isascii() and decode_header(text.encode()) == text:
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="
