"""The rest of a body whose request was refused: it is drained, and nothing of it is kept but the id of the request."""

from starlette.types import Receive

from ..protocol.envelope import ENDS, find_request_id

MOST_READ = 8
"""How many times the size that a body may have is read at most."""


async def drain_body(receive: Receive, limit: int, begun: bytes = b"", *, is_all: bool = False) -> str | int | None:
    """Read the rest of a body, and return the id of the request in it.

    Args:
        receive: of the request.
        limit: how large a body may be, in bytes.
        begun: what has been read of it.
        is_all: whether that is all.

    Returns:
        The id; None if there is none, if the body is even larger than what is read, or if its client has left.
    """
    head, tail, size = begun[:ENDS], begun[-ENDS:], len(begun)
    while not is_all:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit * MOST_READ:
            return None
        if len(head) < ENDS:
            head = (head + part)[:ENDS]
        tail = (tail + part[-ENDS:])[-ENDS:]
        is_all = not message.get("more_body")
    return find_request_id(head, tail)
