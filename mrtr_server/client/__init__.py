"""A client for programs that call servers: it answers their questions with callbacks, and follows their tasks.

    async with Client("https://shop.example/mcp", token=token, on_elicit=answer) as client:
        reply = await client.call("order", title="Emma")
        print(reply.text)

It speaks the newest version and those that begin with a handshake, with a URL, an application of the same process or a
command on standard input and output. Extra: `client`.
"""

import typing as _typing

from ..errors import (
    BadReply,
    CallFailed,
    ClientError,
    LoginFailed,
    NoReply,
    NotAnswered,
    RequestRefused,
    TaskCancelled,
)
from ..protocol.ask_kinds import Choice, Form, Link, Sampling
from ..renamed import renamed_in
from ..wire import Progress
from .client import Client, Piece
from .events import EventFeed
from .exchange import Bounds
from .oauth import OAuth
from .results import (
    Event,
    OfferedEvent,
    Prompt,
    PromptReply,
    Resource,
    ResourceReply,
    TaskState,
    Template,
    Tool,
    ToolReply,
)
from .stdio import Command
from .token_store import FileTokens, TokenStore

__all__ = [
    "BadReply",
    "Bounds",
    "CallFailed",
    "Choice",
    "Client",
    "ClientError",
    "Command",
    "Event",
    "EventFeed",
    "FileTokens",
    "Form",
    "Link",
    "LoginFailed",
    "NoReply",
    "NotAnswered",
    "OAuth",
    "OfferedEvent",
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
    "TokenStore",
    "Tool",
    "ToolReply",
]

if not _typing.TYPE_CHECKING:
    __getattr__ = renamed_in(__name__, globals())
