"""Handlers for the official SDK, 1.x and 2, which other clients pass on to it."""

from typing import Any

from mcp import types
from probe import SUMMARY, fill_in


async def elicit(context: Any, params: Any) -> Any:
    """Answer a form."""
    schema = params.requested_schema if hasattr(params, "requested_schema") else params.requestedSchema
    return types.ElicitResult(action="accept", content=await fill_in(schema))


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """Answer for the model."""
    text = types.TextContent(type="text", text=SUMMARY)
    return types.CreateMessageResult(role="assistant", content=text, model="constant")
