"""Every exception of this package, in one tree.

    BaseException
    ├── MRTRError
    │   ├── SetupError              a mistake of the author or operator, found when the app is built or started
    │   ├── ToolError               raised by a handler: its message is for the model
    │   │   ├── NotFound            raised by the handler of a resource: the URI names nothing
    │   │   ├── AlreadyAnswered     an answer to a wait that has one
    │   │   └── Withdrawn           an answer to a wait that has ended without one
    │   ├── FlowError               a flow can't continue because of the handler's code; for the author
    │   ├── ArgumentsMisfit         arguments of a call that do not fit; the model can correct them
    │   ├── NotBegun                a step was not run, since its round ends first
    │   ├── InvalidAnswer           an answer that is not what was asked for; it is asked for again
    │   ├── LinkRefused             a link to a callback that does not open; one page, whatever the reason
    │   ├── BadWebhook              a message to a webhook that no server has signed just now
    │   ├── EventFailed             a function of the author's failed for an event, which its subscriber does not get
    │   ├── IssuerUnavailable       the issuer of tokens can't be asked, and a token can't be verified without it
    │   │   └── ProviderRefused     the provider that people log in at refused it
    │   ├── ProofRefused            a client that did not prove to hold the key of its token
    │   ├── OAuthError              a client of the authorization server that did something wrong
    │   ├── NotAdmitted             a person who logged in, and may not use the server
    │   ├── TooMany                 more webhooks of a host than are verified at a time
    │   ├── UnfitUrl                a URL that a peer named and that is never asked; for the peer
    │   ├── Unreachable             an address that a peer named brought no reply
    │   ├── ClientError             a call of our own client brought no result
    │   │   ├── RequestRefused      the server refused it with an error, or a task failed with one
    │   │   ├── CallFailed          the tool says that it failed
    │   │   ├── TaskCancelled       the task of the call was cancelled
    │   │   ├── NotAnswered         the server asks what the program does not answer
    │   │   ├── NoReply             the server can't be reached, or does not reply in time
    │   │   ├── BadReply            the reply does not fit the protocol, or is over a bound
    │   │   └── LoginFailed         the server wants a login, which did not come to its end
    │   ├── StoreUnavailable        the shared store can't be reached, or can't do what it was asked for
    │   │   ├── WrongVersion        its tables are of an older or newer release
    │   │   └── ClocksApart         its clock is too far from this machine's for single use
    │   └── RequestError            a request that can't be served; for the client
    │       ├── ExtensionError      for a reason to which an extension gives a code
    │       ├── ParseError          not JSON, or JSON that no request may hold
    │       ├── InvalidRequest      JSON, but no JSON-RPC request
    │       ├── PayloadTooLarge     over the body limit
    │       ├── UnknownMethod       no such method
    │       ├── InvalidParams       parameters that do not fit
    │       │   ├── UnknownTarget   no tool, prompt, resource or task of that name
    │       │   ├── InvalidRequestState  a requestState that does not open; one message, whatever the reason
    │       │   └── OverBudget      over a limit of the flow
    │       ├── HeaderMismatch      the headers do not say what the body says
    │       ├── UnsupportedVersion  a protocol version that is not served
    │       │   └── HandshakeNotServed  a client that begins with a handshake, and no version with one is served
    │       ├── SessionEnded        a session that its client has ended
    │       ├── MissingCapability   the client can't do what has to be asked of it
    │       ├── PagesRequired       pages that the person has to open before the same call is sent again
    │       ├── AnswerNotShared     an answer to a call that another process holds, without a store that they share
    │       ├── InsufficientScope   the caller's credentials lack scopes that it can ask for
    │       ├── ProtocolError       raised by a handler: the request fails, and its message is for the client
    │       ├── Declined            the user said no, where no tool result can say so
    │       ├── Busy                draining or overloaded, and the client can't continue elsewhere
    │       │   ├── RateLimited     a caller or an address has sent more in a time than it may
    │       │   ├── Full            all callers together have used up a limit of the server
    │       │   │   └── OverShare   one caller, or one tenant, has used up its share of a limit; others have not
    │       │   └── Unavailable     the shared store is unavailable
    │       │       └── NotExecuted  since before anything was done, so the same request may be sent again
    │       ├── CutOff              the server had to end before the request did
    │       └── InternalFault       a mistake on our side; the client sees a reference into the log
    ├── FlowContinues               a round ends without a result: what a dependency gets at its `yield`
    └── CallEnded                   the call has ended; no `Exception`, so that no handler stops it by accident
        ├── RoundOver               the round has ended; task groups let it through, whatever has failed in them
        └── Refusal                 the user said no, and the handler does not branch on that

Errors carry meaning; `Dialect.codes` has their HTTP statuses and JSON-RPC codes. The test kit's `Unexpected` is the one
exception that is not here: it fails a test, so it is an `AssertionError`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from .documentation import help_for


class MRTRError(Exception):
    """Base of every error that this package raises."""


def _explain(error: MRTRError) -> None:
    """Note the page about an error for the author or operator: tracebacks show notes, which are not in its text."""
    if address := help_for(str(error)):
        error.add_note(f"See {address}")


class SetupError(MRTRError):
    """A mistake in how the server was written or configured. Raised by decorators, constructors and at start.

    Args:
        args: the message.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        _explain(self)


EXTRAS = {
    "schemas": ("jsonschema-rs>=0.60",),
    "postgres": ("asyncpg>=0.30",),
    "otel": ("opentelemetry-api>=1.30",),
    "prometheus": ("prometheus-client>=0.21",),
    "auth": ("PyJWT[crypto]>=2.10", "httpx>=0.28"),
    "client": ("httpx>=0.28", "sniffio>=1.3"),
    "cli": ("httpx>=0.28", "sniffio>=1.3", "rich>=14", "questionary>=2.1", "prompt-toolkit>=3.0.40"),
    "limits": ("limits>=5.0", "redis>=5.2"),
    "skills": ("PyYAML>=6.0",),
}
"""What each extra installs, as in `pyproject.toml`; named one by one, which works from a checkout, too."""


def lacking(what: str, extra: str, error: ImportError) -> SetupError:
    absent = next((each for each in (error.__cause__, error) if isinstance(each, ModuleNotFoundError)), None)
    name = (absent.name or "").partition(".")[0] if absent is not None else ""
    needs = f"{what} needs {name}" if name else f"{what} can't use what is installed: {error}"
    install = " ".join(f"'{each}'" for each in EXTRAS[extra])
    return SetupError(f"{needs}. Install the extra {extra!r}, or: pip install {install}")


class ToolError(MRTRError):
    """Raise it in a handler to fail the call with a message that the model sees.

    In a tool it becomes a result with `isError: true`, in a prompt or a resource a JSON-RPC error.
    """


def cannot_show(what: str, key: str, reason: str, capability: str = "") -> ToolError:
    """Return the error for an answer that does not fit and has come twice. `what` completes "This client"."""
    misfit = f"its answer to {key!r} does not fit ({reason.removesuffix('.')}), and it gave the same answer twice"
    return ToolError(f"This client {what}: {misfit}. {_instead([capability])}")


class NotFound(ToolError):
    """Raise it in the handler of a resource template for a URI that fits the template and yet names nothing."""


class AlreadyAnswered(ToolError):
    """What somebody waits for was answered already. The first answer counts."""

    def __init__(self) -> None:
        super().__init__("Somebody has answered this already, so nothing was changed. The first answer counts.")


class Withdrawn(ToolError):
    """What somebody waited for is not wanted any more: the time is over, or what it was about has changed."""

    def __init__(self) -> None:
        super().__init__(
            "This can't be answered any more, and nothing was changed: its time is over, or it was withdrawn."
        )


class FlowError(MRTRError):
    """A flow that can't continue because of what the handler's code did. Logged for the author in full."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        _explain(self)


class NotBegun(MRTRError):
    """A step was not run, since its round ends first. It never reaches the handler: the step parks."""


class ArgumentsMisfit(MRTRError):
    """The arguments of a call do not fit. `problems` are pairs of where and what, for the model to correct its call."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__()
        self.problems = problems


class InvalidAnswer(MRTRError):
    """An answer is not what was asked for. `reason` is for the person who answered; empty where there is nobody."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class LinkRefused(MRTRError):
    """A link to a callback that does not open here, and says no more. `reason` is for the operator's log only."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IssuerUnavailable(MRTRError):
    """The issuer of tokens can't be asked. `status` is of HTTP, where its reply can't be used; 0 where none came.

    `error` is what it says of a request that it refused (RFC 6749, section 5.2); empty where it says nothing.
    """

    def __init__(self, message: str, status: int = 0, error: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class TooMany(MRTRError):
    """No more webhooks are asked for now; the argument is how many are."""


class UnfitUrl(MRTRError, ValueError):
    """A URL that a peer named is never asked. The message is for the peer: what is wrong, and what to write."""


UnreachableReason = Literal["connection_refused", "timeout", "tls_error"]


class Unreachable(MRTRError):
    """An address that a peer named brought no reply. It holds no words of the network's: a peer could read them."""

    def __init__(self, reason: UnreachableReason) -> None:
        super().__init__(reason)
        self.reason = reason


class ProviderRefused(IssuerUnavailable):
    """The provider that people log in at refused it, so that the person has to log in again."""


class ProofRefused(MRTRError):
    """A client did not prove that it holds the key that its token is bound to. The message is for the log.

    `error` is the code of RFC 9449, and `nonce` is what the next proof has to name.
    """

    def __init__(self, message: str, error: str, nonce: str) -> None:
        super().__init__(message)
        self.error = error
        self.nonce = nonce


class OAuthError(MRTRError):
    """What a client of the authorization server did wrong, or can't have now (RFC 6749, sections 4.1.2.1 and 5.2).

    `error` is the code of the RFC, and `description` is for the client's developer. `status` is of HTTP; 0 for the
    usual one.
    """

    def __init__(
        self, error: str, description: str, status: int = 0, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status
        self.headers = headers


class NotAdmitted(MRTRError):
    """A person who logged in may not use this server, or can't with its settings. The message is for the log."""

    def __init__(self, message: str, told: str = "You may not use this server") -> None:
        super().__init__(message)
        self.told = told
        """The same for the person."""


class ClientError(MRTRError):
    """A call of our own client, `mrtr_server.client`, brought no result."""


class RequestRefused(ClientError):
    """The server refused a request, or a task failed with such an error.

    Args:
        message: what the server says is wrong.
        code: of the JSON-RPC error; 0 if the reply has none.
        data: what the protocol adds, as plain JSON.
        status: of HTTP; 0 for the error of a task.
    """

    def __init__(self, message: str, code: int = 0, data: Any = None, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data
        self.status = status


class CallFailed(ClientError):
    """The tool says that it failed.

    Args:
        message: what it says of that.
        result: the result as it came.
    """

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


class TaskCancelled(ClientError):
    """The task of a call was cancelled before it ended.

    Args:
        task: its id.
    """

    def __init__(self, task: str) -> None:
        super().__init__("The task was cancelled")
        self.task = task


class NotAnswered(ClientError):
    """The server asks what the program does not answer. A callback raises it, which ends the call.

    Args:
        questions: what was asked and has no answer, by key, as sent.
    """

    def __init__(self, questions: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(f"The server asks what the program does not answer: {', '.join(map(repr, questions))}")
        self.questions = dict(questions)


class NoReply(ClientError):
    """The server can't be reached, or does not reply in time. It is not known what the call did."""


class BadReply(ClientError):
    """The reply of a server does not fit the protocol, or is over a bound of the client."""


class BadWebhook(MRTRError):
    """A message to a webhook is not what a server with the secret has signed just now. Answer it with a 401."""


class LoginFailed(ClientError):
    """The server wants a person to log in, and that did not come to its end; the message says why."""


class StoreUnavailable(MRTRError):
    """The shared store can't be reached, or can't do what it was asked for; the message is for the operator."""

    reference: str = ""
    """Names the entry in the server's log; empty if there is none yet."""


class WrongVersion(StoreUnavailable):
    """The store's tables are of a version that this release does not work with: waiting does not help."""


class ClocksApart(StoreUnavailable):
    """The store's clock is so far from this machine's that it can't tell a used state from a new one."""


class RequestError(MRTRError):
    """A request that can't be served.

    One that is the outcome of a round may be recorded, and read again elsewhere, by its message and its data alone. So
    whatever else a class has of its own has a value in the class, too.

    `message` is one sentence for the client. `data`, plain JSON, helps it to correct its request.
    """

    request_id: str | int | None = None
    """The request's id, where it could be read from what could not be served as a request."""

    def __init__(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class ExtensionError(RequestError):
    """A request that can't be served, for a reason to which an extension of the protocol gives a code.

    Args:
        code: the code of JSON-RPC.
        message: one sentence for the client.
        data: what helps it to correct its request.
    """

    code = 0

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, data)
        self.code = code


class ParseError(RequestError):
    """The body is not JSON, or holds what no request may hold."""


class InvalidRequest(RequestError):
    """The body is JSON, but not a JSON-RPC request."""

    def __init__(
        self, message: str, request_id: str | int | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, data)
        self.request_id = request_id


class PayloadTooLarge(RequestError):
    """The body is over the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes", {"limit": "body_bytes", "value": limit})


class UnknownMethod(RequestError):
    """No such method, or none in this form."""

    def __init__(self, method: str, message: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or f"Method not found: {method[:200]}", data)


class InvalidParams(RequestError):
    """The parameters of a request do not fit."""


class UnknownTarget(InvalidParams):
    """No tool, prompt, resource or task of that name. With `has_begun`, it may have been removed since."""

    _FIELDS: ClassVar = {"resource": "uri", "task": "taskId"}

    def __init__(self, kind: str, name: str, *, has_begun: bool = False) -> None:
        ended = f"; what has begun can't continue, since this {kind} is not offered any more" if has_begun else ""
        super().__init__(f"Unknown {kind}: {name[:200]}{ended}", {self._FIELDS.get(kind, "name"): name})


class StateFault(StrEnum):
    UNREADABLE = "state_unreadable"
    EXPIRED = "state_expired"
    OF_ANOTHER = "state_of_another"
    KEY_UNKNOWN = "state_key_unknown"
    REDEEMED = "state_redeemed"
    OTHER_EPOCH = "state_of_other_epoch"
    FORGOTTEN = "state_of_forgotten"
    FROM_THE_FUTURE = "state_from_the_future"


FORGOTTEN = "its caller was forgotten by `mrtr-server forget` after its flow began"
"""Why a state, or a task, of such a flow is refused."""


class InvalidRequestState(InvalidParams):
    """A `requestState` that does not open here. `reason` is for the log only, and `fault` for the metrics."""

    MESSAGE = "requestState is not valid for this request; send the request again without it"
    reason = "found by another delivery"
    fault = StateFault.UNREADABLE

    def __init__(self, reason: str, fault: StateFault = StateFault.UNREADABLE) -> None:
        super().__init__(self.MESSAGE)
        self.reason = reason
        self.fault = fault


class OverBudget(InvalidParams):
    """A flow or a request is over one of its limits. `limit` is a name in `Limits`, and `value` is in its unit."""

    def __init__(self, message: str, limit: str, value: float, **more: Any) -> None:
        super().__init__(message, {"limit": limit, "value": value, **more})


class HeaderMismatch(RequestError):
    """The HTTP headers do not say what the body says."""


class UnsupportedVersion(RequestError):
    """A protocol version that is not served here. Of the versions that are served, the preferred one comes first."""

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(
            "Unsupported protocol version; this server supports "
            f"{', '.join(supported) or 'only requests that name no version'}",
            {"supported": supported, "requested": requested[:200]},
        )


class HandshakeNotServed(UnsupportedVersion):
    """A client begins with a handshake, and no version that has one is served."""

    def __init__(self, requested: str, supported: list[str]) -> None:
        versions = " and ".join(supported)
        served = f"serves {versions}, which has no initialize" if versions else "takes no initialize"
        RequestError.__init__(
            self,
            f"This server {served}. If your client has a newer mode, set it: in Python's mcp 2 use "
            'Client(url, mode="auto") in place of ClientSession, in TypeScript\'s @modelcontextprotocol/client pass '
            '{versionNegotiation: {mode: "auto"}}. Otherwise ask the operator of the server to serve your version: '
            "without dialects=, it serves every one",
            {"supported": supported, "requested": requested[:200]},
        )


class SessionEnded(RequestError):
    """A session that its client has ended."""

    def __init__(self) -> None:
        super().__init__("The session has ended; begin a new one")


class MissingCapability(RequestError):
    """The client did not declare what has to be asked of it: `required`, in the shape of `ClientCapabilities`."""

    _NAMES: ClassVar = {
        ("elicitation",): "elicitation",
        ("elicitation", "form"): "form elicitation",
        ("elicitation", "url"): "URL elicitation",
        ("sampling", "tools"): "sampling with tools",
        ("sampling", "context"): "sampling with context",
    }

    def __init__(self, required: dict[str, Any]) -> None:
        # Named in the message, too: most clients show nothing else of an error.
        paths = list(_paths(required))
        names = ", ".join(map(self._named, paths))
        # What a page is for must not pass through the chat either.
        asked = dict.fromkeys(path[0] for path in paths if path != ("elicitation", "url"))
        message = f"This request needs capabilities that the client did not declare: {names}. {_instead(asked)}"
        super().__init__(message, {"requiredCapabilities": required})

    @classmethod
    def _named(cls, path: tuple[str, ...]) -> str:
        if path[0] == "extensions" and len(path) > 1:  # those of the protocol itself are known without their prefix
            return ".".join(path[1:]).removeprefix("io.modelcontextprotocol/")
        return cls._NAMES.get(path, ".".join(path))

    @classmethod
    def in_version(cls, version: str, what: str, capability: str = "") -> "MissingCapability":
        """Return the error for what the client's version has no way to ask. `capability` as for `cannot_show`."""
        error = cls.__new__(cls)
        message = f"The client speaks {version}, which can't show {what}. {_instead([capability])}"
        RequestError.__init__(error, message, {"protocolVersion": version})
        return error


_INSTEAD = {
    "elicitation": "Ask the user in the chat, and call again if an argument takes the answer.",
    "sampling": "Write the message yourself, and call again if an argument takes it.",
    "roots": "Ask the user for the folders, and call again if an argument takes them.",
}


def _instead(capabilities: Iterable[str]) -> str:
    """Return what a model can do instead of having the client asked."""
    found = [_INSTEAD[each] for each in capabilities if each in _INSTEAD]
    return " ".join([*found, f"{'Otherwise tell' if found else 'Tell'} the user that this needs another client."])


def _paths(required: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, below in required.items():
        yield from _paths(below, (*above, name)) if below else [(*above, name)]


class PagesRequired(RequestError):
    """The person has to open pages, and the call can't stay open meanwhile; the client is to send it again then."""

    questions: Mapping[str, Any] = MappingProxyType({})  # what is asked, by key

    def __init__(self, questions: Mapping[str, Any]) -> None:
        super().__init__("Open the pages that this request needs, and send the request again when you are done there")
        self.questions = questions


class InsufficientScope(RequestError):
    """The caller's credentials lack scopes. The response names them, so that its client can ask the issuer for them.

    Raise it in an `authorize=` hook where which scopes are needed depends on who calls (Authorization, Scope Challenge
    Handling).

    Args:
        scopes: all scopes that the request needs.

    Raises:
        SetupError: one can't be a scope.
    """

    def __init__(self, *scopes: str) -> None:
        needed = check_scopes("InsufficientScope", scopes)
        super().__init__(f"This request needs the scopes {' '.join(scopes)}", {"requiredScopes": list(needed)})

    @property
    def scopes(self) -> tuple[str, ...]:
        """All scopes that the request needs."""
        return tuple((self.data or {}).get("requiredScopes", ()))


_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope (RFC 6749, section 3.3)."""


def check_scopes(where: str, scopes: Iterable[Any]) -> tuple[str, ...]:
    """Return scopes, each once, in their order. Raises `SetupError`."""
    if isinstance(scopes, str):
        raise SetupError(f"{where}={scopes!r} is one string; give a list: {where}={scopes.split()!r}")
    if not isinstance(scopes, Iterable):
        raise SetupError(f"{where} takes a list of scopes; it got {type(scopes).__name__}")
    given = tuple(dict.fromkeys(scopes))
    for scope in given:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise SetupError(f"{where}: {scope!r} can't be a scope; it has no space, quote or backslash")
    return given


class ProtocolError(RequestError):
    """Raise it in a handler to fail the request itself: a JSON-RPC error instead of a result that the model sees.

    For a failure with any arguments. A task becomes `failed` by it. A prompt or a resource that raises
    a `ToolError` fails in this way, too.

    Args:
        message: one sentence for the client.
        data: details for the client; plain JSON.
    """


class Declined(RequestError):
    """The user declined or dismissed a question, and the request can't continue without the answer."""


class AnswerNotShared(RequestError):
    """An answer came to a process that can't pass it on to the one whose call waits for it."""

    def __init__(self) -> None:
        super().__init__(
            "This answer did not reach the call that asks: another process of this server may wait for it, and they "
            "share no database. Their operator can set MRTR_DATABASE_URL"
        )


class Busy(RequestError):
    """The server can't take a request now. `retry_after` is in seconds; None for what is usual with its class.

    The same request may be sent again, so this is never the outcome of a round that is redeemed once.
    """

    retry_after = 1.0

    def __init__(
        self, retry_after: float | None = None, message: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or "The server can't take this request now; send it again later", data)
        if retry_after is not None:
            self.retry_after = retry_after


def overloaded(retry_after: float) -> Busy:
    """Return the error for a call that waits for too long, or would, while other replicas are full, too."""
    seconds = math.ceil(retry_after)
    return Busy(
        retry_after,
        f"The server has too much to do. Nothing was done; send the request again after {seconds} s",
        {"retryAfter": seconds},
    )


class RateLimited(Busy):
    """More was sent in a time than may be, so nothing was done. `rate` is such as "5/minute"."""

    WHAT: ClassVar = {
        "per_principal": "calls of one caller",
        "per_tool": "calls of this tool by one caller",
        "per_address": "calls from one address",
        "per_flow": "rounds of one call",
        "other_requests": "other requests of one caller",
        "unanswered_asks": "asking the same without an answer",
    }
    limit = rate = ""

    def __init__(self, limit: str, rate: str, retry_after: float) -> None:
        seconds = math.ceil(retry_after)
        super().__init__(
            retry_after,
            f"The rate limit for {self.WHAT[limit]} is used up ({rate}). Nothing was done; send the request again "
            f"after {seconds} s",
            {"limit": limit, "value": rate, "retryAfter": seconds},
        )
        self.limit = limit
        self.rate = rate


class Full(Busy):
    """All callers together have used up a limit of the server, so nothing was done.

    Args:
        limit: its name in `Limits`: `"stored_tasks"`, `"stored_states"` or `"stored_bytes"` in a store.
        value: how much of it there is in all, in its unit.
    """

    retry_after = 30.0  # what is stored goes when it expires
    limit = ""
    WHAT: ClassVar = {
        "stored_tasks": "tasks are stored",
        "stored_states": "answered requests are remembered",
        "stored_bytes": "bytes are stored",
        "listeners": "subscriptions are open",
        "subscriptions": "webhooks are subscribed",
        "task_waits": "requests wait for tasks",
        "held_streams": "streams are held open",
        "held_bytes": "bytes of requests are held in memory",
    }

    _FREE_SOON = frozenset({"held_bytes"})
    """The limits of what ends with its request."""

    _SAYS = "The server is full: {value} {what}, and no more are taken. Nothing was done; send the request again later"

    def __init__(self, limit: str, value: int) -> None:
        message = self._SAYS.format(value=value, what=self.WHAT[limit])
        super().__init__(1.0 if limit in self._FREE_SOON else None, message, {"limit": limit, "value": value})
        self.limit = limit

    @property
    def used_up_by(self) -> str:
        """Who has used the limit up, for the log."""
        return "all callers together have used up all"


class OverShare(Full):
    """One caller, or all of one tenant, have used up a share of a limit, so nothing was done; others are served.

    Args:
        limit: its name in `Limits`.
        value: how much of it the share is, in its unit.
        tenant: of whom the share is, by the keyed digest in a `Quota`, for the log alone; empty if of the caller.
    """

    tenant = ""

    _SAYS = (
        "You have used up your share: {value} {what} for you, as many as one caller may have. Nothing was done; send "
        "the request again when there are fewer"
    )

    def __init__(self, limit: str, value: int, tenant: str = "") -> None:
        super().__init__(limit, value)
        self.tenant = tenant

    @property
    def used_up_by(self) -> str:
        return f"the tenant {self.tenant} has used up its share" if self.tenant else "a caller has used up its share"


class Unavailable(Busy):
    """The shared store is unavailable, or can't do what it was asked for, and the request needs it."""

    retry_after = 2.0

    def __init__(self, reference: str, message: str = "") -> None:
        super().__init__(
            None,
            message
            or "The storage that this request needs is not available now; send the request again later (reference "
            f"{reference})",
            {"reference": reference},
        )


class NotExecuted(Unavailable):
    """The shared store did not answer before anything was done, so the same request may be sent again."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            reference,
            "Nothing was done by this request, because the storage that it needs is not available now; send the "
            f"request again later (reference {reference})",
        )


class CutOff(RequestError):
    """The server had to end while the request was being served."""

    def __init__(self) -> None:
        super().__init__("The server shut down before this request was finished; part of its work may have been done")


class InternalFault(RequestError):
    """A mistake on the server's side. With `debug=True`, the client sees `detail`: what went wrong."""

    def __init__(self, reference: str, detail: str = "") -> None:
        super().__init__(detail or f"Internal error (reference {reference})", {"reference": reference})


class EventFailed(MRTRError):
    """A function of the author's has failed for an event, which its subscriber does not get. The log says why."""


class FlowContinues(BaseException):
    """A round ends without a result: it asks, is handed over or becomes a task, so its flow continues in another one.

    Raised at the `yield` of a dependency, so that a transaction around it is rolled back: the handler is run again from
    the top. `Depends(..., on_ask="commit")` continues the generator normally instead. No `Exception`, since nothing has
    failed. Let it pass: whatever a generator makes of it, the round ends as it does.
    """

    def __init__(self) -> None:
        super().__init__("the round ends without a result, and its flow continues in another round")


class CallEnded(BaseException):
    """The call can't continue, and has been noted as ended. No `Exception`, so that no handler stops it by accident."""


class RoundOver(CallEnded, SystemExit):
    """The round has ended, where a task group would hand on the failure of another task in place of a cancellation.

    Whoever handles that failure, by `except*`, would continue without an answer that is still to come. A task group
    raises a `SystemExit` as it is. This one never leaves the task of the handler, or the event loop would end.
    """


class Refusal(CallEnded):
    """The person said no, and the handler did not say that it would branch on that.

    Args:
        action: `"decline"` (an explicit no) or `"cancel"` (dismissed without a choice).
        confirming: whether it was a confirmation that was asked for.
    """

    def __init__(self, action: str, *, confirming: bool = False) -> None:
        super().__init__(action)
        self.action = action
        self.confirming = confirming
