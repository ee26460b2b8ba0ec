"""From a function that a decorator was put on to what a list shows and requests find.

Tools, which have more to compile, are in `tools.py`.
"""

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import Parameter, cleandoc
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, Union, overload

from pydantic import ValidationError
from starlette.responses import Response

from ..addresses import origins_of
from ..concurrency.threads import Called, Threads, call_function
from ..errors import SetupError
from ..flow.authorization import Hook, compile_hook
from ..flow.handler import Handler
from ..flow.home import Home
from ..flow.url_asks import Callback
from ..protocol.content import Annotations, ToolAnnotations, first_problem, icon_entries, wire_of
from ..protocol.messages import JSON
from ..protocol.outgoing import fault_of_uri
from ..schema.arguments import ArgumentNames, Arguments, signature_arguments
from ..schema.misfits import takes
from ..schema.stored import Stored
from ..schema.type_parts import union_members
from ..schema.uri_templates import UriTemplate
from ..well_formed import refuse_halves
from .handlers import compile_handler
from .options import CallbackOptions, ListedOptions, PromptOptions, ResourceOptions
from .signatures import names_around_decorator, refuse_foreign_types

NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
"""What names are made of (Tools, Tool Names)."""


def name_of(function: Callable[..., Any], options: ListedOptions) -> str:
    """Return what a function is registered as: the name that it was given, or its own. Raises `SetupError`."""
    name = options.name or getattr(function, "__name__", "")
    if not name or not NAME_CHARACTERS.issuperset(name) or len(name) > 128:
        raise SetupError(
            f"{name!r} can't be a name; pass name= with 1 to 128 of the characters A-Z, a-z, 0-9, '_', '-' and '.'"
        )
    return name


def _description_of(function: Callable[..., Any], options: ListedOptions) -> str | None:
    """Return the description that a function was given, or its docstring; None if it has neither."""
    while isinstance(function, partial):  # its own docstring is that of partial
        function = function.func
    return options.description or (cleandoc(function.__doc__) if function.__doc__ else None)


def list_entry(function: Callable[..., Any], options: ListedOptions, **fields: Any) -> JSON:
    """Return the entry of a list.

    `fields` are by their names on the wire; what is None is left out. Raises `SetupError`.
    """
    all_fields = {
        "name": name_of(function, options),
        "title": options.title,
        "description": _description_of(function, options),
        "icons": icon_entries(name_of(function, options), options.icons),
        "_meta": {**(options.meta or {}), **({"tags": sorted(set(options.tags))} if options.tags else {})} or None,
        **fields,
    }
    entry = {name: value for name, value in all_fields.items() if value is not None}
    refuse_halves(str(entry["name"]), entry)
    return entry


def hints_of(given: Any, kind: type[Annotations | ToolAnnotations], such_as: str) -> JSON | None:
    """Return the `annotations` of an entry as plain JSON; None if there are none. Raises `SetupError`."""
    if given is not None and not isinstance(given, (kind, Mapping)):
        raise SetupError(f"annotations= takes {kind.__name__}(...), such as {kind.__name__}({such_as})")
    if given is None:
        return None
    try:
        return wire_of(kind, given if isinstance(given, Mapping) else given.wire()) or None
    except ValidationError as error:
        raise SetupError(f"annotations= can't be sent: {first_problem(error)}") from None


_OF_TEXTS = ("string", "integer", "number", "boolean")
"""The JSON types whose values are read from texts."""


def _refuse_other_than_strings(where: str, schema: Mapping[str, Any], what: str) -> None:
    """Refuse parameters that come as strings and whose types take none. Raises `SetupError`."""
    for name, field in schema["properties"].items():
        if not any(takes(schema, field, kind) for kind in _OF_TEXTS):
            raise SetupError(
                f"{where}: {name!r} is {what}, which arrives as a string, and its type accepts no string; "
                "take a str and convert it, or add BeforeValidator(..., json_schema_input_type=str) to the "
                "annotation"
            )


class Prompt(NamedTuple):
    """A prompt, ready to be got and listed; `names`, `authorize` and `tags` are as for a `Tool`."""

    handler: Handler
    arguments: Arguments
    description: str | None
    entry: JSON
    names: ArgumentNames | None = None
    authorize: Hook | None = None
    tags: frozenset[str] = frozenset()


def build_prompt(
    function: Callable[..., Any], options: PromptOptions, home: Home, *, ignores_unknown: bool = False
) -> Prompt:
    """Compile a prompt.

    With `ignores_unknown`, arguments that it does not take are dropped; otherwise a request with some is refused.
    Raises `SetupError`.
    """
    name = name_of(function, options)
    handler = compile_handler(function, name, names_around_decorator(), answer_within=options.answer_within, home=home)
    hook = compile_hook(name, options.authorize, options.scopes, options.visible)
    refuse_foreign_types(name, handler.parameters.values())
    arguments = signature_arguments(name, handler.parameters, handler.own_parameters, are_texts=True)
    if arguments.is_open:
        raise SetupError(f"{name}: a prompt lists its arguments, so it can't take **arguments; name each of them")
    _refuse_other_than_strings(name, arguments.schema, "an argument of a prompt")
    required = arguments.schema.get("required", ())
    listed = []
    for argument, field in arguments.schema["properties"].items():
        entry = {"name": argument, "title": field.get("title"), "description": field.get("description")}
        listed.append({k: v for k, v in entry.items() if v is not None} | {"required": argument in required})
    names = None if ignores_unknown else ArgumentNames(arguments, handler.own_parameters)
    entry = list_entry(function, options, arguments=listed or None)
    return Prompt(
        handler, arguments, _description_of(function, options), entry, names, hook, tags=frozenset(options.tags)
    )


class Resource(NamedTuple):
    """A resource or a template of resources, ready to be read and listed."""

    handler: Handler
    arguments: Arguments
    template: UriTemplate | None  # what its URI is matched against; None for a fixed one
    mime_type: str | None
    ttl: float  # how long a client may keep what was read, in seconds
    scope: Literal["public", "private"]  # who may share a cached result
    entry: JSON
    authorize: Hook | None = None
    tags: frozenset[str] = frozenset()


def build_resource(function: Callable[..., Any], options: ResourceOptions, home: Home) -> Resource:
    """Compile a resource, or a template of resources if the URI has variables. Raises `SetupError`."""
    name, uri = name_of(function, options), options.uri
    handler = compile_handler(function, name, names_around_decorator(), answer_within=options.answer_within, home=home)
    hook = compile_hook(name, options.authorize, options.scopes, options.visible)
    refuse_foreign_types(name, handler.parameters.values())
    template = UriTemplate(uri) if "{" in uri or "}" in uri else None
    variables = template.names if template else []
    if fault := fault_of_uri(template.filled("1") if template else uri):  # a digit may stand in a port, too
        raise SetupError(f"{name}: {uri!r} {fault}")
    if template and options.size is not None:
        raise SetupError(f"{name}: {uri!r} stands for many resources, each of a size of its own; leave size= out")
    if unknown := set(variables) - set(handler.parameters):
        raise SetupError(f"{name}: {uri!r} has the variable {min(unknown)!r}, but the function has no such parameter")
    for each, parameter in handler.parameters.items():
        if each not in variables and parameter.default is Parameter.empty:
            raise SetupError(
                f"{name}: nothing fills the parameter {each!r}: {uri!r} has no {{{each}}}; add it, or give the "
                "parameter a default"
            )
    arguments = signature_arguments(name, {each: handler.parameters[each] for each in variables}, are_texts=True)
    _refuse_other_than_strings(name, arguments.schema, "a variable of a URI")
    entry = list_entry(
        function,
        options,
        **({"uriTemplate": uri} if template else {"uri": uri}),
        mimeType=options.mime_type,
        size=options.size,
        annotations=hints_of(options.annotations, Annotations, "priority=0.5"),
    )
    return Resource(
        handler,
        arguments,
        template,
        options.mime_type,
        options.cache_seconds,
        options.cache,
        entry,
        hook,
        tags=frozenset(options.tags),
    )


class Completer(NamedTuple):
    """Suggests values for one argument of a prompt or template: a function of (value) or of (value, arguments)."""

    handler: Handler

    async def suggest(self, value: str, known: dict[str, str], threads: Threads) -> Any:
        """Return what the function returns. `known` has the other arguments that are known already, by name."""
        function = partial(self.handler.function, *(value, known)[: len(self.handler.parameters)])
        return await call_function(Called(function, self.handler.name, self.handler.is_async), {}, threads)


def build_completer(function: Callable[..., Any], home: Home) -> Completer:
    """Compile a completion. Raises `SetupError`."""
    handler = compile_handler(
        function, getattr(function, "__name__", "completion"), names_around_decorator(), home=home
    )
    if handler.own_parameters or len(handler.parameters) not in (1, 2):
        raise SetupError(
            f"{handler.name}: a completion takes (value), or (value, arguments) with the arguments that are known "
            "already"
        )
    if any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in handler.parameters.values()):
        raise SetupError(f"{handler.name}: a completion is called by position; remove the * from its parameters")
    return Completer(handler)


T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Registering(Protocol):
    """What `@app.callback(...)` is: makes a `Callback` of a function, whose answer is of the type that it returns."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, T | Response]], /) -> Callback[T]: ...
    @overload
    def __call__(self, function: Callable[..., T | Response], /) -> Callback[T]: ...


def build_callback(function: Callable[..., Any], options: CallbackOptions) -> Callback[Any]:
    """Compile a callback. Raises `SetupError`."""
    name = options.name
    handler = compile_handler(function, name, names_around_decorator())
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name!r} is not a valid name for a callback: use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
    if handler.context or handler.inputs or handler.state or len(handler.parameters) not in (1, 2):
        raise SetupError(f"{name}: a callback takes the request, and optionally the CallbackLink over which it came")
    taken = frozenset({options.methods} if isinstance(options.methods, str) else options.methods)
    if not taken or taken - {"GET", "POST"}:
        raise SetupError(f'{name}: methods= takes "GET", "POST", or both')
    others = origins_of(f"{name}: origins", options.origins)
    if others and "POST" not in taken:
        raise SetupError(f'{name}: origins= apply to POST only; give methods=["POST"], too')
    members = [each for each in union_members(handler.returns) if not _is_response(each)]
    if not members:
        raise SetupError(
            f"{name} only returns responses, so it never reports anything; return the value that the flow waits for, "
            "too"
        )
    returns = Any if handler.returns is Parameter.empty else Union[tuple(members)]  # noqa: UP007
    try:
        stored = Stored(returns)
    except SetupError as error:
        raise SetupError(f"{name}: what it returns can't be kept as {returns!r}: {error}") from error
    two = len(handler.parameters) == 2
    return Callback(
        name,
        handler.function,
        takes_link=two,
        returns=returns,
        stored=stored,
        methods=taken,
        origins=others,
        page=options.page,
    )


def _is_response(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Response)
