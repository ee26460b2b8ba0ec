"""The versions of the handshake era and their differences: lists, content, questions and tasks; and #1869 (below)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import InvalidParams, MissingCapability
from ..limits import LONGEST_NAME, check_length
from .ask_kinds import ask_kind
from .callers import ClientInfo, lacking
from .content import uses_tools
from .dialect import read_answers, read_task_ttl, related_to, written_task
from .messages import JSON, Complete, NamedChoices, Question, Task, TaskOffer, TaskPage, TaskStatus, TaskSupport


class HandshakeVersion(NamedTuple):
    """What one version of the handshake era has."""

    name: str
    annotates: bool = False  # has hints on tools, audio, completions, and messages in progress
    batches: bool = False  # takes several messages in one request
    structures: bool = False  # has structured results and their schemas, titles, resource links, and elicitation
    # Has icons; in forms several choices at once, titled choices and defaults; URL elicitation; tools in sampling;
    # and streams that the server closes and the client resumes.
    enriches: bool = False
    tasks: bool = False


VERSIONS = (
    HandshakeVersion("2025-11-25", annotates=True, structures=True, enriches=True, tasks=True),
    HandshakeVersion("2025-06-18", annotates=True, structures=True),
    HandshakeVersion("2025-03-26", annotates=True, batches=True),
    HandshakeVersion("2024-11-05"),
)  # the newest first

NEWEST = VERSIONS[0]

UNNAMED = VERSIONS[2]  # spoken by a client that names no version anywhere (Transports, Protocol Version Header)

BY_NAME = {version.name: version for version in VERSIONS}

HEADERS = {version.name.encode(): version for version in VERSIONS}  # versions by `MCP-Protocol-Version`


_ABOVE = ("$schema", "$defs", "definitions")  # keywords that stand at the top of a schema

_OF_NEWEST = frozenset({"icons"})
_OF_STRUCTURES = frozenset({"title", "outputSchema", "_meta"})

_LISTS = ("tools", "prompts", "resources", "resourceTemplates")


class EntryWriter:
    """Writes the entries of lists for one version, and keeps what it has written."""

    def __init__(self, version: HandshakeVersion, task_support: Callable[[str], TaskSupport]) -> None:
        self._version = version
        self._task_support = task_support
        self._dropped = _unknown(version)
        # By identity, with the entry itself, so that no other entry can have it.
        self._written: dict[int, tuple[JSON, JSON]] = {}

    def write(self, body: JSON) -> JSON:
        """Return the body of a result; one that is a list has each entry in the shape of the version."""
        for listing in _LISTS:
            if listing in body:
                return {**body, listing: [self._entry(listing, entry) for entry in body[listing]]}
        if "contents" in body and not self._version.structures:
            return {**body, "contents": [_without(each, self._dropped) for each in body["contents"]]}
        return body

    @staticmethod
    def wraps(schema: JSON | None) -> bool:
        """Return whether results of a schema are wrapped, since they need not be objects."""
        return schema is not None and schema.get("type") != "object"

    def _entry(self, listing: str, entry: JSON) -> JSON:
        known = self._written.get(id(entry))
        if known is None:
            known = self._written[id(entry)] = (entry, self._shaped(listing, entry))
        return known[1]

    def _shaped(self, listing: str, entry: JSON) -> JSON:
        shaped = _without(entry, self._dropped)
        if listing != "tools":
            if "arguments" in shaped:
                shaped["arguments"] = [_without(each, self._dropped) for each in shaped["arguments"]]
            return shaped if self._version.structures else _undated(shaped)
        if not self._version.annotates:
            shaped.pop("annotations", None)
        shaped["inputSchema"] = _of_objects(shaped["inputSchema"])
        if "outputSchema" in shaped:
            schema = shaped["outputSchema"]
            shaped["outputSchema"] = _of_objects(_wrapped(schema) if self.wraps(schema) else schema)
        if self._version.tasks:
            shaped["execution"] = {"taskSupport": self._task_support(shaped["name"])}
        return shaped


def content_of(version: HandshakeVersion, content: Any) -> Any:
    """Return a content block in the shape of a version; what it does not know becomes what it does."""
    if version.enriches or not isinstance(content, dict):
        return content
    shaped = _without(content, _unknown(version))
    if version.structures:
        return shaped
    shaped = _undated(shaped)
    hints = {"annotations": shaped["annotations"]} if "annotations" in shaped else {}
    match shaped.get("type"):
        case "resource_link":
            text = f"{content.get('title') or content.get('name')}: {content.get('uri')}"
            return {"type": "text", "text": text, **hints}
        case "audio" if not version.annotates:
            found = {"uri": "urn:mcp:audio", "mimeType": content.get("mimeType"), "blob": content.get("data")}
            return {"type": "resource", "resource": found, **hints}
        case "resource" if isinstance(held := shaped.get("resource"), dict):
            return {**shaped, "resource": _without(held, _unknown(version))}
    return shaped


def _unknown(version: HandshakeVersion) -> frozenset[str]:
    """Return the fields that a version does not have, and later ones may have."""
    if version.enriches:
        return frozenset()
    return _OF_NEWEST if version.structures else _OF_NEWEST | _OF_STRUCTURES


def _without(given: JSON, names: frozenset[str]) -> JSON:
    return {name: value for name, value in given.items() if name not in names}


def _undated(given: JSON) -> JSON:
    if not isinstance(hints := given.get("annotations"), dict) or "lastModified" not in hints:
        return given
    return {**given, "annotations": _without(hints, frozenset({"lastModified"}))}


def _wrapped(schema: JSON) -> JSON:
    """Return the schema of an object whose `result` is of a schema, with the definitions where they are looked up."""
    inner = {name: value for name, value in schema.items() if name not in _ABOVE}
    above = {name: value for name, value in schema.items() if name in _ABOVE}
    return {**above, "type": "object", "properties": {"result": inner}, "required": ["result"]}


def _of_objects(schema: JSON) -> JSON:
    """Return a schema whose properties are all objects, as these versions have it: `true` is one without a rule."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not any(isinstance(each, bool) for each in properties.values()):
        return schema
    return {**schema, "properties": {name: _as_object(each) for name, each in properties.items()}}


def _as_object(schema: Any) -> Any:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema


def known_capabilities(version: HandshakeVersion, declared: JSON | None) -> JSON:
    """Return what clients of a version can be asked, of what one declares (Lifecycle, Operation)."""
    known = dict(declared or {})
    if not version.enriches and isinstance(sampling := known.get("sampling"), dict):
        known["sampling"] = {"context": {}, **sampling}  # which needs no capability of its own
    return known


def question_params(version: HandshakeVersion, question: Question, client: ClientInfo) -> JSON:
    """Return the parameters of the request that asks a client. Raises `MissingCapability`."""
    # What the client declares is believed, also if its version does not have it yet: some clients declare what came
    # later, and can do it. The version counts where nothing is declared.
    params = question.params
    if question.method == "sampling/createMessage":
        return params if version.enriches else _plain_sampling(version, params, client)
    if question.method != "elicitation/create":
        return params
    is_declared = client.capabilities is not None  # or it would not have been asked
    if not (version.structures or is_declared):
        raise MissingCapability.in_version(version.name, "a form or a page", "elicitation")
    if params.get("mode") == "url":
        if not (version.enriches or is_declared):
            raise MissingCapability.in_version(version.name, "a page")
        # What an earlier release has asked, and stored, has no id.
        return params if "elicitationId" in params else {**params, "elicitationId": question.page or question.digest}
    schema = params["requestedSchema"]
    if not version.enriches:
        return {**params, "requestedSchema": _plain_form(version, schema, client)}
    if not any(map(_has_names, schema["properties"].values())):
        return params
    fields = {name: _with_names(each) if _has_names(each) else each for name, each in schema["properties"].items()}
    return {**params, "requestedSchema": {**schema, "properties": fields}}


def _plain_sampling(version: HandshakeVersion, params: JSON, client: ClientInfo) -> JSON:
    """Return a sampling whose messages have one block of content each, unless it has tools."""
    if "tools" in params or "toolChoice" in params or any(map(uses_tools, params["messages"])):
        if client.capabilities is None:
            raise MissingCapability.in_version(version.name, "a sampling with tools", "sampling")
        return params
    messages: list[Any] = []
    for message in params["messages"]:
        content = message.get("content")
        each = content if isinstance(content, list) else [content]
        if not version.annotates and any(isinstance(block, dict) and block.get("type") == "audio" for block in each):
            raise MissingCapability.in_version(version.name, "audio in a sampling", "sampling")
        messages += [{"role": message["role"], "content": content_of(version, block)} for block in each]
    return {**params, "messages": messages}


def _has_names(field: JSON) -> bool:
    return isinstance(field.get("oneOf"), NamedChoices)


def _plain_form(version: HandshakeVersion, schema: JSON, client: ClientInfo) -> JSON:
    """Return a form without choices of several, which its version does not have."""
    # Such a field is left out where it may be, unless there is nothing else to ask. A client that declares a mode of
    # elicitation has that from a version that has such choices, too.
    fields, required = schema["properties"], schema.get("required", ())
    several = [name for name, field in fields.items() if field["type"] == "array"]
    left_out = {name for name in several if name not in required} if len(several) < len(fields) else set()
    needed = [name for name in several if name not in left_out]
    if needed and not (client.capabilities or {}).get("elicitation"):
        raise MissingCapability.in_version(
            version.name, f"a choice of several, as the field {needed[0]!r} is", "elicitation"
        )
    shown = {name: _plain_field(field) for name, field in fields.items() if name not in left_out}
    return {**schema, "properties": shown}


def _plain_field(field: JSON) -> JSON:
    plain = {name: value for name, value in field.items() if name != "default" or field["type"] == "boolean"}
    return _with_names(plain) if "oneOf" in plain else plain


def _with_names(field: JSON) -> JSON:
    options = field["oneOf"]
    return {
        **{name: value for name, value in field.items() if name != "oneOf"},
        "enum": [option["const"] for option in options],
        "enumNames": [option["title"] for option in options],
    }


METHODS = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"})

CAPABILITY: JSON = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""Declared by a server that has tasks (Capabilities, Server Capabilities)."""

OFFER = TaskOffer(at_once=True)  # a client that takes a task takes nothing else, and that at once (Result Retrieval)
_LONGEST_MESSAGE = 500  # characters of a failed tool's text that are shown with the status of its task


def read_offer(params: JSON, client: ClientInfo) -> TaskOffer | None:
    """Return what a call says of its task; None if it is to be none. Raises `InvalidParams`."""
    # An empty one is that of non-blocking elicitations (#1869), if its client can be asked.
    if "task" not in params:
        return None
    ttl = read_task_ttl(params)
    first_ask = not params["task"] and not lacking(client, ("elicitation",))
    return TaskOffer(ttl, first_ask, at_once=True) if first_ask or ttl is not None else OFFER


def read_task_id(params: JSON) -> str:
    """Return the task that a request is about; whatever its `_meta` says does not count. Raises `InvalidParams`."""
    id = params.get("taskId")
    if not isinstance(id, str):
        raise InvalidParams("params.taskId must be a string")
    check_length(id, LONGEST_NAME, "taskId")
    return id


def task_body(task: Task) -> JSON:
    """Return a task; one whose result says that it failed has failed (Task Execution Errors)."""
    return written_task(task, *_status(task), ttl="ttl", poll="pollInterval")


def seen_body(task: Task, client: ClientInfo) -> JSON:
    """Return a task with what it asks, if its client looks for that there (#1869)."""
    body = task_body(task)
    return {**body, "_meta": pending} if task.first_ask and (pending := pending_of(task, client)) else body


def created_body(task: Task, tool: str, client: ClientInfo) -> JSON:
    """Return the result of a call that has become a task (Creating Tasks), with what it asks; see `seen_body`."""
    immediate = f"{tool} runs in the background now, as a task. Its result follows when it is done."
    meta = {**related_to(task.id), IMMEDIATE: immediate}
    if task.first_ask:
        meta.update({IMMEDIATE: task.message or immediate, **pending_of(task, client)})
    return {"task": task_body(task), "_meta": meta}


def page_body(page: TaskPage) -> JSON:
    """Return a page of tasks (Listing Tasks)."""
    body: JSON = {"tasks": [task_body(task) for task in page.tasks]}
    return {**body, "nextCursor": page.cursor} if page.cursor else body


def has_ended_message(task: Task) -> str:
    """Return why a task can't be cancelled."""
    return f"The task can't be cancelled: it is {_status(task)[0]} already"


def _status(task: Task) -> tuple[TaskStatus, str]:
    outcome = task.outcome
    if task.status == "completed" and isinstance(outcome, Complete) and outcome.body.get("isError"):
        return "failed", _text_of(outcome.body)
    return task.status, task.message


def _text_of(body: JSON) -> str:
    content: list[Any] = body.get("content", [])
    texts = (block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text")
    return str(next(texts, ""))[:_LONGEST_MESSAGE]


# Non-blocking elicitations (#1869): a task asks in its `_meta`, and `tasks/get` brings the answers in its own.
# No version of the protocol has them, and none forbids them. So they are there for clients of the drafts, and for those
# of 2025-11-25 that call a tool with an empty `task`.

_PREFIX = "io.modelcontextprotocol/"
_PENDING = _PREFIX + "pending-elicitations"
_RESPONSE = _PREFIX + "elicitation-response"

IMMEDIATE = _PREFIX + "model-immediate-response"
"""In `_meta`, a word for the model while a task works (Tasks, Model Immediate Response)."""


def with_mode(question: Question) -> JSON:
    """Return the parameters of an ask; a form names its mode, as the drafts print it for tasks."""
    mode = ask_kind(question).mode
    return {"mode": mode, **question.params} if mode else question.params


def pending_of(task: Task, client: ClientInfo) -> JSON:
    """Return the member of `_meta` that lists what a task asks, if a client can be asked that; empty for nothing."""
    pending = [
        _pending(key, question) for key, question in task.questions.items() if not lacking(client, question.needs)
    ]
    return {_PENDING: pending} if pending else {}


def _pending(key: str, question: Question) -> JSON:
    """Return a question as #1869 lists it: an elicitation as printed, all else as the request that it is."""
    if ask_kind(question).mode:
        return {**with_mode(question), "elicitationId": key}
    return {"elicitationId": key, "method": question.method, "params": question.params}


def read_elicitation_response(method: str, params: Mapping[str, Any]) -> dict[str, JSON] | None:
    """Return the answer in the `_meta` of a request about a task, by key; None without one. Raises `InvalidParams`."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or _RESPONSE not in meta:
        return None
    answer = meta[_RESPONSE]
    if method != "tasks/get":
        raise InvalidParams(f"_meta.{_RESPONSE} goes with tasks/get, and not with {method}")
    if not isinstance(answer, dict) or not isinstance(answer.get("elicitationId"), str):
        raise InvalidParams(f"_meta.{_RESPONSE} must be an object with an elicitationId, a string")
    return read_answers({answer["elicitationId"]: answer})
