"""What an extension is to the rest of a server (Extensions), and those that an author declares."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from ..errors import SetupError
from ..methods.middleware import Method, Middleware
from ..protocol.messages import JSON, Call
from ..registration.inclusion import Listing

_NO_METHODS: Mapping[str, Method] = MappingProxyType({})


class Extension(ABC):
    """An extension: a module has a class, and `ServerParts` makes one for each server."""

    id: ClassVar[str]
    needs_client: ClassVar[bool] = False
    """Whether its methods are for clients alone that declare it."""
    methods: Mapping[str, Method] = _NO_METHODS
    """What serves its methods."""
    others: Mapping[str, Method] = _NO_METHODS
    """What serves methods that it has elsewhere, which dialects know by themselves."""

    @abstractmethod
    def settings(self) -> JSON | None:
        """Return what the server declares of it; None as long as the server has nothing of it."""

    @property
    def around(self) -> Sequence[Middleware]:
        """What stands around all requests."""
        return ()

    def shapes(self, listing: Listing) -> bool:
        """Return whether a list depends on who asks, so that `listed` and `added` are asked."""
        return False

    def listed(self, listing: Listing, entry: JSON, call: Call) -> JSON | None:
        """Return the entry of a list as the client of a call gets it; None if that does not get it."""
        return entry

    def added(self, listing: Listing, call: Call) -> list[JSON]:
        """Return what a list has besides, at its end."""
        return []


class Extensions:
    """The extensions of one server: its own, and those that are declared, here and by what it includes.

    `declared`: returns what authors have declared. Raises `SetupError` for an id of the server's own.
    """

    def __init__(self, own: Sequence[Extension], declared: Callable[[], Mapping[str, JSON]]) -> None:
        self._own = own
        self.declared = declared
        if taken := {each.id for each in own}.intersection(declared()):
            raise SetupError(f"extensions=: {min(taken)!r} is one of the server's own, which declares it by itself")

    @property
    def methods(self) -> dict[str, Method]:
        """What serves methods of extensions."""
        return {name: method for each in self._own for name, method in (*each.methods.items(), *each.others.items())}

    @property
    def needs(self) -> dict[str, JSON]:
        """What a client must have declared, by each method that dialects need not know; empty for nothing."""
        return {
            name: {"extensions": {each.id: {}}} if each.needs_client else {}
            for each in self._own
            for name in each.methods
        }

    @property
    def around(self) -> list[Middleware]:
        """What stands around all requests, the outermost first."""
        return [each for extension in self._own for each in extension.around]

    def shaping(self, listing: Listing) -> list[Extension]:
        """Return what makes a list for who asks; nothing where it is the same for all."""
        return [each for each in self._own if each.shapes(listing)]

    def settings(self) -> dict[str, JSON]:
        """Return what the server declares, by id (Extensions, Negotiation)."""
        own = {each.id: settings for each in self._own if (settings := each.settings()) is not None}
        return {**own, **self.declared()}
