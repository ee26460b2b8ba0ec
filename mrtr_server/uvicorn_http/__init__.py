"""uvicorn's HTTP protocol, with bounds on requests, and with less work for each. Nothing else knows its insides."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Listed = Sequence[tuple[bytes, bytes]]


class Shortcuts(NamedTuple):
    """What the endpoint has of one kind of request: it takes or returns at once what ASGI has messages for."""

    # Returns the body as `receive` would, if all of it has come; None where it has to be received.
    take_body: Callable[[Any], bytes | None]
    # Writes a status, a `content-type` and a body or none, and further headers; False where they have to be sent.
    respond_whole: Callable[[Any, int, bytes, bytes, Sequence[tuple[bytes, bytes]]], bool]
    write_part: Callable[..., bool]  # with the headers as they are written, if it begins; return False likewise
