"""What a handler declares, as a plan: each ask and each dependency once, after those that it needs."""

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, isclass, iscoroutinefunction
from itertools import count
from types import MappingProxyType, NoneType
from typing import Annotated, Any, get_args, get_origin, is_typeddict

from pydantic.fields import FieldInfo

from ..errors import SetupError
from ..flow.asks import Ask, Confirm, Text
from ..flow.context import Context
from ..flow.handler import Declared, DeclaredAsk, Dependency, Lasting, Node, Sources
from ..flow.home import Home, identity
from ..flow.journal import UNSET
from ..flow.waits import Ticket, Wait
from ..schema.type_parts import union_members
from . import signatures
from .declarations import Declaration, Depends, as_written, bind_ask, read_declaration, refuse_braces, text_parameters
from .signatures import Signature

_YIELDING = (abc.Iterator, abc.Iterable, abc.Generator, abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_PROMOTED = {(int, float), (int, complex), (float, complex), (bytearray, bytes), (memoryview, bytes)}
"""Type checkers take one for the other (PEP 484)."""
_NONE: Mapping[Any, Callable[..., Any]] = MappingProxyType({})


def compile_declared(
    handler: str,
    declarations: Mapping[str, Declaration],
    arguments: Mapping[str, Parameter],
    namespace: Mapping[str, Any],
    confirm: Text | Confirm | None,
    home: Home | None = None,
    overrides: Mapping[Any, Callable[..., Any]] = _NONE,
) -> Declared | None:
    """Compile what a handler declares; None if there is nothing to fill. Raises `SetupError`."""
    # `confirm` is what the person must have agreed to before the function runs; `overrides` replace dependencies, by
    # the identity of their functions.
    if not declarations and confirm is None:
        return None
    plan = _Plan(handler, _Scope({**dict.fromkeys(arguments), **declarations}), namespace, home, overrides)
    parameters = {name: plan.node(declaration, plan.scope) for name, declaration in declarations.items()}
    confirmation = None
    if confirm is not None:
        ask = confirm if isinstance(confirm, Confirm) else Confirm(confirm)
        given: Any = ask.message
        if not given or not (callable(given) or isinstance(given, str)):
            raise SetupError(
                f"{handler}: confirm= takes the text that the person reads, a function that returns it, or a "
                "Confirm(...) with one of these"
            )
        where = f"{handler}: confirm="
        asked = Declaration("confirm=", where, bool, Confirm(given, key=ask.key or "confirm", plain=ask.plain), UNSET)
        confirmation = plan.node(asked, plan.scope)
    asks = [node for node in [confirmation, *parameters.values(), *plan.nodes] if isinstance(node, DeclaredAsk)]
    _set_keys(handler, list(dict.fromkeys(asks)), plan.default_keys)
    defaults = {name: arguments[name].default for name in plan.wanted if _has_default(arguments[name])}
    rest = next((name for name in plan.wanted if arguments[name].kind is Parameter.VAR_KEYWORD), None)
    keys = frozenset(asked.key for asked in asks)
    again = partial(compile_declared, handler, declarations, arguments, namespace, confirm, home)
    return Declared(tuple(plan.nodes), parameters, defaults, rest, keys, again)


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
    home: Home | None
    overrides: Mapping[Any, Callable[..., Any]]
    nodes: list[Node] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    default_keys: dict[Node, str] = field(default_factory=dict)
    _made: dict[Any, Node] = field(default_factory=dict)
    _path: list[tuple[Any, str]] = field(default_factory=list)

    def node(self, declaration: Declaration, scope: _Scope) -> Node:
        """Return the node of a declaration. Raises `SetupError` where one needs itself."""
        mark = declaration.mark
        if isinstance(mark, Wait):
            if scope is not self.scope or declaration.otherwise is not UNSET:
                raise SetupError(f"{declaration.where} is a ticket: only a handler takes one, and without a default")
            return self._ticket(declaration, mark)
        this: Any = declaration if isinstance(mark, Ask) else identity(mark.function)
        label = declaration.name if isinstance(mark, Ask) else f"{declaration.name} ({as_written(mark.function)})"
        if this in self._made:
            self._check_on_ask(declaration, self._made[this])
            return self._made[this]
        open_ = [other for other, _ in self._path]
        if this in open_:
            circle = [label for _, label in self._path[open_.index(this) :]]
            raise SetupError(f"{declaration.where} depends on itself: {' -> '.join([*circle, circle[0]])}")
        self._path.append((this, label))
        made: Node
        if isinstance(mark, Ask):
            made = self._ask(declaration, mark, scope)
        elif self.home is not None and mark.function == self.home.lifespan:
            made = Lasting()
        else:
            made = self._dependency(declaration, mark, self.overrides.get(this, mark.function))
        self._check_on_ask(declaration, made)
        self._path.pop()
        self._made[this] = made
        if made not in self.nodes:
            self.nodes.append(made)
        return made

    def _check_on_ask(self, declaration: Declaration, made: Node) -> None:
        mark, where = declaration.mark, declaration.where
        if not isinstance(mark, Depends):
            return
        commits, named = mark.on_ask == "commit", as_written(mark.function)
        if isinstance(made, Dependency) and made.commits is not commits:
            raise SetupError(
                f"{where} and another parameter have Depends({named}) with different on_ask=; a round has one value of "
                "it, so let them agree"
            )
        yields = isinstance(made, Dependency) and made.yields
        if commits and not yields and identity(mark.function) not in self.overrides:
            raise SetupError(
                f'{where} has Depends({named}, on_ask="commit"), but {named} is no generator, so it has nothing to '
                "commit in a round; leave on_ask= out"
            )

    def _ask(self, declaration: Declaration, mark: Ask[Any], scope: _Scope) -> Node:
        ask, read, default_key = bind_ask(declaration, mark)
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
                made[text] = value, self._sources(what, text_parameters(value, what), scope)
            else:
                refuse_braces(declaration.where, value, scope.known())
        # One alias of an ask, under one name in several functions of a handler, is one question.
        sources = [source for _, found in made.values() for source in found.values()]
        this = (id(mark), declaration.name, str(declaration.type), *sources)
        if declaration.otherwise is UNSET and this in self._made:
            return self._made[this]
        node = DeclaredAsk(declaration.where, ask, read, made, _nodes_of(sources), None if made else ask.question())
        self.default_keys[node] = default_key
        self._made[this] = node
        return node

    def _dependency(self, declaration: Declaration, mark: Depends, function: Callable[..., Any]) -> Node:
        where = f"{declaration.where}: {as_written(function)}()"
        signature = signatures.read_signature(function, where, self.namespace, may_yield=True)
        if function is mark.function:  # what takes its place in a test may be anything
            _check_type(declaration, signature.returns if not isclass(function) else function)
        own, plain, ours = self._read(where, signature)
        signatures.refuse_foreign_types(where, plain.values())
        sources: dict[str, str | Node] = {}
        scope = _Scope(own, self.scope)
        for name in signature.parameters:  # what it needs is there in its own order
            if name in own:
                sources[name] = self.node(own[name], scope)
            elif name in plain:
                sources |= self._sources(where, {name: plain[name]}, self.scope)
        needs = _nodes_of(sources.values())
        commits = mark.on_ask == "commit"
        node = Dependency(function, signature.is_async, signature.yields, ours.get("context"), sources, needs, commits)
        node.request = ours.get("request")
        if node.request is not None:
            node.needs_request = NoneType not in union_members(signature.parameters[node.request].annotation)
        # Named after what it takes the place of, so that its steps are the same.
        node.name = _free(f"Depends({as_written(mark.function)})", {getattr(other, "name", "") for other in self.nodes})
        return node

    def _ticket(self, declaration: Declaration, wait: Wait[Any, Any]) -> Node:
        """Return the node that opens the ticket in the argument of the same name."""
        name = declaration.name
        if declaration not in self._made:

            async def open_ticket(ctx: Context, **given: str) -> Ticket[Any, Any]:
                return await ctx._open_ticket(wait, given[name])  # noqa: SLF001  nobody else opens any

            node = Dependency(open_ticket, True, False, "ctx", {name: name}, (), name=f"Ticket({name})")
            self._made[declaration] = node
            self.nodes.append(node)
            self.wanted.add(name)
        return self._made[declaration]

    def _read(
        self, where: str, signature: Signature
    ) -> tuple[dict[str, Declaration], dict[str, Parameter], dict[str, str]]:
        """Return the parameters of a dependency that are declared, those that are not, and those that we fill."""
        own: dict[str, Declaration] = {}
        plain: dict[str, Parameter] = {}
        ours: dict[str, str] = {}
        for name, parameter in signature.parameters.items():
            if (declared := read_declaration(where, parameter)) is not None:
                own[name] = declared
                continue
            kind, _ = signatures.own_type(parameter.annotation)
            if kind is None and signatures.is_request(parameter.annotation):
                kind = "request"
            if kind is None:
                if self.scope.find(name) is None:
                    signatures.refuse_unannotated(where, parameter)
                plain[name] = parameter
            elif kind not in ("context", "request"):
                raise SetupError(
                    f"{where} takes the {kind}, which only a handler can take; declare an ask here instead"
                )
            elif kind in ours or parameter.kind not in signatures.BY_NAME:
                raise SetupError(
                    f"{where}: parameter {name!r} can't take the {kind}; write one parameter for it, without *, ** or /"
                )
            else:
                ours[kind] = name
        return own, plain, ours

    def _sources(self, where: str, parameters: Mapping[str, Parameter], scope: _Scope) -> Sources:
        """Return where a function's parameters come from; what has a default may come from nowhere."""
        sources: dict[str, str | Node] = {}
        for name, parameter in parameters.items():
            if parameter.kind not in signatures.BY_NAME:
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


def _check_type(declaration: Declaration, returns: Any) -> None:
    """Refuse a dependency whose result can't be of its parameter's type, as far as classes show it."""
    # Type checkers can't: they see the annotation, and not what `Depends` names.
    if get_origin(returns) in _YIELDING:
        returns = get_args(returns)[0]
    wanted: Any = declaration.type
    if get_origin(returns) is Annotated:
        returns = get_args(returns)[0]
    if (returns, wanted) in _PROMOTED or not (_is_plain(returns) and _is_plain(wanted)):
        return
    if not (issubclass(returns, wanted) or issubclass(wanted, returns)):
        named = as_written(declaration.mark.function) if isinstance(declaration.mark, Depends) else declaration.name
        raise SetupError(
            f"{declaration.where} is annotated with {as_written(wanted)}, but {named}() returns {as_written(returns)}; "
            "let them agree"
        )


def _is_plain(kind: Any) -> bool:
    """Return whether a type is a class, and no protocol or dictionary type, whose subclasses say nothing of it."""
    return (
        isclass(kind)
        and kind not in (Parameter.empty, NoneType, object, Any)
        and not (get_args(kind) or is_typeddict(kind) or getattr(kind, "_is_protocol", False))
    )


def _set_keys(handler: str, asks: list[DeclaredAsk], defaults: Mapping[Node, str]) -> None:
    """Set the key of every ask: its own, or the first of its default keys that is free."""
    taken: dict[str, DeclaredAsk] = {}
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


def _nodes_of(sources: Any) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(source for source in sources if not isinstance(source, str)))


def _has_default(parameter: Parameter) -> bool:
    # Those of a FieldInfo are filled in when the arguments are validated.
    return parameter.default is not Parameter.empty and not isinstance(parameter.default, FieldInfo)
