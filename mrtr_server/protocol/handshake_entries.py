"""What lists and results show, in the shape of each version of the handshake era."""

from collections.abc import Callable
from typing import Any

from .handshake_versions import HandshakeVersion
from .messages import JSON, TaskSupport

_ABOVE = ("$schema", "$defs", "definitions")
"""What stands at the top of a schema."""

_OF_NEWEST = frozenset({"icons"})
_OF_STRUCTURES = frozenset({"title", "outputSchema", "_meta"})

_LISTS = ("tools", "prompts", "resources", "resourceTemplates")


class EntryWriter:
    """Writes the entries of lists for one version. What it has written of an entry it keeps.

    Args:
        version: the version.
        task_support: returns whether a tool's calls become tasks.
    """

    def __init__(self, version: HandshakeVersion, task_support: Callable[[str], TaskSupport]) -> None:
        self._version = version
        self._task_support = task_support
        self._dropped = _unknown(version)
        # By identity, with the entry itself, so that no other entry can have it.
        self._written: dict[int, tuple[JSON, JSON]] = {}

    def write(self, body: JSON) -> JSON:
        """Return the body of a result; one that is a list has each entry in the shape of the version."""
        for listing in _LISTS:
            if listing in body:
                return {**body, listing: [self._entry(listing, entry) for entry in body[listing]]}
        if "contents" in body and not self._version.structures:
            return {**body, "contents": [_without(each, self._dropped) for each in body["contents"]]}
        return body

    @staticmethod
    def wraps(schema: JSON | None) -> bool:
        """Return whether results of a schema are wrapped, since they need not be objects."""
        return schema is not None and schema.get("type") != "object"

    def _entry(self, listing: str, entry: JSON) -> JSON:
        known = self._written.get(id(entry))
        if known is None:
            known = self._written[id(entry)] = (entry, self._shaped(listing, entry))
        return known[1]

    def _shaped(self, listing: str, entry: JSON) -> JSON:
        shaped = _without(entry, self._dropped)
        if listing != "tools":
            if "arguments" in shaped:
                shaped["arguments"] = [_without(each, self._dropped) for each in shaped["arguments"]]
            return shaped if self._version.structures else _undated(shaped)
        if not self._version.annotates:
            shaped.pop("annotations", None)
        shaped["inputSchema"] = _of_objects(shaped["inputSchema"])
        if "outputSchema" in shaped:
            schema = shaped["outputSchema"]
            shaped["outputSchema"] = _of_objects(_wrapped(schema) if self.wraps(schema) else schema)
        if self._version.tasks:
            shaped["execution"] = {"taskSupport": self._task_support(shaped["name"])}
        return shaped


def content_of(version: HandshakeVersion, content: Any) -> Any:
    """Return a content block in the shape of a version; what it does not know becomes what it does."""
    if version.enriches or not isinstance(content, dict):
        return content
    shaped = _without(content, _unknown(version))
    if version.structures:
        return shaped
    shaped = _undated(shaped)
    hints = {"annotations": shaped["annotations"]} if "annotations" in shaped else {}
    match shaped.get("type"):
        case "resource_link":
            text = f"{content.get('title') or content.get('name')}: {content.get('uri')}"
            return {"type": "text", "text": text, **hints}
        case "audio" if not version.annotates:
            found = {"uri": "urn:mcp:audio", "mimeType": content.get("mimeType"), "blob": content.get("data")}
            return {"type": "resource", "resource": found, **hints}
        case "resource" if isinstance(held := shaped.get("resource"), dict):
            return {**shaped, "resource": _without(held, _unknown(version))}
    return shaped


def _unknown(version: HandshakeVersion) -> frozenset[str]:
    """Return the fields that a version does not have, in whatever may have them in a later one."""
    if version.enriches:
        return frozenset()
    return _OF_NEWEST if version.structures else _OF_NEWEST | _OF_STRUCTURES


def _without(given: JSON, names: frozenset[str]) -> JSON:
    return {name: value for name, value in given.items() if name not in names}


def _undated(given: JSON) -> JSON:
    """Return an entry or a content block whose hints do not say when it was changed."""
    if not isinstance(hints := given.get("annotations"), dict) or "lastModified" not in hints:
        return given
    return {**given, "annotations": _without(hints, frozenset({"lastModified"}))}


def _wrapped(schema: JSON) -> JSON:
    """Return the schema of an object whose `result` is of a schema, with the definitions where they are looked up."""
    inner = {name: value for name, value in schema.items() if name not in _ABOVE}
    above = {name: value for name, value in schema.items() if name in _ABOVE}
    return {**above, "type": "object", "properties": {"result": inner}, "required": ["result"]}


def _of_objects(schema: JSON) -> JSON:
    """Return a schema whose properties are all objects, as these versions have it: `true` is one without a rule."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not any(isinstance(each, bool) for each in properties.values()):
        return schema
    return {**schema, "properties": {name: _as_object(each) for name, each in properties.items()}}


def _as_object(schema: Any) -> Any:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema
