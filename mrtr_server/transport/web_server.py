"""What the web server does for us beyond ASGI, if it is a uvicorn that we know. Nothing is done with any other.

A request is known by the `receive` or `send` that it gave the application. Where middleware has put another one in its
place, there is no shortcut: it wants to see the messages.
"""

from functools import lru_cache
from typing import Any

from ..uvicorn_http.shortcuts import Shortcuts as Shortcuts


def find_request(function: Any) -> tuple[Any, Shortcuts | None]:
    """Return the web server's own request behind `receive` or `send`, and its shortcuts; None for those of another."""
    request = getattr(function, "__self__", None)
    kind: Any = type(request)
    return request, find_shortcuts(kind)


@lru_cache(maxsize=16)
def find_shortcuts(request: Any) -> Shortcuts | None:
    """Return the shortcuts of requests of a class; None if it is none of a uvicorn that we know."""
    if "RequestResponseCycle" not in [each.__name__ for each in request.__mro__]:
        return None
    try:
        from ..uvicorn_http.whole_responses import shortcuts_of
    except ImportError:  # there is no httptools, or uvicorn is another one
        return None
    return shortcuts_of(request)


async def close_listeners(server: Any) -> None:
    """Close the listening sockets of this process, and serve the connections that waited in them.

    Args:
        server: uvicorn's `Server`; nothing happens to any other object.
    """
    from ..uvicorn_http.accept_queue import close_listeners

    await close_listeners(server)
