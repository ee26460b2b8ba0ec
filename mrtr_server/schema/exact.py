"""Values as JSON of which nothing is lost: bytes, secrets, halves of characters, and which class an object is of.

The JSON that a type writes for others may leave out fields or mask secrets. So a value is written by its parts here.
What JSON has no form of is an object of one member, which names its kind.
"""

import dataclasses
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PurePath
from typing import Any, get_type_hints
from uuid import UUID

from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from ..well_formed import is_well_formed
from .type_parts import Node, walk

_TEXTS: Mapping[str, type] = {
    each.__name__.lower(): each
    for each in (
        *(datetime, date, time, timedelta, Decimal, UUID),
        *(IPv4Address, IPv6Address, IPv4Network, IPv6Network, IPv4Interface, IPv6Interface),
    )
}
_NAMES = {kind: name for name, kind in _TEXTS.items()}
_JSON = (str, int, float, list, dict)
_PLAIN = frozenset({str, int, float, bool, type(None)})
_LOST = "lost"  # the kind of what plain JSON does not hold all of, so that nothing that comes back is equal to it
Classes = Mapping[str, Any]  # the classes that a declared type may have values of, by their full names


def encode(value: Any, classes: Classes) -> Any:
    """Write a value by its parts; an object of a class that is not in `classes`, as its fields."""
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
    if isinstance(value, tuple):
        return {"tuple": [encode(item, classes) for item in value]}
    if isinstance(value, set | frozenset):
        items = sorted((encode(item, classes) for item in value), key=to_json)
        return {"set" if isinstance(value, set) else "frozenset": items}
    return _encode_object(value, classes)


def _encode_object(value: Any, classes: Classes) -> Any:
    if isinstance(value, Enum):
        return _of_class(value, encode(value.value, classes), classes)
    if (name := _NAMES.get(type(value))) is not None:
        return {name: to_jsonable_python(value)}
    if (reveal := getattr(value, "get_secret_value", None)) is not None:
        return {"secret": encode(reveal(), classes)}
    if isinstance(value, RootModel):
        return _of_class(value, encode(value.root, classes), classes)
    if (fields := _fields_of(value)) is not None:
        if full_name(type(value)) not in classes:  # so it comes back as JSON, which may go to others
            fields = {name: item for name, item in fields.items() if not _is_excluded(value, name)}
        return _of_class(value, encode(fields, classes), classes)
    if isinstance(value, PurePath):
        text = encode(str(value), classes)
        return {"path": text} if isinstance(value, Path) else text
    return {"class": [full_name(type(value)), to_jsonable_python(value)]}  # URLs and the like come back as their JSON


def encode_beside(value: Any, back: Any, classes: Classes) -> Any:
    """Write a value by its parts; parts that its type leaves open, as the JSON that comes back in `back`."""
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
    parts = _fields_of(value) or value
    if isinstance(value, BaseModel) and any(_is_excluded(value, name) for name in parts):
        return True
    if isinstance(parts, Mapping):
        parts = parts.values()
    elif not isinstance(parts, list | tuple | set | frozenset):
        return False
    return any(map(hides, parts))


def _of_class(value: Any, written: Any, classes: Classes) -> Any:
    name = full_name(type(value))
    if name not in classes:
        return written
    private = {}
    for attribute, item in (getattr(value, "__pydantic_private__", None) or {}).items():
        with suppress(Exception):  # a connection or the like, of which each object makes its own
            private[attribute] = encode(item, classes)
    return {"class": [name, written, *([{"dict": [list(pair) for pair in private.items()]}] if private else [])]}


def are_alike(value: Any, back: Any) -> bool:
    """Return whether two values that are written alike are of the same classes, too, in all their parts."""
    if type(value) is not type(back):
        return False
    if type(value) in _PLAIN:
        return True
    if isinstance(value, Mapping):
        return all(map(are_alike, value, back)) and all(map(are_alike, value.values(), back.values()))
    if isinstance(value, list | tuple | deque):
        return all(map(are_alike, value, back))
    if isinstance(value, set | frozenset):
        return Counter(map(type, value)) == Counter(map(type, back))
    if isinstance(value, RootModel):
        return are_alike(value.root, back.root)
    return are_alike(_fields_of(value), _fields_of(back))


def _fields_of(value: Any) -> dict[str, Any] | None:
    if isinstance(value, BaseModel) and not isinstance(value, RootModel):
        return {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _is_excluded(value: Any, name: str) -> bool:
    field = type(value).model_fields.get(name) if isinstance(value, BaseModel) else None
    return field is not None and bool(field.exclude)


def decode(tree: Any, classes: Classes, *, validates: bool) -> Any:
    """Return the value that `encode` has written; `ValueError` if it does not fit the classes as they are now.

    With `validates`, a class validates its fields together. Otherwise each field is validated alone, so that what a
    validator or `__post_init__` has computed stays as it was.
    """
    if isinstance(tree, list):
        return [decode(item, classes, validates=validates) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, held),) = tree.items()
    if kind in _READERS:
        return _READERS[kind](held)
    parts = decode(held, classes, validates=validates)
    if kind == "class":
        name, fields, *private = parts
        if name not in classes:
            return fields
        made = _object(classes[name], fields, validates=validates)
        for attribute, item in dict(*private).items():
            setattr(made, attribute, item)
        return made
    if kind == "secret":  # which stays one where its type is left open, too
        return (SecretStr if isinstance(parts, str) else SecretBytes if isinstance(parts, bytes) else Secret)(parts)
    return parts if kind == _LOST else _MADE[kind](parts)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": lambda held: b64decode(held).decode(errors="surrogatepass"),
    "bytes": b64decode,
    "float": float,
    **{name: TypeAdapter(kind).validate_python for name, kind in _TEXTS.items()},
}
_MADE: Mapping[str, Any] = {"path": Path, **{each.__name__: each for each in (tuple, set, frozenset, dict)}}


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
        return cls.model_construct(*_validated(cls, {"root": fields}).values())
    if not fields.keys() >= ({field.name for field in own} if own is not None else cls.model_fields.keys()):
        raise ValueError("the class has more fields now")
    fields = _validated(cls, fields)
    if own is None:
        return cls.model_construct(**fields)
    made = object.__new__(cls)
    for field in own:
        object.__setattr__(made, field.name, fields[field.name])
    return made


def _validated(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    types = _types_of(cls)
    return {
        name: types[name].validate_python(value, strict=False, by_alias=True, by_name=True) if name in types else value
        for name, value in fields.items()
    }


@lru_cache(maxsize=256)
def _types_of(cls: type) -> Mapping[str, TypeAdapter[Any]]:
    if issubclass(cls, BaseModel):
        return {name: TypeAdapter(field.rebuild_annotation()) for name, field in cls.model_fields.items()}
    hints, fields = get_type_hints(cls, include_extras=True), dataclasses.fields(cls)  # type: ignore[arg-type]
    return {field.name: TypeAdapter(hints[field.name]) for field in fields}


def classes_in(schema: Node) -> Iterator[type]:
    """Yield the classes that a type is made of, from its core schema."""
    for node in walk(schema):
        if node["type"] in ("model", "dataclass", "enum"):
            yield node["cls"]
        elif node["type"] == "literal":
            yield from (type(each) for each in node["expected"] if isinstance(each, Enum))


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
