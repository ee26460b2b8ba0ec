"""Tasks of the handshake era, as its newest version has them (Tasks)."""

from typing import Any

from ..errors import InvalidParams
from ..limits import LONGEST_NAME, check_length
from .dialect import milliseconds, read_task_ttl, related_to, timestamp
from .messages import JSON, Complete, Task, TaskOffer, TaskPage, TaskStatus

METHODS = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"})

CAPABILITY: JSON = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""What a server declares that has tasks (Capabilities, Server Capabilities)."""

OFFER = TaskOffer(at_once=True)
"""A client that takes a task takes nothing else, and that at once (Result Retrieval)."""

_IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"

_LONGEST_MESSAGE = 500
"""Characters of what a failed tool says that are shown with the status of its task."""


def read_offer(params: JSON) -> TaskOffer | None:
    """Return what a call says of its task; None if it is to be none. Raises `InvalidParams`."""
    if "task" not in params:
        return None
    ttl = read_task_ttl(params)
    return OFFER if ttl is None else TaskOffer(ttl, at_once=True)


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


def created_body(task: Task, tool: str) -> JSON:
    """Return the result of a call that has become a task (Creating Tasks)."""
    immediate = f"{tool} runs in the background now, as a task. Its result follows when it is done."
    return {"task": task_body(task), "_meta": {**related_to(task.id), _IMMEDIATE: immediate}}


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
