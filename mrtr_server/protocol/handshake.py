"""The handshake era: the versions whose clients begin with `initialize`, and answer questions while a call is open.

Their differences are in `handshake_versions.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic_core import to_json

from .. import errors
from ..limits import LONGEST_NAME, check_length
from . import dialect, messages
from . import handshake_versions as era
from .apps import UI, WRAPPED
from .callers import CAPABILITIES_FIELD, CLIENT_FIELD, ClientInfo, Principal, Sender
from .envelope import NO_METHOD, SESSION_HEADER, VERSION_HEADER, Envelope, check_headers
from .messages import JSON, Call
from .sessions import NO_SESSION, Session, remembered

CANCELLED = "notifications/cancelled"  # the notification that ends a request

_OWN_METHODS = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""No other version has them: a client that calls one, and names no version, is of this era."""

_METHODS = dialect.METHODS | _OWN_METHODS
_ABOUT_RESOURCES = frozenset({"resources/subscribe", "resources/unsubscribe"})
_INFO = {
    # The fields of `Implementation`, by version.
    True: ("name", "version", "title", "description", "websiteUrl", "icons"),
    False: ("name", "version", "title"),
}
_SEEN_IN_HTTP = (
    errors.SessionEnded,  # Transports, Session Management
    errors.InsufficientScope,  # Authorization, Scope Challenge Handling
    errors.UnsupportedVersion,  # Transports, Protocol Version Header
    errors.HeaderMismatch,  # gateways route by these headers, of a later version
)
"""The errors that answer a request with an HTTP status of their own in this era, too."""

_NO_RESOURCE = -32002

_EVENT_METHODS = "events/"  # begins those of an extension that this era does not have


class HandshakeDialect(dialect.Dialect):
    """The dialect of 2025-11-25, and of the versions before it; the first one makes `forms`, all versions by name."""

    name = era.NEWEST.name
    versions = tuple(era.BY_NAME)

    codes: ClassVar[Mapping[type[errors.RequestError], tuple[int, int]]] = {
        # A client shows an error only where HTTP has none, and `mcp` 1 ends its whole session at nearly every status of
        # an error. So what answers a request has the status 200.
        **{
            kind: (status if kind in _SEEN_IN_HTTP else 200, code)
            for kind, (status, code) in dialect.Dialect.codes.items()
        },
        errors.PagesRequired: (200, -32042),
    }

    def __init__(
        self,
        surface: dialect.Surface,
        version: era.HandshakeVersion = era.NEWEST,
        forms: "dict[str, HandshakeDialect] | None" = None,
    ) -> None:
        super().__init__(surface)
        self.form, self.spoken = version, version.name
        self._forms: dict[str, HandshakeDialect] = {} if forms is None else forms
        if forms is None:
            self._forms.update({each.name: HandshakeDialect(surface, each, self._forms) for each in era.VERSIONS})
        self._sessions = surface.sessions
        self._entries = era.EntryWriter(self.form, surface.task_support)
        fields = _INFO[self.form.enriches]
        self._info = {name: value for name, value in surface.info.items() if name in fields}
        if not self.form.structures:
            self._info.pop("title", None)
        # The last discovery, and the result that carried it.
        self._last: tuple[messages.Discovery | None, bytes] = (None, b"")

    # Which requests are of this era, and of which of its versions

    def claims(self, envelope: Envelope) -> bool:
        """Return whether a message belongs to a handshake, after a version of today has been ruled out."""
        headers = envelope.headers
        if VERSION_HEADER in headers:
            return headers[VERSION_HEADER].strip(b" \t") in era.HEADERS
        if dialect.names_version(envelope):
            return False
        method = envelope.method
        return SESSION_HEADER in headers or method in _OWN_METHODS or method.startswith("notifications/")

    def is_of(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether headers are those of a client of this era that has begun, whatever its message is."""
        return self.claims(Envelope({}, "", None, {}, headers))

    def session_of(self, headers: Mapping[bytes, bytes], principal: Principal | None) -> Session:
        """Return the session that the headers of a request name; see `Sessions.unseal`."""
        return NO_SESSION if self._sessions is None else self._sessions.unseal(headers.get(SESSION_HEADER), principal)

    def speaking(self, headers: Mapping[bytes, bytes], session: Session) -> "HandshakeDialect":
        """Return the form for the version that a client speaks: that of its header, or of its session."""
        header = headers.get(VERSION_HEADER)
        if header is not None and (version := era.HEADERS.get(header.strip(b" \t"))) is not None:
            return self._forms[version.name]
        return self._forms.get(session.version) or self._forms[era.UNNAMED.name]

    def check_version(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the version in the headers (Transports, Protocol Version Header). Raises `UnsupportedVersion`."""
        if VERSION_HEADER not in headers:
            return
        named = headers[VERSION_HEADER].strip(b" \t")
        if named not in era.HEADERS and (version := named.decode("latin-1")) not in self.surface.versions:
            raise errors.UnsupportedVersion(version, [*self.surface.versions, *self.versions])

    def is_named(self, headers: Mapping[bytes, bytes], session: Session) -> bool:
        """Return whether a client says which version it speaks, by its header or its session."""
        return session.version in self._forms or headers.get(VERSION_HEADER, b"").strip(b" \t") in era.HEADERS

    def answering(self, envelope: Envelope) -> "HandshakeDialect":
        """Return the form for the response to a request: for `initialize` it is of the version that both agree on."""
        return self._forms[_negotiated(envelope.params)] if envelope.method == "initialize" else self

    @property
    def task_offer(self) -> messages.TaskOffer | None:
        """What a client of this version that has tasks takes in place of a result; None if there are no tasks."""
        return era.OFFER if self.form.tasks and self.surface.takes_tasks() else None

    def of_version(self, name: str) -> "HandshakeDialect":
        """Return the form for a version; that of the newest if it is not known."""
        return self._forms.get(name) or self._forms[era.NEWEST.name]

    # Requests

    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Return the call in a request. Headers are not required, but those that are there must match the body."""
        return self.load_call_of(envelope, sender, self.session_of(envelope.headers, sender.principal))

    def load_call_of(self, envelope: Envelope, sender: Sender, session: Session, *, can_move: bool = False) -> Call:
        """Return the call in a request of a session; see `load_call`."""
        method = envelope.method
        if not method:
            raise errors.InvalidRequest(NO_METHOD, envelope.id)
        check_headers(envelope, required=False)
        offer = self.task_offer
        params = envelope.params
        meta, client = params.get("_meta"), session.client
        if isinstance(meta, dict) and CAPABILITIES_FIELD in meta:
            client = _read_declared(meta, self.form, client)
        if method not in _METHODS and (offer is None or method not in era.METHODS):
            self._check_extension(method, client)
        target, arguments, answers, task = dialect.read_target(method, params), {}, None, None
        if method in dialect.WITH_ARGUMENTS:
            arguments = dialect.read_arguments(params)
        if offer is not None and method == "tools/call":
            task = era.read_offer(params, client)
        elif method in era.METHODS:
            task, answers = offer, era.read_elicitation_response(method, params)
            target = "" if method == "tasks/list" else era.read_task_id(params)
        elif method == "initialize":
            client = _read_client(params)
        elif method in _ABOUT_RESOURCES:
            target = _read_uri(params)
        elif method == "logging/setLevel" and params.get("level") not in messages.LOG_LEVELS:
            raise errors.InvalidParams(f"params.level must be one of {', '.join(messages.LOG_LEVELS)}")
        return Call(
            method,
            dialect.with_stream(envelope) if method == messages.TASK_RESULT else params,
            target,
            arguments,
            answers,
            client=client,
            progress_token=dialect.read_progress_token(meta) if isinstance(meta, dict) else None,
            log_level="debug",  # the level that a session has set is looked up when there is a message
            request_id=envelope.id if envelope.id is not None else 0,
            headers=envelope.headers,
            task=task,
            can_retry=can_move and method in messages.OPEN_METHODS,
            session=session.key,
            stays_open=True,
            **sender._asdict(),
        )

    def _check_extension(self, method: str, client: ClientInfo) -> None:
        """Check that a method is of an extension that this era has, and its client takes it. Raises `RequestError`."""
        needs = self.surface.extensions.get(method, messages.NEEDS_TASKS)
        # Of tasks, this era has a form of its own; of events, none.
        if needs == messages.NEEDS_TASKS or method.startswith(_EVENT_METHODS):
            raise errors.UnknownMethod(method)
        if client.capabilities is not None:
            dialect.check_declared(client.capabilities, needs)

    def load_again(
        self, call: Call, params: JSON, state: str | None, answers: Mapping[str, JSON] | None, grace: float
    ) -> Call:
        """Return a call with the parameters of its request as they were sent, and what a later round of it has."""
        arguments = dialect.read_arguments(params) if call.method in dialect.WITH_ARGUMENTS else {}
        return call.having(
            params=params,
            arguments=arguments,
            state=state,
            answers=answers,
            trace=call.trace.again(),
            grace=grace,
        )

    def load_answer(self, envelope: Envelope) -> JSON:
        """Return the answer in a response to a question; see `read_response`."""
        return dialect.read_response(envelope.message)

    # Responses

    def reply(self, call: Call, outcome: messages.Outcome) -> dialect.Reply:
        """Return the HTTP response that carries an outcome; the one to `initialize` has the id of the session."""
        if isinstance(outcome, messages.Discovery) and self._sessions is not None:
            client = replace(call.client, capabilities=era.known_capabilities(self.form, call.client.capabilities))
            id = self._sessions.seal(self.form.name, client, call.principal)
            return dialect.Reply(200, self.initialized(call, outcome), ((SESSION_HEADER, id),))
        return dialect.Reply(200, self.dump_outcome(call, outcome))

    def dump_outcome(self, call: Call, outcome: messages.Outcome) -> bytes:
        """Return the response that carries an outcome."""
        if isinstance(outcome, messages.Discovery):
            return self.initialized(call, outcome)
        if isinstance(outcome, messages.TaskResult) and isinstance(outcome.task.outcome, errors.RequestError):
            return self.error(call.request_id, outcome.task.outcome).body
        if not isinstance(outcome, messages.Complete):
            return dialect.result(call, self._of_task(call, outcome))
        method, body = call.method, outcome.body
        if method == "tools/call":
            return dialect.result(
                call, self._tool_result(call.target, body, draws=call.client.extension(UI) is not None)
            )
        if method == "prompts/get" and not self.form.enriches:
            shaped = [{**each, "content": era.content_of(self.form, each["content"])} for each in body["messages"]]
            return dialect.result(call, {**body, "messages": shaped})
        return dialect.result(call, self._entries.write(body))

    def dump_error(self, error: errors.RequestError) -> tuple[int, JSON]:
        """Return an error's HTTP status, and its JSON-RPC error object."""
        status, written = super().dump_error(error)
        if isinstance(error, errors.UnknownTarget) and "uri" in (error.data or {}):
            written["code"] = _NO_RESOURCE
        elif self.form.tasks and dialect.lacks_tasks(error):  # these clients request tasks by a parameter
            written = {
                "code": dialect.NO_METHOD_CODE,
                "message": "This tool can only be called as a task: send params.task",
            }
        elif isinstance(error, errors.PagesRequired):
            asked = [era.question_params(self.form, each, ClientInfo()) for each in error.questions.values()]
            written["data"] = {"elicitations": asked}
        return status, written

    def dump_question(self, id: str, question: messages.Question, client: ClientInfo) -> bytes:
        """Return the request that asks a client. Raises `MissingCapability`."""
        params = era.question_params(self.form, question, client)
        if params is question.params and not question.task:
            return dialect.request_of(id, question)
        return dialect.request(id, question.method, dialect.with_related(params, question.task))

    def dump_withdrawal(self, id: str, reason: str, task: str = "") -> bytes:
        """Return the notification that a question counts no more (Cancellation)."""
        params = {"requestId": id, "reason": reason}
        return dialect.notification(CANCELLED, dialect.with_related(params, task))

    def note(self, note: messages.Note) -> bytes:
        """Return the notification that carries a note; empty where this version has none."""
        if isinstance(note, messages.PageReported):
            return _completion(note.page, note.task)
        if isinstance(note, messages.Piece) and not self.form.enriches:
            note = replace(note, content=era.content_of(self.form, note.content))
        if not isinstance(note, messages.Progress):
            return super().note(note)
        if note.message is not None and not self.form.annotates:
            note = messages.Progress(note.token, note.progress, note.total)
        params = dialect.progress_params(note)
        return dialect.notification("notifications/progress", dialect.with_related(params, note.task))

    def listening(self, call: Call, subscription: messages.Subscription) -> dialect.ListenWriter:
        """Return the writer for the notifications of a `GET`."""
        return _NotificationWriter()

    def initialized(self, call: Call, discovery: messages.Discovery) -> bytes:
        """Return the response that begins a session of this version; what is the same in each is written once."""
        known, written = self._last
        if known is not discovery:
            written = to_json(self._agreement(discovery), inf_nan_mode="null")
            self._last = discovery, written
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to_json(call.request_id), written)

    def _agreement(self, discovery: messages.Discovery) -> JSON:
        capabilities, extensions = dict(discovery.capabilities), dict(discovery.capabilities.get("extensions", {}))
        if not self.form.annotates:
            capabilities.pop("completions", None)
        if extensions.pop(messages.EVENTS, None) is not None:
            del capabilities["events"]
        if extensions.pop(messages.TASKS, None) is not None and self.form.tasks:
            capabilities["tasks"] = era.CAPABILITY
        capabilities = {**capabilities, "extensions": extensions}
        if not extensions:
            del capabilities["extensions"]
        body: JSON = {"protocolVersion": self.form.name, "capabilities": capabilities, "serverInfo": self._info}
        if discovery.instructions:
            body["instructions"] = discovery.instructions
        return body

    def _of_task(self, call: Call, outcome: messages.Outcome) -> JSON:
        """Return the result of a request about a task, or of a call that has become one. Raises `InvalidParams`."""
        match outcome:
            case messages.TaskCreated(task):
                return era.created_body(task, call.target, call.client)
            case messages.TaskStatusResult(task):
                return era.seen_body(task, call.client)
            case messages.TaskPage():
                return era.page_body(outcome)
            case messages.TaskResult(task):
                return self._task_result(task)
            case messages.Acknowledged(_, messages.Task() as task, had_ended):
                if had_ended:
                    raise errors.InvalidParams(era.has_ended_message(task), {"taskId": task.id})
                return era.task_body(task)
            case _:  # questions are asked while the call is open
                raise TypeError(f"{type(outcome).__name__} is not a result of this era")

    def _task_result(self, task: messages.Task) -> JSON:
        if not isinstance(task.outcome, messages.Complete):
            raise errors.InvalidParams("The task was cancelled, so it has no result", {"taskId": task.id})
        return dialect.with_related(self._tool_result(task.tool, task.outcome.body), task.id)

    def _tool_result(self, tool: str, body: JSON, *, draws: bool = False) -> JSON:
        form = self.form
        if not form.enriches:
            body = {**body, "content": [era.content_of(form, each) for each in body["content"]]}
        if not form.structures:
            return {name: value for name, value in body.items() if name != "structuredContent"}
        if "structuredContent" in body:
            value, schema = body["structuredContent"], self.surface.output_schema(tool)
            if type(value) is not dict or self._entries.wraps(schema):
                body = {**body, "structuredContent": {"result": value}}
                return {**body, "_meta": {**body.get("_meta", {}), WRAPPED: True}} if draws else body
        return body


class _NotificationWriter(dialect.ListenWriter):
    """Writes the notifications of a `GET`: there is nothing at the beginning, and nothing at the end."""

    def opened(self) -> bytes:
        return b""

    def changed(self, change: messages.Change) -> bytes:
        if change.kind == "resource":
            return dialect.notification("notifications/resources/updated", {"uri": change.uri})
        if change.task is not None:
            return dialect.notification("notifications/tasks/status", era.task_body(change.task))
        if change.kind == "page":
            return _completion(change.uri)
        return dialect.notification(f"notifications/{change.kind}/list_changed", {})

    def closed(self) -> bytes:
        return b""


def _completion(page: str, task: str = "") -> bytes:
    """Return the notification that a page has reported (Elicitation, Completion Notifications)."""
    params = {"elicitationId": page}
    return dialect.notification("notifications/elicitation/complete", dialect.with_related(params, task))


def _negotiated(params: Mapping[str, Any]) -> str:
    """Return the version that `initialize` agrees on: the requested one, if it is served."""
    wanted = params.get("protocolVersion")
    return wanted if isinstance(wanted, str) and wanted in era.BY_NAME else era.NEWEST.name


def _read_client(params: Mapping[str, Any]) -> ClientInfo:
    info, capabilities = params.get("clientInfo", {}), params.get("capabilities", {})
    if not isinstance(info, dict) or not isinstance(capabilities, dict):
        raise errors.InvalidParams("initialize needs clientInfo and capabilities, two objects")
    return ClientInfo(info, capabilities)


def _read_declared(meta: JSON, version: era.HandshakeVersion, client: ClientInfo) -> ClientInfo:
    """Return the client as a request describes it, which counts before its session; as much of it is kept as there."""
    capabilities, info = meta[CAPABILITIES_FIELD], meta.get(CLIENT_FIELD, client.info)
    for field, value in ((CAPABILITIES_FIELD, capabilities), (CLIENT_FIELD, info)):
        if not isinstance(value, dict):
            raise errors.InvalidParams(f"params._meta.{field} must be an object")
    return remembered(ClientInfo(info, era.known_capabilities(version, capabilities)))


def _read_uri(params: Mapping[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise errors.InvalidParams("params.uri must be a string")
    check_length(uri, LONGEST_NAME, "uri")
    return uri
