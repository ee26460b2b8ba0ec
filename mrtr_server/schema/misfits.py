"""Input that does not fit: what else it may mean, and what is wrong with it, in few words and without its values.

Models and clients write JSON in a string, and null for what is absent. Another meaning is tried only once an input
did not fit, and only where its schema leaves no doubt. What a flow is bound to stays what was sent.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from ..errors import RequestError
from ..limits import Limits, most_values, read_value

MOST_PROBLEMS = 20  # problems in one error, so that a long list of wrong items does not make an even longer error
MOST_CHARACTERS = 200  # characters of a problem, and of the path to it

UNREAD = "unread"
"""The type of pydantic's error for a part that was not validated, since enough problems had been found."""


def problem(path: Iterable[Any], message: str) -> tuple[str, str]:
    """Return one problem as (where, what), both shortened: clients choose names, and authors list choices."""
    return _cut(".".join(map(str, path))), _cut(message)


def problems_of(error: ValidationError, value: Any = None, *, tables: bool = False) -> list[tuple[str, str]]:
    """Return the first problems of an input as (where, what), without its values, and whether more may follow."""
    # The error has the first wrong item of each array and table (`PeerValidator`). With `tables`, the type has tables,
    # and a path does not tell whether it leads through one, or through an object.
    every = error.errors(include_url=False, include_context=False, include_input=False)
    read = [each for each in every if each["type"] != UNREAD][:MOST_PROBLEMS]
    more = len(read) < len(every) or any(_leaves_items(each["loc"], value, tables=tables) for each in read)
    return shortened([problem(each["loc"], each["msg"]) for each in read], "more may follow" if more else "")


def _leaves_items(path: tuple[int | str, ...], value: Any, *, tables: bool) -> bool:
    for position, step in enumerate(path):
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            if step < len(value) - 1:
                return True
            value = value[step]
        elif isinstance(value, dict) and step in value:  # otherwise it names the choice of a union
            if tables and position and step != next(reversed(value)):
                return True
            value = value[step]
        elif isinstance(value, str) and (tables or isinstance(step, int)):  # of a JSON text
            return True
    return False


def shortened(problems: list[tuple[str, str]], left_out: str) -> list[tuple[str, str]]:
    """Append to the last problem what was left out; nothing if that is empty."""
    if left_out:
        where, what = problems[-1]
        problems[-1] = where, f"{what} (and {left_out})"
    return problems


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def describe(error: ValidationError) -> str:
    """Describe what is wrong with each field, without repeating the values."""
    return in_words(problems_of(error))


def in_words(problems: list[tuple[str, str]]) -> str:
    """Return problems as one line of text."""
    return "; ".join(f"{where}: {what}" if where else what for where, what in problems)


# The second reading


DEFAULTS = Limits()

_ABOVE = 3  # the depth of an argument within its message: an object each for that, its parameters and the arguments

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class LenientReading:
    """Reads objects that did not fit in the other way that their schema allows."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        required = frozenset(schema.get("required", ()))
        properties: Mapping[str, Any] = schema.get("properties", {})
        self._optional = frozenset(
            name for name, part in properties.items() if name not in required and not takes(schema, part, "null")
        )
        self._compound = frozenset(
            name
            for name, part in properties.items()
            if (takes(schema, part, "array") or takes(schema, part, "object")) and not takes(schema, part, "string")
        )

    def read(self, raw: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """Return what is meant by arguments that did not fit."""
        return self.without_texts(self.without_nulls(raw), limits)

    def without_nulls(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object without nulls for optional members that take no null; itself if there are none."""
        absent = {name for name in self._optional if name in raw and raw[name] is None}
        return {name: value for name, value in raw.items() if name not in absent} if absent else raw

    def without_texts(self, raw: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """Return an object with the arrays and objects in strings, where no string fits; itself if there are none."""
        read, left = raw, limits.values
        for name in sorted(self._compound & raw.keys()):
            text = raw[name]
            if type(text) is not str or not text.lstrip().startswith(("[", "{")):
                continue
            try:
                read = {**read, name: read_value(text, limits.json_depth - _ABOVE, left)}
            except RequestError:  # it stays a string, which does not fit
                continue
            left = max(0, left - most_values(text.encode(errors="replace")))
        return read


def takes(schema: Mapping[str, Any], part: Any, kind: str, *, above: tuple[str, ...] = ()) -> bool:
    """Return whether values of a JSON type may fit a part of a schema, True in doubt; `above`: references so far."""
    if not isinstance(part, Mapping):
        return part is not False
    types = part.get("type", kind)
    if kind not in ([types] if isinstance(types, str) else types):
        return False
    values = [part["const"]] if "const" in part else part.get("enum")
    if values is not None and not any(_type_of(value) == kind for value in values):
        return False
    reference: Any = part.get("$ref")
    is_new = isinstance(reference, str) and reference not in above
    if is_new and not takes(schema, _at(schema, reference), kind, above=(*above, reference)):
        return False
    for keyword, combine in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if keyword in part and not combine(takes(schema, each, kind, above=above) for each in part[keyword]):
            return False
    return True


def _type_of(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "array"
    return "object" if isinstance(value, Mapping) else _TYPES.get(type(value), "")


def _at(schema: Mapping[str, Any], reference: str) -> Any:
    """Return the target of a reference; True, which takes anything, where it leads out of the schema."""
    found = part_at(schema, unquote(reference[1:])) if reference.startswith("#") else None
    return True if found is None else found


def part_at(schema: Any, pointer: str) -> Any:
    """Return the part of a schema that a JSON pointer leads to; None where there is none."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(step)
        elif isinstance(schema, list | tuple) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            return None
    return schema
