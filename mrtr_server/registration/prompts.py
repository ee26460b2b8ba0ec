"""From a function that `@app.prompt` decorates to a prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import SetupError
from ..flow.authorization import Hook, compile_hook
from ..flow.handler import Handler
from ..flow.home import Home
from ..protocol.messages import JSON
from ..schema.arguments import ArgumentNames, Arguments, SignatureArguments
from .foreign import refuse_foreign_types
from .handlers import compile_handler
from .listed import description_of, list_entry, name_of, refuse_other_than_strings
from .options import PromptOptions
from .signatures import names_around_decorator


@dataclass(frozen=True, slots=True)
class Prompt:
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

    Args:
        function: what was decorated.
        options: of its decorator.
        home: the application that registers it.
        ignores_unknown: whether arguments that it does not take are dropped; otherwise a request with some is refused.

    Raises:
        SetupError: it can't be served; the message says why.
    """
    name = name_of(function, options)
    handler = compile_handler(function, name, names_around_decorator(), answer_within=options.answer_within, home=home)
    hook = compile_hook(name, options.authorize, options.scopes, options.visible)
    refuse_foreign_types(name, handler.parameters.values())
    arguments = SignatureArguments(name, handler.parameters, handler.own_parameters, are_texts=True)
    if arguments.is_open:
        raise SetupError(f"{name}: a prompt lists its arguments, so it can't take **arguments; name each of them")
    refuse_other_than_strings(name, arguments.schema, "an argument of a prompt")
    required = arguments.schema.get("required", ())
    listed = []
    for argument, field in arguments.schema["properties"].items():
        entry = {"name": argument, "title": field.get("title"), "description": field.get("description")}
        listed.append({k: v for k, v in entry.items() if v is not None} | {"required": argument in required})
    names = None if ignores_unknown else ArgumentNames(arguments, handler.own_parameters)
    entry = list_entry(function, options, arguments=listed or None)
    return Prompt(
        handler, arguments, description_of(function, options), entry, names, hook, tags=frozenset(options.tags)
    )
