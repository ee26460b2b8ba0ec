"""Declared parameters: asks and dependencies in a signature, compiled when the decorator runs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, isclass, iscoroutinefunction, signature
from itertools import count
from types import NoneType
from typing import Any, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from ..errors import SetupError
from ..flow.asks import Ask, Confirm, Elicit, Elicited, ListRoots, Refusal, Root, Sample, Sampled, Text
from ..flow.journal import UNSET
from ..flow.resolver import Asked, Declared, Dependency, Node, Sources
from ..flow.url_asks import ElicitUrl
from ..protocol.messages import JSON
from ..schema.annotations import metadata_within, resolved, union_members
from .foreign import refuse_foreign_marks, refuse_foreign_types
from .signatures import BY_NAME, own_type, read_signature, refuse_unannotated


@dataclass(frozen=True, slots=True)
class Depends:
    """Fill a parameter with what a function returns: `stock: Annotated[Stock, Depends(check_stock)]`.

    The function's parameters are filled by name with the call's arguments and with the handler's other declared
    parameters. It may declare asks and dependencies itself, and take the `Context`. It runs at most once a round, and
    again in every round: what must happen once in a flow goes into `ctx.step`.

    What is declared is asked and run one after another, in the order of the parameters, up to the first failure.

    A generator with one `yield`, also under `@contextmanager` or `@asynccontextmanager`, gives what it yields. It goes
    on at the end of the round, before the result or the state goes out: normally, or with the error, the no (`Refusal`)
    or the cancellation that ended the round.

    Args:
        function: sync (it runs in a thread) or async.

    Raises:
        SetupError: it can't be called.
    """

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SetupError(f"Depends(...) takes a function, not {self.function!r}")


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
    """Say what a parameter declares; None if it is an ordinary one.

    Args:
        where: the function, for errors.
        parameter: the parameter, with its annotation resolved.

    Raises:
        SetupError: an ask or a dependency is where it would not be seen, or can't fill the parameter.
    """
    name, default = parameter.name, parameter.default
    where = f"{where}: parameter {name!r}"
    if _is_mark(default):
        kind = _name(default)
        raise SetupError(f"{where} has {kind} as its default; write {name}: Annotated[..., {kind}(...)]")
    annotation = resolved(parameter.annotation)
    members = [resolved(member) for member in union_members(annotation) if member is not NoneType]
    optional = len(members) < len(union_members(annotation))
    annotation = members[0] if len(members) == 1 else annotation
    marks = [mark for mark in getattr(annotation, "__metadata__", ()) if _is_mark(mark)]
    bare = get_args(annotation)[0] if marks else annotation
    for hidden in filter(_is_mark, metadata_within(bare)):
        raise SetupError(
            f"{where} has {_name(hidden)} nested in its type; put it around the whole type: Annotated[..., "
            f"{_name(hidden)}(...)]"
        )
    if not marks:
        return None
    if len(marks) > 1:
        raise SetupError(f"{where} has two marks, {_name(marks[0])} and {_name(marks[1])}; keep one")
    mark = marks[0]
    if isclass(mark):
        raise SetupError(f"{where} is marked with the class {_name(mark)}; write {_name(mark)}(...)")
    if parameter.kind not in BY_NAME:
        raise SetupError(f"{where} can't be filled by name; make it an ordinary parameter, without *, ** or /")
    bare = resolved(bare)
    if isinstance(mark, Ask):
        kept = [member for member in union_members(bare) if member is not NoneType]
        optional = optional or len(kept) < len(union_members(bare))
        bare = resolved(kept[0]) if len(kept) == 1 else bare
    otherwise = default if default is not Parameter.empty else (None if optional else UNSET)
    return Declaration(name, where, bare, mark, otherwise)


def compile_declared(
    handler: str,
    declarations: Mapping[str, Declaration],
    arguments: Mapping[str, Parameter],
    namespace: Mapping[str, Any],
    confirm: Text | None,
) -> Declared | None:
    """Compile what a handler declares.

    Args:
        handler: its name, for errors.
        declarations: its declared parameters.
        arguments: the parameters that the client fills.
        namespace: the local names where it was defined, for annotations that are strings.
        confirm: what the person must have agreed to before the function runs; None for nothing.

    Returns:
        What fills them; None if there is nothing to fill.

    Raises:
        SetupError: something is declared that can't be asked or made; the message says what.
    """
    if not declarations and confirm is None:
        return None
    plan = _Plan(handler, _Scope({**dict.fromkeys(arguments), **declarations}), namespace)
    parameters = {name: plan.node(declaration, plan.scope) for name, declaration in declarations.items()}
    confirmation = None
    if confirm is not None:
        given: Any = confirm
        if not given or not (callable(given) or isinstance(given, str)):
            raise SetupError(f"{handler}: confirm= takes the text that the person reads, or a function that returns it")
        where = f"{handler}: confirm="
        asked = Declaration("confirm=", where, bool, Confirm(confirm, key="confirm"), UNSET)
        confirmation = plan.node(asked, plan.scope)
    asks = [node for node in [confirmation, *parameters.values(), *plan.nodes] if isinstance(node, Asked)]
    _give_keys(handler, list(dict.fromkeys(asks)), plan.default_keys)
    defaults = {name: arguments[name].default for name in plan.wanted if _has_default(arguments[name])}
    rest = next((name for name in plan.wanted if arguments[name].kind is Parameter.VAR_KEYWORD), None)
    keys = frozenset(asked.key for asked in asks)
    return Declared(tuple(plan.nodes), parameters, defaults, rest, keys, confirmation is not None)


@dataclass(slots=True)
class _Scope:
    """The names that can be used: None for an argument of the call; and the scope around."""

    names: Mapping[str, Declaration | None]
    outer: "_Scope | None" = None

    def find(self, name: str) -> "tuple[Declaration | None, _Scope] | None":
        if name in self.names:
            return self.names[name], self
        return self.outer.find(name) if self.outer is not None else None

    def known(self) -> list[str]:
        return [*self.names, *(self.outer.known() if self.outer is not None else ())]


@dataclass(slots=True)
class _Plan:
    """The nodes made so far, in an order in which each comes after those that it needs."""

    handler: str
    scope: _Scope
    namespace: Mapping[str, Any]
    nodes: list[Node] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    default_keys: dict[Node, str] = field(default_factory=dict)
    _made: dict[Any, Node] = field(default_factory=dict)
    _path: list[tuple[Any, str]] = field(default_factory=list)

    def node(self, declaration: Declaration, scope: _Scope) -> Node:
        """Give the node of a declaration. Raises `SetupError` where one needs itself."""
        mark = declaration.mark
        this: Any = declaration if isinstance(mark, Ask) else _identity(mark.function)
        label = declaration.name if isinstance(mark, Ask) else f"{declaration.name} ({_name(mark.function)})"
        if this in self._made:
            return self._made[this]
        open_ = [other for other, _ in self._path]
        if this in open_:
            circle = [label for _, label in self._path[open_.index(this) :]]
            raise SetupError(f"{declaration.where} depends on itself: {' -> '.join([*circle, circle[0]])}")
        self._path.append((this, label))
        made = self._ask(declaration, mark, scope) if isinstance(mark, Ask) else self._dependency(declaration, mark)
        self._path.pop()
        self._made[this] = made
        if made not in self.nodes:
            self.nodes.append(made)
        return made

    def _ask(self, declaration: Declaration, mark: Ask[Any], scope: _Scope) -> Node:
        ask, read, default_key = _bound(declaration, mark)
        made = {}
        for text in ask.texts:
            value = getattr(ask, text)
            what = f"{declaration.where}: the function for its {text}"
            if callable(value):
                if iscoroutinefunction(value) or iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
                    raise SetupError(
                        f"{what} is async; make it a plain function, and fetch what it needs in a dependency: "
                        "Annotated[..., Depends(...)]"
                    )
                made[text] = value, self._sources(what, _text_parameters(value, what), scope)
            else:
                _refuse_braces(declaration.where, value, scope.known())
        # One alias of an ask, under one name in several functions of a handler, is one question.
        sources = [source for _, found in made.values() for source in found.values()]
        this = (id(mark), declaration.name, str(declaration.type), *sources)
        if declaration.otherwise is UNSET and this in self._made:
            return self._made[this]
        node = Asked(declaration.where, ask, read, made, _nodes_of(sources), None if made else ask.question())
        self.default_keys[node] = default_key
        self._made[this] = node
        return node

    def _dependency(self, declaration: Declaration, mark: Depends) -> Node:
        where = f"{declaration.where}: {_name(mark.function)}()"
        signature = read_signature(mark.function, where, self.namespace, may_yield=True)
        context: str | None = None
        own: dict[str, Declaration] = {}
        plain: dict[str, Parameter] = {}
        for name, parameter in signature.parameters.items():
            if (declared := read_declaration(where, parameter)) is not None:
                own[name] = declared
                continue
            kind, _ = own_type(parameter.annotation)
            if kind is None:
                if self.scope.find(name) is None:
                    refuse_unannotated(where, parameter)
                plain[name] = parameter
            elif kind != "context":
                raise SetupError(
                    f"{where} takes the {kind}, which only a handler can take; declare an ask here instead"
                )
            elif context is not None or parameter.kind not in BY_NAME:
                raise SetupError(
                    f"{where}: parameter {name!r} can't take the context; write one parameter for it, without *, "
                    "** or /"
                )
            else:
                context = name
        refuse_foreign_types(where, plain.values())
        sources: dict[str, str | Node] = {}
        scope = _Scope(own, self.scope)
        for name in signature.parameters:  # what it needs is there in its own order
            if name in own:
                sources[name] = self.node(own[name], scope)
            elif name in plain:
                sources |= self._sources(where, {name: plain[name]}, self.scope)
        needs = _nodes_of(sources.values())
        node = Dependency(mark.function, signature.is_async, signature.yields, context, sources, needs)
        node.name = _free(f"Depends({_name(mark.function)})", {getattr(other, "name", "") for other in self.nodes})
        return node

    def _sources(self, where: str, parameters: Mapping[str, Parameter], scope: _Scope) -> Sources:
        """Say where a function's parameters come from; what has a default may come from nowhere."""
        sources: dict[str, str | Node] = {}
        for name, parameter in parameters.items():
            if parameter.kind not in BY_NAME:
                raise SetupError(
                    f"{where} takes {str(parameter)!r}, but its parameters are filled by name; name each of them"
                )
            found = scope.find(name)
            if found is not None:
                declaration, its_scope = found
                if declaration is None:
                    self.wanted.add(name)
                sources[name] = name if declaration is None else self.node(declaration, its_scope)
            elif parameter.default is Parameter.empty:
                known = ", ".join(map(repr, dict.fromkeys(scope.known()))) or "none"
                raise SetupError(
                    f"{where} needs {name!r}, which is neither an argument nor a declared parameter; known are: {known}"
                )
        return sources


def _bound(declaration: Declaration, mark: Ask[Any]) -> tuple[Ask[Any], Callable[[JSON], Any], str]:
    """Fit an ask to the type of its parameter; give it with what reads its answers, and its default key."""
    where, wanted, otherwise = declaration.where, declaration.type, declaration.otherwise
    ask, default_key = mark, declaration.name
    read: Callable[[JSON], Any] = mark.parse
    may_be_declined = False
    if isinstance(mark, Elicit):
        if mark.schema not in (UNSET, wanted):
            raise SetupError(
                f"{where} is of type {_name(wanted)}, but its Elicit asks for {_name(mark.schema)}; leave the "
                "model out of Elicit(...)"
            )
        try:
            bound: Elicit[Any] = Elicit(cast(Any, mark.message), wanted, key=mark.key)
        except SetupError as error:
            raise SetupError(f"{where}: {error}") from error
        ask, read, default_key = bound, bound.parse, bound.default_key
        may_be_declined = not bound.branches
    elif isinstance(mark, Confirm):
        _check_type(where, wanted, mark, bool)
    elif isinstance(mark, ElicitUrl):
        _check_type(where, wanted, mark, bool if mark.callback is None else mark.callback.returns)
        may_be_declined = True
    elif isinstance(mark, Sample):
        _check_type(where, wanted, mark, Sampled, str)
        if wanted is str:
            read = lambda raw: mark.parse(raw).text  # noqa: E731
    elif isinstance(mark, ListRoots):
        _check_type(where, wanted, mark, list[Root])
    if otherwise is UNSET:
        return ask, read, default_key
    if isinstance(mark, Confirm):
        raise SetupError(
            f"{where} is a confirmation, and the call continues only after a yes; remove its default, or None "
            "from its type"
        )
    if not may_be_declined:
        kind = "Elicited" if get_origin(wanted) is Elicited else _name(mark)
        raise SetupError(
            f"{where}: {kind} has no other value to fall back to; remove the default, or None from the type"
        )
    return ask, _or(read, otherwise), default_key


def _check_type(where: str, wanted: Any, mark: Ask[Any], *types: Any) -> None:
    if wanted not in types:
        allowed = " or ".join(f"Annotated[{_name(each)}, {_name(mark)}(...)]" for each in types)
        raise SetupError(f"{where} is of type {_name(wanted)}; write {allowed}")


def _or(read: Callable[[JSON], Any], otherwise: Any) -> Callable[[JSON], Any]:
    def read_or(raw: JSON) -> Any:
        try:
            return read(raw)
        except Refusal:
            return otherwise

    return read_or


def _give_keys(handler: str, asks: list[Asked], defaults: Mapping[Node, str]) -> None:
    """Give every ask its key: its own, or the first of its default keys that is free."""
    taken: dict[str, Asked] = {}
    for asked in asks:
        if (key := asked.ask.key) is not None:
            if key in taken:
                raise SetupError(
                    f"{handler}: {taken[key].where} and {asked.where} both have the key {key!r}; give one of them "
                    "another key="
                )
            taken[key] = asked
            asked.key = key
    for asked in asks:
        if asked.ask.key is None:
            asked.key = _free(defaults[asked], taken)
            taken[asked.key] = asked


def _free(base: str, taken: Any) -> str:
    return next(name for n in count(1) if (name := base if n == 1 else f"{base}_{n}") not in taken)


def _text_parameters(function: Callable[..., Any], what: str) -> Mapping[str, Parameter]:
    try:
        parameters = signature(function).parameters
    except ValueError as error:
        raise SetupError(f"{what} has no signature that can be read; wrap it in a lambda") from error
    refuse_foreign_marks(what, parameters.values())
    return parameters


def _refuse_braces(where: str, text: Any, known: list[str]) -> None:
    """Refuse a text that looks like an f-string without its f: a person would read the braces."""
    if not isinstance(text, str):  # a conversation
        for message in text:
            _refuse_braces(where, message["content"].get("text", "") if "text" in message["content"] else "", known)
        return
    for name in re.findall(r"\{\s*(\w+)[^{}]*\}", text):
        if name in known:
            raise SetupError(
                f"{where}: the person would read {text!r}, with the braces of {{{name}}}; pass a function: "
                f'lambda {name}: f"... {{{name}}} ..."'
            )


def _nodes_of(sources: Any) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(source for source in sources if not isinstance(source, str)))


def _has_default(parameter: Parameter) -> bool:
    # Those of a FieldInfo are filled in when the arguments are validated.
    return parameter.default is not Parameter.empty and not isinstance(parameter.default, FieldInfo)


def _is_mark(value: Any) -> bool:
    return isinstance(value, Ask | Depends) or (isclass(value) and issubclass(value, Ask | Depends))


def _identity(function: Callable[..., Any]) -> Any:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


def _name(thing: Any) -> str:
    """Give a type, an ask or a function as its author writes it."""
    if isinstance(thing, Ask | Depends):
        thing = type(thing)
    if get_args(thing):
        return re.sub(r"\b(?:\w+\.)+", "", str(thing))
    return str(getattr(thing, "__name__", type(thing).__name__))
