"""Server-sent events, as a test looks at them."""

from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from ..protocol.messages import JSON
from ..wire import events
from .failure import Unexpected

__tracebackhide__ = True  # pytest then shows the test's line instead


@dataclass(frozen=True, slots=True)
class Event(events.Event):
    """An event of a stream.

    Args:
        id: where a client continues that lost the stream after it; empty if it has none.
        kind: its type.
        data: what it carries; as a rule a JSON-RPC message.
        retry: when the client is to come back if the stream ends, in milliseconds; None if that was not said.
        raw: its bytes, with the comments before it.
    """

    @property
    def message(self) -> JSON:
        """The JSON-RPC message. One that is none fails the test."""
        try:
            message: Any = from_json(self.data)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Unexpected(f"An event has no JSON-RPC message: {self.data[:300]}")
        return message


class EventReader(events.EventReader[Event]):
    """Reads the events of one stream."""

    def __init__(self) -> None:
        super().__init__(Event)
