"""What is rolled back with a round that ends without a result: values of dependencies, which no step may take."""

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import BuiltinMethodType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from .step_arguments import contents

_ATOMS = (type(None), bool, int, float, str, bytes, Enum, date, time, timedelta, tzinfo, PurePath, type, ModuleType)
_COLLECTIONS = (list, tuple, dict, set, frozenset, deque)

_DEPTH = 8


class _Made(NamedTuple):
    dependency: Hashable
    needs: Iterable[Hashable]
    """What it was made of: other dependencies, and more."""
    value: Any
    rolled_back: str
    """The name of the dependency if it is rolled back itself; empty if it only may need one that is."""


class Undone:
    """What is rolled back with a round that ends without a result. Most rounds have none, so steps alone look for it.

    `lasting`: what the `lifespan=` of the handler's application has yielded. What others take from it lasts; what a
        generator yields of it is rolled back all the same, such as a transaction on a connection that all share.
    """

    __slots__ = ("_lasting", "_made", "_objects", "_sources")

    def __init__(self, lasting: Any) -> None:
        self._lasting = lasting
        self._made: list[_Made] = []
        self._sources: dict[Hashable, str] = {}
        """The dependencies whose values are rolled back, each with the name of that which does so."""
        self._objects: dict[int, tuple[Any, str]] = {}
        """The objects in these values by their identity, each with that name."""

    def note(self, dependency: Hashable, needs: Iterable[Hashable], value: Any, *, rolled_back: str = "") -> None:
        self._made.append(_Made(dependency, needs, value, rolled_back))

    def reached_by(self, *call: Any) -> str:
        """Return the dependency of which a call takes what is rolled back, as far as that shows; empty for none."""
        self._look()
        if not self._objects:
            return ""
        found = (self._objects[id(each)][1] for each in _walk(call) if id(each) in self._objects)
        return next(found, "")

    def _look(self) -> None:
        for made in self._made:
            found: list[Any] = []
            if source := made.rolled_back:
                found = list(_objects_in(made.value, yielded=True))
            elif source := next((self._sources[each] for each in made.needs if each in self._sources), ""):
                lasting = {id(each) for each in (self._lasting, *_parts(self._lasting))}
                found = [each for each in _objects_in(made.value, yielded=False) if id(each) not in lasting]
            if found:
                self._sources[made.dependency] = source
                self._objects.update((id(each), (each, source)) for each in found)
        self._made.clear()


def _objects_in(value: Any, *, yielded: bool) -> Iterator[Any]:
    """Yield the objects in a value: all but plain data, of which a copy serves as well.

    Of what they hold, as a unit of work holds its session, what can be rolled back counts: an engine or a pool lasts.
    Where a generator `yielded` it, lists, models and the like count, too: the code after the `yield` may look at them.
    """
    for each in _walk([value], _holds_data):
        if _holds_data(each):
            if yielded and not isinstance(each, tuple | frozenset):
                yield each
        elif not _is_plain(each):
            yield each
            yield from (part for part in _parts(each) if hasattr(type(part), "rollback"))


def _walk(values: Iterable[Any], goes_into: Callable[[Any], bool] = lambda _: True) -> Iterator[Any]:
    """Yield values and what they are made of, each once, without numbers, texts and the like."""
    pending, seen = [(each, _DEPTH) for each in values], set[int]()
    for value, depth in pending:  # which grows meanwhile
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if depth and goes_into(value):
            pending.extend((part, depth - 1) for part in _parts(value))


def _holds_data(value: Any) -> bool:
    return isinstance(value, _COLLECTIONS) or _has_fields(value)


def _is_plain(value: Any) -> bool:
    """Whether something that is no collection is data: a number, a URL, or a row of a database."""
    if isinstance(value, Iterator):
        return False
    if isinstance(value, Sequence | Mapping):
        return True
    try:
        to_jsonable_python(value)
    except Exception:  # of its own code, too
        return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    """Return what an object is made of.

    Collections in the attributes of an object are left out, unless it is a model or a dataclass: a pool of connections
    has such ones, and a step may well take the pool.
    """
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, _COLLECTIONS):
        return value
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType | BuiltinMethodType):
        return (value.__self__, getattr(value, "__func__", None))
    if isinstance(value, FunctionType):
        return (
            *map(contents, value.__closure__ or ()),
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
        )
    attributes = _attributes(value)
    return attributes if _has_fields(value) else [each for each in attributes if not isinstance(each, _COLLECTIONS)]


def _attributes(value: Any) -> list[Any]:
    """Return the attributes that an object has as they are, in its `__dict__` or in slots; no code of its runs."""
    named = getattr(value, "__dict__", None)
    found = list(named.values()) if isinstance(named, dict) else []
    for base in type(value).__mro__:
        for slot in vars(base).values():
            if isinstance(slot, MemberDescriptorType):
                try:
                    found.append(slot.__get__(value))
                except AttributeError:  # not set
                    continue
    return found


def _has_fields(value: Any) -> bool:
    return isinstance(value, BaseModel) or dataclasses.is_dataclass(value)
