"""MCP tool servers that ask: multi round-trip requests, answered by any replica."""

import typing as _typing

from ._version import __version__
from .auth.fixed_tokens import BearerTokens
from .auth.introspection import IntrospectionAuth
from .auth.jwt_auth import JWTAuth
from .callbacks.callback_service import Callback, CallbackLink
from .crypto.codec import Codec, SealedCodec
from .crypto.keys import KeyRing
from .crypto.signing import SignedCodec
from .errors import (
    FlowContinues,
    InsufficientScope,
    MRTRError,
    NotFound,
    ProtocolError,
    Refusal,
    SetupError,
    StoreUnavailable,
    ToolError,
)
from .flow.asks import Confirm, Elicit, Elicited, ListRoots, Root, Roots
from .flow.context import Context
from .flow.hooks import CallInfo, CallNext, Ended, Failure
from .flow.idempotency_keys import IdempotencyKey
from .flow.inputs import InputRequired, Inputs, State
from .flow.sampling import Sample, Sampled
from .flow.url_asks import ElicitUrl
from .limits import Limits
from .protocol.callers import Caller, Client, Principal
from .protocol.content import (
    Annotations,
    AudioContent,
    Completion,
    EmbeddedResource,
    Icon,
    ImageContent,
    Message,
    PromptResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolAnnotations,
    ToolResult,
)
from .rates.rate_limits import RateLimits
from .registration.declarations import Depends
from .registration.methods import prompt, resource, tool
from .schema.arguments import Header
from .server import MRTRServer
from .storage.base import Redemption, Store, TaskStore
from .storage.memory import InProcessStore
from .storage.pubsub import Fanout
from .storage.tasks import TaskRow
from .telemetry.choice import OpenTelemetry

__all__ = [
    "Annotations",
    "AudioContent",
    "BearerTokens",
    "CallInfo",
    "CallNext",
    "Callback",
    "CallbackLink",
    "Caller",
    "Client",
    "Codec",
    "Completion",
    "Confirm",
    "Context",
    "Depends",
    "Elicit",
    "ElicitUrl",
    "Elicited",
    "EmbeddedResource",
    "Ended",
    "Failure",
    "Fanout",
    "FlowContinues",
    "Header",
    "Icon",
    "IdempotencyKey",
    "ImageContent",
    "InProcessStore",
    "InputRequired",
    "Inputs",
    "InsufficientScope",
    "IntrospectionAuth",
    "JWTAuth",
    "KeyRing",
    "Limits",
    "ListRoots",
    "MRTRError",
    "MRTRServer",
    "Message",
    "NotFound",
    "OpenTelemetry",
    "Principal",
    "PromptResult",
    "ProtocolError",
    "RateLimits",
    "Redemption",
    "Refusal",
    "ResourceContents",
    "ResourceLink",
    "Root",
    "Roots",
    "SQLStore",
    "Sample",
    "Sampled",
    "SealedCodec",
    "SetupError",
    "SignedCodec",
    "State",
    "Store",
    "StoreUnavailable",
    "TaskRow",
    "TaskStore",
    "TextContent",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "__version__",
    "prompt",
    "resource",
    "tool",
]

if _typing.TYPE_CHECKING:
    from .storage.sql.store import SQLStore
else:

    def __getattr__(name: str) -> object:  # so that it is loaded only for those who want it
        if name == "SQLStore":
            from .storage.sql.store import SQLStore

            return SQLStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
