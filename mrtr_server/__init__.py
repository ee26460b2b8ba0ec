"""MCP tool servers that ask: multi round-trip requests, answered by any replica."""

import typing as _typing

from ._version import __version__ as __version__
from .auth.fixed_tokens import BearerTokens as BearerTokens
from .auth.introspection import IntrospectionAuth as IntrospectionAuth
from .auth.jwt_auth import JWTAuth as JWTAuth
from .callbacks.callback_service import Callback as Callback
from .callbacks.callback_service import CallbackLink as CallbackLink
from .crypto.codec import Codec as Codec
from .crypto.codec import SealedCodec as SealedCodec
from .crypto.keys import KeyRing as KeyRing
from .crypto.signing import SignedCodec as SignedCodec
from .errors import FlowContinues as FlowContinues
from .errors import InsufficientScope as InsufficientScope
from .errors import MRTRError as MRTRError
from .errors import NotFound as NotFound
from .errors import ProtocolError as ProtocolError
from .errors import Refusal as Refusal
from .errors import SetupError as SetupError
from .errors import StoreUnavailable as StoreUnavailable
from .errors import ToolError as ToolError
from .flow.asks import Confirm as Confirm
from .flow.asks import Elicit as Elicit
from .flow.asks import Elicited as Elicited
from .flow.asks import ListRoots as ListRoots
from .flow.asks import Root as Root
from .flow.asks import Roots as Roots
from .flow.asks import Sample as Sample
from .flow.asks import Sampled as Sampled
from .flow.context import Context as Context
from .flow.hooks import CallInfo as CallInfo
from .flow.hooks import CallNext as CallNext
from .flow.hooks import Ended as Ended
from .flow.hooks import Failure as Failure
from .flow.idempotency_keys import IdempotencyKey as IdempotencyKey
from .flow.inputs import InputRequired as InputRequired
from .flow.inputs import Inputs as Inputs
from .flow.inputs import State as State
from .flow.url_asks import ElicitUrl as ElicitUrl
from .limits import Limits as Limits
from .protocol.callers import Caller as Caller
from .protocol.callers import Client as Client
from .protocol.callers import Principal as Principal
from .protocol.content import Annotations as Annotations
from .protocol.content import AudioContent as AudioContent
from .protocol.content import Completion as Completion
from .protocol.content import EmbeddedResource as EmbeddedResource
from .protocol.content import Icon as Icon
from .protocol.content import ImageContent as ImageContent
from .protocol.content import Message as Message
from .protocol.content import PromptResult as PromptResult
from .protocol.content import ResourceContents as ResourceContents
from .protocol.content import ResourceLink as ResourceLink
from .protocol.content import TextContent as TextContent
from .protocol.content import ToolAnnotations as ToolAnnotations
from .protocol.content import ToolResult as ToolResult
from .rates.rate_limits import RateLimits as RateLimits
from .registration.declarations import Depends as Depends
from .registration.methods import prompt as prompt
from .registration.methods import resource as resource
from .registration.methods import tool as tool
from .schema.arguments import Header as Header
from .server import MRTRServer as MRTRServer
from .storage.base import Redemption as Redemption
from .storage.base import Store as Store
from .storage.base import TaskStore as TaskStore
from .storage.memory import InProcessStore as InProcessStore
from .storage.pubsub import Fanout as Fanout
from .storage.tasks import TaskRow as TaskRow
from .telemetry.choice import OpenTelemetry as OpenTelemetry

if _typing.TYPE_CHECKING:
    from .storage.sql.store import SQLStore as SQLStore
else:

    def __getattr__(name: str) -> object:  # so that it is loaded only for those who want it
        if name == "SQLStore":
            from .storage.sql.store import SQLStore

            return SQLStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
