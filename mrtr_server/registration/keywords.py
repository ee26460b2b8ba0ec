"""Methods that take the fields of a frozen object as keywords, so that each option is declared once.

Type checkers and editors see the fields with their types and defaults. A wrong option is an error that names the
right one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar, get_origin

from .. import renamed
from ..errors import SetupError

P = ParamSpec("P")
R = TypeVar("R")
Self_ = TypeVar("Self_")
Options = TypeVar("Options")

_SELF = Parameter("self", Parameter.POSITIONAL_ONLY)
_FUNCTION = Parameter("function", Parameter.POSITIONAL_ONLY, default=None)
_NONE: Mapping[str, str] = {}


def takes(
    options: Callable[P, Options], name: str = "", hints: Mapping[str, str] = _NONE
) -> Callable[[Callable[[Self_, Options], R]], Callable[Concatenate[Self_, P], R]]:
    """Return a decorator of a method of one argument, so that it takes that argument's fields instead.

    `name` is what errors call the method; `hints` says what to use instead of options that other frameworks have.
    """

    def decorate(method: Callable[[Self_, Options], R]) -> Callable[Concatenate[Self_, P], R]:
        keywords = _Keywords(options, name, hints)

        @wraps(method)
        def checked(self: Self_, /, *args: P.args, **given: P.kwargs) -> R:
            return method(self, options(*args, **keywords.check(args, given)))

        return keywords.sign(checked)

    return decorate


def takes_function_or(
    options: Callable[..., Options], name: str, hints: Mapping[str, str]
) -> Callable[[Callable[[Any, Options], Callable[..., Any]]], Callable[..., Any]]:
    """Return a decorator like that of `takes`, for a method that is a decorator itself, called with options or not.

    `name` is what errors call the method; `hints` says what to use instead of options that other frameworks have.
    """

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
    """The keywords that a method takes."""

    def __init__(self, options: Any, name: str, hints: Mapping[str, str], first: Parameter | None = None) -> None:
        fields = signature(get_origin(options) or options).parameters.values()
        self._signature = Signature([*([first] if first else ()), *fields])
        self._known = [each.name for each in fields]
        kinds = self._signature.parameters.values()
        self._in_order = [each.name for each in kinds if each.kind is not Parameter.KEYWORD_ONLY]
        self._name = name
        self._hints = hints

    def sign(self, function: Callable[P, R]) -> Callable[P, R]:
        """Show these keywords in the signature of a function."""
        parameters = [_SELF, *self._signature.parameters.values()]
        vars(function)["__signature__"] = self._signature.replace(parameters=parameters)
        return function

    def check(self, args: Sequence[Any], given: Any) -> Any:
        """Return what a call gives, without old names that are collected. Raises `TypeError`."""
        unknown = {
            option: f"{option}={_instead(option, self._hints, self._known)}"
            for option in given
            if option not in self._known
        }
        if unknown:
            message = f"{self._name}() has no option {', and no '.join(unknown.values())}"
            if not (renamed.ALL.issuperset(unknown) and renamed.is_collected(message)):
                raise TypeError(message)
            given = {option: value for option, value in given.items() if option in self._known}
        if len(args) > len(self._in_order):
            raise TypeError(f"{self._name}() takes only {self._in_order[-1]!r} by position; give the others by name")
        try:
            self._signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}") from None
        return given


def _instead(option: str, hints: Mapping[str, str], known: Iterable[str]) -> str:
    if option in hints:
        return f": {hints[option]}"
    close = get_close_matches(option, known, 1)
    return f"; did you mean {close[0]}=?" if close else ""
