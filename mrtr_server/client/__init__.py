"""A client for programs that call servers: it answers their questions with callbacks, and follows their tasks.

    async with Client("https://shop.example/mcp", token=token, on_elicit=answer) as client:
        reply = await client.call("order", title="Emma")
        print(reply.text)

It speaks the ratified protocol over HTTP. Extra: `client`.
"""

import typing as _typing

from ..errors import BadReply, CallFailed, ClientError, NoReply, NotAnswered, RequestRefused, TaskCancelled
from ..protocol.ask_kinds import Choice, Form, Link, Sampling
from ..renamed import renamed_in
from ..wire import Progress
from .client import Client, Piece
from .connection import Bounds
from .results import Prompt, PromptReply, Resource, ResourceReply, TaskState, Template, Tool, ToolReply

__all__ = [
    "BadReply",
    "Bounds",
    "CallFailed",
    "Choice",
    "Client",
    "ClientError",
    "Form",
    "Link",
    "NoReply",
    "NotAnswered",
    "Piece",
    "Progress",
    "Prompt",
    "PromptReply",
    "RequestRefused",
    "Resource",
    "ResourceReply",
    "Sampling",
    "TaskCancelled",
    "TaskState",
    "Template",
    "Tool",
    "ToolReply",
]

if not _typing.TYPE_CHECKING:
    __getattr__ = renamed_in(__name__, globals())
