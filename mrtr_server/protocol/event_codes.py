"""The codes of errors of events: those of the extension, and those of the sketch that hosts took up before it."""

from collections.abc import Mapping
from typing import Literal

from ..errors import ExtensionError
from .callers import ClientInfo
from .messages import EVENTS, JSON

NOT_FOUND: Literal["NotFound"] = "NotFound"
FORBIDDEN: Literal["Forbidden"] = "Forbidden"
EXHAUSTED: Literal["ResourceExhausted"] = "ResourceExhausted"
UNSUPPORTED: Literal["Unsupported"] = "Unsupported"
CALLBACK: Literal["CallbackEndpointError"] = "CallbackEndpointError"

Kind = Literal["NotFound", "Forbidden", "ResourceExhausted", "Unsupported", "CallbackEndpointError"]

SKETCH: Mapping[Kind, int] = {
    NOT_FOUND: -32011,
    FORBIDDEN: -32012,
    EXHAUSTED: -32013,
    UNSUPPORTED: -32014,
    CALLBACK: -32015,
}
"""Those of the design sketch, by which hosts go that do not declare the extension."""

EXTENSION: Mapping[Kind, int] = {
    NOT_FOUND: -32023,
    FORBIDDEN: -32024,
    EXHAUSTED: -32025,
    UNSUPPORTED: -32026,
    CALLBACK: -32027,
}
"""Those of SEP-3415."""


INTERNAL = -32603


def declares(client: ClientInfo) -> bool:
    """Return whether a client has declared the extension."""
    return client.extension(EVENTS) is not None


def code_of(kind: Kind, *, is_declared: bool) -> int:
    return (EXTENSION if is_declared else SKETCH)[kind]


def refused(client: ClientInfo, kind: Kind, why: str, data: JSON) -> ExtensionError:
    """Return the error of a kind, with the code that a client knows."""
    return ExtensionError(code_of(kind, is_declared=declares(client)), f"{kind}: {why}", data)
