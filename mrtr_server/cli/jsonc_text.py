"""JSON with comments and trailing commas, as hosts are configured by it: read, and changed in one member as text."""

import json
import re
from typing import Any, NamedTuple

from ..protocol.messages import JSON

_SPACES = " \t\r\n"
_COMMENT = r"//[^\r\n]*|/\*.*?\*/"
_TRAILING_COMMA = r",(?=\s*[}\]])"
_GAP = re.compile(r"\s*")
_MARGIN = re.compile(r"[ \t]*")
_NOTHING_MORE = re.compile(r"[ \t]*(?://[^\r\n]*)?(?:\r?\n|\Z)")
"""The rest of a line with nothing but a comment."""


def read(text: str) -> JSON:
    """Return what a file holds; nothing if it is empty. Raises `ValueError`, which names the line."""
    try:
        found = json.loads(_plain(text)) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("line 1: it is no object")
    return found


def edit(text: str, top: str, name: str, entry: JSON | None) -> str:
    """Return a file whose member `top` has an entry of a name, or has none of it. Raises `ValueError`.

    What was inserted is removed again byte for byte, but for an empty `top`.
    """
    text = text if text.strip() else "{}\n"
    root = _object(text, _plain(text).index("{"))
    servers = root.find(top)
    if servers is None:
        return text if entry is None else _insert(root, root, top, {name: entry})
    within = _object(text, servers.value)
    there = within.find(name)
    if entry is None:
        return text if there is None else _remove(within, there)
    if there is None:
        return _insert(root, within, name, entry)
    return text[: there.value] + _written(root, entry, _margin(text, there.start)) + text[there.end :]


class _Member(NamedTuple):
    name: str
    start: int  # of its name
    value: int  # where that begins
    end: int
    comma: int | None  # where the one after it is


class _Object(NamedTuple):
    text: str  # of the whole file
    start: int
    close: int  # where its brace is
    members: list[_Member]

    def find(self, name: str) -> _Member | None:
        found = [each for each in self.members if each.name == name]
        if len(found) > 1:
            raise ValueError(f"line {_line(self.text, found[1].start)}: {name!r} is there twice")
        return found[0] if found else None

    @property
    def end(self) -> int:
        """Where what is in it ends, with its last comment."""
        return len(self.text[: self.close].rstrip(_SPACES))

    @property
    def has_lines(self) -> bool:
        """Whether its members have lines of their own."""
        begins = not self.members or _begins_line(self.text, self.members[0].start)
        return begins and "\n" in self.text[self.end : self.close]


def _blanked(text: str, pattern: str) -> str:
    """Return a text of the same length, with spaces for what is not in a string and matches."""
    found = re.compile(rf'("(?:[^"\\]|\\.)*")|{pattern}', re.DOTALL)
    return found.sub(lambda each: each[1] or re.sub(r"[^\r\n]", " ", each[0]), text)


def _plain(text: str) -> str:
    return _blanked(_blanked(text, _COMMENT), _TRAILING_COMMA)


def _object(text: str, start: int) -> _Object:
    """Return where the parts of an object are, in a text that can be read."""
    plain, commented = _plain(text), _blanked(text, _COMMENT)
    if plain[start] != "{":
        raise ValueError(f"line {_line(text, start)}: it is no object")
    members, at, decoder = [], _after_gap(plain, start + 1), json.JSONDecoder()
    while plain[at] != "}":
        name, end = decoder.raw_decode(plain, at)
        value = _after_gap(plain, _after_gap(plain, end) + 1)
        _, end = decoder.raw_decode(plain, value)
        comma = _after_gap(commented, end)
        members.append(_Member(name, at, value, end, comma if commented[comma] == "," else None))
        at = _after_gap(plain, _after_gap(plain, end) + (plain[_after_gap(plain, end)] == ","))
    return _Object(text, start, at, members)


def _after_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _insert(root: _Object, within: _Object, name: str, value: JSON) -> str:
    """Return a text with another member at the end of an object, written as its other members are."""
    text, close, members = within.text, within.close, within.members
    last = members[-1] if members else None
    comma = "" if last is None or last.comma is None else ","
    if last is not None and not within.has_lines:
        at, between = (last.end, ", ") if last.comma is None else (last.comma + 1, " ")
        return f"{text[:at]}{between}{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}{comma}{text[at:]}"
    outer, at = _margin(text, within.start), within.end
    inner = _margin(text, members[0].start) if members else outer + _step(root)
    rest = text[at:] if within.has_lines else f"{_newline(text)}{outer}{text[close:]}"
    before = text[:at] if last is None or comma else f"{text[: last.end]},{text[last.end : at]}"
    return f"{before}{_newline(text)}{inner}{json.dumps(name)}: {_written(root, value, inner)}{comma}{rest}"


def _remove(within: _Object, gone: _Member) -> str:
    """Return a text without a member, its comma and its line."""
    text, members = within.text, within.members
    tail = text[gone.end :]
    if gone.comma is not None:
        comment = text[gone.end : gone.comma]
        tail = (comment if comment.strip() else "") + text[gone.comma + 1 :]
    start, before = gone.start, len(text[: gone.start].rstrip(_SPACES))
    if "\n" not in text[before:start] or _NOTHING_MORE.match(tail):  # or what follows would join a comment
        start = before
    head = text[:start]
    if gone is members[-1] and gone.comma is None and len(members) > 1 and (comma := members[-2].comma) is not None:
        head = text[:comma] + text[comma + 1 : start]
    inside = head[within.start + 1 :] + tail[: within.close - len(text)]
    if len(members) == 1 and not inside.strip():
        return f"{text[: within.start]}{{}}{text[within.close + 1 :]}"
    return head + tail


def _written(root: _Object, value: Any, margin: str) -> str:
    return json.dumps(value, indent=_step(root), ensure_ascii=False).replace("\n", _newline(root.text) + margin)


def _step(root: _Object) -> str:
    """Return by what the members of the file are indented."""
    first = root.members[0].start if root.members else 0
    return (_margin(root.text, first) if _begins_line(root.text, first) else "") or "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


def _margin(text: str, at: int) -> str:
    """Return the spaces and tabs at the beginning of a place's line."""
    found = _MARGIN.match(text, text.rfind("\n", 0, at) + 1)
    return found[0] if found else ""
