"""Parameters that declare where they come from: an ask, or a dependency."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, isclass
from types import NoneType
from typing import Any, Literal, get_args

from ..errors import SetupError
from ..flow.asks import Ask
from ..flow.journal import UNSET
from ..schema.type_parts import metadata_within, resolved, union_members
from .signatures import BY_NAME


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
    """A parameter that is annotated with an ask or with `Depends`.

    Args:
        name: the parameter's.
        where: the parameter and its function, for errors.
        type: its annotation, without None and without the mark.
        mark: the ask, or the dependency.
        otherwise: what it gets when the person does not answer; `UNSET` if that ends the call.
    """

    name: str
    where: str
    type: Any
    mark: Ask[Any] | Depends
    otherwise: Any


def read_declaration(where: str, parameter: Parameter) -> Declaration | None:
    """Return what a parameter declares; None if it is an ordinary one.

    Args:
        where: the function, for errors.
        parameter: the parameter, with its annotation resolved.

    Raises:
        SetupError: an ask or a dependency is where it would not be seen, or can't fill the parameter.
    """
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
    return isinstance(value, Ask | Depends) or (isclass(value) and issubclass(value, Ask | Depends))
