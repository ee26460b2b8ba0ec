"""Tasks of the handshake era, as its newest version has them (Tasks)."""

from typing import Any

from ..errors import InvalidParams
from ..limits import LONGEST_NAME, check_length
from .callers import ClientInfo, lacking
from .dialect import milliseconds, read_task_ttl, related_to, timestamp
from .messages import JSON, Complete, Task, TaskOffer, TaskPage, TaskStatus
from .pending_elicitations import IMMEDIATE, pending_of

METHODS = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"})

CAPABILITY: JSON = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""What a server declares that has tasks (Capabilities, Server Capabilities)."""

OFFER = TaskOffer(at_once=True)
"""A client that takes a task takes nothing else, and that at once (Result Retrieval)."""

_LONGEST_MESSAGE = 500
"""Characters of what a failed tool says that are shown with the status of its task."""


def read_offer(params: JSON, client: ClientInfo) -> TaskOffer | None:
    """Return what a call says of its task; None if it is to be none. Raises `InvalidParams`.

    An empty one is that of non-blocking elicitations (#1869), if its client can be asked.
    """
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
    status, message = _status(task)
    body: JSON = {
        "taskId": task.id,
        "status": status,
        "createdAt": timestamp(task.created),
        "lastUpdatedAt": timestamp(task.updated),
        "ttl": milliseconds(task.ttl),
        "pollInterval": milliseconds(task.poll),
    }
    if message:
        body["statusMessage"] = message
    return body


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
