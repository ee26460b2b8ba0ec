"""The drafts of Multi Round-Trip Requests, revisions 1 and 2, for clients that name no version at all.

A result that needs input has no `resultType`, and is known by its `inputRequests` or `requestState`. Answers come
bare (revision 2) or wrapped in `result` (revision 1), in `params` or at the top level.

A call with `task: {"ttl": ...}` gets a task of the drafts: `tasks/result` asks, and `tasks/input_response` or a
JSON-RPC response answers. One with `task: {}` gets one of #1869: flat, with questions in its `_meta`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import errors
from ..limits import LONGEST_NAME, check_length
from . import dialect, messages
from .callers import ClientInfo, Sender
from .envelope import NO_METHOD, SESSION_HEADER, VERSION_HEADER, Envelope, check_headers, check_method, check_name
from .handshake_versions import IMMEDIATE, pending_of, read_elicitation_response, with_mode
from .messages import JSON, Call

_TASK_METHODS = {
    "tasks/get": "tasks/get",
    "tasks/result": "tasks/result",
    "tasks/input_response": "tasks/answer",
    "tasks/cancel": "tasks/cancel",
}  # by their names in the drafts

_EVERYTHING = ClientInfo(capabilities=None)
_OFFER = messages.TaskOffer(first_ask=True)
_ABSENT: Any = object()


class SepDraftDialect(dialect.Dialect):
    """The dialect of the drafts."""

    name = "sep-draft"

    statuses: ClassVar[Mapping[str, tuple[str, str]]] = {
        "working": ("working", "The task is being worked on."),
        "input_required": ("input_required", "Input Required to Proceed call tasks/result"),
        "completed": ("completed", "Task has been completed successfully, call tasks/result"),
        "failed": ("failed", "The task has failed."),
        "cancelled": ("cancelled", "The task was cancelled."),
    }
    """How each status of a task is written, and the words for it where the task has none of its own."""

    prints_updates: ClassVar[bool] = True  # whether a task says when it was last changed, as revision 2 prints it

    created: ClassVar[str] = "Task has been created for {} tool invocation."
    """The words for a new task of a tool's call."""

    def claims(self, envelope: Envelope) -> bool:
        """Return whether the message names no version, no session and no handshake anywhere."""
        headers = envelope.headers
        if VERSION_HEADER in headers or SESSION_HEADER in headers or envelope.method == "initialize":
            return False
        return not dialect.names_version(envelope)

    def load_call(self, envelope: Envelope, sender: Sender) -> Call:
        """Return the call in a request. Headers are not required, but those that are there must match the body."""
        if envelope.method in _TASK_METHODS or not envelope.method:
            check_method(envelope, required=False)
            read_task = self._read_task if envelope.method else self._read_response
            return read_task(envelope, sender)
        check_headers(envelope, required=False)
        if envelope.method not in dialect.METHODS:
            raise errors.UnknownMethod(envelope.method)
        params = envelope.params
        asks = envelope.method in messages.ASKING_METHODS
        answers = either(envelope, "inputResponses", _ABSENT) if asks else _ABSENT
        meta = params.get("_meta")
        return Call(
            method=envelope.method,
            params=params,
            target=dialect.read_target(envelope.method, params),
            arguments=dialect.read_arguments(params) if envelope.method in dialect.WITH_ARGUMENTS else {},
            answers=None if answers is _ABSENT else _bare(answers),
            state=either(envelope, "requestState"),
            client=_EVERYTHING,
            **sender._asdict(),
            progress_token=dialect.read_progress_token(meta) if isinstance(meta, dict) else None,
            request_id=envelope.id if envelope.id is not None else 0,
            headers=envelope.headers,
            task=_read_offer(params) if envelope.method == "tools/call" and "task" in params else None,
        )

    def _read_task(self, envelope: Envelope, sender: Sender) -> Call:
        params = envelope.params
        task_id = _task_id(params, envelope.message)
        method = _TASK_METHODS[envelope.method]
        answers = read_elicitation_response(envelope.method, params)
        if method == "tasks/answer":
            answers = _bare(either(envelope, "inputResponses"))
        return self._about_task(envelope, method, task_id, answers, sender)

    def _read_response(self, envelope: Envelope, sender: Sender) -> Call:
        message = envelope.message
        holders = [message["result"] if "result" in message else message["error"], message]
        if not any(dialect.RELATED_TASK in meta_of(holder) for holder in holders):
            raise errors.InvalidRequest(NO_METHOD, envelope.id)
        answers = {self._answered(holders): dialect.read_response(message)}
        return self._about_task(envelope, "tasks/respond", _task_id(*holders), answers, sender)

    def _answered(self, holders: list[JSON]) -> str:
        """Return the name of the question that a response answers; see `UNNAMED`."""
        return messages.UNNAMED

    def _about_task(
        self, envelope: Envelope, method: str, task_id: str, answers: dict[str, JSON] | None, sender: Sender
    ) -> Call:
        check_name(envelope, task_id, "the task", required=False)
        return Call(
            method=method,
            params=dialect.with_stream(envelope) if method == messages.TASK_RESULT else envelope.params,
            target=task_id,
            answers=answers,
            state=either(envelope, "requestState"),
            client=_EVERYTHING,
            **sender._asdict(),
            request_id=envelope.id if envelope.id is not None else 0,
            headers=envelope.headers,
            task=_OFFER,
        )

    def dump_outcome(self, call: Call, outcome: messages.Outcome) -> bytes:
        """Return the response that carries an outcome, with nothing beyond what the drafts print."""
        if isinstance(outcome, messages.NeedsInput):
            return dialect.result(
                call, {"requestState": outcome.state, "inputRequests": dialect.requests(outcome.questions)}
            )
        if isinstance(outcome, messages.HandedOver):
            return dialect.result(call, {"requestState": outcome.state})
        if isinstance(outcome, messages.Complete):
            return dialect.result(call, self._hinted(outcome.body) if call.method == "tools/list" else outcome.body)
        if call.method == "tasks/respond":  # a response itself, which gets none
            return b""
        if isinstance(outcome, messages.Acknowledged):
            return dialect.result(
                call, dialect.with_related({}, outcome.task_id) if outcome.task is None else self._seen(outcome.task)
            )
        if isinstance(outcome, messages.TaskResult):
            if isinstance(outcome.task.outcome, errors.RequestError):
                return self.error(call.request_id, outcome.task.outcome).body
            return dialect.result(call, _redeemed(outcome))
        assert isinstance(outcome, messages.TaskCreated | messages.TaskStatusResult)  # noqa: S101  load_call() lets no other method through
        if isinstance(outcome, messages.TaskStatusResult) or outcome.task.first_ask:
            return dialect.result(call, self._seen(outcome.task))
        return dialect.result(call, {"task": self._task(outcome.task, self.created.format(call.target))})

    def dump_error(self, error: errors.RequestError) -> tuple[int, JSON]:
        """Return an error's HTTP status, and its JSON-RPC error object."""
        status, written = super().dump_error(error)
        if dialect.lacks_tasks(error):  # these clients request tasks by a parameter
            written["message"] = "This call can only become a task: send it with params.task"
        return status, written

    def _seen(self, task: messages.Task) -> JSON:
        return _flat(task) if task.first_ask else self._task(task, self.statuses[task.status][1])

    def _task(self, task: messages.Task, message: str) -> JSON:
        updated = {"lastUpdatedAt": messages.timestamp(task.updated)} if self.prints_updates else {}
        return {
            "taskId": task.id,
            "status": self.statuses[task.status][0],
            "statusMessage": task.message or message,
            "createdAt": messages.timestamp(task.created),
            **updated,
            "ttl": dialect.milliseconds(task.ttl),
            "pollInterval": dialect.milliseconds(task.poll),
        }

    def _hinted(self, body: JSON) -> JSON:
        """Return the list of tools with a hint at those whose calls may become tasks (#1869)."""
        return {
            **body,
            "tools": [
                _hint(tool) if self.surface.task_support(tool["name"]) != "forbidden" else tool
                for tool in body["tools"]
            ],
        }


def _hint(tool: JSON) -> JSON:
    return {**tool, "annotations": {**tool.get("annotations", {}), "taskHint": "always"}}


def _redeemed(redeemed: messages.TaskResult) -> JSON:
    task = redeemed.task
    if isinstance(task.outcome, messages.Complete):
        return dialect.with_related(task.outcome.body, task.id)
    if task.status == "cancelled":
        raise errors.InvalidParams("The task was cancelled, so it has no result", {"taskId": task.id})
    if task.status == "working":  # an incomplete result with a state alone: clients send the request again at once
        return dialect.with_related({"requestState": redeemed.state}, task.id)
    # The drafts may use a key more than once, so a question keeps the key that its author chose.
    questions = {task.names[key]: question for key, question in task.questions.items()}
    asked = {key: {"method": each.method, "params": with_mode(each)} for key, each in questions.items()}
    return dialect.with_related({"inputRequests": asked}, task.id)


def _flat(task: messages.Task) -> JSON:
    body = dialect.with_related(
        {"taskId": task.id, "status": task.status, "createdAt": messages.timestamp(task.created)}, task.id
    )
    body["_meta"].update(pending_of(task, _EVERYTHING))
    if task.message and task.status in ("working", "input_required", "cancelled"):  # for while one waits
        body["_meta"][IMMEDIATE] = task.message
    return body


def meta_of(holder: Mapping[str, Any]) -> JSON:
    """Return the `_meta` of a message, or of a part of it; empty if it has none."""
    meta = holder.get("_meta")
    return meta if isinstance(meta, dict) else {}


def _task_id(*holders: JSON) -> str:
    """Return the task of a message: by its `taskId`, by the related task of its `_meta`, or by both."""
    related = [meta_of(holder)[dialect.RELATED_TASK] for holder in holders if dialect.RELATED_TASK in meta_of(holder)]
    named = [holder["taskId"] for holder in holders if "taskId" in holder]
    named += [each.get("taskId") if isinstance(each, dict) else None for each in related]
    if not named or not all(isinstance(name, str) for name in named):
        raise errors.InvalidParams(f"taskId must be a string; or _meta.{dialect.RELATED_TASK} an object that has it")
    if len(set(named)) > 1:
        raise errors.InvalidParams("The message names two different tasks")
    check_length(named[0], LONGEST_NAME, "taskId")
    return str(named[0])


def _read_offer(params: JSON) -> messages.TaskOffer:
    ttl = dialect.read_task_ttl(params)
    return _OFFER if ttl is None else messages.TaskOffer(ttl)


def either(envelope: Envelope, field: str, absent: Any = None) -> Any:
    """Return a field from `params` or from the top level; one that is in both must be the same."""
    places = [place[field] for place in (envelope.params, envelope.message) if field in place]
    if len(places) == 2 and places[0] != places[1]:
        raise errors.InvalidParams(f"{field} is in params and at the top level of the message, and they differ")
    return places[0] if places else absent


def _bare(answers: Any) -> dict[str, JSON]:
    return {key: _unwrapped(raw) for key, raw in dialect.read_answers(answers).items()}


def _unwrapped(raw: JSON) -> JSON:
    """Return the answer in a wrapped one; an error in its place is that of a person who does not answer."""
    if len(raw) != 1:
        return raw
    if isinstance(raw.get("error"), dict):
        return {"action": "cancel"}
    wrapped = raw.get("result")
    return wrapped if isinstance(wrapped, dict) else raw
