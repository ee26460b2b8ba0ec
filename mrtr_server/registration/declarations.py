"""Parameters that declare where they come from: an ask, fitted to the type of its parameter, a dependency, a ticket."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, isclass, signature
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

from ..errors import Refusal, SetupError
from ..flow.asks import Ask, Confirm, Elicit, Elicited
from ..flow.journal import UNSET
from ..flow.waits import Ticket, Wait
from ..protocol.messages import JSON
from ..schema.type_parts import metadata_within, resolved, union_members
from .signatures import BY_NAME, refuse_foreign_marks


@dataclass(frozen=True, slots=True)
class Depends:
    """Fill a parameter with what a function returns: `stock: Annotated[Stock, Depends(check_stock)]`.

    The function's parameters are filled by name with the call's arguments and with the handler's other declared
    parameters. It may declare asks and dependencies itself, and take the `Context`. It runs at most once a round, and
    again in every round: what must happen once in a flow goes into `ctx.step`.

    The declared asks and dependencies are asked and run one after another, in the order of the parameters, up to the
    first failure.

    A generator with one `yield`, also under `@contextmanager` or `@asynccontextmanager`, gives what it yields. It goes
    on at the end of the round, before the result or the state goes out: normally after a result; else with the error,
    the no (`Refusal`) or the cancellation that ended the round, or with `FlowContinues` if the round ends without a
    result: it asks, is handed over or becomes a task. So a transaction around the `yield` is rolled back there.

    Args:
        function: sync (it runs in a thread) or async.
        on_ask: how a generator is left in a round without a result: `"rollback"` raises `FlowContinues` at its `yield`,
            and `ctx.step` refuses what it has yielded; `"commit"` continues it normally.

    Raises:
        SetupError: it can't be called, or there is no such `on_ask`.
    """

    function: Callable[..., Any]
    on_ask: Literal["rollback", "commit"] = field(default="rollback", kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SetupError(f"Depends(...) takes a function, not {self.function!r}")
        if self.on_ask not in ("rollback", "commit"):
            raise SetupError(f'Depends(on_ask={self.on_ask!r}): on_ask is "rollback" or "commit"')


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A parameter that is annotated with an ask, with `Depends` or with a wait."""

    name: str
    where: str  # the parameter and its function, for errors
    type: Any  # its annotation, without None and without the mark
    mark: Ask[Any] | Depends | Wait[Any, Any]  # the ask, the dependency, or the wait that a ticket is of
    otherwise: Any  # what it gets when the person does not answer; `UNSET` if that ends the call


def read_declaration(where: str, parameter: Parameter) -> Declaration | None:
    """Return what a parameter declares; None if it is an ordinary one. Raises `SetupError`."""
    name, default = parameter.name, parameter.default
    where = f"{where}: parameter {name!r}"
    if _is_mark(default):
        kind = as_written(default)
        raise SetupError(f"{where} has {kind} as its default; write {name}: Annotated[..., {kind}(...)]")
    annotation = resolved(parameter.annotation)
    members = [resolved(member) for member in union_members(annotation) if member is not NoneType]
    optional = len(members) < len(union_members(annotation))
    annotation = members[0] if len(members) == 1 else annotation
    marks = [mark for mark in getattr(annotation, "__metadata__", ()) if _is_mark(mark)]
    bare = get_args(annotation)[0] if marks else annotation
    for hidden in filter(_is_mark, metadata_within(bare)):
        raise SetupError(
            f"{where} has {as_written(hidden)} nested in its type; put it around the whole type: Annotated[..., "
            f"{as_written(hidden)}(...)]"
        )
    if not marks:
        return None
    if len(marks) > 1:
        raise SetupError(f"{where} has two marks, {as_written(marks[0])} and {as_written(marks[1])}; keep one")
    mark = marks[0]
    if isclass(mark):
        raise SetupError(f"{where} is marked with the class {as_written(mark)}; write {as_written(mark)}(...)")
    if parameter.kind not in BY_NAME:
        raise SetupError(f"{where} can't be filled by name; make it an ordinary parameter, without *, ** or /")
    bare = resolved(bare)
    if isinstance(mark, Wait) and (get_origin(bare) or bare) is not Ticket:
        raise SetupError(f"{where} is marked with a wait; write {name}: Annotated[Ticket[...], {mark.name}]")
    if isinstance(mark, Ask):
        kept = [member for member in union_members(bare) if member is not NoneType]
        optional = optional or len(kept) < len(union_members(bare))
        bare = resolved(kept[0]) if len(kept) == 1 else bare
    otherwise = default if default is not Parameter.empty else (None if optional else UNSET)
    return Declaration(name, where, bare, mark, otherwise)


def as_written(thing: Any) -> str:
    """Return a type, an ask or a function as its author writes it, for errors."""
    if isinstance(thing, Ask | Depends):
        thing = type(thing)
    if get_args(thing):
        return re.sub(r"\b(?:\w+\.)+", "", str(thing))
    return str(getattr(thing, "__name__", type(thing).__name__))


def _is_mark(value: Any) -> bool:
    return isinstance(value, Ask | Depends | Wait) or (isclass(value) and issubclass(value, Ask | Depends))


def bind_ask(declaration: Declaration, mark: Ask[Any]) -> tuple[Ask[Any], Callable[[JSON], Any], str]:
    """Return an ask that fits its parameter, the reader of its value, and a default key. Raises `SetupError`."""
    where, wanted, otherwise = declaration.where, declaration.type, declaration.otherwise
    ask, default_key, may_be_declined = mark, declaration.name, mark.may_be_declined
    if isinstance(mark, Elicit):  # any type may be that of a form
        ask = bound = _bind_form(where, wanted, mark)
        default_key, may_be_declined = default_key if bound.of_value else bound.default_key, not bound.branches
    elif wanted not in mark.types:
        allowed = " or ".join(f"Annotated[{as_written(each)}, {as_written(mark)}(...)]" for each in mark.types)
        raise SetupError(f"{where} is of type {as_written(wanted)}; write {allowed}")
    read = ask.reader_of(wanted)
    if otherwise is UNSET:
        return ask, read, default_key
    if not may_be_declined:
        raise _unused_default(declaration, mark)
    return ask, _or(read, otherwise), default_key


def _unused_default(declaration: Declaration, mark: Ask[Any]) -> SetupError:
    if isinstance(mark, Confirm):
        return SetupError(
            f"{declaration.where} is a confirmation, and the call continues only after a yes; remove its default, or "
            "None from its type"
        )
    kind = "Elicited" if get_origin(declaration.type) is Elicited else as_written(mark)
    return SetupError(
        f"{declaration.where}: {kind} has no other value to fall back to; remove the default, or None from the type"
    )


def _bind_form(where: str, wanted: Any, mark: Elicit[Any]) -> Elicit[Any]:
    if mark.schema not in (UNSET, wanted):
        raise SetupError(
            f"{where} is of type {as_written(wanted)}, but its Elicit asks for {as_written(mark.schema)}; leave "
            "the model out of Elicit(...)"
        )
    try:
        return Elicit(cast(Any, mark.message), wanted, key=mark.key, ui=mark.ui, through_model=mark.through_model)
    except SetupError as error:
        raise SetupError(f"{where}: {error}") from error


def _or(read: Callable[[JSON], Any], otherwise: Any) -> Callable[[JSON], Any]:
    def read_or(raw: JSON) -> Any:
        try:
            return read(raw)
        except Refusal:
            return otherwise

    return read_or


def text_parameters(function: Callable[..., Any], what: str) -> Mapping[str, Parameter]:
    """Return the parameters of a function that makes a text of an ask. Raises `SetupError`."""
    try:
        parameters = signature(function).parameters
    except ValueError as error:
        raise SetupError(f"{what} has no signature that can be read; wrap it in a lambda") from error
    refuse_foreign_marks(what, parameters.values())
    return parameters


def refuse_braces(where: str, text: Any, known: list[str]) -> None:
    """Refuse a text that looks like an f-string without its f, by the `known` names: a person would read the braces."""
    if not isinstance(text, str):  # a conversation
        for message in text:
            refuse_braces(where, message["content"].get("text", "") if "text" in message["content"] else "", known)
        return
    for name in re.findall(r"\{\s*(\w+)[^{}]*\}", text):
        if name in known:
            raise SetupError(
                f"{where}: the person would read {text!r}, with the braces of {{{name}}}; pass a function: "
                f'lambda {name}: f"... {{{name}}} ..."'
            )
