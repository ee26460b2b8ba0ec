"""The reference: every public name, in groups of what one looks for together. The text is that of the docstrings."""

from typing import NamedTuple


class Group(NamedTuple):
    """Names that stand on one page.

    Args:
        file: the name of the page, without its ending.
        title: its heading.
        about: a sentence on what is there.
        names: what it lists, in this order.
        package: where they are imported from.
    """

    file: str
    title: str
    about: str
    names: str
    package: str = "mrtr_server"


GROUPS = [
    Group(
        "server",
        "The server",
        "The application, its limits and its settings.",
        "MRTRServer ServerInfo Limits RateLimits Lists Shutdown Metrics OpenTelemetry Task InputSchema Apps "
        "AppPage Csp Ui",
    ),
    Group(
        "handlers",
        "Inside handlers",
        "What a handler takes as parameters.",
        "Context Depends Header State Inputs InputRequired IdempotencyKey Caller ClientInfo Principal",
    ),
    Group(
        "hooks",
        "Hooks and classes",
        "What hooks are told of calls, and decorators for methods.",
        "CallInfo CallNext Ended Failure tool prompt resource",
    ),
    Group(
        "asks",
        "Asks",
        "What a handler can ask for, and what it gets; and what it can wait for that somebody else answers.",
        "Elicit Elicited Confirm ElicitUrl Callback CallbackLink Sample Sampled ListRoots Roots Root "
        "Wait Person Ticket Tickets",
    ),
    Group(
        "events",
        "Events",
        "What happens on a server, for clients that subscribe to it.",
        "EventType Batch Occurrence Events Webhooks read_webhook WebhookMessage BadWebhook",
    ),
    Group(
        "content",
        "Content",
        "What tools, prompts and resources can return besides text and models.",
        "ToolResult ToolAnnotations PromptResult Message ResourceContents TextContent ImageContent AudioContent "
        "EmbeddedResource ResourceLink Annotations Icon Completion",
    ),
    Group(
        "errors",
        "Errors",
        "What handlers raise, and what the package raises.",
        "MRTRError ToolError FlowContinues Refusal ProtocolError NotFound AlreadyAnswered Withdrawn InsufficientScope "
        "SetupError StoreUnavailable",
    ),
    Group("authentication", "Authentication", "Who is calling.", "JWTAuth IntrospectionAuth BearerTokens"),
    Group(
        "login",
        "Logging in",
        "An authorization server in the application, `mrtr_server.login`: [logging in](../login.md).",
        "Login GitHub Google Entra Oidc",
        "mrtr_server.login",
    ),
    Group(
        "storage",
        "State and storage",
        "What seals states, and where the things are kept that replicas share.",
        "KeyRing Codec SealedCodec SignedCodec Store TaskStore InProcessStore SQLStore Redemption TaskRow WaitRow "
        "EventRow EventPage Position SubscriptionRow Quota Places Full OverShare Fanout",
    ),
    Group(
        "client",
        "The client",
        "The client for programs, `mrtr_server.client`.",
        "Client Command OAuth TokenStore FileTokens Bounds Form Link Sampling Choice Progress Piece "
        "TaskState ToolReply PromptReply ResourceReply Tool "
        "Prompt Resource Template Event EventFeed OfferedEvent "
        "ClientError CallFailed RequestRefused TaskCancelled NotAnswered NoReply BadReply "
        "LoginFailed",
        "mrtr_server.client",
    ),
    Group(
        "testing",
        "Testing",
        "The test kit, `mrtr_server.testing`.",
        "Client AsyncClient Flow Reply Asked Answer Answerable Answers accept decline cancel yes no sampled roots "
        "slowly Event Progress Error TaskView Notifications Log Clock SharedStore replica replicas short_lease "
        "Unexpected EVERYTHING App PageView webhook_receiver WebhookReceiver Sent new_secret",
        "mrtr_server.testing",
    ),
    Group(
        "testing-stores",
        "Testing stores",
        "What every store promises, as tests: [a store of your own](../database.md#does-it-keep-its-promises).",
        "StoreContract TaskStoreContract EventStoreContract",
        "mrtr_server.testing.store",
    ),
]


_OPTIONS = {"MRTRServer": "\n    options:\n      inherited_members: true"}
"""What differs for some names: parts of the server are in a class that it is derived from."""


def reference_page(group: Group) -> str:
    """Return the text of a page, as mkdocstrings takes it."""
    names = "\n\n".join(f"::: {group.package}.{name}{_OPTIONS.get(name, '')}" for name in group.names.split())
    return f"# {group.title}\n\n{group.about} Import these names from `{group.package}`.\n\n{names}\n"
