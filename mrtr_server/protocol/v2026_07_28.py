"""The ratified protocol of 2026-07-28: every request carries its version, its client and its capabilities."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json

from ..errors import HeaderMismatch, InvalidParams, InvalidRequest, UnknownMethod, UnsupportedVersion
from . import dialect, messages
from .callers import CAPABILITIES_FIELD, CLIENT_FIELD, ClientInfo, Sender
from .envelope import NO_METHOD, VERSION_HEADER, Envelope, check_headers
from .handshake_versions import HEADERS as HANDSHAKE_HEADERS
from .messages import JSON, Call

VERSION = "2026-07-28"
_VERSION_VALUE = VERSION.encode()
_PREFIX = "io.modelcontextprotocol/"
_LOG_LEVEL = _PREFIX + "logLevel"
_SERVER = _PREFIX + "serverInfo"
_NOBODY: JSON = {}
_OFFER = messages.TaskOffer()
_METHODS = dialect.METHODS | {"server/discover", messages.LISTEN}


class ModernDialect(dialect.Dialect):
    """The dialect of 2026-07-28."""

    name = VERSION
    version = VERSION
    versions = (VERSION,)
    header = _VERSION_VALUE

    def __init__(self, surface: dialect.Surface) -> None:
        super().__init__(surface)
        self._meta = {_SERVER: surface.info}
        self._end = b',"_meta":' + to_json(self._meta) + b"}}"  # nearly every response ends so; encoded once

    def claims(self, envelope: Envelope) -> bool:
        """Return whether `_meta` has a version, or a header names one without a handshake (Versioning)."""
        header = envelope.headers.get(VERSION_HEADER)
        if header is not None and header.strip(b" \t") not in HANDSHAKE_HEADERS:
            return True
        if not dialect.names_version(envelope):
            return False
        # A client that began with a handshake may describe itself in each call, and name its version in both places.
        named: object = envelope.params["_meta"][dialect.VERSION_FIELD]
        return header is None or named != header.strip(b" \t").decode("latin-1")

    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Check a request in the order that the specification implies: header, `_meta`, both, version, the rest."""
        method, params, headers = envelope.method, envelope.params, envelope.headers
        meta: Any = params.get("_meta")
        is_usual = method and type(meta) is dict and meta.get(dialect.VERSION_FIELD) == VERSION
        if (
            not is_usual
            or headers.get(VERSION_HEADER) != _VERSION_VALUE
            or type(meta.get(CAPABILITIES_FIELD)) is not dict
        ):
            meta = self._check_version(method, params, headers, envelope)
        capabilities = meta[CAPABILITIES_FIELD]
        check_headers(envelope, required=envelope.has_headers)
        if method not in _METHODS and method not in self.surface.extensions:
            raise UnknownMethod(method)
        info = meta.get(CLIENT_FIELD, _NOBODY)
        level = meta.get(_LOG_LEVEL)
        if not isinstance(info, dict):
            raise InvalidParams(f"params._meta.{CLIENT_FIELD} must be an object")
        if level is not None and level not in messages.LOG_LEVELS:
            raise InvalidParams(f"params._meta.{_LOG_LEVEL} must be one of {', '.join(messages.LOG_LEVELS)}")
        offer = _offer_in(capabilities["extensions"]) if "extensions" in capabilities else None
        answers = None
        if "inputResponses" in params and method in messages.ASKING_METHODS:
            answers = dialect.read_answers(params["inputResponses"])
        elif method not in _METHODS:
            dialect.check_declared(capabilities, self.surface.extensions[method])
            if method == "tasks/update":
                answers = dialect.read_answers(params.get("inputResponses"))
        return Call(
            method,
            params,
            dialect.read_target(method, params),
            dialect.read_arguments(params) if method in dialect.WITH_ARGUMENTS else {},
            answers,
            params.get("requestState"),
            ClientInfo(info, capabilities),
            sender.principal,
            sender.user,
            dialect.read_progress_token(meta) if "progressToken" in meta else None,
            level,
            envelope.id if envelope.id is not None else 0,
            headers,
            offer,
            root=sender.root,
            scopes=sender.scopes,
            peer=sender.peer,
            must_mirror=envelope.has_headers,
        )

    def _check_version(
        self, method: str, params: JSON, headers: Mapping[bytes, bytes], envelope: Envelope
    ) -> Mapping[str, Any]:
        """Check that header and `_meta` name this version, and return `_meta`, which has the capabilities."""
        if not method:
            raise InvalidRequest(NO_METHOD, envelope.id)
        header = headers.get(VERSION_HEADER)
        if header is None and envelope.has_headers:
            raise HeaderMismatch("Header mismatch: MCP-Protocol-Version is missing")
        meta = params.get("_meta")
        if not isinstance(meta, dict):
            raise InvalidParams(f"params._meta must be an object with {dialect.VERSION_FIELD} and {CAPABILITIES_FIELD}")
        version = meta.get(dialect.VERSION_FIELD)
        if not isinstance(version, str):
            raise InvalidParams(f"params._meta must have {dialect.VERSION_FIELD}, a string")
        if not isinstance(meta.get(CAPABILITIES_FIELD), dict):
            raise InvalidParams(f"params._meta must have {CAPABILITIES_FIELD}, an object")
        if version == VERSION and header == _VERSION_VALUE:
            return meta
        if header is not None and header.strip(b" \t") != version.encode():
            raise HeaderMismatch("Header mismatch: MCP-Protocol-Version is not the version in params._meta")
        if version != VERSION:
            raise UnsupportedVersion(version, self.surface.versions)
        return meta

    def dump_outcome(self, call: Call, outcome: messages.Outcome) -> bytes:
        """Return the response that carries an outcome (Overview, Responses)."""
        if isinstance(outcome, messages.Complete):
            if outcome.ttl is None and "content" in outcome.body and "_meta" not in outcome.body:
                return dialect.result_of_tool(call, outcome.body, b'"resultType":"complete",', self._end)
            body: JSON = {"resultType": "complete", **outcome.body}
            if outcome.ttl is not None:
                body["ttlMs"] = int(outcome.ttl * 1000)
                body["cacheScope"] = outcome.scope
        elif isinstance(outcome, messages.Unfinished):
            return dialect.needs_input(call, outcome, b'"resultType":"input_required",', self._end)
        elif isinstance(outcome, messages.Discovery):
            body = self._discovery(outcome)
        elif isinstance(outcome, messages.TaskStatusResult):
            body = {"resultType": "complete", **self._detailed(outcome.task)}
        elif isinstance(outcome, messages.TaskCreated):
            body = {"resultType": "task", **_task(outcome.task)}
        elif isinstance(outcome, messages.Acknowledged):
            body = {"resultType": "complete"}
        else:
            raise TypeError(f"{type(outcome).__name__} is not a result of this version")
        if "_meta" in body:
            body["_meta"] = {**body["_meta"], **self._meta}
            return dialect.result(call, body)
        return dialect.result(call, body)[:-2] + self._end

    def listening(self, call: Call, subscription: messages.Subscription) -> dialect.ListenWriter:
        """Return the writer for the messages of an open subscription (Subscriptions; Events, Push-Based Delivery)."""
        if call.method == messages.STREAM_EVENTS:
            return _EventWriter(call, self._meta)
        return _ListenWriter(call, subscription, self._meta, self._detailed)

    def _detailed(self, task: messages.Task) -> JSON:
        """Return a task with what it asks, or what it came to."""
        body = _task(task)
        if task.status == "input_required":
            body["inputRequests"] = dialect.requests(task.questions)
        elif isinstance(task.outcome, messages.Complete):  # just as the call itself would have returned it
            body["result"] = {"resultType": "complete", **task.outcome.body}
        elif task.outcome is not None:
            body["error"] = self.dump_error(task.outcome)[1]
        return body

    def _discovery(self, discovery: messages.Discovery) -> JSON:
        body: JSON = {
            "resultType": "complete",
            "supportedVersions": self.surface.versions,
            "capabilities": discovery.capabilities,
            "ttlMs": int(discovery.ttl * 1000),
            "cacheScope": discovery.scope,
        }
        if discovery.instructions:
            body["instructions"] = discovery.instructions
        return body


def _offer_in(extensions: Any) -> messages.TaskOffer | None:
    """Return the offer to take a task, if a client declares that extension (Tasks, Extension Identifier)."""
    return _OFFER if isinstance(extensions, dict) and isinstance(extensions.get(messages.TASKS), dict) else None


def _task(task: messages.Task) -> JSON:
    return dialect.written_task(task, task.status, task.message, ttl="ttlMs", poll="pollIntervalMs")


class _ListenWriter(dialect.ListenWriter):
    """Writes a subscription's messages; each carries the id of the request that opened it (Subscriptions)."""

    def __init__(
        self, call: Call, subscription: messages.Subscription, meta: JSON, detailed: Callable[[messages.Task], JSON]
    ) -> None:
        self._call = call
        self._subscription = subscription
        self._server = meta
        self._detailed = detailed
        self._meta = {messages.SUBSCRIPTION_ID: call.request_id}

    def opened(self) -> bytes:
        wanted = self._subscription.wanted
        kinds = {change.kind for change in wanted}
        agreed: JSON = {f"{kind}ListChanged": True for kind in ("tools", "prompts", "resources") if kind in kinds}
        for kind, field in (("resource", "resourceSubscriptions"), ("task", "taskIds")):
            if kind in kinds:
                agreed[field] = sorted(change.uri for change in wanted if change.kind == kind)
        params: JSON = {"_meta": self._meta, "notifications": agreed}
        return dialect.notification("notifications/subscriptions/acknowledged", params)

    def changed(self, change: messages.Change) -> bytes:
        if change.task is not None:
            return dialect.notification("notifications/tasks", {"_meta": self._meta, **self._detailed(change.task)})
        if change.kind == "resource":
            return dialect.notification("notifications/resources/updated", {"_meta": self._meta, "uri": change.uri})
        return dialect.notification(f"notifications/{change.kind}/list_changed", {"_meta": self._meta})

    def closed(self) -> bytes:
        return dialect.result(self._call, {"resultType": "complete", "_meta": {**self._server, **self._meta}})


class _EventWriter(dialect.ListenWriter):
    """Writes the messages of a stream of events. The first one comes from who reads them, since it has a position."""

    def __init__(self, call: Call, meta: JSON) -> None:
        self._call = call
        self._server = meta
        self._meta = {messages.SUBSCRIPTION_ID: call.request_id}

    def opened(self) -> bytes:
        return b""

    def changed(self, change: messages.Change) -> bytes:
        assert isinstance(change, messages.EventFrame)  # noqa: S101  such a stream has nothing else
        return dialect.notification(messages.EVENT_NOTIFICATIONS + change.uri, {**change.params, "_meta": self._meta})

    def closed(self) -> bytes:
        return dialect.result(self._call, {"resultType": "complete", "_meta": self._server})
