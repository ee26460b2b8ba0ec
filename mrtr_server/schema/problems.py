"""What is wrong with an input, in few words and without its values."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

MOST_PROBLEMS = 20
"""How many problems an error names, so that a long list of wrong items does not make an even longer error."""

MOST_CHARACTERS = 200
"""How long each of them, and the path to it, may be."""

UNREAD = "unread"
"""The type of pydantic's error for what was not looked at, since enough problems had been found."""


def problem(path: Iterable[Any], message: str) -> tuple[str, str]:
    """Return one problem as (where, what), both shortened: clients choose names, and authors list choices."""
    return _cut(".".join(map(str, path))), _cut(message)


def problems_of(error: ValidationError, value: Any = None, *, tables: bool = False) -> list[tuple[str, str]]:
    """Return the first problems of an input as (where, what), without its values, and whether more may follow.

    Args:
        error: of pydantic, for the first wrong item of each array and table (`PeerValidator`).
        value: the input, in which further items may be wrong.
        tables: whether its type has tables: a path does not tell whether it leads through one, or through an object.
    """
    every = error.errors(include_url=False, include_context=False, include_input=False)
    read = [each for each in every if each["type"] != UNREAD][:MOST_PROBLEMS]
    more = len(read) < len(every) or any(_leaves_items(each["loc"], value, tables=tables) for each in read)
    return shortened([problem(each["loc"], each["msg"]) for each in read], "more may follow" if more else "")


def _leaves_items(path: tuple[int | str, ...], value: Any, *, tables: bool) -> bool:
    """Return whether an array or a table goes on behind the item that a path leads to."""
    for position, step in enumerate(path):
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            if step < len(value) - 1:
                return True
            value = value[step]
        elif isinstance(value, dict) and step in value:  # otherwise it names the choice of a union
            if tables and position and step != next(reversed(value)):
                return True
            value = value[step]
        elif isinstance(value, str) and (tables or isinstance(step, int)):  # of a JSON text
            return True
    return False


def shortened(problems: list[tuple[str, str]], left_out: str) -> list[tuple[str, str]]:
    """Append to the last problem what was left out; nothing if that is empty."""
    if left_out:
        where, what = problems[-1]
        problems[-1] = where, f"{what} (and {left_out})"
    return problems


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
