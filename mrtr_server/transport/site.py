"""The site around a server, as far as the routes of Starlette and FastAPI show it. Loaded only where there is one."""

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match
from starlette.types import Scope


def routes_of(part: Any) -> list[BaseRoute]:
    """Return the routes of a site, or of a part of it; none if it shows none."""
    return [route for route in getattr(part, "routes", None) or () if isinstance(route, BaseRoute)]


def serves(routes: Iterable[BaseRoute], asked: Scope, server: object, document: str) -> bool:
    """Return whether routes lead a request to a server, or to something that is made for the document it asks for.

    A route whose path has `document` as a part shows that it is made for that. The routes may lead to the server, or to
    what is around it.
    """
    for route in routes:
        match, more = route.matches(asked)
        if match is Match.FULL:  # no other route is tried then
            if inner := routes_of(route):
                return serves(inner, {**asked, **more}, server, document)
            return more.get("endpoint") is server or document in getattr(route, "path", "")
    return False


def paths_of(routes: Iterable[BaseRoute], server: object, mount: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths at which a `Route` leads to a server: the path that it is mounted at, and the path below that.

    A `Mount` passes all paths below its own, so the server serves its documents there itself.
    """
    for route in routes:
        path = getattr(route, "path", "")
        if getattr(route, "endpoint", None) is server:
            yield mount, path
        yield from paths_of(routes_of(route), server, mount + path)


def sites_in(values: Iterable[object], server: object) -> Iterator[Starlette]:
    """Yield those of some values that are applications with a `Route` to a server."""
    for each in values:
        if isinstance(each, Starlette) and any(paths_of(routes_of(each), server)):
            yield each
