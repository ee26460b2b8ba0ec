"""From a function that `@app.tool` decorates to a tool."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import SetupError
from ..flow.authorization import Hook, compile_hook
from ..flow.handler import Handler, TaskTerms
from ..flow.home import Home
from ..logs import logger
from ..protocol.content import ToolAnnotations
from ..protocol.header_params import HeaderParameter, header_parameters
from ..protocol.messages import JSON
from ..schema.arguments import ArgumentNames, Arguments, RawArguments, signature_arguments
from ..schema.results import Write, piece_results, tool_results, with_text
from ..schema.type_parts import MOST_SHAPES, Shape
from .handlers import calls, compile_handler
from .options import InputSchema, ToolOptions
from .pages import ui_of_tool
from .records import hints_of, list_entry, name_of
from .signatures import names_around_decorator, refuse_foreign_types

if TYPE_CHECKING:
    from ..flow.rate_counters import Rate


class Tool(NamedTuple):
    """A tool, ready to be called and listed."""

    handler: Handler
    arguments: Arguments
    write: Write
    headers: tuple[HeaderParameter, ...]
    entry: JSON
    # The arguments that a new call may have; None where its schema says so, or unknown ones are ignored.
    names: ArgumentNames | None = None
    authorize: Hook | None = None  # says who may call it; None for everyone whom the server lets in
    rate: "Rate | None" = None  # how often each caller may call it; None for as often as they like
    tags: frozenset[str] = frozenset()  # what it can be disabled by
    asks_in_page: bool | None = None  # whether it may ask in a page of ours; None if its code says that


def build_tool(
    function: Callable[..., Any], options: ToolOptions, home: Home, *, ignores_unknown: bool = False
) -> Tool:
    """Compile a tool; `ignores_unknown` drops other arguments in place of a refusal. Raises `SetupError`."""
    name = name_of(function, options)
    hook = compile_hook(name, options.authorize, options.scopes, options.visible)
    handler = _compile(function, name, options, home)
    refuse_foreign_types(name, handler.parameters.values())
    arguments: Arguments
    names = None
    if options.input_schema is None:
        arguments = signature = signature_arguments(name, handler.parameters, handler.own_parameters)
        schema = signature.schema
        if signature.is_open and not signature.names:
            raise SetupError(
                f"{name}: its only parameter takes whatever comes, so no client learns which arguments there are. If "
                "it wraps a function, use functools.wraps(function), or functools.update_wrapper(self, function) in a "
                "class; otherwise name its parameters, or pass input_schema="
            )
        if not ignores_unknown:
            names = ArgumentNames(signature, handler.own_parameters)
            schema = {**schema, "additionalProperties": schema.get("additionalProperties", False)}
    else:
        parameter, given = _raw_parameter(name, handler.parameters), options.input_schema
        served = given if isinstance(given, InputSchema) else InputSchema(given)
        arguments = RawArguments(name, served.schema, parameter, validate=served.validate)
        schema = arguments.schema
        ours = handler.own_parameters & set(schema.get("properties", ()))
        if ours and arguments.by_name:
            raise SetupError(
                f"{name}: {min(ours)!r} is in input_schema= and is also a parameter that the server fills; "
                "rename the parameter"
            )
    output_schema: JSON | None = None
    if handler.yields:
        write = piece_results(name, handler.returns)
        if options.text is not None:
            raise SetupError(f"{name}: text= is for structured results; an async generator yields its text itself")
    else:
        output_schema, write = _results(Shape(name, handler.returns))
        if options.text is not None:
            write = with_text(name, handler.returns, write, options.text)
    handler, write = write_in_time(handler, write)
    headers = header_parameters(name, schema)
    entry = list_entry(
        function,
        options,
        ui_of_tool(options.drawn.page, options.used_by),
        inputSchema=schema,
        outputSchema=output_schema,
        annotations=hints_of(options.annotations, ToolAnnotations, "read_only_hint=True"),
    )
    return Tool(
        handler,
        arguments,
        write,
        headers,
        entry,
        names,
        hook,
        _rate(name, options),
        frozenset(options.tags),
        options.drawn.question,
    )


@lru_cache(maxsize=MOST_SHAPES)
def _results(shape: Shape) -> tuple[JSON | None, Write]:
    return tool_results(shape.where, *shape.of)


def write_in_time(handler: Handler, write: Write) -> tuple[Handler, Write]:
    """Return a handler and what writes its result after it: nothing, where a teardown takes what that is made from."""
    if handler.has_teardown:
        return replace(handler, write=write), lambda written: written
    return replace(handler, write=None), write


def _rate(name: str, options: ToolOptions) -> "Rate | None":
    if options.rate_limit is None:
        return None
    from ..flow.rate_counters import read_rate  # which needs a library that not everybody has

    return read_rate(f"{name}: rate_limit", options.rate_limit)


def _compile(function: Callable[..., Any], name: str, options: ToolOptions, home: Home) -> Handler:
    handler = compile_handler(
        function,
        name,
        names_around_decorator(),
        answer_within=options.answer_within,
        confirm=options.confirm,
        single_use=options.single_use or options.confirm is not None,
        home=home,
        may_stream=True,
    )
    reports_progress = handler.yields and calls(handler, "progress")
    handler = replace(
        handler, timeout=options.timeout, reports_progress=reports_progress, needs_store=options.single_use
    )
    goes_on = calls(handler, "background")
    if goes_on and not handler.is_async:
        raise SetupError(f"{name}: ctx.background() is awaited; make the function `async def`")
    if options.as_task is None and calls(handler, "wait_for"):
        raise SetupError(
            f'{name} calls ctx.wait_for(), so its calls must be able to become tasks; write @app.tool(task="optional")'
        )
    if (task := options.as_task) is not None:
        if goes_on and task.rounds_first is None:
            raise SetupError(
                f"{name} calls ctx.background(), so say how its calls begin. With task=Task({task.mode!r}, "
                "rounds_first=True) they begin in rounds, and become tasks there; with rounds_first=False they are "
                "tasks at once, and ctx.background() does nothing"
            )
        terms = TaskTerms(task.mode == "required", task.rounds_first, task.ttl, task.poll, options.concurrency)
        return replace(handler, task=terms)
    if goes_on:
        logger.warning(
            "%s: %r calls ctx.background() but has no tasks, so the call does nothing; give it "
            'task="optional" or "required"',
            home.name,
            name,
        )
    return handler


def _raw_parameter(where: str, parameters: Mapping[str, Parameter]) -> str | None:
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
