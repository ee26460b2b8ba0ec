"""Server-sent events, read from the bytes of a stream as they come."""

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

_LONGEST_RETRY = 10
"""How many digits a time to come back after may have, at most."""


_EMPTY_LINES = re.compile(rb"(\n\r?\n)(?:\r?\n)+")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream.

    Args:
        id: where a client continues that lost the stream after it; empty if it has none.
        kind: its type.
        data: what it carries; as a rule a JSON-RPC message.
        retry: when the client is to come back if the stream ends, in milliseconds; None if that was not said.
        raw: its bytes, with the comments before it, and without further empty lines.
    """

    id: str = ""
    kind: str = "message"
    data: str = ""
    retry: int | None = None
    raw: bytes = b""


E = TypeVar("E", bound=Event)


class EventReader(Generic[E]):
    """Reads the events of one stream."""

    comments = 0
    """How many comments came, which keep a stream open."""

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind
        # New bytes are added, and the whole is never copied: a server may send it byte by byte.
        self._rest = bytearray()
        self._raw = bytearray()
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[E]:
        """Return the events that are whole with these bytes."""
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
