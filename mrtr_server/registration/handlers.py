"""Handlers: what a decorated function takes, compiled once."""

import dis
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from inspect import Parameter, getclosurevars, isclass, isfunction, unwrap
from types import CodeType
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, Field

from ..errors import SetupError
from ..flow.asks import Confirm, Elicit, InputRequired, Text, form_of
from ..flow.context import ASKS
from ..flow.handler import DeclaredAsk, Dependency, Handler
from ..flow.home import Home
from ..flow.step_arguments import IdempotencyKey
from ..flow.waits import LONGEST_TICKET, Wait
from ..protocol.messages import JSON
from ..schema.stored import Stored, stored_as
from ..schema.type_parts import resolved, union_members
from .declarations import Declaration, read_declaration
from .dependencies import compile_declared
from .signatures import BY_NAME, own_type, read_signature, refuse_unannotated


def compile_handler(
    function: Callable[..., Any],
    name: str,
    namespace: Mapping[str, Any],
    *,
    answer_within: float | None = None,
    confirm: Text | Confirm | None = None,
    single_use: bool = False,
    home: Home | None = None,
    may_stream: bool = False,
) -> Handler:
    """Read a function's signature. Raises `SetupError`."""
    # `namespace` has the local names where the function was defined, for annotations that are strings.
    if isclass(function):
        raise SetupError(
            f"{name} is a class, and a call of it would make an object; mark its methods with @tool, @prompt or "
            "@resource, and register an object of it: app.add(obj)"
        )
    signature = read_signature(function, name, namespace, may_stream=may_stream)
    streams = may_stream and signature.streams
    ours: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    declarations: dict[str, Declaration] = {}
    stored = stored_as(Any)
    for parameter in signature.parameters.values():
        if parameter.annotation is IdempotencyKey:
            raise SetupError(
                f"{name}: a client could fill parameter {parameter.name!r}; take an IdempotencyKey in the "
                "function of a step, see ctx.step"
            )
        declaration = read_declaration(name, parameter)
        if declaration is not None:  # never an argument, or the model could give the person's answer itself
            declarations[parameter.name] = declaration
            parameters |= _text_of(parameter, declaration)
            continue
        kind, bare = own_type(parameter.annotation)
        if kind is None:
            refuse_unannotated(name, parameter)
            parameters[parameter.name] = parameter
            continue
        if parameter.kind not in BY_NAME:
            raise SetupError(
                f"{name}: parameter {parameter.name!r} takes the {kind}, which is passed by name; make it an "
                "ordinary parameter, without *, ** or /"
            )
        if kind in ours:
            raise SetupError(f"{name}: {ours[kind]!r} and {parameter.name!r} both take the {kind}; keep one")
        ours[kind] = parameter.name
        if streams and kind != "context":
            raise SetupError(
                f"{name}: {parameter.name!r} takes the {kind}, for which a function returns InputRequired, and a "
                "generator can't return anything; take a Context and ask with it"
            )
        if kind == "state" and get_args(bare):
            stored = _stored_state(name, parameter.name, get_args(bare)[0])
    return Handler(
        function=function,
        name=name,
        is_async=signature.is_async,
        context=ours.get("context"),
        inputs=ours.get("inputs"),
        state=ours.get("state"),
        stored_state=stored,
        parameters=parameters,
        returns=_without_asks(signature.returns),
        answer_within=answer_within,
        declared=compile_declared(name, declarations, parameters, namespace, confirm, home),
        single_use=single_use,
        homes=() if home is None else (home,),
        yields=streams,
    )


def _text_of(ticket: Parameter, declaration: Declaration) -> dict[str, Parameter]:
    """Return the parameter of a ticket as clients fill it, with its text: what that opens to is declared."""
    if not isinstance(declaration.mark, Wait):
        return {}
    text: Any = Annotated[str, Field(max_length=LONGEST_TICKET, description="A ticket, as another tool has given it.")]
    for each in getattr(resolved(ticket.annotation), "__metadata__", ()):
        if not isinstance(each, Wait):
            text = Annotated[text, each]
    return {ticket.name: ticket.replace(annotation=text)}


def _stored_state(where: str, parameter: str, annotation: Any) -> Stored:
    try:
        return stored_as(annotation)
    except SetupError as error:
        raise SetupError(
            f"{where}: the state {parameter!r} could not be read again as its declared type, {annotation}: {error}"
        ) from None


def _without_asks(annotation: Any) -> Any:
    members = union_members(annotation)
    kept = tuple(member for member in members if member is not InputRequired)
    if len(kept) == len(members):
        return annotation
    return Union[kept] if kept else type(None)  # noqa: UP007  built from values


def asks(handler: Handler) -> bool:
    """Check whether a handler asks, as far as can be seen: what it declares, returns, or calls by its own code."""
    if handler.inputs is not None or (handler.declared is not None and handler.declared.keys):
        return True
    return any(calls(each, method) for each in _parts(handler) for method in ASKS)


def asks_with(handler: Handler, option: Literal["ui", "through_model"]) -> bool:
    """Check whether a handler asks with an option, as far as can be seen: what it declares, or its own code passes."""
    nodes = () if handler.declared is None else handler.declared.nodes
    if any(isinstance(node, DeclaredAsk) and getattr(node.ask, option) for node in nodes):
        return True
    functions = (_own_function(part.function) for part in _parts(handler) if part.context is not None)
    return any(_passes(function.__code__, option) for function in functions if isfunction(function))


def _passes(code: CodeType, name: str) -> bool:
    """Return whether a function, or one within it, passes an argument by a name."""
    constants = code.co_consts
    return any(
        (isinstance(each, tuple) and name in each) or (isinstance(each, CodeType) and _passes(each, name))
        for each in constants
    )


def confirms_by_code(handler: Handler) -> bool:
    """Check whether the code of a handler and its dependencies asks for a confirmation, as far as can be seen."""
    return any(calls(each, "confirm") or Confirm in _values_in(each)[0] for each in _parts(handler))


def _parts(handler: Handler) -> list[Handler | Dependency]:
    nodes = () if handler.declared is None else handler.declared.nodes
    return [handler, *(node for node in nodes if isinstance(node, Dependency))]


def _values_in(part: Handler | Dependency) -> tuple[list[Any], Set[str]]:
    """Return what the names in a function's code stand for, and those names that stand for nothing out of it."""
    code = _own_function(part.function)
    if not isfunction(code):
        return [], frozenset()
    try:
        names = getclosurevars(code)
    except ValueError:  # one of them has no value yet
        return [], frozenset()
    return [*names.globals.values(), *names.nonlocals.values()], names.unbound


def calls(handler: Handler | Dependency, method: str) -> bool:
    """Check whether a function's own code calls a method of its `Context`, as far as its names show."""
    code = getattr(_own_function(handler.function), "__code__", None)
    return code is not None and handler.context is not None and _takes(code, handler.context, method)


def asked_fields(handler: Handler) -> Iterator[tuple[str, str, JSON]]:
    """Yield the fields of the forms of a handler and its dependencies, as far as their code shows them."""
    # Of each: its name with what it is of, its name, and its schema.
    nodes = () if handler.declared is None else handler.declared.nodes
    for node in nodes:
        if isinstance(node, DeclaredAsk) and isinstance(node.ask, Elicit):
            for where, name, field in _fields(node.ask.schema):
                yield (node.key, node.key, field) if node.ask.of_value else (where, name, field)
    for part in _parts(handler):
        used, unbound = _values_in(part)
        if "elicit" in unbound or any(each is Elicit for each in used):
            for model in used:
                if isclass(model) and issubclass(model, BaseModel):
                    with suppress(Exception):  # it is no form, as `BaseModel` itself, or of a schema that fails
                        yield from _fields(model)


def _fields(asked: Any) -> Iterator[tuple[str, str, JSON]]:
    form, _ = form_of(asked)
    for name, field in form.schema["properties"].items():
        yield f"{form.model.__name__}.{name}", name, field


def _own_function(function: Any) -> Any:
    function = getattr(function, "func", function)
    function = unwrap(getattr(function, "__func__", function))
    return function if isfunction(function) else type(function).__call__  # of an object


def _takes(code: CodeType, variable: str, attribute: str) -> bool:
    """Check whether code, or that of a function within it, takes an attribute of a variable of this name."""
    loaded: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.argval == attribute and loaded == variable:
            return True
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        if isinstance(loaded, tuple):  # newer versions load two variables at once
            loaded = loaded[-1]
    return any(_takes(const, variable, attribute) for const in code.co_consts if isinstance(const, CodeType))
