"""From a signature to JSON Schema, and from JSON back to arguments and results."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, NotRequired, Protocol

from pydantic import Field, PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, SchemaError, from_json, to_json
from typing_extensions import TypedDict

from .errors import SetupError

TCHARS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The characters of an HTTP field name (RFC 9110, section 5.6.2)."""

HEADER_KEYWORD = "x-mcp-header"

_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticUserError, SchemaError)


class TitleFreeSchema(GenerateJsonSchema):
    """JSON Schema 2020-12 without the titles that pydantic makes up from names; those that an author wrote stay."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Header:
    """Mirror a parameter into an HTTP header, so that a gateway can route by it (Tools, x-mcp-header).

    Use it as `region: Annotated[str, Header("Region")]`: clients then send `Mcp-Param-Region`, and the server
    refuses a call in which header and body differ. Never mark a secret with it: every proxy on the way reads headers.

    Parameters:
        name: the part of the header's name after `Mcp-Param-`.
    """

    name: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {**handler(schema), HEADER_KEYWORD: self.name}


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """One parameter that a header mirrors.

    Parameters:
        header: the whole header's name, in lower case.
        path: the chain of property names that leads to the value.
        kind: `"string"`, `"integer"` or `"boolean"`.
    """

    header: str
    path: tuple[str, ...]
    kind: str


class ArgumentsMisfit(Exception):
    """The arguments of a call do not fit; `problems` says where and why, for the model to mend its call."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__()
        self.problems = problems


class Arguments(Protocol):
    """The arguments of a handler: their schema, and the way from JSON to keyword arguments."""

    schema: dict[str, Any]

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Validate raw arguments and give them as keyword arguments, or raise `ArgumentsMisfit`."""
        ...


class SignatureArguments:
    """Arguments that a signature describes.

    Parameters:
        where: the handler's name, for errors.
        parameters: the parameters that the client fills, with resolved annotations.

    Raises:
        SetupError: an annotation has no JSON Schema, or a parameter can't be filled by name.
    """

    def __init__(self, where: str, parameters: Mapping[str, Parameter]) -> None:
        fields: dict[str, Any] = {}
        self._defaults: dict[str, FieldInfo] = {}
        for name, parameter in parameters.items():
            fields[name] = self._field(where, name, parameter)
        # One validator for all arguments, and it gives the dictionary that the handler is called with.
        try:
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(TypedDict("Arguments", fields))  # type: ignore[operator]
            schema = self._adapter.json_schema(schema_generator=TitleFreeSchema)
        except _NO_SCHEMA as error:
            raise SetupError(f"{where}: the parameters have no JSON Schema: {error}") from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        self.schema = schema
        self._validate = self._adapter.validator.validate_python

    def _field(self, where: str, name: str, parameter: Parameter) -> Any:
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise SetupError(f"{where}: parameter {name!r} can't be filled by name; make it an ordinary parameter")
        annotation = Any if parameter.annotation is Parameter.empty else parameter.annotation
        default = parameter.default
        if isinstance(default, FieldInfo):
            annotation = Annotated[annotation, _without_default(default)]
            if default.is_required():
                return annotation
            self._defaults[name] = default
            if default.default_factory is not None:  # made anew for each call, so there is nothing to show
                return NotRequired[annotation]
            default = default.get_default()
        if default is Parameter.empty:
            return annotation
        try:
            shown = {"default": from_json(to_json(default), allow_inf_nan=False)}
        except ValueError:  # it is no JSON; a PydanticSerializationError is one
            shown = {}
        return NotRequired[Annotated[annotation, Field(json_schema_extra=shown)]]

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Validate raw arguments; what the signature does not name is dropped."""
        try:
            arguments: dict[str, Any] = self._validate(raw)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            raise ArgumentsMisfit([(".".join(map(str, p["loc"])), p["msg"]) for p in problems]) from None
        if self._defaults:
            for name, field in self._defaults.items():
                if name not in arguments:
                    arguments[name] = field.get_default(call_default_factory=True, validated_data=arguments)
        return arguments


_SHOWN = ("title", "description", "examples", "json_schema_extra", "deprecated")


def _without_default(field: FieldInfo) -> FieldInfo:
    copy: FieldInfo = Field()
    copy.metadata = field.metadata
    for name in ("alias", "alias_priority", "validation_alias", *_SHOWN):
        setattr(copy, name, getattr(field, name))
        if getattr(field, name) is not None:
            copy._attributes_set[name] = getattr(field, name)
    return copy


def header_parameters(where: str, schema: Mapping[str, Any]) -> tuple[HeaderParameter, ...]:
    """Collect the parameters that headers mirror, and check the rules for them (Streamable HTTP, Schema Extension).

    Parameters:
        where: the tool's name, for errors.
        schema: the tool's input schema.

    Raises:
        SetupError: an `x-mcp-header` breaks a rule; clients would drop the tool from their list.
    """
    found: list[HeaderParameter] = []
    _collect(where, schema, (), found)
    names = [parameter.header for parameter in found]
    for name in names:
        if names.count(name) > 1:
            raise SetupError(f"{where}: two parameters share the header {name!r}")
    if _count(schema) != len(found):
        raise SetupError(f"{where}: {HEADER_KEYWORD} can only mark properties that are reached by properties alone")
    return tuple(found)


def _collect(where: str, schema: Mapping[str, Any], path: tuple[str, ...], found: list[HeaderParameter]) -> None:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return
    for name, field in properties.items():
        if not isinstance(field, Mapping):
            continue
        here = (*path, name)
        if HEADER_KEYWORD in field:
            header, kind = field[HEADER_KEYWORD], field.get("type")
            if not isinstance(header, str) or not header or not TCHARS.issuperset(header):
                raise SetupError(f"{where}: {header!r} is no name for a header (parameter {'.'.join(here)!r})")
            if kind not in ("string", "integer", "boolean"):
                raise SetupError(
                    f"{where}: {'.'.join(here)!r} can't be mirrored into a header: only str, int and bool can"
                )
            found.append(HeaderParameter(f"mcp-param-{header.lower()}", here, kind))
        _collect(where, field, here, found)


def _count(schema: Any) -> int:
    if isinstance(schema, list):
        return sum(map(_count, schema))
    if not isinstance(schema, Mapping):
        return 0
    marks = int(HEADER_KEYWORD in schema)
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            marks += sum(map(_count, value.values()))
        elif keyword not in _DATA:
            marks += _count(value)
    return marks


_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value has a schema under each name."""

_DATA = frozenset({"default", "examples", "const", "enum"})
"""Keywords whose value is no schema."""


class Structured:
    """Results of a declared type: their schema, and the way to JSON.

    Parameters:
        where: the handler's name, for errors.
        annotation: the type of the results.

    Raises:
        SetupError: the type has no JSON Schema.
    """

    def __init__(self, where: str, annotation: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self.schema = self._adapter.json_schema(schema_generator=TitleFreeSchema, mode="serialization")
        except _NO_SCHEMA as error:
            raise SetupError(f"{where}: results of type {annotation!r} have no JSON Schema: {error}") from error

    def write(self, value: Any) -> Any:
        """Check a result against its type and give it as plain JSON. Raises pydantic's `ValidationError`."""
        return self._adapter.dump_python(self._adapter.validate_python(value), mode="json", by_alias=True)


class Stored:
    """Values that go to JSON and come back as their declared type: step results, and handlers' own state.

    Parameters:
        annotation: the declared type; `Any` for plain JSON.
    """

    def __init__(self, annotation: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def write(self, value: Any) -> Any:
        """Give a value as plain JSON. Raises pydantic's `PydanticSerializationError` where it is none."""
        return self._adapter.dump_python(value, mode="json", warnings="error", round_trip=True)

    def read(self, stored: Any) -> Any:
        """Give the value back as its type. Raises pydantic's `ValidationError`."""
        return self._adapter.validate_python(stored)
