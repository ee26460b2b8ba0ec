"""Options are frozen dataclasses: what their fields take, which of them were given, and methods that take them.

A field takes what its annotation says, so that an option is declared once. `takes` adds what an annotation can't say.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from . import renamed
from .errors import SetupError


class Checked:
    """The base of a dataclass whose fields are checked, by the constructor of whoever gives a wrong one."""

    __slots__ = ()

    def __post_init__(self) -> None:
        options: Any = type(self)
        for name, kind in _kinds(options).items():
            value = getattr(self, name)
            if not (kind.fits(value) or (value is None and kind.may_be_none)):
                if kind.words is POSITIVE_SECONDS:
                    raise SetupError(f"{name}={value!r} must be {POSITIVE_SECONDS}")
                raise SetupError(f"{name}= takes {kind.words}; it got {_shown(value)}")


class Group(Checked):
    """The base of options that remember which fields were given, so that the environment fills in the others alone."""

    __slots__ = ("given",)

    given: frozenset[str]
    """The names of the fields that were given by name, whether or not that is their default."""

    def __new__(cls, *positional: Any, **given: Any) -> typing.Self:
        """Return an object without its fields; `__init__` of the dataclass sets those."""
        made = super().__new__(cls)
        options: Any = cls
        names = (each.name for each in dataclasses.fields(options))
        by_position = [name for name, _ in zip(names, positional, strict=False)]
        object.__setattr__(made, "given", frozenset((*by_position, *given)))  # the dataclass is frozen
        return made


G = TypeVar("G", bound=Group)


def having(made: G, **more: Any) -> G:
    """Return an object with what was given to another one, and more; its other fields have their defaults."""
    return type(made)(**{name: getattr(made, name) for name in made.given} | more)


Check = Callable[[Any], bool]

POSITIVE_SECONDS = "a positive number of seconds"


def takes(words: str, fits: Check | None = None) -> dict[str, Any]:
    """Return the metadata of a field that say what it takes, in place of its annotation; "" for what others check."""
    return {"words": words, "fits": fits}


def has(*methods: str) -> Check:
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, each, None)) for each in methods)


def several(*kinds: type) -> Check:
    return lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, kinds) for each in value)
    )


class _Kind(typing.NamedTuple):
    fits: Check
    words: str
    may_be_none: bool = False


@cache
def _kinds(options: Any) -> dict[str, _Kind]:
    hints = typing.get_type_hints(options)
    kinds = {field.name: _kind_of_field(field, hints[field.name]) for field in dataclasses.fields(options)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind_of_field(field: "dataclasses.Field[Any]", hint: Any) -> _Kind | None:
    words = field.metadata.get("words")
    of_hint = _kind_of(hint)
    fits = field.metadata.get("fits") or (_is_positive if words is POSITIVE_SECONDS else of_hint and of_hint.fits)
    if words == "" or fits is None:
        return None
    return _Kind(fits, words or (of_hint.words if of_hint else ""), may_be_none=field.default is None)


def _kind_of(hint: Any) -> _Kind | None:
    """Return what an annotation takes; None where it does not say enough."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is typing.Literal:
        return _Kind(lambda value: value in inner, " or ".join(f'"{each}"' for each in inner))
    if origin in (typing.Union, UnionType):
        kinds = [_kind_of(each) for each in inner if each is not NoneType]
        known = [each for each in kinds if each is not None]
        words = " or ".join(each.words for each in known)
        return _Kind(lambda value: any(each.fits(value) for each in known), words) if known == kinds else None
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _Kind(lambda value: isinstance(value, Mapping), "a dictionary")
    if isinstance(origin, type) and issubclass(origin, Collection) and inner == (str,):
        return _Kind(_are_texts, "a list of texts")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _Kind(lambda value: isinstance(value, hint), f"{hint.__name__}(...)")
    return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, Collection) and all(isinstance(each, str) for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


_SIMPLE: Mapping[Any, _Kind] = {
    str: _Kind(lambda value: isinstance(value, str), "text"),
    bool: _Kind(lambda value: isinstance(value, bool), "True or False"),
    int: _Kind(lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: _Kind(_is_number, "a number of seconds"),
}


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    # Not the value of what may be a secret; its type tells as much.
    return repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__


# Methods that take the fields of an object as keywords


P = typing.ParamSpec("P")
R = TypeVar("R")
Self_ = TypeVar("Self_")
Options = TypeVar("Options")

_SELF = Parameter("self", Parameter.POSITIONAL_ONLY)
_FUNCTION = Parameter("function", Parameter.POSITIONAL_ONLY, default=None)
_NONE: Mapping[str, str] = {}


def takes_fields(
    options: Callable[P, Options], name: str = "", hints: Mapping[str, str] = _NONE
) -> Callable[[Callable[[Self_, Options], R]], Callable[typing.Concatenate[Self_, P], R]]:
    """Return a decorator of a method of one argument, so that it takes that argument's fields instead.

    `name` is what errors call the method; `hints` says what to use instead of options that other frameworks have.
    """

    def decorate(method: Callable[[Self_, Options], R]) -> Callable[typing.Concatenate[Self_, P], R]:
        keywords = _Keywords(options, name, hints)

        @wraps(method)
        def checked(self: Self_, /, *args: P.args, **given: P.kwargs) -> R:
            return method(self, options(*args, **keywords.check(args, given)))

        return keywords.sign(checked)

    return decorate


def takes_function_or(
    options: Callable[..., Options], name: str, hints: Mapping[str, str]
) -> Callable[[Callable[[Any, Options], Callable[..., Any]]], Callable[..., Any]]:
    """Return a decorator like `takes_fields`, for a method that is a decorator itself, called with options or not."""

    def decorate(method: Callable[[Any, Options], Callable[..., Any]]) -> Callable[..., Any]:
        keywords = _Keywords(options, name, hints, _FUNCTION)

        @wraps(method)
        def checked(self: Any, /, *args: Any, **given: Any) -> Any:
            register = method(self, options(**keywords.check(args, given)))
            if not args or args[0] is None:
                return register
            if isinstance(args[0], str):
                raise SetupError(f"{name}({args[0]!r}): use {name}(name={args[0]!r})")
            return register(args[0])

        return keywords.sign(checked)

    return decorate


class _Keywords:
    def __init__(self, options: Any, name: str, hints: Mapping[str, str], first: Parameter | None = None) -> None:
        fields = signature(get_origin(options) or options).parameters.values()
        self._signature = Signature([*([first] if first else ()), *fields])
        self._known = [each.name for each in fields]
        kinds = self._signature.parameters.values()
        self._in_order = [each.name for each in kinds if each.kind is not Parameter.KEYWORD_ONLY]
        self._name = name
        self._hints = hints

    def sign(self, function: Callable[P, R]) -> Callable[P, R]:
        parameters = [_SELF, *self._signature.parameters.values()]
        vars(function)["__signature__"] = self._signature.replace(parameters=parameters)
        return function

    def check(self, args: Sequence[Any], given: Any) -> Any:
        unknown = [option for option in given if option not in self._known]
        old = [option for option in unknown if self._hints.get(option) in renamed.OPTIONS]
        if old and renamed.is_collected(self._refusal(old)):
            given = {option: value for option, value in given.items() if option not in old}
            unknown = [option for option in unknown if option not in old]
        if unknown:
            raise TypeError(self._refusal(unknown))
        if len(args) > len(self._in_order):
            raise TypeError(f"{self._name}() takes only {self._in_order[-1]!r} by position; give the others by name")
        try:
            self._signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}") from None
        return given

    def _refusal(self, unknown: Iterable[str]) -> str:
        each = (f"{option}={_instead(option, self._hints, self._known)}" for option in unknown)
        return f"{self._name}() has no option {', and no '.join(each)}"


def _instead(option: str, hints: Mapping[str, str], known: Iterable[str]) -> str:
    if option in hints:
        return f": {hints[option]}"
    close = get_close_matches(option, known, 1)
    return f"; did you mean {close[0]}=?" if close else ""
