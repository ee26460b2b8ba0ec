"""What takes or gives at once what ASGI has messages for, where the web server's own request is one that we know."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Listed = Sequence[tuple[bytes, bytes]]


class Shortcuts(NamedTuple):
    """The shortcuts of one kind of request.

    Args:
        known_headers: returns the headers that are listed in a scope by their names, if none is there twice; None where
            that is to be found out.
        take_body: returns the body if all of it has come, as `receive` would; None where it has to be received.
        respond_whole: writes a response at once: its status, its `content-type` if it has a body, its body, and the
            headers that it has beyond those of each; returns False where it has to be sent.
        write_part: writes a part of a stream at once; returns False likewise.
    """

    known_headers: Callable[[Any, Listed], dict[bytes, bytes] | None]
    take_body: Callable[[Any], bytes | None]
    respond_whole: Callable[[Any, int, bytes, bytes, Sequence[tuple[bytes, bytes]]], bool]
    write_part: Callable[..., bool]
