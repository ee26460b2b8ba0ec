"""Objects that know which of their fields their author gave, so that the environment fills in the others alone."""

from typing import Any, Self, TypeVar


class KnowsGiven:
    """The base of a dataclass that remembers which fields it was made with."""

    __slots__ = ("given",)

    given: frozenset[str]
    """The names of the fields that were given by name, whether or not that is their default."""

    def __new__(cls, *_positional: Any, **given: Any) -> Self:
        """Return an object without its fields; `__init__` of the dataclass sets those."""
        made = super().__new__(cls)
        object.__setattr__(made, "given", frozenset(given))  # the dataclass is frozen
        return made


G = TypeVar("G", bound=KnowsGiven)


def having(made: G, **more: Any) -> G:
    """Return an object with what was given to another one, and more; its other fields have their defaults."""
    return type(made)(**{name: getattr(made, name) for name in made.given} | more)
