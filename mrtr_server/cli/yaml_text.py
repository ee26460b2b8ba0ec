"""The YAML of a host's configuration: read, and changed in one entry as text."""

import json
import re
from typing import Any, NoReturn

from ..errors import lacking
from ..protocol.messages import JSON

try:
    import yaml

    from ..registration.yaml_front import read_yaml
except ImportError as missing:
    raise lacking("A configuration in YAML", "skills", missing) from missing

_PLAIN = re.compile(r"[a-z][a-z0-9_-]*")


def read(text: str) -> JSON:
    """Return what a file holds; nothing if it is empty. Raises `ValueError`, which names the line."""
    try:
        found = read_yaml(text)
    except ValueError as error:
        raise ValueError(str(error).replace(' in "<unicode string>",', " at")) from None
    if not isinstance(found, dict | None):
        raise ValueError("line 1: the file is no mapping")
    return found or {}


def edit(text: str, top: str, name: str, entry: JSON | None) -> str:
    """Return a file whose mapping `top` has an entry of a name, or has none of it. Raises `ValueError`.

    What is added comes first, so that comments stay with what they are about.
    """
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and root.flow_style:
        _fail(root, "the file is written with braces")
    servers = None if root is None else _pair(root, top)
    if servers is None:
        return text if entry is None else _appended(text, root, top, name, entry)
    key, value = servers
    colon = text.index(":", key.end_mark.index) + 1
    if not value.value:  # nothing, or {}
        bare = text[:colon] + text[value.end_mark.index :]
        return text if entry is None else _inserted(bare, colon, _margin(key) + "  ", name, entry)
    if not isinstance(value, yaml.MappingNode) or value.flow_style:
        _fail(value, f"{top} is no mapping with a line for each entry")
    margin = _margin(value.value[0][0])
    there = _pair(value, name)
    if there is not None:
        start, end = _lines(text, *there)
        text = text[:start] + text[end:]
        if entry is None and len(value.value) == 1:
            return f"{text[:colon]} {{}}{text[colon:]}"
    return text if entry is None else _inserted(text, colon, margin, name, entry)


def _fail(node: Any, what: str) -> NoReturn:
    raise ValueError(f"line {node.start_mark.line + 1}: {what}")


def _pair(mapping: Any, name: str) -> Any:
    return next((pair for pair in mapping.value if pair[0].value == name), None)


def _margin(key: Any) -> str:
    return " " * int(key.start_mark.column)


def _lines(text: str, key: Any, value: Any) -> tuple[int, int]:
    """Return where the lines of an entry begin, and where they end."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    while not isinstance(value, yaml.ScalarNode) and not value.flow_style:  # a block ends where its last part does
        last = value.value[-1]
        value = last[1] if isinstance(last, tuple) else last
    end = int(value.end_mark.index)
    if text[start : key.start_mark.index].strip() or end <= start:  # an alias is where its anchor is
        _fail(key, f"{key.value} has no lines of its own")
    end = end if text[end - 1] == "\n" else _line_end(text, end)
    return start, _after_comments(text, end, int(key.start_mark.column))  # of the entry


def _after_comments(text: str, at: int, column: int) -> int:
    """Return where comments end that are indented more: what came before them might take them for its text."""
    comment = re.compile(rf"(?:[ \t]*\r?\n)* {{{column + 1},}}#[^\n]*(?:\n|\Z)")
    while (found := comment.match(text, at)) is not None:
        at = found.end()
    return at


def _line_end(text: str, at: int) -> int:
    return text.find("\n", at) + 1 or len(text)


def _appended(text: str, root: Any, top: str, name: str, entry: JSON) -> str:
    margin = "" if root is None else _margin(root)
    text = _with_newline(text)
    return _inserted(f"{text}{margin}{top}:", len(text), margin + "  ", name, entry)


def _inserted(text: str, after: int, margin: str, name: str, entry: JSON) -> str:
    """Return a text with an entry below a line; its values are written as JSON, which is YAML, too."""
    newline = "\r\n" if "\r\n" in text else "\n"
    key = name if _PLAIN.fullmatch(name) and read_yaml(name) == name else json.dumps(name)
    fields = [f"{margin}  {field}: {json.dumps(value, ensure_ascii=False)}" for field, value in entry.items()]
    at = _after_comments(text, _line_end(text, after), len(margin))  # or they would be the entry's
    return _with_newline(text[:at]) + newline.join([f"{margin}{key}:", *fields, ""]) + text[at:]


def _with_newline(text: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    return text if not text or text.endswith("\n") else text + newline
