"""The protocol's HTTP headers, and whether they say what the body says."""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any

from ..errors import HeaderMismatch
from .header_params import HeaderParameter, is_beyond
from .jsonrpc import Envelope

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

_PLACES = {field: f"params.{field}" for field in NAME_FIELDS.values()}

Mirrored = Callable[[str], tuple[HeaderParameter, ...]]
"""The parameters that headers mirror, by the name of each tool that has some."""

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


def check_headers(envelope: Envelope, mirrored: Mirrored, *, required: bool) -> HeaderMismatch | None:
    """Check that the headers say what the body says (Streamable HTTP, Server Validation).

    Args:
        envelope: the request.
        mirrored: returns the parameters of a tool that headers mirror.
        required: whether they must be there; those that are there must match in every dialect.

    Returns:
        The errors of headers that mirror a tool's arguments, which reveal that there is such a tool.

    Raises:
        HeaderMismatch: the others do not.
    """
    method, headers = envelope.method, envelope.headers
    if not (required or envelope.repeated or METHOD_HEADER in headers or NAME_HEADER in headers):
        return _check_parameters(envelope, mirrored, required) if method == "tools/call" else None
    if envelope.repeated or headers.get(METHOD_HEADER) != method.encode():
        check_method(envelope, required=required)
    field = NAME_FIELDS.get(method)
    if field is not None:
        name, header = envelope.params.get(field), headers.get(NAME_HEADER)
        # The header of nearly every tool is the name itself; any other needs a closer look.
        if type(name) is not str or not (name.isidentifier() and name.isascii() and header == name.encode()):
            # Clients must send it with a task's id, too, for gateways. Some do not, and here any replica can answer.
            needed = required and field != "taskId"
            check_name(envelope, name, _PLACES[field], required=needed)
    return _check_parameters(envelope, mirrored, required) if method == "tools/call" else None


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


def _check_parameters(envelope: Envelope, mirrored: Mirrored, required: bool) -> HeaderMismatch | None:
    tool = envelope.params.get("name")
    for parameter in mirrored(tool) if isinstance(tool, str) else ():
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
        elif is_beyond(value):
            return HeaderMismatch(f"Header mismatch: arguments.{where} is beyond 2**53 - 1, which no header mirrors")
    return None


def _same(header: str | None, value: object) -> bool:
    if header is None or value is None:
        return False
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    if isinstance(value, int | float):
        return _INTEGER.fullmatch(header) is not None and int(header.partition(".")[0]) == value
    return header == value if isinstance(value, str) else False
