"""Results of a declared type: their schema, their JSON, and whether that is what the schema promises."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core import core_schema as core

from ..errors import FlowError, InvalidParams, SetupError
from ..protocol.content import Content
from ..well_formed import well_formed
from .generator import NO_SCHEMA, arguments_schema, by_alias_of, has_names, reason_of, results_schema
from .misfits import in_words
from .peer_validator import PeerValidator
from .type_parts import Node, walk

_TELLING = frozenset({"value_error", "assertion_error", "union_tag_invalid"})
"""Errors of pydantic's whose message may hold the value."""

_NO_TEXT = "string_unicode"  # halves of characters


class Structured:
    """Results of a declared type: their schema, and their JSON. Raises `SetupError`."""

    def __init__(self, where: str, annotation: Any) -> None:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self.schema = results_schema(adapter)
        except NO_SCHEMA as error:
            raise SetupError(
                f"{where}: results of type {annotation!r} have no JSON Schema: {reason_of(error)}. Return text, "
                "content, a model, a dataclass or plain JSON values"
            ) from error
        for node in walk(adapter.core_schema):
            if node["type"] == "model" and issubclass(node["cls"], Content):
                raise SetupError(
                    f"{where}: results of type {annotation!r} have {node['cls'].__name__} within data, which no client "
                    "would show. Return content by itself, in a list, or in ToolResult(content=[...], "
                    "structured_content=...)"
                )
        # A serializer around that of a model, without an annotation, writes an object as a rule.
        if "type" not in self.schema and _wraps_a_model(adapter):
            self.schema["type"] = "object"
        # The adapter's own methods do the same, and their many keywords double the time.
        self._validate = adapter.validator.validate_python
        # Its warnings have values, and what it warns of is refused by the check, or fits.
        self._write = partial(adapter.serializer.to_python, mode="json", warnings=False)
        promise = promise_of(self.schema, adapter.core_schema)
        self._check = promise.validate_python if promise else None
        self._may_name = any(each["type"] == "any" or has_names(each.get("cls")) for each in walk(adapter.core_schema))

    def dump(self, value: Any, *, is_mended: bool = False) -> Any:
        """Validate a result against its type, and return it as plain JSON. Raises `FlowError`, without the value."""
        try:
            valid = self._validate(value)
            if self._may_name:
                valid = list(valid) if isinstance(valid, Iterator) else valid  # it is written twice
                plain = written(valid, lambda by_alias: self._write(valid, by_alias=by_alias))
            else:
                plain = self._write(valid, by_alias=True)
            if self._check is not None:
                self._check(plain)
            return plain
        except UnicodeEncodeError:
            if is_mended:
                raise
            return self.dump(well_formed(value), is_mended=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _NO_TEXT and not is_mended:
            return self.dump(well_formed(value), is_mended=True)
        where = ".".join(map(str, first["loc"]))
        why = f"a validator refuses it ({first['type']})" if first["type"] in _TELLING else first["msg"]
        raise FlowError(f"The result does not fit its annotation: {where and f'{where}: '}{why}")


def _wraps_a_model(adapter: TypeAdapter[Any]) -> bool:
    """Return whether a type is a model whose own serializer has no annotation, and is around that of pydantic."""
    node: Any = adapter.core_schema
    while node["type"] in ("definitions", "function-before", "function-after", "function-wrap"):
        node = node["schema"]
    written = node.get("serialization", {})
    own = getattr(getattr(node.get("cls"), "__pydantic_decorators__", None), "model_serializers", None)
    return bool(own) and written.get("type") == "function-wrap" and written.get("return_schema") is None


# Aliases of fields or their names: aliases, except where a model says otherwise itself


Write = Callable[[bool | None], Any]
"""Writes a value as plain JSON: by aliases (True); or by names, unless a model says otherwise (None)."""


def written(value: Any, write: Write) -> Any:
    """Return a value as plain JSON: with the aliases of fields, or the names where a model says so."""
    aliased = write(True)
    if aliased == value:  # plain JSON already, so there is no model in it
        return aliased
    named = write(None)
    return aliased if named == aliased else _merged(value, aliased, named)


def _merged(value: Any, aliased: Any, named: Any) -> Any:
    """Return the JSON with aliases, but with the keys of `named` where a model says so."""
    if getattr(type(value), "__pydantic_root_model__", False):
        return _merged(value.root, aliased, named)
    if isinstance(aliased, list) and isinstance(named, list) and len(aliased) == len(named):  # a generator ends once
        items = list(value) if isinstance(value, list | tuple | set | frozenset | deque) else []
        return [_merged(*each) for each in zip(_as_many(items, aliased), aliased, named, strict=True)]
    if not (isinstance(aliased, dict) and isinstance(named, dict) and len(aliased) == len(named)):
        return aliased
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        own: dict[str, str] = {}
        if by_alias_of(type(value)):  # so that it was written by aliases both times
            fields = getattr(type(value), "model_fields", {})
            own = {field.serialization_alias or name: name for name, field in fields.items()}
        parts = [getattr(value, str(own.get(key, key)), None) for key in named]
    keys = named if has_names(type(value)) else aliased
    pairs = zip(keys, _as_many(parts, aliased), aliased.values(), named.values(), strict=True)
    return {key: _merged(part, one, other) for key, part, one, other in pairs}


def _as_many(parts: list[Any], written: Any) -> list[Any]:
    return parts if len(parts) == len(written) else [None] * len(written)


# Whether what was written is what the output schema promises (Tools, Output Schema). pydantic takes an object of a
# class as it is: nobody has validated a dataclass, or what was assigned to a model.


_NOT_SURE = frozenset({"model", "dataclass", "function-before", "function-after", "function-wrap", "function-plain"})
"""The values of these nodes need not be what their schema says."""

_ANY = core.any_schema()


def _number(kind: str, others: CoreSchema) -> CoreSchema:
    why = f"Input should be a valid {kind}"
    numbers: list[Any] = [core.int_schema(strict=True), others]
    return core.union_schema(numbers, mode="left_to_right", custom_error_type="number", custom_error_message=why)


_OF_TYPE: Mapping[str, CoreSchema] = {
    "string": core.str_schema(strict=True),
    "integer": _number("integer", core.float_schema(strict=True, multiple_of=1)),
    "number": _number("number", core.float_schema(strict=True)),
    "boolean": core.bool_schema(strict=True),
    "null": core.none_schema(),
}


def promise_of(schema: Mapping[str, Any], returned: Node) -> SchemaValidator | None:
    """Return what validates plain JSON by an output schema: types, members and choices, but no bounds."""
    # None if all that pydantic writes of the type, whose core schema is `returned`, is sure to fit.
    if not any(node["type"] in _NOT_SURE for node in walk(returned)):
        return None
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    kept: list[Any] = [{**_core(each, definitions), "ref": name} for name, each in definitions.items()]
    return SchemaValidator(core.definitions_schema(_core(schema, definitions), kept))


def _core(schema: Any, names: Collection[str]) -> CoreSchema:
    """Return the core schema of a JSON Schema of pydantic's; any, where a keyword is not known here."""
    if not isinstance(schema, Mapping):
        return _ANY
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return core.definition_reference_schema(name) if name in names else _ANY
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return core.literal_schema(values)
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        is_clear = "allOf" not in schema or len(choices) == 1
        return core.union_schema([_core(each, names) for each in choices], mode="left_to_right") if is_clear else _ANY
    kinds = schema.get("type", ())
    parts = [_of_type(kind, schema, names) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return core.union_schema(list(parts), mode="left_to_right") if len(parts) > 1 else parts[0] if parts else _ANY


def _of_type(kind: str, schema: Mapping[str, Any], names: Collection[str]) -> CoreSchema:
    if kind == "array":
        return core.list_schema(_core(schema.get("items"), names), strict=True)
    if kind != "object":
        return _OF_TYPE.get(kind, _ANY)
    others = _core(schema.get("additionalProperties"), names)
    required = schema.get("required")
    required = required if isinstance(required, list) else ()  # an author's own schema may have anything there
    fields = {
        name: core.typed_dict_field(_core(each, names), required=name in required)
        for name, each in schema.get("properties", {}).items()
    }
    return core.typed_dict_schema(fields, extras_schema=others, extra_behavior="allow", strict=True)


_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class ModelArguments:
    """Arguments that a model describes; None where there are none. Raises `SetupError`."""

    def __init__(self, where: str, model: Any) -> None:
        self._where = where
        self._validator: PeerValidator | None = None
        self.schema = _NOTHING
        if model is not None:
            try:
                adapter: TypeAdapter[Any] = TypeAdapter(model)
                self.schema = arguments_schema(adapter)
            except NO_SCHEMA as error:
                raise SetupError(f"{where}: {reason_of(error)}") from error
            self._validator = PeerValidator(where, adapter)
        if self.schema.get("type") != "object":
            raise SetupError(f"{where}: arguments= must be an object in JSON, such as a model")
        self._known = frozenset(self.schema.get("properties", {}))
        self._takes_others = bool(self.schema.get("additionalProperties"))

    def validate(self, raw: Mapping[str, Any]) -> Any:
        """Return what was sent as the model; None without one. Raises `InvalidParams`."""
        if unknown := [] if self._takes_others else [name for name in raw if name not in self._known]:
            known = ", ".join(sorted(self._known)) or "none"
            raise InvalidParams(f"{self._where} has no argument {str(unknown[0])[:64]!r}; it has: {known}")
        if self._validator is None:
            return None
        try:
            return self._validator.validate(raw)
        except ValidationError as error:
            raise InvalidParams(f"{self._where}: {in_words(self._validator.problems(raw, error))}") from None
