"""Arguments and answers, as people type them: `key=value` is read by the schema, `key:=json` is JSON."""

import json
from collections.abc import Iterable
from typing import Any

from ..errors import SetupError
from ..protocol.messages import JSON


def read_arguments(typed: Iterable[str], schema: JSON) -> JSON:
    arguments: JSON = {}
    for each in typed:
        name, equals, text = each.partition("=")
        if not equals or name in ("", ":"):
            raise SetupError(f"{each!r} is no argument: write key=value, or key:=json")
        if name.endswith(":"):
            arguments[name[:-1]] = read_json(name[:-1], text)
            continue
        value, is_item = _read(name, text, schema)
        arguments[name] = [*arguments.get(name, []), value] if is_item else value
    return arguments


def read_answers(typed: Iterable[str]) -> dict[str, str | JSON]:
    """Return the answers that were typed, by their keys: the fields of a form, or a text. Raises `SetupError`."""
    answers: dict[str, str | JSON] = {}
    for each in typed:
        key, equals, text = each.partition("=")
        if not equals:
            raise SetupError(f"--answer {each!r}: write KEY=VALUE")
        answers[key] = read_json(key, text) if text[:1] in ("{", '"') else text
    return answers


def read_field(name: str, text: str, schema: JSON) -> Any:
    """Return the value of a field that was typed; for a list, it may be its one item. Raises `SetupError`."""
    value, is_item = _read(name, text, schema)
    return [value] if is_item else value


_MOST_CHOICES, _LONGEST_CHOICE = 6, 20


def type_of(field: Any, schema: JSON) -> str:
    """Return what a field takes, briefly: its choices or its JSON types, and of a list those of its items."""
    if not isinstance(field, dict):
        return "any"
    choices = field.get("enum")
    if isinstance(choices, list) and len(choices) <= _MOST_CHOICES:
        return "|".join(str(each)[:_LONGEST_CHOICE] for each in choices)
    named = [kind for kind in _kinds(field, schema) if kind != "null"]
    items = field.get("items")
    many = f"{type_of(items, schema)}[]" if isinstance(items, dict) and "items" not in items else "array"
    return "|".join(many if kind == "array" else kind for kind in named) or "any"


def read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SetupError(f"{name}: {text!r} is not JSON") from None


def _read(name: str, text: str, schema: JSON) -> tuple[Any, bool]:
    field = _schema_of(name, schema)
    kinds = _kinds(field, schema)
    is_item = "array" in kinds and not text.lstrip().startswith("[")
    if is_item:
        items = field.get("items")
        kinds = _kinds(items if isinstance(items, dict) else {}, schema)
    return _value(name, text, kinds), is_item


def _schema_of(name: str, schema: JSON) -> JSON:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def _kinds(field: JSON, schema: JSON) -> list[str]:
    """Return the JSON types that a field can have; none if that can't be seen."""
    kinds: list[str] = []
    left, followed = [field], set()
    while left:
        field = left.pop()
        reference, kind = field.get("$ref"), field.get("type")
        if isinstance(reference, str):
            if reference not in followed:  # a server may have any number of them lead back to one
                followed.add(reference)
                left += [found] if (found := _definition(reference, schema)) else []
            continue
        if kind is not None:
            kinds += [each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)]
            continue
        parts = field.get("anyOf") or field.get("oneOf") or field.get("allOf")
        left += [part for part in reversed(parts) if isinstance(part, dict)] if isinstance(parts, list) else []
    return [*dict.fromkeys(kinds)]


def _definition(reference: str, schema: JSON) -> JSON | None:
    definitions = schema.get("$defs")
    name = reference.removeprefix("#/$defs/")
    found = definitions.get(name) if isinstance(definitions, dict) and name != reference else None
    return found if isinstance(found, dict) else None


def _value(name: str, text: str, kinds: list[str]) -> Any:
    """Return a text as the first of some types that it can be; `string` comes last."""
    for kind in kinds:
        if kind in _READERS and (found := _READERS[kind](text)) is not _NONE:
            return found
    if not kinds or "string" in kinds:
        return text
    raise SetupError(f"{name}: {text!r} is not of the type {' or '.join(kinds)}")


_NONE: Any = object()


def _boolean(text: str) -> Any:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower(), _NONE)


def _json_of(*types: type) -> Any:
    def value(text: str) -> Any:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return _NONE
        return found if type(found) in types else _NONE

    return value


_READERS = {
    "boolean": _boolean,
    "integer": _json_of(int),
    "number": _json_of(int, float),
    "array": _json_of(list),
    "object": _json_of(dict),
    "null": _json_of(type(None)),
}
