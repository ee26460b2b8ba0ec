"""Null for a member that may be left out: it is absent, as the JSON libraries of Go, Java and C# write it."""

from collections.abc import Mapping
from typing import Any

from .messages import JSON

_EACH = "*"
_PREFIX = "io.modelcontextprotocol/"

_ANSWERS: JSON = {_EACH: {"_meta": {}, "result": {"_meta": {}}}}
_CAPABILITIES: JSON = {name: {_EACH: {_EACH: {}}} for name in ("elicitation", "roots", "sampling", "tasks")}
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
    **{name: {} for name in ("elicitation", "sampling", "roots")},
}
"""The objects whose members are the protocol's. In all others, such as arguments and the content of a form, null is a
value of the author's, the model's or the person's."""


def without_nulls(message: JSON) -> JSON:
    """Return a message without its nulls in places of members that may be left out.

    Args:
        message: any message. Its `id` stays, since a request without one would be a notification.
    """
    without = _without(message, _MESSAGE)
    return {**without, "id": None} if message.get("id", 0) is None else without


def _without(holder: Mapping[str, Any], places: JSON) -> JSON:
    return {
        name: _inner(value, places.get(name, places.get(_EACH))) for name, value in holder.items() if value is not None
    }


def _inner(value: Any, places: JSON | None) -> Any:
    if places is None:
        return value
    if isinstance(value, list):
        return [_inner(item, places) for item in value]
    return _without(value, places) if isinstance(value, dict) else value
