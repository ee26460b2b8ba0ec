"""What types are made of: the parts of an annotation, and pydantic's core schema as a tree with bounded unions."""

import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, isclass
from itertools import product
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from pydantic import BaseModel

from ..errors import SetupError


def resolved(annotation: Any) -> Any:
    """Return what a `type` alias stands for, whether Python's own or of typing_extensions."""
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


MOST_SHAPES = 256  # kept, each with what was compiled from it


class Shape:
    """What something is compiled from, to compare: the very classes of its types; `int | str` is no `str | int`."""

    # It holds the types, or another object could get the identity of one that is gone.

    __slots__ = ("_key", "of", "where")

    def __init__(self, where: str, *of: Any) -> None:
        self.where = where  # what errors name; it is not compared
        self.of = of
        self._key = tuple(map(_identity, of))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _identity(part: Any) -> Hashable:
    if isinstance(part, Parameter):
        return part.name, part.kind, _identity(part.annotation), id(part.default)
    if type(part) in (str, bool, frozenset):
        return cast(Hashable, part)
    args = get_args(part)
    return (id(get_origin(part)), *map(_identity, args)) if args else id(part)


# pydantic's core schema


Node = Mapping[str, Any]  # a part of a core schema that has a `type`: a validator, or a field of one

_NO_NODES = frozenset({"metadata", "serialization", "config", "default", "computed_fields", "function"})
"""Parts of a node that do not validate."""

OBJECTS = frozenset({"model-fields", "typed-dict", "dataclass-args", "named-tuple", "arguments", "arguments-v3"})
"""The type names their keys."""

TABLES = frozenset({"dict", "ordered-dict", "frozendict", "counter"})  # a peer chooses their keys

SETS = frozenset({"set", "frozenset"})

ARRAYS = frozenset({"list", "tuple", "deque", "generator"}) | SETS

COMPOUND = OBJECTS | TABLES | ARRAYS | {"definition-ref"}  # types that may have any number of values within


def parts(node: Node) -> list[Node]:
    """Return the nodes right below one, whatever lists and mappings they are in."""
    found: list[Node] = []
    _add_nodes(found, (value for name, value in node.items() if isinstance(value, _HOLDERS) and name not in _NO_NODES))
    return found


def walk(node: Node) -> list[Node]:
    """Return a node and all below it, each once: references are not followed."""
    found, left = [], [node]
    while left:
        found.append(node := left.pop())
        left += reversed(parts(node))
    return found


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
    """Return a node with each node within it changed, then itself; the same node if nothing has changed."""
    new = {
        name: made
        for name, value in node.items()
        if isinstance(value, _HOLDERS) and name not in _NO_NODES and (made := _rebuilt(value, change)) is not value
    }
    changed = change({**node, **new} if new else node)
    if "ref" in node and "ref" not in changed:  # references lead to what is in its place
        changed = {**changed, "ref": node["ref"]}
    return changed


def listed(node: Node) -> Node:
    """Return a list in place of an `Iterable`, which pydantic reads once, and validates only while it is read."""
    return {**node, "type": "list"} if node["type"] == "generator" else node


def is_compound(node: Node) -> bool:
    """Return whether its values may have any number of values within them."""
    return any(each["type"] in COMPOUND for each in walk(node))


def _is_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)  # a field may have the name `type`


_HOLDERS = (dict, list, tuple)


def _add_nodes(found: list[Node], values: Iterable[Any]) -> None:
    for value in values:
        if _is_node(value):
            found.append(value)
        elif isinstance(value, _HOLDERS):
            _add_nodes(found, value.values() if isinstance(value, dict) else value)


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


# Unions


MOST_TIMES = 16  # as often as the widest union has choices, a value may be validated
DEEPEST = 60  # levels of JSON: as many as arguments may have by default

MOST_PLACES = 5000
"""Places of a type that are looked at. What multiplies at each level does so within a few of them."""

_MOST_NAMED = 5  # choices in an error
_SEVERAL = frozenset({"union", "tagged-union", "lax-or-strict", "chain"})  # nodes that may pass a value on to several
_EACH = object()  # item, or key that is no field's

_JSON_TYPES = (dict, list, str, int, float, bool, type(None))

Looker = tuple[int, bool]
"""The id of a node that looks into a value, and whether the value is within a JSON text, where other rules apply."""

Label = tuple[str, Hashable]
"""Where a part of a value is: an item of an `array`, a key of an `object`, or the content of a `text`."""

Ways = Counter[Looker]  # how often each node looks into one value


def refuse_many_ways(where: str, schema: Node, nodes: Sequence[Node]) -> None:
    """Refuse a type whose values could be validated in very many ways.

    pydantic validates a value against each choice of a union without a tag, and a part of it as often as paths
    through the choices lead there. With `And(items: list[Expr]) | Or(items: list[Expr])`, that is twice as often at
    each level: 400 bytes that nest 22 times take minutes. With `And(all: ...) | Or(any: ...)`, one path leads to each
    part. Chains of unions do the same without recursion. So the paths are counted, from what looks into one value to
    what looks into each part of it. All unions on the way but the widest may multiply them by `MOST_TIMES`.
    """
    if not any(each["type"] in _SEVERAL or "validation_alias" in each for each in nodes):
        return  # one node looks into each value
    if (found := _Paths(schema).find()) is None:
        return
    place, names = found.place, " | ".join(found.names[:_MOST_NAMED])
    if len(found.names) > _MOST_NAMED:
        names += " | ..."
    raise SetupError(
        f"{where}: a client could block the server with {place or 'this type'}. A value there may be each of "
        f"{names or 'several types'}, and so may the values within it, so pydantic tries more ways at each level than "
        'at the one before. Let the value say what it is: give each model a field such as kind: Literal["..."], and '
        f'write Annotated[{names or "A | B"}, Field(discriminator="kind")]; a callable Discriminator does, too. Or '
        "give the fields that nest another name in each model"
    )


class _Place(NamedTuple):
    """A place within values: the models that are tried there, or above; how often each node looks into a value there.

    `widest` is the number of choices of the widest union on the way.
    """

    place: str
    names: list[str]
    ways: Ways
    widest: int


class _Paths:
    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._definitions = definitions_of(schema)
        self._nodes: dict[int, Node] = {}
        self._by_name: set[int] = set()
        self._looking: dict[Looker, Ways] = {}
        self._known_parts: dict[Looker, dict[Label, list[Ways]]] = {}

    def find(self) -> _Place | None:
        ways = self._look(self._schema, text=False)
        level = [_Place("", self._names(ways), ways, self._width(ways))]
        seen = set()
        for _ in range(DEEPEST):
            following = []
            for each in level:
                for below in self._below(each):
                    if self._width(below.ways) > MOST_TIMES * below.widest:
                        return below
                    if (state := (frozenset(below.ways.items()), below.widest)) not in seen:
                        seen.add(state)
                        following.append(below)
            if len(seen) > MOST_PLACES:
                return None
            level = following
        return None

    def _look(self, node: Node, *, text: bool) -> Ways:
        known = self._looking.get((id(node), text))
        if known is None:
            self._looking[id(node), text] = Counter()  # where a reference leads back to itself, nothing more looks
            known = self._looking[id(node), text] = self._find_lookers(node, text=text)
        return known

    def _find_lookers(self, node: Node, *, text: bool) -> Ways:
        kind = node["type"]
        if kind in _KINDS:
            self._nodes[id(node)] = node
            return Counter({(id(node), text): 1})
        if kind == "definition-ref":
            return self._look(self._definitions[node["schema_ref"]], text=text)
        ways: Ways = Counter()
        for each in _tried(node, text=text):
            ways.update(self._look(each, text=text))
        config = node.get("config") or {}
        if config.get("validate_by_name") or config.get("populate_by_name"):
            self._by_name.update(looker for looker, _ in ways)
        return ways

    def _below(self, above: _Place) -> Iterator[_Place]:
        for ways in self._by_tag(above.ways):
            parts = [(self._parts(looker), count) for looker, count in ways.items()]
            for label in dict.fromkeys(label for of_one, _ in parts for label in of_one):
                widest, below = above.widest, Counter[Looker]()
                for of_one, count in parts:
                    for each in of_one.get(label) or of_one.get((label[0], _EACH)) or ():
                        widest = max(widest, self._width(each))
                        for looker, times in each.items():
                            below[looker] += times * count
                if below:
                    yield _Place(_within(above.place, label), self._names(below) or above.names, below, widest)

    def _by_tag(self, ways: Ways) -> Iterator[Ways]:
        """Yield what looks into a value with each tag: one choice of each tagged union."""
        tags: dict[str, set[Any]] = {}
        tagged = {looker: node for looker in ways if (node := self._nodes[looker[0]])["type"] == "tagged-union"}
        if not tagged:
            yield ways
            return
        for node in tagged.values():
            tags.setdefault(repr(node["discriminator"]), set()).update(node["choices"])
        for chosen in product(*tags.values()):
            tag = dict(zip(tags, chosen, strict=True))
            found: Ways = Counter()
            for looker, count in ways.items():
                if looker not in tagged:
                    found[looker] += count
                elif (choice := tagged[looker]["choices"].get(tag[repr(tagged[looker]["discriminator"])])) is not None:
                    for each, times in self._look(choice, text=looker[1]).items():
                        found[each] += times * count
            yield from self._by_tag(found)

    def _parts(self, looker: Looker) -> dict[Label, list[Ways]]:
        known = self._known_parts.get(looker)
        if known is None:
            known = self._known_parts[looker] = {}
            for label, part in _parts_of(self._nodes[looker[0]], by_name=looker[0] in self._by_name):
                known.setdefault(label, []).append(self._look(part, text=looker[1] or label[0] == "text"))
                self._nodes.setdefault(id(part), part)  # so that no other node gets its id
        return known

    def _width(self, ways: Ways) -> int:
        """Return how many nodes at most look into one value: a node for an array does not look into an object."""
        counts: Counter[str] = Counter({"": 1})
        for (node, _), count in ways.items():
            for kind in _KINDS[self._nodes[node]["type"]]:
                counts[kind] += count
        return max(counts.values())

    def _names(self, ways: Ways) -> list[str]:
        names = dict.fromkeys(_name(self._nodes[node]) for node, _ in ways)
        return [name for name in names if name]


_KINDS = {
    **dict.fromkeys(ARRAYS, ("array",)),
    **dict.fromkeys(TABLES | OBJECTS | {"tagged-union"}, ("object",)),
    **dict.fromkeys(("named-tuple", "arguments", "arguments-v3"), ("array", "object")),
    "json": ("text",),
}


def _tried(node: Node, *, text: bool) -> Iterator[Node]:
    """Yield the nodes to which a node passes its value on, without a look into it."""
    kind = node["type"]
    if kind == "union":
        yield from (each[0] if isinstance(each, tuple) else each for each in node["choices"])
    elif kind == "lax-or-strict":  # within a union, both
        yield from (node["lax_schema"], node["strict_schema"])
    elif kind == "json-or-python":
        yield node["json_schema" if text else "python_schema"]
    elif kind == "chain":
        for step in node["steps"]:
            yield step
            while step["type"] == "json-or-python":
                step = next(_tried(step, text=text))
            if step["type"] == "is-instance" and not _may_be_json(step["cls"]):
                return  # no value gets further
    elif (inner := node.get("schema", node.get("arguments_schema"))) is not None:
        yield inner


def _may_be_json(cls: Any) -> bool:
    try:
        return any(issubclass(each, cls) for each in _JSON_TYPES)
    except TypeError:
        return True


def _parts_of(node: Node, *, by_name: bool) -> Iterator[tuple[Label, Node]]:
    kind = node["type"]
    if kind == "json":
        if (content := node.get("schema")) is not None:
            yield ("text", None), content
    elif kind == "tuple":
        for position, item in enumerate(node["items_schema"]):
            yield ("array", _EACH if position == node.get("variadic_item_index") else position), item
    elif kind in ARRAYS:
        if (items := node.get("items_schema")) is not None:
            yield ("array", _EACH), items
    elif kind in TABLES:
        if (values := node.get("values_schema")) is not None:
            yield ("object", _EACH), values
    else:
        yield from _fields_of(node, by_name=by_name)


def _fields_of(node: Node, *, by_name: bool) -> Iterator[tuple[Label, Node]]:
    fields = node.get("fields", node.get("arguments_schema", ()))
    named = fields.items() if isinstance(fields, dict) else [(each["name"], each) for each in fields]
    for position, (name, field) in enumerate(named):
        paths = _paths_of(field.get("validation_alias", field.get("alias")))
        if (not paths or by_name) and [name] not in paths:
            paths = [*paths, [name]]
        for path in paths:
            part = field["schema"]
            for step in reversed(path[1:]):
                part = _holding(step, part)
            yield ("object", path[0]), part
        if "array" in _KINDS[node["type"]]:
            yield ("array", position), field["schema"]
    if (others := node.get("extras_schema")) is not None:
        yield ("object", _EACH), others


def _paths_of(alias: Any) -> list[list[str | int]]:
    if alias is None:
        return []
    if isinstance(alias, str):
        return [[alias]]
    return alias if alias and isinstance(alias[0], list) else [alias]


def _holding(step: str | int, part: Node) -> Node:
    if isinstance(step, int):
        return {"type": "list", "items_schema": part}
    return {"type": "typed-dict", "fields": {step: {"type": "typed-dict-field", "schema": part}}}


def _name(node: Node) -> str:
    name = node.get("model_name") or node.get("dataclass_name") or node.get("cls_name")
    return str(name or getattr(node.get("cls"), "__name__", ""))


def _within(place: str, label: Label) -> str:
    kind, at = label
    if kind == "text":
        return place
    step = "[]" if kind == "array" else f".{'*' if at is _EACH else at}"
    return (place + step).removeprefix(".") if len(place) < _LONGEST_PLACE else f"{place.removesuffix('…')}…"


_LONGEST_PLACE = 40  # characters
