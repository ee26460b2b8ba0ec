"""The application that registered a handler, wherever the handler is served."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .hooks import CallHook


class Home:
    """What the handlers of one application share. Two are equal if they are the same.

    Args:
        name: the application's.
        lifespan: the function that was given as `lifespan=`; None for none.
    """

    __slots__ = ("around", "lifespan", "name", "on_error", "overrides")

    def __init__(self, name: str, lifespan: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.lifespan = lifespan
        self.around: list[CallHook] = []
        """What runs around its calls, the outermost first."""
        self.on_error: list[CallHook] = []
        """The functions that receive its failures."""
        self.overrides: dict[Any, Callable[..., Any]] = {}
        """What takes the place of a dependency, by the identity of its function."""

    @property
    def has_hooks(self) -> bool:
        """Whether anything runs around its calls, or receives its failures."""
        return bool(self.around or self.on_error)


class Way(Protocol):
    """How URIs change on the way into an application that includes another."""

    def uri(self, uri: str) -> str:
        """Return a URI of the included application as clients have it."""
        ...

    def link(self, uri: str) -> str:
        """Return the same where the included application serves it, and the URI as it is where it does not."""
        ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients find the resources of a part: of an application that others include, or of an object.

    Args:
        ways: into what includes it, the nearest first.
    """

    ways: tuple[Way, ...] = ()

    def through(self, way: Way) -> "Addresses":
        """Return the same, through one inclusion more."""
        return Addresses((*self.ways, way))

    def uri(self, uri: str) -> str:
        """Return a URI of the part as clients have it."""
        for way in self.ways:
            uri = way.uri(uri)
        return uri

    def _link(self, uri: Any) -> Any:
        if isinstance(uri, str):
            for way in self.ways:
                uri = way.link(uri)
        return uri

    def block(self, block: Any) -> Any:
        """Return a block of content, with its link to a resource of the part as clients have it."""
        if not isinstance(block, Mapping) or not self.ways:
            return block
        match block.get("type"):
            case "resource_link":
                return self._linked(block)
            case "resource":
                return {**block, "resource": self._linked(block.get("resource"))}
            case _:
                return block

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a result, with links to resources of the part as clients have them."""
        body = self.entry(body)
        if isinstance(content := body.get("content"), list):
            body["content"] = [self.block(each) for each in content]
        if isinstance(contents := body.get("contents"), list):
            body["contents"] = [self._linked(each) for each in contents]
        if isinstance(messages := body.get("messages"), list):
            body["messages"] = [{**each, "content": self.block(each.get("content"))} for each in messages]
        return body

    def entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of a list, or a body, with the page of its `_meta` as clients have it (MCP Apps)."""
        meta = entry.get("_meta")
        page = meta.get("ui") if isinstance(meta, Mapping) else None
        if not isinstance(page, Mapping) or "resourceUri" not in page:
            return dict(entry)
        page = {**page, "resourceUri": self._link(page["resourceUri"])}
        return {**entry, "_meta": {**entry["_meta"], "ui": page}}

    def _linked(self, block: Any) -> Any:
        return {**block, "uri": self._link(block["uri"])} if isinstance(block, Mapping) and "uri" in block else block


OWN = Addresses()
"""Those of an application that serves its resources itself."""


def identity(function: Callable[..., Any]) -> Any:
    """Return what tells a function from others, also where it has no hash."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function
