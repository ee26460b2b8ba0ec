"""What models and clients write in another form than the schema has it: JSON in a string, and null for what is absent.

It is looked at only once arguments did not fit, and only where their schema leaves no other meaning. What a flow is
bound to stays what was sent.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from ..limits import Limits
from ..protocol.json_size import most_values, read_value

DEFAULTS = Limits()

_ABOVE = 3
"""How deep an argument is within its message: an object each for that, its parameters and the arguments."""

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class LenientReading:
    """Reads objects that did not fit in the other way that their schema allows.

    Args:
        schema: of the object.
    """

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
        """Return what is meant by arguments that did not fit; see the other methods."""
        return self.without_texts(self.without_nulls(raw), limits)

    def without_nulls(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object without the nulls of what may be left out, and takes no null; itself if there are none."""
        absent = {name for name in self._optional if name in raw and raw[name] is None}
        return {name: value for name, value in raw.items() if name not in absent} if absent else raw

    def without_texts(self, raw: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """Return an object with the array or object that a string holds where it takes no string.

        Args:
            raw: the object.
            limits: those of a request, which count for such strings, too.

        Returns:
            The object itself if it has no such string.
        """
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
    """Return whether values of a JSON type may fit a part of a schema.

    Args:
        schema: all of it, for what the part refers to.
        part: the part.
        kind: the JSON type.
        above: the references that have led here.

    Returns:
        True also where it can't be told.
    """
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
    """Return what a reference within a schema leads to; True, which takes anything, where it leads elsewhere."""
    found: Any = schema
    if not reference.startswith("#"):
        return True
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            return True
        found = found[step]
    return found
