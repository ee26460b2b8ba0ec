"""Which web server's own request is behind `receive` and `send`, and its shortcuts.

A request is known by the `receive` or `send` that it gave the application. Where middleware has put another one in its
place, there is no shortcut: it wants to see the messages.
"""

from functools import lru_cache
from typing import Any

from .shortcuts import Shortcuts


def find_request(function: Any) -> tuple[Any, Shortcuts | None]:
    """Return the web server's own request, and its shortcuts; None for those of a request that is not known.

    Args:
        function: `receive` or `send` of an ASGI application.
    """
    request = getattr(function, "__self__", None)
    kind: Any = type(request)
    return request, find_shortcuts(kind)


@lru_cache(maxsize=16)
def find_shortcuts(request: Any) -> Shortcuts | None:
    """Return the shortcuts of requests of a class; None if it is none of a uvicorn that we know."""
    if "RequestResponseCycle" not in [each.__name__ for each in request.__mro__]:
        return None
    try:
        from .whole_responses import shortcuts_of
    except ImportError:  # there is no httptools, or uvicorn is another one
        return None
    return shortcuts_of(request)
