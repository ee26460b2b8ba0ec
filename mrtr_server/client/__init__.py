"""A client for programs that call servers: it answers their questions with callbacks, and follows their tasks.

    async with Client("https://shop.example/mcp", token=token, on_elicit=answer) as client:
        reply = await client.call("order", title="Emma")
        print(reply.text)

It speaks the ratified protocol over HTTP. Extra: `client`.
"""

from ..errors import BadReply as BadReply
from ..errors import CallFailed as CallFailed
from ..errors import ClientError as ClientError
from ..errors import NoReply as NoReply
from ..errors import NotAnswered as NotAnswered
from ..errors import RequestRefused as RequestRefused
from ..errors import TaskCancelled as TaskCancelled
from .bounds import Bounds as Bounds
from .client import Client as Client
from .questions import Choice as Choice
from .questions import Form as Form
from .questions import Link as Link
from .questions import Piece as Piece
from .questions import Progress as Progress
from .questions import Sampling as Sampling
from .results import Prompt as Prompt
from .results import PromptReply as PromptReply
from .results import Resource as Resource
from .results import ResourceReply as ResourceReply
from .results import Task as Task
from .results import Template as Template
from .results import Tool as Tool
from .results import ToolReply as ToolReply
