"""Tools, prompts, resources and completions as compiled records, and the lists of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, cleandoc
from typing import Any, Literal

from ..callbacks.service import Callback
from ..concurrency.threads import Threads
from ..errors import SetupError
from ..flow.authorization import Hook
from ..flow.handler import Handler, TaskTerms
from ..protocol.content import Icon, ToolAnnotations, icon_entries
from ..protocol.header_params import HeaderParameter, header_parameters
from ..protocol.messages import JSON
from ..schema.arguments import Arguments, SignatureArguments
from ..schema.raw import RawArguments
from ..schema.results import Write, tool_results
from ..schema.unknown_arguments import ArgumentNames
from ..schema.uri_templates import UriTemplate
from .foreign import refuse_foreign_types
from .option_types import check_registration

NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
"""What names are made of (Tools, Tool Names)."""

LISTINGS = ("tools", "prompts", "resources", "resourceTemplates")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, ready to be called and listed.

    Args:
        names: the arguments that a new call may have; None where that is for its schema to say, or nobody minds.
        authorize: says who may call it; None for whoever the server lets.
    """

    handler: Handler
    arguments: Arguments
    write: Write
    headers: tuple[HeaderParameter, ...]
    entry: JSON
    names: ArgumentNames | None = None
    authorize: Hook | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready to be got and listed; `names` and `authorize` are as for a `Tool`."""

    handler: Handler
    arguments: Arguments
    description: str | None
    entry: JSON
    names: ArgumentNames | None = None
    authorize: Hook | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource or a template of resources, ready to be read and listed.

    Args:
        template: what its URI is matched against; None for a fixed one.
        ttl: how long a client may keep what was read, in seconds.
        scope: who may share what was kept.
        authorize: as for a `Tool`.
    """

    handler: Handler
    arguments: Arguments
    template: UriTemplate | None
    mime_type: str | None
    ttl: float
    scope: Literal["public", "private"]
    entry: JSON
    authorize: Hook | None = None


Record = Tool | Prompt | Resource
"""What is listed."""


@dataclass(frozen=True, slots=True)
class Described:
    """What a decorator was told for the lists."""

    name: str
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon | Mapping[str, Any]] = ()
    meta: Mapping[str, Any] | None = None

    def entry(self, **fields: Any) -> JSON:
        """Give the entry of a list; what is None is left out."""
        all_fields = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "icons": icon_entries(self.icons),
            "_meta": dict(self.meta) if self.meta else None,
            **fields,
        }
        return {name: value for name, value in all_fields.items() if value is not None}


def described(
    function: Callable[..., Any],
    name: str | None,
    title: str | None,
    description: str | None,
    icons: Sequence[Icon | Mapping[str, Any]],
    meta: Mapping[str, Any] | None,
) -> Described:
    """Complete what a decorator was told from the function: its name, and its docstring. Raises `SetupError`."""
    check_registration(name=name, title=title, description=description, icons=icons, meta=meta)
    name = name or getattr(function, "__name__", "")
    if not name or not NAME_CHARACTERS.issuperset(name) or len(name) > 128:
        raise SetupError(
            f"{name!r} can't be a name; pass name= with 1 to 128 of the characters A-Z, a-z, 0-9, '_', '-' and '.'"
        )
    while isinstance(function, partial):  # its own docstring is that of partial
        function = function.func
    docstring = cleandoc(function.__doc__) if function.__doc__ else None
    return Described(name, title, description or docstring, icons, meta)


def build_tool(
    handler: Handler,
    about: Described,
    *,
    annotations: ToolAnnotations | Mapping[str, Any] | None,
    input_schema: Mapping[str, Any] | None,
    ignores_unknown: bool = False,
    authorize: Hook | None = None,
    validate: bool = True,
) -> Tool:
    """Compile a tool. Raises `SetupError` for what can't be served."""
    refuse_foreign_types(about.name, handler.parameters.values())
    arguments: Arguments
    names = None
    if input_schema is None:
        if not validate:
            raise SetupError(f"{about.name}: validate=False is for tools with input_schema=")
        arguments = signature = SignatureArguments(about.name, handler.parameters, handler.own_parameters)
        if not ignores_unknown:
            names = ArgumentNames(signature, handler.own_parameters)
            arguments.schema.setdefault("additionalProperties", False)
    else:
        parameter = _raw_parameter(about.name, handler.parameters)
        arguments = RawArguments(about.name, input_schema, parameter, validate=validate)
        ours = handler.own_parameters & set(arguments.schema.get("properties", ()))
        if ours and arguments.by_name:
            raise SetupError(
                f"{about.name}: {min(ours)!r} is in input_schema= and is also a parameter that the server fills; "
                "rename the parameter"
            )
    output_schema, write = tool_results(about.name, handler.returns)
    if handler.has_teardown:  # what a result is made from may be gone afterwards
        handler, write = replace(handler, write=write), lambda written: written
    if annotations is not None and not isinstance(annotations, ToolAnnotations | Mapping):
        raise SetupError("annotations= takes ToolAnnotations(...), such as ToolAnnotations(read_only_hint=True)")
    hints = annotations.wire() if isinstance(annotations, ToolAnnotations) else annotations
    entry = about.entry(
        inputSchema=arguments.schema, outputSchema=output_schema, annotations=dict(hints) if hints else None
    )
    return Tool(handler, arguments, write, header_parameters(about.name, arguments.schema), entry, names, authorize)


def build_prompt(
    handler: Handler, about: Described, *, ignores_unknown: bool = False, authorize: Hook | None = None
) -> Prompt:
    """Compile a prompt. Raises `SetupError` for what can't be served."""
    refuse_foreign_types(about.name, handler.parameters.values())
    arguments = SignatureArguments(about.name, handler.parameters, handler.own_parameters)
    if arguments.is_open:
        raise SetupError(f"{about.name}: a prompt lists its arguments, so it can't take **arguments; name each of them")
    _only_strings(about.name, arguments.schema, "an argument of a prompt")
    required = arguments.schema.get("required", ())
    listed = []
    for name, field in arguments.schema["properties"].items():
        entry = {"name": name, "title": field.get("title"), "description": field.get("description")}
        listed.append({k: v for k, v in entry.items() if v is not None} | {"required": name in required})
    names = None if ignores_unknown else ArgumentNames(arguments, handler.own_parameters)
    return Prompt(handler, arguments, about.description, about.entry(arguments=listed or None), names, authorize)


def build_resource(
    handler: Handler,
    about: Described,
    uri: str,
    *,
    mime_type: str | None,
    size: int | None,
    annotations: Mapping[str, Any] | None,
    ttl: float,
    scope: Literal["public", "private"],
    authorize: Hook | None = None,
) -> Resource:
    """Compile a resource, or a template of resources if the URI has variables. Raises `SetupError`."""
    if ":" not in uri:
        raise SetupError(f"{uri!r} is not a URI: it has no scheme, such as file:")
    refuse_foreign_types(about.name, handler.parameters.values())
    template = UriTemplate(uri) if "{" in uri or "}" in uri else None
    names = template.names if template else []
    if unknown := set(names) - set(handler.parameters):
        raise SetupError(
            f"{about.name}: {uri!r} has the variable {min(unknown)!r}, but the function has no such parameter"
        )
    for name, parameter in handler.parameters.items():
        if name not in names and parameter.default is Parameter.empty:
            raise SetupError(
                f"{about.name}: nothing fills the parameter {name!r}: {uri!r} has no {{{name}}}; add it, or give "
                "the parameter a default"
            )
    arguments = SignatureArguments(about.name, {name: handler.parameters[name] for name in names})
    _only_strings(about.name, arguments.schema, "a variable of a URI")
    where = {"uriTemplate": uri} if template else {"uri": uri}
    entry = about.entry(**where, mimeType=mime_type, size=size, annotations=dict(annotations) if annotations else None)
    return Resource(handler, arguments, template, mime_type, ttl, scope, entry, authorize)


@dataclass(frozen=True, slots=True)
class Completer:
    """Suggests values for one argument of a prompt or template: a function of (value) or of (value, arguments)."""

    handler: Handler

    async def suggest(self, value: str, known: dict[str, str], threads: Threads) -> Any:
        """Give what the function returns for a value, and for the arguments that are known already."""
        given = (value, known)[: len(self.handler.parameters)]
        if self.handler.is_async:
            return await self.handler.function(*given)
        return await threads(partial(self.handler.function, *given))


def build_completer(handler: Handler) -> Completer:
    """Compile a completion. Raises `SetupError` if the function can't take what it is given."""
    if handler.own_parameters or len(handler.parameters) not in (1, 2):
        raise SetupError(
            f"{handler.name}: a completion takes (value), or (value, arguments) with the arguments that are known "
            "already"
        )
    if any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in handler.parameters.values()):
        raise SetupError(f"{handler.name}: a completion is called by position; remove the * from its parameters")
    return Completer(handler)


class Registry:
    """All that a server offers. What is registered later shows in the next list."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.tasks: dict[str, TaskTerms] = {}
        """How calls of tools become tasks, by the name of each tool that has some."""
        self.prompts: dict[str, Prompt] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Resource] = {}
        self.completers: dict[tuple[str, str, str], Completer] = {}
        self.callbacks: dict[str, Callback[Any]] = {}
        self.guarded: set[str] = set()
        """The `LISTINGS` that have an entry with a hook of its own."""

    def add_tool(self, tool: Tool) -> None:
        """Register a tool. Raises `SetupError` if its name is taken."""
        _add(self.tools, "tool", tool.handler.name, tool)
        self._note(tool, "tools")
        if tool.handler.task is not None:
            self.tasks[tool.handler.name] = tool.handler.task

    def add_prompt(self, prompt: Prompt) -> None:
        """Register a prompt. Raises `SetupError` if its name is taken."""
        _add(self.prompts, "prompt", prompt.handler.name, prompt)
        self._note(prompt, "prompts")

    def add_resource(self, resource: Resource) -> None:
        """Register a resource or template. Raises `SetupError` if its URI is taken."""
        if resource.template is None:
            _add(self.resources, "resource", resource.entry["uri"], resource)
            self._note(resource, "resources")
        else:
            _add(self.templates, "resource template", resource.entry["uriTemplate"], resource)
            self._note(resource, "resourceTemplates")

    def _note(self, record: Record, listing: str) -> None:
        if record.authorize is not None:
            self.guarded.add(listing)

    def add_completer(self, kind: str, name: str, argument: str, completer: Completer) -> None:
        """Register the completion of an argument. Raises `SetupError` if it has one."""
        _add(self.completers, "completion of", (kind, name, argument), completer)

    def add_callback(self, callback: Callback[Any]) -> None:
        """Register a callback. Raises `SetupError` if its name is taken."""
        _add(self.callbacks, "callback", callback.name, callback)

    def find_resource(self, uri: str) -> tuple[Resource, dict[str, str]] | None:
        """Find what serves a URI, with the values of its template; fixed URIs first, then templates in order."""
        fixed = self.resources.get(uri)
        if fixed is not None:
            return fixed, {}
        for resource in self.templates.values():
            if resource.template is not None and (values := resource.template.match(uri)) is not None:
                return resource, values
        return None

    def records(self, listing: str) -> Mapping[str, Record]:
        """Return what one of the `LISTINGS` lists, by name or URI, in the order of registration."""
        listings: dict[str, Mapping[str, Record]] = {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.templates,
        }
        return listings[listing]

    def header_parameters(self, tool: str) -> tuple[HeaderParameter, ...]:
        """Give the parameters of a tool that headers mirror; none for an unknown tool."""
        found = self.tools.get(tool)
        return found.headers if found is not None else ()

    def may_be_task(self, tool: str) -> bool:
        """Say whether a tool's calls may become tasks."""
        found = self.tools.get(tool)
        return found is not None and found.handler.task is not None


def _add(records: dict[Any, Any], kind: str, name: object, record: Any) -> None:
    if name in records:
        raise SetupError(f"There is a {kind} {name!r} already; rename or remove one of them")
    records[name] = record


def _raw_parameter(where: str, parameters: Mapping[str, Parameter]) -> str | None:
    """Give the parameter that takes all arguments; None if each is given by name."""
    if len(parameters) == 1:
        ((name, parameter),) = parameters.items()
        if parameter.kind is Parameter.VAR_KEYWORD:
            return None
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            return name
    # Whatever else there is, a client could fill by its name, whether the schema has it or not.
    raise SetupError(
        f"{where}: with input_schema=, the function takes one dictionary, or **arguments, and besides that only "
        f"Context, Inputs, State, asks and dependencies; it has {', '.join(map(repr, parameters)) or 'nothing'}"
    )


def _only_strings(where: str, schema: Mapping[str, Any], what: str) -> None:
    for name, field in schema["properties"].items():
        if not _takes_strings(field, schema.get("$defs", {})):
            raise SetupError(
                f"{where}: {name!r} is {what}, which arrives as a string, and its type accepts no string; "
                "take a str and convert it, or add BeforeValidator(..., json_schema_input_type=str) to the "
                "annotation"
            )


def _takes_strings(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    if "$ref" in field:
        field = definitions[field["$ref"].rpartition("/")[2]]
    if "anyOf" in field or "oneOf" in field:
        return any(_takes_strings(branch, definitions) for branch in field.get("anyOf", field.get("oneOf", ())))
    return field.get("type") not in ("object", "array", "null")
