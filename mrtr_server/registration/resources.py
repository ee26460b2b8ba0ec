"""From a function that `@app.resource` decorates to a resource, or a template of resources."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Literal

from ..errors import SetupError
from ..flow.authorization import Hook, compile_hook
from ..flow.handler import Handler
from ..flow.home import Home
from ..protocol.addresses import fault_of_uri
from ..protocol.content import Annotations
from ..protocol.messages import JSON
from ..schema.arguments import Arguments, SignatureArguments
from ..schema.uri_templates import UriTemplate
from .foreign import refuse_foreign_types
from .handlers import compile_handler
from .listed import hints_of, list_entry, name_of, refuse_other_than_strings
from .options import ResourceOptions
from .signatures import names_around_decorator


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource or a template of resources, ready to be read and listed.

    Args:
        template: what its URI is matched against; None for a fixed one.
        ttl: how long a client may keep what was read, in seconds.
        scope: who may share a cached result.
        authorize, tags: as for a `Tool`.
    """

    handler: Handler
    arguments: Arguments
    template: UriTemplate | None
    mime_type: str | None
    ttl: float
    scope: Literal["public", "private"]
    entry: JSON
    authorize: Hook | None = None
    tags: frozenset[str] = frozenset()


def build_resource(function: Callable[..., Any], options: ResourceOptions, home: Home) -> Resource:
    """Compile a resource, or a template of resources if the URI has variables.

    Args:
        function: what was decorated.
        options: of its decorator.
        home: the application that registers it.

    Raises:
        SetupError: it can't be served; the message says why.
    """
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
    arguments = SignatureArguments(name, {each: handler.parameters[each] for each in variables}, are_texts=True)
    refuse_other_than_strings(name, arguments.schema, "a variable of a URI")
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
