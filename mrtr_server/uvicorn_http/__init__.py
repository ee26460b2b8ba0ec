"""uvicorn's own HTTP protocol, with bounds on requests, and with less work for each. Nothing else knows its insides.

`Shortcuts` are what the endpoint has of that: they take or return at once what ASGI has messages for.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Listed = Sequence[tuple[bytes, bytes]]


class Shortcuts(NamedTuple):
    """The shortcuts of one kind of request."""

    take_body: Callable[[Any], bytes | None]
    """The body if all of it has come, as `receive` would return it; None where it has to be received."""
    respond_whole: Callable[[Any, int, bytes, bytes, Sequence[tuple[bytes, bytes]]], bool]
    """Write a response at once: its status, its `content-type` if it has a body, its body, and the headers that it has
    beyond those of each; return False where it has to be sent."""
    write_part: Callable[..., bool]
    """Write a part of a stream at once; return False likewise."""
