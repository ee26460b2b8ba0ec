"""The application that registered a handler, wherever the handler is served."""

from collections.abc import Callable
from typing import Any

from .hooks import CallHook


class Home:
    """What the handlers of one application share. Two are equal if they are the same.

    Args:
        name: the application's.
        lifespan: the function that was given as `lifespan=`; None for none.
    """

    __slots__ = ("around", "lifespan", "name", "on_error", "overrides")

    def __init__(self, name: str, lifespan: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.lifespan = lifespan
        self.around: list[CallHook] = []
        """What runs around its calls, the outermost first."""
        self.on_error: list[CallHook] = []
        """The functions that receive its failures."""
        self.overrides: dict[Any, Callable[..., Any]] = {}
        """What takes the place of a dependency, by the identity of its function."""

    @property
    def has_hooks(self) -> bool:
        """Whether anything runs around its calls, or receives its failures."""
        return bool(self.around or self.on_error)


def identity(function: Callable[..., Any]) -> Any:
    """Return what tells a function from others, also where it has no hash."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function
