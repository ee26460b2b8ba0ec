"""What a list shows of a decorated function: its name, its docstring, and what the decorator was given."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import cleandoc
from typing import Any

from pydantic import ValidationError

from ..errors import SetupError
from ..protocol.content import Annotations, ToolAnnotations, first_problem, icon_entries, wire_of
from ..protocol.messages import JSON
from ..schema.misfits import takes
from ..well_formed import refuse_halves
from .options import ListedOptions

NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
"""What names are made of (Tools, Tool Names)."""


def name_of(function: Callable[..., Any], options: ListedOptions) -> str:
    """Return what a function is registered as: the name that it was given, or its own.

    Raises:
        SetupError: there is no such name, or it has characters that names must not have.
    """
    name = options.name or getattr(function, "__name__", "")
    if not name or not NAME_CHARACTERS.issuperset(name) or len(name) > 128:
        raise SetupError(
            f"{name!r} can't be a name; pass name= with 1 to 128 of the characters A-Z, a-z, 0-9, '_', '-' and '.'"
        )
    return name


def description_of(function: Callable[..., Any], options: ListedOptions) -> str | None:
    """Return the description that a function was given, or its docstring; None if it has neither."""
    while isinstance(function, partial):  # its own docstring is that of partial
        function = function.func
    return options.description or (cleandoc(function.__doc__) if function.__doc__ else None)


def list_entry(function: Callable[..., Any], options: ListedOptions, **fields: Any) -> JSON:
    """Return the entry of a list.

    Args:
        function: what was decorated.
        options: of its decorator.
        fields: further fields, by their names on the wire; what is None is left out.

    Raises:
        SetupError: a text in it is none.
    """
    all_fields = {
        "name": name_of(function, options),
        "title": options.title,
        "description": description_of(function, options),
        "icons": icon_entries(name_of(function, options), options.icons),
        "_meta": {**(options.meta or {}), **({"tags": sorted(set(options.tags))} if options.tags else {})} or None,
        **fields,
    }
    entry = {name: value for name, value in all_fields.items() if value is not None}
    refuse_halves(str(entry["name"]), entry)
    return entry


def hints_of(given: Any, kind: type[Annotations | ToolAnnotations], such_as: str) -> JSON | None:
    """Return the `annotations` of an entry as plain JSON; None if there are none.

    Args:
        given: what the decorator was given.
        kind: the class that has them.
        such_as: an argument of it, for errors.

    Raises:
        SetupError: they are something else.
    """
    if given is not None and not isinstance(given, (kind, Mapping)):
        raise SetupError(f"annotations= takes {kind.__name__}(...), such as {kind.__name__}({such_as})")
    if given is None:
        return None
    try:
        return wire_of(kind, given if isinstance(given, Mapping) else given.wire()) or None
    except ValidationError as error:
        raise SetupError(f"annotations= can't be sent: {first_problem(error)}") from None


_OF_TEXTS = ("string", "integer", "number", "boolean")
"""The JSON types whose values are read from texts."""


def refuse_other_than_strings(where: str, schema: Mapping[str, Any], what: str) -> None:
    """Refuse parameters that come as strings and whose types take none.

    Args:
        where: the function, for errors.
        schema: of its arguments.
        what: they are, for errors.

    Raises:
        SetupError: there is one.
    """
    for name, field in schema["properties"].items():
        if not any(takes(schema, field, kind) for kind in _OF_TEXTS):
            raise SetupError(
                f"{where}: {name!r} is {what}, which arrives as a string, and its type accepts no string; "
                "take a str and convert it, or add BeforeValidator(..., json_schema_input_type=str) to the "
                "annotation"
            )
