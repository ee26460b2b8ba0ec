"""What types are made of: the parts of an annotation, and pydantic's core schema as a tree."""

import types
from collections.abc import Callable, Iterator, Mapping
from inspect import isclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def resolved(annotation: Any) -> Any:
    """Return what a `type` alias stands for, whether the alias is Python's own or of typing_extensions."""
    while hasattr(annotation, "__value__"):
        annotation = annotation.__value__
    return annotation


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def metadata_within(annotation: Any, seen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield what `Annotated` adds anywhere in an annotation: in the items of a list, in the fields of a model."""
    if any(annotation is each for each in seen):  # it refers to itself
        return
    seen = (*seen, annotation)
    annotation = resolved(annotation)
    metadata = getattr(annotation, "__metadata__", ())
    yield from metadata
    for each in get_args(annotation):
        if not any(each is mark for mark in metadata):
            yield from metadata_within(each, seen)
    if isclass(annotation) and issubclass(annotation, BaseModel):
        for model_field in annotation.model_fields.values():
            yield from model_field.metadata
            yield from metadata_within(model_field.annotation, (*seen, annotation))


# pydantic's core schema


Node = Mapping[str, Any]
"""A part of a core schema that has a `type`: a validator, or a field of one."""

_NO_NODES = frozenset({"metadata", "serialization", "config", "default", "computed_fields", "function"})
"""What a node has under these names does not validate."""

OBJECTS = frozenset({"model-fields", "typed-dict", "dataclass-args", "named-tuple", "arguments", "arguments-v3"})
"""Objects whose keys the type names."""

TABLES = frozenset({"dict", "ordered-dict", "frozendict", "counter"})
"""Objects whose keys a peer chooses."""

SETS = frozenset({"set", "frozenset"})

ARRAYS = frozenset({"list", "tuple", "deque", "generator"}) | SETS

COMPOUND = OBJECTS | TABLES | ARRAYS | {"definition-ref"}
"""What may have any number of values within it."""


def parts(node: Node) -> Iterator[Node]:
    """Yield the nodes right below one, whatever lists and mappings they are in."""
    for name, value in node.items():
        if name not in _NO_NODES:
            yield from _nodes_in(value)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it. References are not followed, so each comes once."""
    yield node
    for part in parts(node):
        yield from walk(part)


def definitions_of(node: Node) -> dict[str, Node]:
    """Return the nodes that references lead to, by their names."""
    return {each["ref"]: each for each in walk(node) if "ref" in each}


def pydantics_function(node: Node) -> Any:
    """Return the function of pydantic's own that a node calls, as for a `Sequence`; None if it calls none."""
    function = (node.get("function") or {}).get("function")
    return function if str(getattr(function, "__module__", "")).startswith("pydantic.") else None


def calling(function: Callable[..., Any], when: Literal["before", "after", "wrap"], node: Node) -> Node:
    """Return a node that calls a function before or after another one validates, or with that as its handler."""
    return {"type": f"function-{when}", "function": {"type": "no-info", "function": function}, "schema": node}


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a node with each node within it changed, and then itself; the same node if nothing has changed."""
    new = {name: value if name in _NO_NODES else _rebuilt(value, change) for name, value in node.items()}
    kept = node if all(value is node[name] for name, value in new.items()) else new
    changed = change(kept)
    if "ref" in kept and "ref" not in changed:  # references lead to what is in its place
        changed = {**changed, "ref": kept["ref"]}
    return changed


def listed(node: Node) -> Node:
    """Return a list in place of an `Iterable`, which pydantic reads once, and validates only while it is read."""
    return {**node, "type": "list"} if node["type"] == "generator" else node


def is_compound(node: Node) -> bool:
    """Return whether values of it may have any number of values within them."""
    return any(each["type"] in COMPOUND for each in walk(node))


def _is_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)  # a field may have the name `type`


def _nodes_in(value: Any) -> Iterator[Node]:
    if _is_node(value):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _nodes_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes_in(each)


def _rebuilt(value: Any, change: Callable[[Node], Node]) -> Any:
    new: Any
    if _is_node(value):
        return rebuilt(value, change)
    if isinstance(value, dict):
        new = {name: _rebuilt(each, change) for name, each in value.items()}
        return value if all(each is value[name] for name, each in new.items()) else new
    if type(value) in (list, tuple):
        new = type(value)(_rebuilt(each, change) for each in value)
        return value if all(each is old for each, old in zip(new, value, strict=True)) else new
    return value
