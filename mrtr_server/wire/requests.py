"""Requests of the ratified protocol, as a conforming client sends them."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import HeaderMismatch
from ..protocol.dialect import VERSION_FIELD
from ..protocol.envelope import NAME_FIELDS, decode_header
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, LogLevel
from ..protocol.v2026_07_28 import ModernDialect
from ..well_formed import well_formed, write_json

ACCEPTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
"""The headers of every message that is posted."""

HEADER_MISMATCH = ModernDialect.codes[HeaderMismatch][1]
"""The code of the error for headers that do not say what the body says."""

TARGETS = NAME_FIELDS
"""The parameter that names what a method is about, by method."""

_PREFIX = VERSION_FIELD.rpartition("/")[0] + "/"


class About(NamedTuple):
    """A client, as each of its requests describes it (Overview, `_meta`)."""

    info: JSON
    capabilities: Mapping[str, Any]
    log_level: LogLevel | None = None


def write_modern(
    about: About, number: int, method: str, params: JSON, mirrored: Iterable[HeaderParameter] = ()
) -> tuple[dict[str, str], bytes]:
    """Return a request as it goes over the wire."""
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
    """Return the body of a request."""
    return write_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def _header(value: Any) -> str:
    """Encode a header's value; what no header can hold goes into the Base64 sentinel (Value Encoding)."""
    text = well_formed(value) if isinstance(value, str) else write_json(value).decode()
    if text.isascii() and decode_header(text.encode()) == text:
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="
