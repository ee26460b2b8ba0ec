"""Arguments of handlers, by a signature or a raw JSON Schema: their schema, and from JSON back to values."""

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from inspect import Parameter
from itertools import islice
from typing import Annotated, Any, NotRequired, Protocol, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, SchemaValidator, from_json, to_json
from typing_extensions import TypedDict

from ..errors import ArgumentsMisfit, SetupError
from ..limits import Limits
from ..protocol.header_params import HEADER_KEYWORD, NAMED
from .generator import NO_SCHEMA, arguments_schema, reason_of
from .misfits import DEFAULTS, LenientReading, problem, shortened
from .peer_validator import PeerValidator, compiled
from .type_parts import MOST_SHAPES, Node, Shape


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
        """Return raw arguments as keyword arguments. Raises `ArgumentsMisfit`."""
        # The limits are those of the request: they count for JSON within strings, too.
        ...


class SignatureArguments:
    """Arguments that a signature describes, with resolved annotations; `**kwargs: Any` is for further arguments.

    With `are_texts`, numbers and booleans are read from strings. Raises `SetupError` where a client can't send the
    arguments, or could stop the server with a pattern.
    """

    def __init__(
        self, where: str, parameters: Mapping[str, Parameter], own: Collection[str] = (), *, are_texts: bool = False
    ) -> None:
        named = {name: each for name, each in parameters.items() if not _takes_the_rest(where, each)}
        self.is_open = len(named) < len(parameters)
        fields = {name: _field(where, name, parameter) for name, parameter in named.items()}
        make: Any = TypedDict
        described = make("Arguments", fields)
        if self.is_open:
            described.__pydantic_config__ = ConfigDict(extra="allow")
        # One validator for all arguments, and it gives the dictionary that the handler is called with.
        try:
            adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(described)
            schema = arguments_schema(adapter)
        except NO_SCHEMA as error:
            raise SetupError(_without_schema(where, fields, error)) from error
        self._validator = PeerValidator(where, adapter, is_json=not are_texts)
        core: Any = adapter.core_schema
        has_definitions = core["type"] == "definitions"
        typed = core["schema"]["fields"] if has_definitions else core["fields"]
        for name, parameter in named.items():
            alone = typed[name]["schema"]
            _check_default(where, name, parameter, {**core, "schema": alone} if has_definitions else alone)
        schema.setdefault("properties", {})
        self.schema = schema
        self.names = frozenset(schema["properties"]) | _aliases(typed)
        """The names of the arguments, with all that pydantic takes for one of them."""
        # With the parameters that have an alias: what comes under their own name would take the place of their value.
        self.reserved = frozenset(own) | (named.keys() - self.names)
        self._exactly: Callable[[Any], dict[str, Any]] = self._validator.exactly
        self._lenient = LenientReading(schema)

    def validate(self, raw: Mapping[str, Any], limits: Limits = DEFAULTS) -> dict[str, Any]:
        """Validate raw arguments; those that the signature does not name are dropped, unless it takes the rest."""
        if self.is_open and not self.reserved.isdisjoint(raw):
            raw = {name: value for name, value in raw.items() if name not in self.reserved}
        try:
            return self._exactly(raw)
        except ValidationError:  # as nearly never; it may be meant in another way
            meant = raw
        validate: Callable[[Any], dict[str, Any]] = self._validator.validate
        while True:
            try:
                return validate(meant)
            except ValidationError as error:
                if meant is not raw or (meant := self._lenient.read(raw, limits)) is raw:
                    raise ArgumentsMisfit(self._validator.problems(meant, error)) from None


@lru_cache(maxsize=MOST_SHAPES)
def _compiled(shape: Shape) -> SignatureArguments:
    own, are_texts, *parameters = shape.of
    return SignatureArguments(shape.where, {each.name: each for each in parameters}, own, are_texts=are_texts)


def signature_arguments(
    where: str, parameters: Mapping[str, Parameter], own: Collection[str] = (), *, are_texts: bool = False
) -> SignatureArguments:
    """Return the arguments of a signature, which all handlers with the same one share. Raises `SetupError`."""
    return _compiled(Shape(where, frozenset(own), are_texts, *parameters.values()))


def _takes_the_rest(where: str, parameter: Parameter) -> bool:
    if parameter.kind is not Parameter.VAR_KEYWORD:
        return False
    if parameter.annotation is not Any:
        raise SetupError(
            f"{where}: write **{parameter.name}: Any to accept any other arguments, or name each parameter"
        )
    return True


def _aliases(fields: Mapping[str, Node]) -> set[str]:
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
    if copier := _copier_of(default):
        return Annotated[annotation, Field(default_factory=copier, json_schema_extra=shown)]
    return NotRequired[Annotated[annotation, Field(json_schema_extra=shown)]]


def _check_default(where: str, name: str, parameter: Parameter, schema: Node) -> None:
    """Refuse a default that is not of its parameter's type: the function would get it as it is."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        default = default.default
    is_there = not any(default is none for none in (Parameter.empty, PydanticUndefined, ...))
    if is_there and parameter.annotation is not Parameter.empty:
        _refuse_misfit(where, name, compiled(schema), default)


def _without_schema(where: str, fields: Mapping[str, Any], error: Exception) -> str:
    for name, field in fields.items():
        try:
            TypeAdapter(TypedDict("Argument", {name: field})).json_schema()  # type: ignore[operator]
        except NO_SCHEMA as its_own:
            why = f"{where}: a client can't fill parameter {name!r}, because its type has no JSON Schema"
            return f"{why} ({reason_of(its_own)}); fill it with Depends(...)"
    return f"{where}: the parameters have no JSON Schema: {reason_of(error)}"


# Defaults: they fit their annotations, and no call sees what another one has changed in one


def _copier_of(default: Any) -> Callable[[], Any] | None:
    """Return a function that copies a default for each call; None if no copy is needed, or can be made."""
    try:
        return None if deepcopy(default) is default or _is_sentinel(default) else partial(deepcopy, default)
    except Exception:  # an object that can't be copied, such as a lock, is there to be shared
        return None


def _is_sentinel(default: Any) -> bool:
    """Return whether an object is known by its identity alone, as `object()` is, and holds nothing that changes."""
    if getattr(type(default), "__eq__", None) is not object.__eq__:
        return False
    state = default.__getstate__()  # of its attributes and slots
    parts = state if isinstance(state, tuple) else (state,)
    held = [each for part in parts if isinstance(part, dict) for each in part.values()]
    return all(deepcopy(each) is each for each in held)


def _refuse_misfit(where: str, name: str, validator: SchemaValidator, default: Any) -> None:
    why = "it is data that makes one"
    try:
        read = validator.validate_python(default, strict=True)
        is_iterable = isinstance(read, Iterator)
        if is_iterable and not isinstance(default, Iterator):
            list(read)  # which validates it
        if is_iterable or type(read) is type(default) or read == default:
            return
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
    if not _becomes_equal(validator, default):
        is_none = default is None
        remedy = (
            "add `| None` to its annotation, or leave it out" if is_none else "change the default or the annotation"
        )
        raise SetupError(
            f"{where}: the default {default!r} of parameter {name!r} does not fit its annotation ({why}); {remedy}"
        )


def _becomes_equal(validator: SchemaValidator, default: Any) -> bool:
    try:
        return bool(validator.validate_python(default) == default)
    except ValidationError:
        return False


# Arguments of a raw JSON Schema


DEEPEST = 64  # how many schemas may stand within each other: deeper ones describe arguments that no request holds


class RawArguments:
    """Arguments that a raw schema of type object describes. Clients are served the schema unchanged.

    `parameter` takes them all as one dictionary; with None, each is passed by name. Raises `SetupError`.
    """

    def __init__(self, where: str, schema: Mapping[str, Any], parameter: str | None, *, validate: bool = True) -> None:
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object"')
        if _is_too_deep(schema):
            raise SetupError(
                f"{where}: input_schema= has more than {DEEPEST} schemas within each other, which many clients can't "
                "read; move parts into $defs, and refer to them"
            )
        self.schema = dict(schema)
        self._parameter = parameter
        self.by_name = parameter is None
        self._problems = None
        if validate:
            from .json_schema import JSONSchema  # optional: needs jsonschema-rs

            self._problems = JSONSchema(where, self.schema).problems
            self._lenient = LenientReading(self.schema)

    def validate(self, raw: Mapping[str, Any], limits: Limits = DEFAULTS) -> dict[str, Any]:
        """Validate raw arguments, and return them as keyword arguments."""
        if self._problems is not None and (problems := self._problems(raw)):
            meant = self._lenient.read(raw, limits)
            if meant is raw or (problems := self._problems(meant)):
                raise ArgumentsMisfit(problems)
            raw = meant
        return {self._parameter: dict(raw)} if self._parameter else dict(raw)


def _is_too_deep(schema: Mapping[str, Any]) -> bool:
    level: list[Any] = [schema]
    for _ in range(DEEPEST):
        # One that stands in several places is looked at once, or a few levels of the same would take for ever.
        level = list({id(part): part for each in level for part in _parts_of(each)}.values())
        if not level:
            return False
    return True


def _parts_of(schema: Any) -> Iterator[Any]:
    """Yield the objects and lists right within a schema; a list or table of schemas is no schema itself."""
    if not isinstance(schema, Mapping):
        yield from (each for each in schema if isinstance(each, Mapping | list | tuple))
        return
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, Mapping):
            yield from (each for each in value.values() if isinstance(each, Mapping | list | tuple))
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, Mapping | list | tuple))
        elif isinstance(value, Mapping):
            yield value


# Arguments that a tool or prompt does not have, and the error that names them


MOST_NAMED = 10  # unknown arguments in an error
LONGEST_COMPARED = 64  # longer names, in characters, are no typing errors


class ArgumentNames:
    """The names that the arguments of a call may have; `own` are those that the server fills."""

    def __init__(self, arguments: SignatureArguments, own: Collection[str]) -> None:
        self.known = arguments.names
        self._listed = sorted(arguments.names)
        self._reserved = arguments.reserved
        self._own = frozenset(own)
        self._is_open = arguments.is_open

    def unknown(self, raw: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return a problem for each argument that does not exist, as (where, what). No value is repeated."""
        if self._is_open:
            unknown = sorted(name for name in self._reserved if name in raw)
            count = len(unknown)
        else:
            count = len(raw) - sum(name in raw for name in self.known)
            unknown = list(islice((name for name in raw if name not in self.known), MOST_NAMED))
        first = unknown[:MOST_NAMED]
        named = [problem((name if name.isprintable() else repr(name),), self._what(name)) for name in first]
        return shortened(named, f"{count - len(named)} more" if count > len(named) else "")

    def _what(self, name: str) -> str:
        if name in self._own:
            return "the server fills this in; leave it out"
        near = get_close_matches(name, self._listed, n=1) if len(name) <= LONGEST_COMPARED else []
        if near:
            return f"unknown argument; did you mean {near[0]!r}?"
        return f"unknown argument; known arguments: {', '.join(self._listed) or 'none'}"


def validate_arguments(
    arguments: Arguments, names: ArgumentNames | None, raw: Mapping[str, Any], limits: Limits = DEFAULTS
) -> dict[str, Any]:
    """Validate raw arguments; refuse unknown ones unless `names` is None. One `ArgumentsMisfit` has all problems."""
    if names is None or names.known.issuperset(raw) or not (unknown := names.unknown(raw)):
        return arguments.validate(raw, limits)
    try:
        arguments.validate(raw, limits)
    except ArgumentsMisfit as misfit:
        unknown += misfit.problems
    raise ArgumentsMisfit(unknown)
