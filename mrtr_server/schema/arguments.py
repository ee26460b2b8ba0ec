"""From a signature to JSON Schema, and from JSON back to arguments and results."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, NotRequired, Protocol, get_args, get_origin

from pydantic import ConfigDict, Field, PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, SchemaError, from_json, to_json
from typing_extensions import TypedDict

from ..errors import ArgumentsMisfit, FlowError, SetupError
from ..limits import Limits
from ..protocol.content import Content
from ..protocol.header_params import HEADER_KEYWORD
from ..well_formed import well_formed
from .aliases import has_names, written
from .core_schema import walk
from .defaults import copier_of, refuse_misfit
from .generator import arguments_schema, results_schema
from .lenient import DEFAULTS, LenientReading
from .peer_validator import PeerValidator
from .problems import MOST_PROBLEMS as MOST_PROBLEMS
from .promises import promise_of

_TELLING = frozenset({"value_error", "assertion_error", "union_tag_invalid"})
"""Errors of pydantic's whose message may hold the value."""

_NO_TEXT = "string_unicode"
"""The error of pydantic's for halves of characters."""

_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticUserError, SchemaError)


@dataclass(frozen=True, slots=True)
class Header:
    """Mirror a parameter into an HTTP header, so that a gateway can route by it (Tools, x-mcp-header).

    Use it as `region: Annotated[str, Header("Region")]`: clients then send `Mcp-Param-Region`, and the server
    refuses a call in which header and body differ. Never mark a secret with it: every proxy on the way reads headers.

    Args:
        name: the part of the header's name after `Mcp-Param-`.
    """

    name: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {**handler(schema), HEADER_KEYWORD: self.name}


class Arguments(Protocol):
    """The arguments of a handler: their schema, and their validation."""

    schema: dict[str, Any]

    def validate(self, raw: Mapping[str, Any], limits: Limits = DEFAULTS) -> dict[str, Any]:
        """Validate raw arguments, and return them as keyword arguments.

        Args:
            raw: the arguments as the client sent them.
            limits: those of its request, which count for JSON within strings, too.

        Raises:
            ArgumentsMisfit: they do not fit.
        """
        ...


class SignatureArguments:
    """Arguments that a signature describes.

    Args:
        where: the handler's name, for errors.
        parameters: the parameters that the client fills, with resolved annotations; `**kwargs: Any` for whatever else
            the client sends.
        own: the parameters that the server fills.
        are_texts: whether all arguments come as strings, so that numbers and booleans are read from them.

    Raises:
        SetupError: an annotation has no JSON Schema, a parameter can't be filled by name, or a client could stop the
            server with a pattern.
    """

    def __init__(
        self, where: str, parameters: Mapping[str, Parameter], own: Collection[str] = (), *, are_texts: bool = False
    ) -> None:
        named = {name: each for name, each in parameters.items() if not _takes_the_rest(where, each)}
        self.is_open = len(named) < len(parameters)
        """Whether it takes arguments that it does not name."""
        fields = {name: _field(where, name, parameter) for name, parameter in named.items()}
        make: Any = TypedDict
        described = make("Arguments", fields)
        if self.is_open:
            described.__pydantic_config__ = ConfigDict(extra="allow")
        # One validator for all arguments, and it gives the dictionary that the handler is called with.
        try:
            adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(described)
            schema = arguments_schema(adapter)
        except _NO_SCHEMA as error:
            raise SetupError(_without_schema(where, fields, error)) from error
        self._validator = PeerValidator(where, adapter, is_json=not are_texts)
        for name, parameter in named.items():
            _check_default(where, name, parameter)
        schema.setdefault("properties", {})
        self.schema = schema
        self.names = frozenset(schema["properties"]) | _aliases(adapter.core_schema)
        """The names of the arguments, with all that pydantic takes for one of them."""
        # With the parameters that have an alias: what comes under their own name would take the place of their value.
        self.reserved = frozenset(own) | (named.keys() - self.names)
        """The names of parameters that no argument reaches."""
        self._validate = self._validator.validate
        self._lenient = LenientReading(schema)

    def validate(self, raw: Mapping[str, Any], limits: Limits = DEFAULTS) -> dict[str, Any]:
        """Validate raw arguments; see `Arguments.validate`.

        Arguments that the signature does not name are dropped, unless it takes the rest.
        """
        if self.is_open and not self.reserved.isdisjoint(raw):
            raw = {name: value for name, value in raw.items() if name not in self.reserved}
        arguments: dict[str, Any]
        try:
            arguments = self._validate(raw)
        except ValidationError as error:
            meant = self._lenient.read(raw, limits)
            if meant is raw:
                raise ArgumentsMisfit(self._validator.problems(raw, error)) from None
        else:
            return arguments
        try:
            arguments = self._validate(meant)
        except ValidationError as error:
            raise ArgumentsMisfit(self._validator.problems(meant, error)) from None
        return arguments


def _takes_the_rest(where: str, parameter: Parameter) -> bool:
    if parameter.kind is not Parameter.VAR_KEYWORD:
        return False
    if parameter.annotation is not Any:
        raise SetupError(
            f"{where}: write **{parameter.name}: Any to accept any other arguments, or name each parameter"
        )
    return True


def _aliases(schema: Any) -> set[str]:
    """Return the further names under which pydantic finds the fields of a TypedDict."""
    fields = schema.get("schema", schema).get("fields", {})
    found: set[str] = set()
    for each in fields.values():
        alias = each.get("validation_alias", ())
        paths = [alias] if isinstance(alias, str) or (alias and isinstance(alias[0], str)) else alias
        found |= {path if isinstance(path, str) else path[0] for path in paths}
    return found


def _field(where: str, name: str, parameter: Parameter) -> Any:
    if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL):
        raise SetupError(
            f"{where}: parameter {name!r} can't be filled by name; make it an ordinary parameter, without *, ** or /"
        )
    annotation = Any if parameter.annotation is Parameter.empty else parameter.annotation
    default = parameter.default
    if default is Parameter.empty:
        return annotation
    if isinstance(default, FieldInfo) and default.is_required():
        return Annotated[annotation, default]
    if any(isinstance(each, FieldInfo) and not each.is_required() for each in get_args(annotation)[1:]):
        raise SetupError(
            f"{where}: parameter {name!r} has two defaults, one of them in its annotation; write it once, after the ="
        )
    if isinstance(default, FieldInfo):  # the function would get the Field itself, so pydantic fills in its default
        return Annotated[annotation, default]
    try:
        shown = {"default": from_json(to_json(default), allow_inf_nan=False)}
    except ValueError:  # it is no JSON; a PydanticSerializationError is one
        shown = {}
    if copier := copier_of(default):
        return Annotated[annotation, Field(default_factory=copier, json_schema_extra=shown)]
    return NotRequired[Annotated[annotation, Field(json_schema_extra=shown)]]


def _check_default(where: str, name: str, parameter: Parameter) -> None:
    default, annotation = parameter.default, _without_names(parameter.annotation)
    if isinstance(default, FieldInfo):
        annotation = _without_names(Annotated[annotation, default])
        default = default.default
    is_there = not any(default is none for none in (Parameter.empty, PydanticUndefined, ...))
    if is_there and parameter.annotation is not Parameter.empty:
        refuse_misfit(where, name, annotation, default)


def _without_names(annotation: Any) -> Any:
    """Return an annotation with the constraints of each `Field`, and without its alias, which is for fields alone."""
    if get_origin(annotation) is not Annotated:
        return annotation
    bare, *marks = get_args(annotation)
    kept = [part for mark in marks for part in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    return Annotated[bare, *kept] if kept else bare


def _without_schema(where: str, fields: Mapping[str, Any], error: Exception) -> str:
    """Return the error that names the parameter which no client can fill."""
    for name, field in fields.items():
        try:
            TypeAdapter(TypedDict("Argument", {name: field})).json_schema()  # type: ignore[operator]
        except _NO_SCHEMA as its_own:
            why = f"{where}: a client can't fill parameter {name!r}, because its type has no JSON Schema"
            return f"{why} ({_reason(its_own)}); fill it with Depends(...)"
    return f"{where}: the parameters have no JSON Schema: {_reason(error)}"


def _reason(error: Exception) -> str:
    """Return what pydantic says is wrong, without what it says could be done about it."""
    return str(error).partition("\n")[0].partition(". ")[0]


class Structured:
    """Results of a declared type: their schema, and their JSON.

    Args:
        where: the handler's name, for errors.
        annotation: the type of the results.

    Raises:
        SetupError: the type has no JSON Schema.
    """

    def __init__(self, where: str, annotation: Any) -> None:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self.schema = results_schema(adapter)
        except _NO_SCHEMA as error:
            raise SetupError(
                f"{where}: results of type {annotation!r} have no JSON Schema: {_reason(error)}. Return text, "
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

    def dump(self, value: Any) -> Any:
        """Validate a result against its type, and return it as plain JSON. Raises `FlowError`, without the value."""
        try:
            return self._dump(value)
        except UnicodeEncodeError:
            return self._dump(well_formed(value))

    def _dump(self, value: Any, *, is_mended: bool = False) -> Any:
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
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _NO_TEXT and not is_mended:
            return self._dump(well_formed(value), is_mended=True)
        where = ".".join(map(str, first["loc"]))
        why = f"a validator refuses it ({first['type']})" if first["type"] in _TELLING else first["msg"]
        raise FlowError(f"The result does not fit its annotation: {where and f'{where}: '}{why}")


def _wraps_a_model(adapter: TypeAdapter[Any]) -> bool:
    """Whether a type is a model whose own serializer has no annotation, and is around that of pydantic."""
    node: Any = adapter.core_schema
    while node["type"] in ("definitions", "function-before", "function-after", "function-wrap"):
        node = node["schema"]
    written = node.get("serialization", {})
    own = getattr(getattr(node.get("cls"), "__pydantic_decorators__", None), "model_serializers", None)
    return bool(own) and written.get("type") == "function-wrap" and written.get("return_schema") is None
