"""Words of the tests that walk flows with `AsyncClient` of `mrtr_server.testing`."""

from collections.abc import Coroutine
from typing import Any

from mrtr_server.testing import Flow, Reply

AsyncFlow = Flow[Coroutine[Any, Any, Reply], Coroutine[Any, Any, list[Reply]]]
"""A flow of an `AsyncClient`."""


def is_state_only(reply: Reply) -> bool:
    """Return whether a round ended with a state and without a question."""
    return reply.needs_input and not reply.asks
