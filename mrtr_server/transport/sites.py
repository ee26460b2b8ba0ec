"""The site around a server, as far as the routes of Starlette and FastAPI show it. Loaded only where there is one."""

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match
from starlette.types import Scope


def routes_of(part: Any) -> list[BaseRoute]:
    return [route for route in getattr(part, "routes", None) or () if isinstance(route, BaseRoute)]


def serves(routes: Iterable[BaseRoute], asked: Scope, server: object, document: str) -> bool:
    """Return whether routes lead a request to a server, or to a route whose path has the document that it asks for."""
    for route in routes:
        match, more = route.matches(asked)
        if match is Match.FULL:  # no other route is tried then
            if inner := routes_of(route):
                return serves(inner, {**asked, **more}, server, document)
            return more.get("endpoint") is server or document in getattr(route, "path", "")
    return False


def paths_of(routes: Iterable[BaseRoute], server: object, mount: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths of each `Route` to a server, within its mounts. A `Mount` passes on all paths below its own."""
    for route in routes:
        path = getattr(route, "path", "")
        if getattr(route, "endpoint", None) is server:
            yield mount, path
        yield from paths_of(routes_of(route), server, mount + path)


def sites_in(values: Iterable[object], server: object) -> Iterator[Starlette]:
    for each in values:
        if isinstance(each, Starlette) and any(paths_of(routes_of(each), server)):
            yield each
