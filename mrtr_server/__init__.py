"""MCP tool servers that ask: multi round-trip requests, answered by any replica."""

import typing as _typing

from ._version import __version__ as __version__
from .asks import Confirm as Confirm
from .asks import Elicit as Elicit
from .asks import Elicited as Elicited
from .asks import ListRoots as ListRoots
from .asks import Refusal as Refusal
from .asks import Root as Root
from .asks import Roots as Roots
from .asks import Sample as Sample
from .asks import Sampled as Sampled
from .auth import BearerTokens as BearerTokens
from .callbacks import Callback as Callback
from .callbacks import WayBack as WayBack
from .content import Annotations as Annotations
from .content import AudioContent as AudioContent
from .content import Completion as Completion
from .content import EmbeddedResource as EmbeddedResource
from .content import Icon as Icon
from .content import ImageContent as ImageContent
from .content import Message as Message
from .content import PromptResult as PromptResult
from .content import ResourceContents as ResourceContents
from .content import ResourceLink as ResourceLink
from .content import TextContent as TextContent
from .content import ToolAnnotations as ToolAnnotations
from .content import ToolResult as ToolResult
from .context import Context as Context
from .declared import Depends as Depends
from .errors import MRTRError as MRTRError
from .errors import NotFound as NotFound
from .errors import ProtocolError as ProtocolError
from .errors import SetupError as SetupError
from .errors import StoreUnavailable as StoreUnavailable
from .errors import ToolError as ToolError
from .fanout import Fanout as Fanout
from .idempotency import IdempotencyKey as IdempotencyKey
from .inputs import InputRequired as InputRequired
from .inputs import Inputs as Inputs
from .inputs import State as State
from .keys import KeyRing as KeyRing
from .limits import Limits as Limits
from .messages import Caller as Caller
from .messages import Client as Client
from .messages import Principal as Principal
from .schema import Header as Header
from .sealed_state import Codec as Codec
from .sealed_state import SealedCodec as SealedCodec
from .server import MRTRServer as MRTRServer
from .signing import SignedCodec as SignedCodec
from .store import InProcessStore as InProcessStore
from .store import Redemption as Redemption
from .store import Store as Store
from .url_asks import ElicitUrl as ElicitUrl

if _typing.TYPE_CHECKING:
    from .store_sql import SQLStore as SQLStore
else:

    def __getattr__(name: str) -> object:  # so that SQLAlchemy is loaded only for those who want it
        if name == "SQLStore":
            from .store_sql import SQLStore

            return SQLStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
