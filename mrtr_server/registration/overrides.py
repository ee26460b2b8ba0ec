"""Functions in the place of dependencies, for tests: `app.override`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import SetupError
from ..flow.home import identity
from .recompiling import depends_on
from .registry import Registry, alone

Function = Callable[..., Any]


@contextmanager
def overridden(registry: Registry, dependency: Function, function: Function) -> Iterator[None]:
    """Put a function into the place of a dependency for as long as the block lasts. Raises `SetupError`."""
    for each in (dependency, function):
        if not callable(each):
            raise SetupError(
                f"app.override takes the function of Depends(...), and its replacement; {each!r} is not a function"
            )
    is_own = registry.home.lifespan is not None and registry.home.lifespan == dependency
    if not is_own and not any(depends_on(record.handler, dependency) for _, _, record in registry.entries()):
        name = getattr(dependency, "__qualname__", dependency)
        raise SetupError(
            f"{registry.home.name}: nothing depends on {name}; an override is for the very function that was given to "
            "Depends(...) or lifespan="
        )
    key = identity(dependency)
    before = {key: registry.home.overrides[key]} if key in registry.home.overrides else {}
    _put(registry, {**registry.home.overrides, key: function})
    try:
        yield
    finally:
        others = {each: now for each, now in registry.home.overrides.items() if each != key}
        _put(registry, {**others, **before})


@alone
def _put(registry: Registry, overrides: dict[Any, Function]) -> None:
    """Put functions into the places of dependencies. Raises `SetupError` if one can't be there; nothing changes."""
    before, everywhere = registry.home.overrides, [each for each, _, _ in registry.everywhere()]
    try:
        _use(registry, overrides, everywhere)
    except BaseException:
        _use(registry, before, everywhere)
        raise
    changed = {key for key in before.keys() | overrides.keys() if before.get(key) is not overrides.get(key)}
    for life in registry.homes():
        if life.lifespan is not None and identity(life.lifespan) in changed:
            for each in everywhere:
                for server in tuple(each.serving):
                    server.restart_lifespan(life)


def _use(registry: Registry, overrides: dict[Any, Function], everywhere: list[Registry]) -> None:
    """Compile all handlers with some overrides. Raises `SetupError` if one can't be."""
    registry.home.overrides = overrides
    for each in everywhere:
        each.forget_view()
        each.records("tools")
