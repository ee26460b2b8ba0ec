"""Words of the tests that walk flows with `AsyncClient` of `mrtr_server.testing`."""

from collections.abc import Coroutine, Mapping
from typing import Any

from mrtr_server.testing import AsyncClient, Flow, Reply

AsyncFlow = Flow[Coroutine[Any, Any, Reply], Coroutine[Any, Any, list[Reply]]]
"""A flow of an `AsyncClient`."""


def is_state_only(reply: Reply) -> bool:
    """Return whether a round ended with a state and without a question."""
    return reply.needs_input and not reply.asks


def pieces_of(reply: Reply) -> list[str]:
    """Return the pieces that came with a reply, in short: the text of each, or else its type."""
    return [str(piece.get("text", piece["type"])) for piece in reply.pieces]


async def update(client: AsyncClient, flow: AsyncFlow, params: Mapping[str, Any]) -> Reply:
    """Send a `tasks/update` for the task of a flow, as it is written here."""
    return await client.request("tasks/update", {"taskId": flow.task, **params})
