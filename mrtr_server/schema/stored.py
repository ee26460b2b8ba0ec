"""Values that are stored and read again as their declared type: results of steps, handlers' state, reports of pages."""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaSerializer, from_json, to_json

from ..errors import SetupError
from ..logs import logger
from ..well_formed import well_formed
from .exact import Classes, are_alike, classes_in, decode, encode, encode_beside, hides, with_derived
from .generator import reason_of
from .peer_validator import compiled, without_floods
from .type_parts import Node, definitions_of, listed, rebuilt, refuse_many_ways, walk

_NAMES, _ALIASES, _VALIDATED, _AS_IT_WAS, _LOOSE = "names", "aliases", "validated", "as it was", "loose"
"""How a value may be written, in the order of trials: by its type's own JSON, under names or aliases of fields; by
its parts, which are validated again or put together as they were; by the JSON of what is not quite of the type."""

_UNREADABLE = [{"mrtr_server": "a newer release recorded this"}]
"""Stands for a value without JSON of its type. Few types take it, so an earlier release ends the flow there."""

_NO_TYPE = (PydanticUserError, SchemaError, NameError)


def _unknown(error: Exception) -> SetupError:
    return SetupError(reason_of(error).partition("; ")[0])


class Written(NamedTuple):
    """A value as stored: the JSON of its type, and `exact`, its parts where JSON does not hold all of them."""

    # Earlier releases read the JSON alone.

    json: Any
    exact: Any = None


class Stored:
    """Values of a declared type, on their way to where they are stored and back; of `Any`, plain JSON.

    Raises `SetupError` where no value could be read back, or a small one could take very long to load, because of
    unions. For a type with classes that are not there yet, its methods raise it.
    """

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except _NO_TYPE as error:
            raise _unknown(error) from None
        if self._adapter.pydantic_complete:
            self.compile()

    def compile(self) -> None:
        """Compile how its values are read, once. Raises `SetupError` as the class does."""
        self._type  # noqa: B018

    @cached_property
    def _type(self) -> "_Type":
        try:
            return _Type(self._annotation, self._adapter)
        except _NO_TYPE as error:
            raise _unknown(error) from None

    def keep(self, value: Any, what: str) -> tuple[Written, Any]:
        """Return a value as it is stored, and as it comes back. A loss is logged once; `what` names the value there."""
        if self._type.is_none:  # whatever the function returns, nobody is to use it
            written, back, is_same = Written(None), None, value is None
        else:
            written, back, is_same = self._keep(list(value) if self._is_read_once(value) else value)
        if not is_same:
            _note_change(what, type(value).__qualname__, str(self._annotation))
        elif self._annotation is Any and written.exact is None and hides(value):
            _note_loss(what, type(value).__qualname__)
        return written, back

    def _is_read_once(self, value: Any) -> bool:
        """Return whether only reading makes a list of the value: an iterator, or what is declared as an `Iterable`."""
        is_any = self._type.is_iterable and isinstance(value, Collection) and not isinstance(value, str | list)
        return is_any or isinstance(value, Iterator)

    def _keep(self, value: Any) -> tuple[Written, Any, bool]:
        kept: tuple[Written, Any, bool] | None = None
        failure: Exception | None = None
        parts = _Parts(value, self._type)
        base: Any = _UNREADABLE
        for form in (_NAMES, _ALIASES, _VALIDATED, _AS_IT_WAS, _LOOSE):
            try:
                if form == _AS_IT_WAS:  # for what is of the type, since nothing checks that where it is read
                    self._type.to_python(value, warnings="error")
                if form in (_VALIDATED, _AS_IT_WAS):
                    written = Written(well_formed(base), [form, parts.tree()])
                else:
                    written = Written(self._dump(value, form))
                if base is _UNREADABLE:
                    base = written.json
                back = self.load(*from_json(to_json(written)))  # as whoever reads it will
            except Exception as error:
                failure = failure or error
                continue
            if self._annotation is Any:  # what declares nothing is plain JSON
                return written, back, True
            # Equality is found sooner.
            is_same = form != _LOOSE and (self._type.is_equal(value, back) or parts.are_in(back))
            if is_same and (form != _AS_IT_WAS or are_alike(value, back)):
                return written, back, True
            if kept is None and form != _AS_IT_WAS:
                kept, base = (written, back, False), written.json
        if kept is None:
            assert failure is not None  # noqa: S101  or one form would have been kept
            raise failure
        return kept

    def _dump(self, value: Any, form: str) -> Any:
        warnings: Literal["error", "none"] = "none" if form == _LOOSE else "error"
        by_alias = True if form == _ALIASES else None
        return self._type.to_python(value, mode="json", warnings=warnings, round_trip=True, by_alias=by_alias)

    def load(self, json: Any, exact: Any = None) -> Any:
        """Return a stored value as its type. Raises `ValidationError`, or whatever the type's own code raises."""
        # The value shares nothing with what is stored, so a handler can change it.
        validator = self._type.validator
        if exact is None:
            try:
                return validator.validate_python(deepcopy(json))
            except ValidationError as misfit:
                try:  # a strict type takes dates, enums and the like as text from JSON alone
                    return validator.validate_json(to_json(json))
                except ValidationError:
                    raise misfit from None
        form, tree = exact
        value = decode(tree, with_derived(self._type.declared), validates=form == _VALIDATED)
        if form == _AS_IT_WAS:
            return value
        return validator.validate_python(value, strict=False, by_alias=True, by_name=True)


class _Type:
    def __init__(self, annotation: Any, adapter: TypeAdapter[Any]) -> None:
        schema: Node = adapter.core_schema
        if what := _never_stored(schema, definitions_of(schema)):
            raise SetupError(f"JSON has no form of {what}")
        refuse_many_ways(repr(annotation), schema, walk(schema))
        bounded = without_floods(schema)
        self.validator = adapter.validator if bounded is schema else compiled(bounded)
        lists = rebuilt(schema, listed)
        serializer = adapter.serializer if lists is schema else SchemaSerializer(cast(Any, lists), _use_prebuilt=False)
        self.to_python = serializer.to_python
        self.is_none, self.is_iterable = schema["type"] == "none", schema["type"] == "generator"
        self.declared = tuple(classes_in(schema))
        self.is_open = any(map(_leaves_open, walk(schema)))
        """Parts are left open, with `Any` or more fields; they come back as plain JSON."""
        self.has_own_equality = not all(map(_compares_all, self.declared))
        """One of its classes may find two values equal that are not made of the same."""
        self.has_unions = any(each["type"] == "union" for each in walk(schema))
        """Values of different classes may be equal: a text and an enum, or two numbers."""

    def is_equal(self, value: Any, back: Any) -> bool:
        """Check whether a value equals the one that has come back, where equal values of its type are the same."""
        is_equal = not self.has_own_equality and _are_equal(value, back)
        return is_equal and (not self.has_unions or are_alike(value, back))


class _Parts:
    def __init__(self, value: Any, type: _Type) -> None:
        self._value = value
        self._type = type
        self._tree: Any = None

    @cached_property
    def _classes(self) -> Classes:
        return with_derived(self._type.declared)

    def tree(self) -> Any:
        if self._tree is None:
            self._tree = encode(self._value, self._classes)
        return self._tree

    def are_in(self, back: Any) -> bool:
        try:
            if self._type.is_open:
                self._tree = encode_beside(self._value, back, self._classes)
            mine, its = self.tree(), encode(back, self._classes)
        except Exception:  # a part that only the type's own code knows
            return _are_equal(self._value, back) and are_alike(self._value, back)
        return bool(mine == its)


def _compares_all(cls: Any) -> bool:
    """Return whether objects of a class are equal only if all their parts are."""
    if is_dataclass(cls):
        return False  # a field may be left out
    return cls.__eq__ is BaseModel.__eq__ if issubclass(cls, BaseModel) else issubclass(cls, Enum)


def _are_equal(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:
        return False


def stored_as(annotation: Any) -> Stored:
    """Return how values of a type are stored, compiled once. Raises `SetupError` as `Stored` does."""
    try:
        hash(annotation)
    except TypeError:  # of `Annotated[int, {...}]`
        return Stored(annotation)
    return _stored_once(annotation)


_stored_once = lru_cache(maxsize=256)(Stored)


@lru_cache(maxsize=1024)
def _note_change(what: str, kind: str, annotation: str) -> None:
    logger.warning(
        "%s, a %s, does not come back from its record as it was. In this round and in all later ones, the handler gets "
        "what is read back as the declared type, %s. Declare a type that holds all of it, or return less",
        what,
        kind,
        annotation,
    )


@lru_cache(maxsize=1024)
def _note_loss(what: str, kind: str) -> None:
    logger.warning(
        "%s, a %s, comes back as plain JSON, which does not hold all of it, since its function declares no type. "
        "Annotate it: -> %s",
        what,
        kind,
        kind,
    )


# What pydantic's core schemas say of a type.


_ITEMS = {"list": "items_schema", "set": "items_schema", "frozenset": "items_schema", "dict": "values_schema"}
"""Where collections have the type of their items. Items without one are left open."""


def _leaves_open(node: Node) -> bool:
    kind = node["type"]
    if kind == "any" or (kind in _ITEMS and _ITEMS[kind] not in node):
        return True
    return "allow" in (node.get("extra_behavior"), (node.get("config") or {}).get("extra_fields_behavior"))


_WITHOUT_JSON = {"callable": "functions", "is-subclass": "classes"}
"""Types that nothing can be read back as, by pydantic's names."""


def _never_stored(schema: Any, known: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> str:
    """Return what no value of a type can do without, and can't be stored; empty for nothing."""
    match schema.get("type"):
        case "is-instance":
            return f"a {schema.get('cls_repr') or schema['cls'].__qualname__}"
        case "callable" | "is-subclass" as kind:
            return _WITHOUT_JSON[kind]
        case "definitions":
            needed = [schema["schema"]]
        case "definition-ref":
            name = schema["schema_ref"]
            needed = [] if name in seen or name not in known else [known[name]]
            seen |= {name}
        case "union" | "tagged-union":
            choices = schema["choices"]
            each = choices.values() if isinstance(choices, Mapping) else choices
            found = [_never_stored(choice[0] if isinstance(choice, tuple) else choice, known, seen) for choice in each]
            return found[0] if found and all(found) else ""
        case "json-or-python":
            found = [_never_stored(schema[f"{mode}_schema"], known, seen) for mode in ("json", "python")]
            return found[0] if all(found) else ""
        case "model-fields" | "typed-dict" | "dataclass-args":
            fields = schema["fields"].values() if isinstance(schema["fields"], Mapping) else schema["fields"]
            needed = [field["schema"] for field in fields if field.get("required", True) and field.get("init", True)]
        case "tuple":
            needed = schema["items_schema"]
        case "model" | "dataclass" | "function-after" | "list" | "set" | "frozenset" | "dict" | "lax-or-strict":
            inner = ("schema", "items_schema", "keys_schema", "values_schema", "lax_schema")
            needed = [schema[part] for part in inner if part in schema]
        case _:  # what may be None, has a default, or is made by a function of the author's
            needed = []
    return next(filter(None, (_never_stored(each, known, seen) for each in needed)), "")
