"""Whether what was written of a result is what its output schema promises (Tools, Output Schema).

pydantic takes an object of a class as it is: nobody has validated a dataclass, or what was assigned to a model.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core import core_schema as core

from .core_schema import Node, walk

_NOT_SURE = frozenset({"model", "dataclass", "function-before", "function-after", "function-wrap", "function-plain"})
"""Nodes whose values need not be what their schema says."""

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
    """Return what validates plain JSON by an output schema: types, members and choices, but no bounds.

    Args:
        schema: the output schema.
        returned: pydantic's core schema of the type that it describes.

    Returns:
        None if all that pydantic writes of the type is sure to fit.
    """
    if not any(node["type"] in _NOT_SURE for node in walk(returned)):
        return None
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    kept: list[Any] = [{**_core(each, definitions), "ref": name} for name, each in definitions.items()]
    return SchemaValidator(core.definitions_schema(_core(schema, definitions), kept))


def _core(schema: Any, names: Collection[str]) -> CoreSchema:
    """Return the core schema of a JSON Schema that pydantic has made. What is not known here is taken as it is."""
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
