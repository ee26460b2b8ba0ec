"""From a function that a decorator was put on to what a list shows and requests find. `tools.py` has the tools."""

import inspect
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, cleandoc, getdoc
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, Union, overload

from pydantic import ValidationError
from starlette.responses import Response

from ..addresses import origins_of
from ..concurrency.threads import Threads, call_function
from ..errors import NotFound, SetupError
from ..flow.authorization import Hook, compile_hook
from ..flow.handler import Handler
from ..flow.home import Home
from ..flow.url_asks import Callback
from ..protocol.apps import MIME_TYPE, AppPage
from ..protocol.content import Annotations, ResourceContents, ToolAnnotations, first_problem, icon_entries, wire_of
from ..protocol.messages import JSON
from ..protocol.outgoing import fault_of_uri
from ..schema.arguments import ArgumentNames, Arguments, signature_arguments
from ..schema.misfits import takes
from ..schema.stored import Stored
from ..schema.type_parts import union_members
from ..schema.uri_templates import UriTemplate
from ..well_formed import refuse_halves
from .handlers import compile_handler
from .options import (
    CallbackOptions,
    GuardedOptions,
    ListedOptions,
    PromptOptions,
    ResourceOptions,
    SkillFolderOptions,
    SkillOptions,
)
from .page_options import Csp, PageOptions
from .pages import ServedPage, digest_of, meta_of
from .signatures import folder_around_decorator, names_around_decorator, refuse_foreign_types
from .skills import SKILL, Skill, SkillFile, made_skill, quoted, read_skills

NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
"""As the protocol has them (Tools, Tool Names)."""


_NO_META: Mapping[str, Any] = MappingProxyType({})


def name_of(function: Callable[..., Any], options: ListedOptions) -> str:
    """Return what a function is registered as: the name that it was given, or its own. Raises `SetupError`."""
    name = options.name or getattr(function, "__name__", "")
    if not name or not NAME_CHARACTERS.issuperset(name) or len(name) > 128:
        raise SetupError(
            f"{name!r} can't be a name; pass name= with 1 to 128 of the characters A-Z, a-z, 0-9, '_', '-' and '.'"
        )
    return name


def _description_of(function: Callable[..., Any], options: ListedOptions) -> str | None:
    while isinstance(function, partial):  # its own docstring is that of partial
        function = function.func
    return options.description or (cleandoc(function.__doc__) if function.__doc__ else None)


def list_entry(
    function: Callable[..., Any], options: ListedOptions, meta: Mapping[str, Any] = _NO_META, /, **fields: Any
) -> JSON:
    """Return the entry of a list; `fields` are by their names on the wire, `meta` is ours. Raises `SetupError`."""
    given = options.meta or {}
    if clash := meta.keys() & given.keys():
        raise SetupError(f"meta= has {min(clash)!r}, which ui= sets; keep one of them")
    all_fields = {
        "name": name_of(function, options),
        "title": options.title,
        "description": _description_of(function, options),
        "icons": icon_entries(name_of(function, options), options.icons),
        "_meta": {**given, **({"tags": sorted(set(options.tags))} if options.tags else {}), **meta} or None,
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


_OF_TEXTS = ("string", "integer", "number", "boolean")  # types whose values are read from texts


def _refuse_other_than_strings(where: str, schema: Mapping[str, Any], what: str) -> None:
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
    """Compile a prompt; `ignores_unknown` drops other arguments in place of a refusal. Raises `SetupError`."""
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
    page: ServedPage | None = None  # what goes out with it if it is a page of an app
    skill: Skill | None = None  # the skill that it is, if it is the `SKILL.md` of one


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


_CACHED = 3600.0
"""How long clients may keep a page that comes from a file, in seconds: another page has another address."""


def build_page(options: PageOptions, home: Home, version: str) -> tuple[AppPage, Resource]:
    """Compile a page; `version` is that of the server, of which the address of a function's page depends.

    Raises `SetupError`.
    """
    csp = options.csp or Csp()
    function: Callable[..., Any]
    if callable(options.page):
        function, source, html = options.page, f"{version}\n{_source(options.page)}", None
        name = options.name or getattr(function, "__name__", "")
    else:
        path = folder_around_decorator() / options.page
        name = options.name or path.stem
        html = source = _read(path)

        def function() -> str:
            return html

    address = f"ui://{name}"
    resource = build_resource(
        function,
        ResourceOptions(
            address,
            name=options.name or name,
            title=options.title,
            description=options.description,
            mime_type=MIME_TYPE,
            cache_seconds=0.0 if html is None else _CACHED,
            cache="private" if html is None else "public",
        ),
        home,
    )
    from .page_checks import problem_of  # only where there are pages

    if html is not None and (problem := problem_of(html, csp)):
        raise SetupError(f"The page {name!r} {problem}")
    meta = meta_of(options, csp)
    uri = f"{address}/v-{digest_of(source, meta)}.html"
    entry = {**resource.entry, "uri": uri, "_meta": {"ui": meta}}
    page = ServedPage(resource.entry["name"], meta, csp, is_checked=html is not None)
    return AppPage(uri, address), resource._replace(entry=entry, page=page)


def build_skills(options: SkillFolderOptions, home: Home) -> Iterator[Resource]:
    """Compile the skills in a folder: each its `SKILL.md`, and a template for its other files. Raises `SetupError`."""
    for path, skill in read_skills(folder_around_decorator() / options.folder):
        assert skill.files is not None  # noqa: S101  it has been read
        instructions, *others = skill.files
        yield _skill_resource(_reading(instructions), path, skill, options, home)
        if others:
            listed = _within(f"{path}/{{+file}}", options, name=f"{skill.front_matter['name']}.files")
            yield build_resource(_reading_one_of(others), listed, home)


def build_skill(function: Callable[..., Any], options: SkillOptions, home: Home) -> Resource:
    """Compile a skill whose text a function makes. Raises `SetupError`."""
    path = options.path
    written = options.description or " ".join((getdoc(function) or "").split())
    front: JSON = {"name": path.rpartition("/")[2], "description": written}
    if options.metadata is not None:
        front["metadata"] = dict(options.metadata)
    return _skill_resource(function, quoted(path), made_skill(path, front), options, home)


def _skill_resource(
    function: Callable[..., Any], path: str, skill: Skill, options: SkillFolderOptions | SkillOptions, home: Home
) -> Resource:
    name, description = skill.front_matter["name"], skill.front_matter["description"]
    size = None if skill.files is None or options.lists_asks else len(skill.files[0].content)
    listed = _within(
        f"{path}/{SKILL}", options, name=name, description=description, mime_type="text/markdown", size=size
    )
    return build_resource(function, listed, home)._replace(skill=skill._replace(lists_asks=options.lists_asks))


def _within(path: str, options: GuardedOptions, **more: Any) -> ResourceOptions:
    guards = {name: getattr(options, name) for name in ("tags", "authorize", "scopes", "visible")}
    return ResourceOptions(f"skill://{path}", **guards, **more)


def _reading(of: SkillFile) -> Callable[[], ResourceContents]:
    def read() -> ResourceContents:
        return of.read()

    return read


def _reading_one_of(files: Sequence[SkillFile]) -> Callable[[str], ResourceContents]:
    by_path = {each.path: each for each in files}

    def read(file: str) -> ResourceContents:
        if file not in by_path:
            raise NotFound("The skill has no such file")
        return by_path[file].read()

    return read


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SetupError(f"app.ui: {str(path)!r} can't be read as the HTML of a page: {error}") from None


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # of what was made by code, or has no file
        return getattr(function, "__qualname__", "")


class Completer(NamedTuple):
    """Suggests values for one argument of a prompt or template: a function of (value) or of (value, arguments)."""

    handler: Handler

    async def suggest(self, value: str, known: dict[str, str], threads: Threads) -> Any:
        """Return what the function returns. `known` has the other arguments that are known already, by name."""
        function = partial(self.handler.function, *(value, known)[: len(self.handler.parameters)])
        return await call_function(function, self.handler.name, threads, is_async=self.handler.is_async)


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
