"""The JSON Schemas of types, as clients can read them: in place of most references stands what they lead to."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from pydantic import PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticOmit, PydanticSerializationError, SchemaError, from_json, to_json

JSONSchema = dict[str, Any]

NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticUserError, SchemaError)
"""What pydantic raises for a type that has no JSON Schema."""

MOST_TIMES = 4  # how large a schema may become, against its size with all references

LARGEST = 64 * 1024  # how large a schema may become, in bytes of JSON

_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
"""Keywords whose value has a schema under each name."""

_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})

_SINGLE = frozenset(
    {"items", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"contentSchema", "not", "if", "then", "else"}
)

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that restrict no value. Beside a reference, they take the place of the target's own."""

_PREFIX = "#/$defs/"


class TitleFreeSchema(GenerateJsonSchema):
    """JSON Schema 2020-12 without the titles that pydantic derives from names; the author's own titles stay."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as pydantic declares it
    _cls: Any = None

    def build_schema_type_to_method(self) -> Any:
        """Return the methods by what they describe; which these are is found once."""
        cls: Any = type(self)
        return {kind: getattr(self, name) for kind, name in _methods_of(cls).items()}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return that a field needs no title; the author's own title is still kept."""
        return False

    def model_schema(self, schema: Any) -> JSONSchema:
        """Describe a model."""
        with self._describing(schema["cls"]):
            return _untitled(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JSONSchema:
        """Describe a dataclass."""
        with self._describing(schema["cls"]):
            return _untitled(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> JSONSchema:
        """Describe a TypedDict."""
        return _untitled(super().typed_dict_schema(schema), schema.get("cls"))

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> JSONSchema:
        """Describe a type. The titles of enums are removed last, since pydantic adds them last."""
        made = super().generate(schema, mode)
        for name, described in [(getattr(schema.get("cls"), "__name__", ""), made), *made.get("$defs", {}).items()]:
            if "enum" in described and described.get("title") == name:
                del described["title"]
        return made

    @contextmanager
    def _describing(self, cls: Any) -> Iterator[None]:
        outer, self._cls = self._cls, cls
        try:
            yield
        finally:
            self._cls = outer

    def _get_alias_name(self, field: Any, name: str) -> str:
        if self.mode == "serialization" and has_names(self._cls):
            return name
        return super()._get_alias_name(field, name)

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON; a default that is not JSON is not shown."""
        try:
            return from_json(to_json(dft), allow_inf_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from None


@lru_cache
def _methods_of(cls: Any) -> dict[Any, str]:
    found = GenerateJsonSchema.build_schema_type_to_method(object.__new__(cls))
    return {kind: method.__name__ for kind, method in found.items()}


class _ResultSchema(TitleFreeSchema):
    """What pydantic's serializer is sure to write: a client checks results, and one that does not fit fails."""

    # pydantic describes how results are validated, and writes some of them otherwise.

    def datetime_schema(self, schema: Any) -> JSONSchema:
        """Describe a datetime: the format asks for a zone."""
        return _with_zone(super().datetime_schema(schema), schema)

    def time_schema(self, schema: Any) -> JSONSchema:
        """Describe a time: the format asks for a zone."""
        return _with_zone(super().time_schema(schema), schema)

    def union_schema(self, schema: Any) -> JSONSchema:
        """Describe a union, with what clients shall not choose (`SkipJsonSchema`): it is written all the same."""
        choices: list[JSONSchema] = []
        for choice in schema["choices"]:
            try:
                choices.append(self._choice(choice[0] if isinstance(choice, tuple) else choice))
            except PydanticInvalidForJsonSchema:
                return {}
            except PydanticOmit:  # what is missing is not written
                continue
        return choices[0] if len(choices) == 1 else self.get_union_of_schemas(choices)

    def _choice(self, choice: Any) -> JSONSchema:
        try:
            return self.generate_inner(choice)
        except PydanticOmit:
            return self.generate_inner({name: value for name, value in choice.items() if name != "metadata"})

    def ser_schema(self, schema: Any) -> JSONSchema | None:
        """Describe what a serializer writes: anything, if that is a function of the author's without an annotation."""
        if schema["type"] in ("function-plain", "function-wrap") and schema.get("return_schema") is None:
            module = getattr(schema["function"], "__module__", None) or ""
            if module.partition(".")[0] != "pydantic":
                return {}
        return super().ser_schema(schema)

    def generate(self, schema: Any, mode: JsonSchemaMode = "serialization") -> JSONSchema:
        """Describe the results of a type."""
        made: JSONSchema = _kept_promises(super().generate(schema, mode))
        return made


def arguments_schema(adapter: TypeAdapter[Any]) -> JSONSchema:
    """Return the schema of what a type takes."""
    return _in_place(adapter.json_schema(schema_generator=TitleFreeSchema))


def results_schema(adapter: TypeAdapter[Any]) -> JSONSchema:
    """Return the schema of what is written of a type."""
    return _in_place(adapter.json_schema(schema_generator=_ResultSchema, mode="serialization"))


def reason_of(error: Exception) -> str:
    """Return what pydantic says is wrong with a type, without what it says could be done about it."""
    return str(error).partition("\n")[0].partition(". ")[0]


def has_names(cls: Any) -> bool:
    """Return whether a model, or a dataclass of pydantic's, is written by the names of its fields."""
    return by_alias_of(cls) is False


def by_alias_of(cls: Any) -> Any:
    """Return what a class says by `serialize_by_alias`; None if it says nothing."""
    return _config_of(cls).get("serialize_by_alias")


def _config_of(cls: Any) -> Any:
    return getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}


def _untitled(described: JSONSchema, cls: Any) -> JSONSchema:
    if described.get("title") == getattr(cls, "__name__", None) and "title" not in _config_of(cls):
        described.pop("title", None)
    return described


def _with_zone(described: JSONSchema, schema: Any) -> JSONSchema:
    if schema.get("tz_constraint") != "aware":
        described.pop("format", None)
    return described


_UNSURE_FORMATS = frozenset({"duration", "email", "idn-email", "ipv6", "regex", "uri"})
"""Durations may be negative or have fractions, addresses any letters, IPv6 a zone, URIs `|`, patterns be Python's."""


def _kept_promises(schema: Any) -> Any:
    """Return the schema of a result without what the result need not fit."""
    # Some clients can't compile Python's patterns, and then can't call the tool. What stands for bytes or a secret has
    # another length, two secrets are equal, and JavaScript's 0.3 is no multiple of 0.1. What is serialized as any may
    # have more properties than its type.
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in _changed(schema, _kept_promises).items() if name not in _NO_PROMISES}
    if (keys := kept.pop("patternProperties", None)) is not None and "additionalProperties" not in kept:
        kept["additionalProperties"] = next(iter(keys.values())) if len(keys) == 1 else True
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    form = kept.get("format")
    if form in _UNSURE_FORMATS:
        del kept["format"]
    if form in ("binary", "base64", "base64url", "password"):
        kept = {name: value for name, value in kept.items() if name not in ("minLength", "maxLength")}
    if isinstance(kept.get("multipleOf"), float):
        del kept["multipleOf"]
    return kept


_NO_PROMISES = frozenset({"pattern", "uniqueItems"})


def _in_place(schema: JSONSchema) -> JSONSchema:
    """Return a schema with targets in place of references, unless one refers to itself or is too large."""
    # Some clients drop `$defs`, or what stands beside a `$ref`; a model then does not see what it may choose from.
    definitions = schema.get("$defs")
    return _References(schema, definitions).written() if definitions else schema


class _References:
    def __init__(self, schema: JSONSchema, definitions: dict[str, JSONSchema]) -> None:
        self._definitions = definitions
        self._whole_size = _size(schema)
        root = {name: value for name, value in schema.items() if name != "$defs"}
        # A client sees at the top that it is an object, even one that refers to itself.
        seen: set[str] = set()
        while (name := self._name(root)) is not None and name not in seen:
            seen.add(name)
            root = _together(definitions[name], root)
        self._root = root
        self._uses = {name: self._names_in(each) for name, each in definitions.items()}
        self._sizes = {name: _size(each) for name, each in definitions.items()}
        self._kept = {name for name in definitions if name in self._reached(self._uses[name])}  # stay references

    def written(self) -> JSONSchema:
        uses = sum((self._names_in(self._root), *self._uses.values()), Counter[str]())
        while self._is_too_large() and (left := [name for name in self._definitions if name not in self._kept]):
            sizes: dict[str, int] = {}
            self._kept.add(max(left, key=lambda name: (uses[name] - 1) * self._placed_size(name, sizes)))
        root = self._placed(self._root)
        needed = self._reached(self._names_in(self._root)) & self._kept
        definitions = {name: self._placed(each) for name, each in self._definitions.items() if name in needed}
        return {"$defs": definitions, **root} if definitions else root

    def _is_too_large(self) -> bool:
        sizes: dict[str, int] = {}
        root, uses = _size(self._root), self._names_in(self._root)
        placed = sum(times * self._placed_size(name, sizes) for name, times in uses.items() if name not in self._kept)
        kept = sum(self._placed_size(name, sizes) for name in self._kept)
        return root + placed + kept >= min(MOST_TIMES * self._whole_size, LARGEST)

    def _placed_size(self, name: str, known: dict[str, int]) -> int:
        if name not in known:
            known[name] = self._sizes[name] + sum(
                times * self._placed_size(each, known)
                for each, times in self._uses[name].items()
                if each not in self._kept
            )
        return known[name]

    def _placed(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        name = self._name(schema)
        if name is not None and name not in self._kept:
            return self._placed(_together(self._definitions[name], schema))
        placed = _changed(self._with_names(schema), self._placed)
        if name is not None and len(placed) > 1:
            reference = {"$ref": placed.pop("$ref")}
            placed["allOf"] = [reference, *placed.get("allOf", ())]
        tagged = placed.get("discriminator")
        targets = tagged.get("mapping", {}).values() if isinstance(tagged, dict) else ()
        if any(self._name({"$ref": each}) not in self._kept for each in targets):
            del placed["discriminator"]  # it names definitions; each choice has its own constant anyway
        return placed

    def _with_names(self, schema: JSONSchema) -> JSONSchema:
        """Return a union whose objects are told apart by titles, as they were by the names of their definitions."""
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword, ())
            names = [self._name(each) if isinstance(each, dict) else None for each in choices]
            objects = [name for name in names if name is not None and "properties" in self._definitions[name]]
            if len(objects) > 1:
                placed = set(objects) - self._kept
                titles = [self._definitions[name].get("title", name) if name in placed else None for name in names]
                named = zip(choices, titles, strict=True)
                schema = {**schema, keyword: [{"title": title, **each} if title else each for each, title in named]}
        return schema

    def _name(self, schema: JSONSchema) -> str | None:
        reference = schema.get("$ref")
        name = reference.removeprefix(_PREFIX) if isinstance(reference, str) else None
        return name if name in self._definitions else None

    def _names_in(self, schema: Any) -> Counter[str]:
        return Counter(name for each in _within(schema) if (name := self._name(each)) is not None)

    def _reached(self, names: Counter[str]) -> set[str]:
        reached: set[str] = set()
        left = list(names)
        while left:
            if (name := left.pop()) not in reached:
                reached.add(name)
                left += self._uses[name]
        return reached


def _together(target: JSONSchema, reference: JSONSchema) -> JSONSchema:
    beside = {name: value for name, value in reference.items() if name != "$ref"}
    if any(target[name] != beside[name] for name in (target.keys() & beside.keys()) - _ANNOTATIONS):
        return {**beside, "allOf": [target, *beside.get("allOf", ())]}  # both count
    return {**target, **beside}


def _changed(schema: JSONSchema, change: Callable[[Any], Any]) -> JSONSchema:
    made = {}
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            value = {name: change(each) for name, each in value.items()}
        elif keyword in _SEVERAL and isinstance(value, list):
            value = [change(each) for each in value]
        elif keyword in _SINGLE:
            value = change(value)
        made[keyword] = value
    return made


def _within(schema: Any) -> Iterator[JSONSchema]:
    if isinstance(schema, dict):
        yield schema
        found: list[Any] = []
        _changed(schema, found.append)
        for each in found:
            yield from _within(each)


def _size(schema: JSONSchema) -> int:
    return len(to_json(schema))
