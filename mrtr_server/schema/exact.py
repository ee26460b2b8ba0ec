"""Values as JSON of which nothing is lost: bytes, secrets, halves of characters, and which class an object is of.

The JSON by which a type writes its values for others may leave out fields, mask secrets, or be written by a serializer
that nothing reads. Here a value is written by its parts, whatever its type has to say of that. What JSON has no form of
is an object of one member, which names its kind.
"""

import dataclasses
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel, RootModel, TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from ..well_formed import is_well_formed

_TEXTS: Mapping[str, type] = {each.__name__.lower(): each for each in (datetime, date, time, timedelta, Decimal, UUID)}
_NAMES = {kind: name for name, kind in _TEXTS.items()}
_COLLECTIONS: Mapping[str, Any] = {each.__name__: each for each in (tuple, set, frozenset)}
_JSON = (str, int, float, list, dict)
_LOST = "lost"
"""The kind of what plain JSON does not hold all of, so that nothing that comes back is equal to it."""

Classes = Mapping[str, Any]
"""Classes by their full names: those that a declared type may have values of."""


def encode(value: Any, classes: Classes) -> Any:
    """Write a value by its parts.

    Args:
        value: the value.
        classes: those that are named. An object of another one is written as its fields.

    Raises:
        PydanticSerializationError: a part of it is nothing that is known here.
    """
    if value is None or isinstance(value, bool):
        return value
    if type(value) in (int, float):
        return value if value == value else {"float": "nan"}
    if isinstance(value, str) and not isinstance(value, Enum):
        return str(value) if is_well_formed(value) else {"str": _base64(value.encode(errors="surrogatepass"))}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": _base64(bytes(value))}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key, classes), encode(item, classes)] for key, item in value.items()]}
    if isinstance(value, list | deque):
        return [encode(item, classes) for item in value]
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            items = [encode(item, classes) for item in value]
            return {name: items if kind is tuple else sorted(items, key=to_json)}
    return _encode_object(value, classes)


def _encode_object(value: Any, classes: Classes) -> Any:
    if isinstance(value, Enum):
        return _of_class(value, encode(value.value, classes), classes)
    if (name := _NAMES.get(type(value))) is not None:
        return {name: to_jsonable_python(value)}
    if (reveal := getattr(value, "get_secret_value", None)) is not None:
        return encode(reveal(), classes)
    if isinstance(value, RootModel):
        return _of_class(value, encode(value.root, classes), classes)
    if (fields := _fields_of(value)) is not None:
        return _of_class(value, encode(fields, classes), classes)
    if isinstance(value, PurePath):  # which the next one refuses with halves of characters
        return encode(str(value), classes)
    return to_jsonable_python(value)  # URLs, networks and the like


def encode_beside(value: Any, back: Any, classes: Classes) -> Any:
    """Write a value by its parts, but those that its type leaves open, with `Any`, as they have come back: as JSON.

    Args:
        value: the value.
        back: the same, as it came back from its type's own JSON.
        classes: as for `encode`.

    Raises:
        PydanticSerializationError: a part of it is nothing that is known here.
    """
    fields, known = _fields_of(value), _fields_of(back)
    if fields is not None and known is not None:
        written = [[name, encode_beside(item, known.get(name), classes)] for name, item in fields.items()]
        return _of_class(value, {"dict": written}, classes)
    if isinstance(value, Mapping) and isinstance(back, Mapping) and len(value) == len(back):
        pairs = zip(value.items(), back.items(), strict=True)
        return {"dict": [[encode_beside(*each, classes) for each in zip(*pair, strict=True)] for pair in pairs]}
    if isinstance(value, list | tuple) and type(value) is type(back) and len(value) == len(back):
        items = [encode_beside(*pair, classes) for pair in zip(value, back, strict=True)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if not isinstance(back, _JSON) or isinstance(value, type(back)):
        return encode(value, classes)
    return {_LOST: encode(back, classes)} if hides(value) else encode(back, classes)


def hides(value: Any) -> bool:
    """Return whether a value has parts that its own JSON does not show: secrets, and fields that are left out of it."""
    if hasattr(value, "get_secret_value"):
        return True
    if isinstance(value, BaseModel) and any(field.exclude for field in type(value).model_fields.values()):
        return True
    parts = _fields_of(value) or value
    if isinstance(parts, Mapping):
        parts = parts.values()
    elif not isinstance(parts, list | tuple | set | frozenset):
        return False
    return any(map(hides, parts))


def _of_class(value: Any, written: Any, classes: Classes) -> Any:
    name = full_name(type(value))
    return {"class": [name, written]} if name in classes else written


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return what an object of fields is made of; None for anything else."""
    if isinstance(value, BaseModel) and not isinstance(value, RootModel):
        return {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def decode(tree: Any, classes: Classes, *, validates: bool) -> Any:
    """Return the value that `encode` has written.

    Args:
        tree: what it returned.
        classes: those whose objects it may make. An object of another one comes back as its fields.
        validates: whether a class validates its fields; otherwise they are put in as they were.

    Raises:
        ValueError: it does not fit the classes as they are now.
    """
    if isinstance(tree, list):
        return [decode(item, classes, validates=validates) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, held),) = tree.items()
    if kind == "str":
        return b64decode(held).decode(errors="surrogatepass")
    if kind == "bytes":
        return b64decode(held)
    if kind == "float":
        return float(held)
    if kind in _TEXTS:
        return _adapter(_TEXTS[kind]).validate_python(held)
    parts = decode(held, classes, validates=validates)
    if kind == _LOST:
        return parts
    if kind == "class":
        name, fields = parts
        return _object(classes[name], fields, validates=validates) if name in classes else fields
    return dict(parts) if kind == "dict" else _COLLECTIONS[kind](parts)


def _object(cls: Any, fields: Any, *, validates: bool) -> Any:
    if issubclass(cls, Enum):
        return cls(fields)
    own = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else None
    if validates:
        computed = {field.name for field in own or () if not field.init}
        if computed:
            fields = {name: value for name, value in fields.items() if name not in computed}
        return _adapter(cls).validate_python(fields, strict=False, by_alias=False, by_name=True)
    if issubclass(cls, RootModel):
        return cls.model_construct(fields)
    if not fields.keys() >= ({field.name for field in own} if own is not None else cls.model_fields.keys()):
        raise ValueError("the class has more fields now")
    if own is None:
        return cls.model_construct(**fields)
    made = object.__new__(cls)
    for field in own:
        object.__setattr__(made, field.name, fields[field.name])
    return made


def classes_in(schema: Any) -> Iterator[type]:
    """Yield the classes that a type is made of.

    Args:
        schema: pydantic's core schema of the type.
    """
    if isinstance(schema, Mapping):
        if schema.get("type") in ("model", "dataclass", "enum") and "cls" in schema:
            yield schema["cls"]
        for name, part in schema.items():
            if name not in ("metadata", "serialization", "default"):
                yield from classes_in(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from classes_in(part)


def with_derived(declared: Iterable[type]) -> Classes:
    """Return classes by their full names, with all that are derived from them."""
    found: dict[str, Any] = {}
    left = list(declared)
    while left:
        each = left.pop()
        found[full_name(each)] = each
        left += each.__subclasses__()
    return found | {full_name(each): each for each in declared}  # of two with one name, the one that was declared


def full_name(cls: type) -> str:
    """Return the name of a class with that of its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


@lru_cache(maxsize=256)
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
