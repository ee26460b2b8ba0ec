"""MCP tool servers that ask: multi round-trip requests, answered by any replica."""

import typing as _typing

from ._version import __version__
from .auth.fixed_tokens import BearerTokens
from .auth.oauth import IntrospectionAuth, JWTAuth
from .crypto.codec import Codec, SealedCodec
from .crypto.keys import KeyRing
from .crypto.signing import SignedCodec
from .deployment.settings import Apps, Lists, Metrics, ServerInfo, Shutdown
from .errors import (
    AlreadyAnswered,
    BadWebhook,
    FlowContinues,
    Full,
    InsufficientScope,
    MRTRError,
    NotFound,
    OverShare,
    ProtocolError,
    Refusal,
    SetupError,
    StoreUnavailable,
    ToolError,
    Withdrawn,
)
from .events.options import Events, Webhooks
from .events.signatures import WebhookMessage, read_webhook
from .flow.asks import Confirm, Elicit, Elicited, InputRequired, Inputs, ListRoots, Root, Roots, State
from .flow.context import Context
from .flow.events import Batch, EventType, Occurrence
from .flow.home import CallInfo, CallNext, Ended, Failure
from .flow.rate_limiter import RateLimits
from .flow.sampling import Sample, Sampled
from .flow.step_arguments import IdempotencyKey
from .flow.url_asks import Callback, CallbackLink, ElicitUrl
from .flow.waits import Person, Ticket, Tickets, Wait
from .limits import Limits
from .protocol.apps import AppPage, Ui
from .protocol.callers import Caller, ClientInfo, Principal
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
from .registration.declarations import Depends
from .registration.methods import prompt, resource, tool
from .registration.options import InputSchema, Task
from .registration.page_options import Csp
from .renamed import renamed_in
from .schema.arguments import Header
from .server import MRTRServer
from .storage.base import Store, TaskStore
from .storage.memory import InProcessStore
from .storage.pubsub import Fanout
from .storage.quotas import Quota
from .storage.rows import EventPage, EventRow, Places, Position, Redemption, SubscriptionRow, TaskRow, WaitRow
from .telemetry.choice import OpenTelemetry

__all__ = [
    "AlreadyAnswered",
    "Annotations",
    "AppPage",
    "Apps",
    "AudioContent",
    "BadWebhook",
    "Batch",
    "BearerTokens",
    "CallInfo",
    "CallNext",
    "Callback",
    "CallbackLink",
    "Caller",
    "ClientInfo",
    "Codec",
    "Completion",
    "Confirm",
    "Context",
    "Csp",
    "Depends",
    "Elicit",
    "ElicitUrl",
    "Elicited",
    "EmbeddedResource",
    "Ended",
    "EventPage",
    "EventRow",
    "EventType",
    "Events",
    "Failure",
    "Fanout",
    "FlowContinues",
    "Full",
    "Header",
    "Icon",
    "IdempotencyKey",
    "ImageContent",
    "InProcessStore",
    "InputRequired",
    "InputSchema",
    "Inputs",
    "InsufficientScope",
    "IntrospectionAuth",
    "JWTAuth",
    "KeyRing",
    "Limits",
    "ListRoots",
    "Lists",
    "MRTRError",
    "MRTRServer",
    "Message",
    "Metrics",
    "NotFound",
    "Occurrence",
    "OpenTelemetry",
    "OverShare",
    "Person",
    "Places",
    "Position",
    "Principal",
    "PromptResult",
    "ProtocolError",
    "Quota",
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
    "ServerInfo",
    "SetupError",
    "Shutdown",
    "SignedCodec",
    "State",
    "Store",
    "StoreUnavailable",
    "SubscriptionRow",
    "Task",
    "TaskRow",
    "TaskStore",
    "TextContent",
    "Ticket",
    "Tickets",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "Ui",
    "Wait",
    "WaitRow",
    "WebhookMessage",
    "Webhooks",
    "Withdrawn",
    "__version__",
    "prompt",
    "read_webhook",
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
        return renamed_in(__name__, globals())(name)
