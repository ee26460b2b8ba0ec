"""Frozen dataclasses that authors make: what their fields take, and which of them were given.

A field takes what its annotation says, so that an option is declared once. `takes` adds what an annotation can't say.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import SetupError


class Checked:
    """The base of a dataclass whose fields are checked, by the constructor of whoever gives a wrong one."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the types of the fields. None may be given where it is the default. Raises `SetupError`."""
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

    def __new__(cls, *positional: Any, **given: Any) -> Self:
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
    """Return the metadata of a field that say what it takes, in place of its annotation.

    `words` say it as an author writes it, such as "a number of bytes"; empty for a field that is checked elsewhere. By
    default the annotation says what fits.
    """
    return {"words": words, "fits": fits}


def has(*methods: str) -> Check:
    """Return a check for an object, not a class, that has these methods."""
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, each, None)) for each in methods)


def several(*kinds: type) -> Check:
    """Return a check for a list of objects of these classes."""
    return lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, kinds) for each in value)
    )


class _Kind(NamedTuple):
    fits: Check
    words: str
    may_be_none: bool = False


@cache
def _kinds(options: Any) -> dict[str, _Kind]:
    """Return what the fields of a dataclass take, of those that are checked."""
    hints = get_type_hints(options)
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
    if origin is Literal:
        return _Kind(lambda value: value in inner, " or ".join(f'"{each}"' for each in inner))
    if origin in (Union, UnionType):
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
