"""Functions in the place of dependencies, for tests: `app.overrides`."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from ..errors import SetupError
from ..flow.home import identity
from .recompiling import depends_on
from .registry import Registry, alone

Function = Callable[..., Any]


class Overrides(MutableMapping[Function, Function]):
    """What takes the place of which dependency: `app.overrides[open_database] = open_test_database`.

    Args:
        registry: has the handlers.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._keys: dict[Any, Function] = {}

    def __setitem__(self, dependency: Function, function: Function) -> None:
        """Put a function into the place of a dependency. Raises `SetupError` if nothing depends on that."""
        for each in (dependency, function):
            if not callable(each):
                raise SetupError(
                    "app.overrides maps the function given to Depends(...) to its replacement; "
                    f"{each!r} is not a function"
                )
        registry = self._registry
        is_own = registry.home.lifespan is not None and registry.home.lifespan == dependency
        if not is_own and not any(depends_on(record.handler, dependency) for _, _, record in registry.entries()):
            name = getattr(dependency, "__qualname__", dependency)
            raise SetupError(
                f"{self._registry.home.name}: nothing depends on {name}; an override is for the very function that "
                "was given to Depends(...) or lifespan="
            )
        key = identity(dependency)
        self._put({**self._registry.home.overrides, key: function})
        self._keys[key] = dependency

    def __delitem__(self, dependency: Function) -> None:
        """Put a dependency back. Raises `KeyError` if nothing took its place."""
        key = identity(dependency)
        remaining = dict(self._registry.home.overrides)
        del remaining[key]
        self._put(remaining)
        self._keys.pop(key, None)

    def __getitem__(self, dependency: Function) -> Function:
        """Return what takes the place of a dependency. Raises `KeyError` if nothing does."""
        return self._registry.home.overrides[identity(dependency)]

    def __iter__(self) -> Iterator[Function]:
        """Return an iterator over the dependencies."""
        return iter([self._keys.get(key, key) for key in self._registry.home.overrides])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._registry.home.overrides)

    @alone
    def _put(self, overrides: dict[Any, Function]) -> None:
        """Put functions into the places of dependencies. Raises `SetupError` if one can't be there; nothing changes."""
        before = self._registry.home.overrides
        try:
            self._use(overrides)
        except BaseException:
            self._use(before)
            raise
        changed = {key for key in before.keys() | overrides.keys() if before.get(key) is not overrides.get(key)}
        for registry, _, _ in self._registry.everywhere():
            for each in self._registry.homes():
                if each.lifespan is not None and identity(each.lifespan) in changed:
                    for server in tuple(registry.serving):
                        server.restart_lifespan(each)

    def _use(self, overrides: dict[Any, Callable[..., Any]]) -> None:
        """Compile all handlers with some overrides. Raises `SetupError` if one can't be."""
        self._registry.home.overrides = overrides
        for registry, _, _ in self._registry.everywhere():
            registry.forget_view()
            registry.records("tools")
