"""Tasks that somebody listens to, over real HTTP: agreed, told, and nobody else's."""

import json
from typing import Any

import pytest

from mrtr_server import BearerTokens, Context, MRTRServer

from ..conftest import Serve
from ..support.direct import headers_for
from ..support.models import Login
from ..support.task_apps import working
from ..support.wire import JSON, PREFIX, TASKS, Listener, Wire, accept, modern, text_of

ABLE = {"elicitation": {}, **TASKS}


@pytest.fixture
def wire(serve: Serve) -> Wire:
    return serve(working)


def start(wire: Wire, tool: str = "greet") -> str:
    return str(wire.call(tool, capabilities=ABLE).result["taskId"])


def update(wire: Wire, task: str, **answers: JSON) -> None:
    wire.modern("tasks/update", {"taskId": task, "inputResponses": answers}, capabilities=ABLE)


class Opened:
    """A subscription to tasks, read message by message."""

    def __init__(self, wire: Wire, ids: list[str], **headers: str) -> None:
        message = modern("subscriptions/listen", {"notifications": {"taskIds": ids}}, id="s", capabilities=ABLE)
        given = [*headers_for(message), *((name.encode(), value.encode()) for name, value in headers.items())]
        self._stream: Any = wire.client.stream("POST", wire.url, content=json.dumps(message), headers=given)

    def __enter__(self) -> Listener:
        return Listener(self._stream.__enter__().iter_lines())

    def __exit__(self, *raised: Any) -> None:
        self._stream.__exit__(*raised)


def until(listener: Listener, status: str) -> JSON:
    """Read until a task has a status; return what was told of it then."""
    while True:
        message = listener.next()
        assert message["method"] == "notifications/tasks"
        params: JSON = message["params"]
        if params["status"] == status:
            return params


def test_a_task_is_told_of_until_its_end_without_a_poll(wire: Wire) -> None:
    task = start(wire)
    with Opened(wire, [task]) as listener:
        assert listener.next()["params"]["notifications"] == {"taskIds": [task]}
        assert list(until(listener, "input_required")["inputRequests"]) == ["login"]
        update(wire, task, login=accept(name="octocat"))
        done = until(listener, "completed")
    seen = wire.modern("tasks/get", {"taskId": task}, capabilities=ABLE).raw_result
    assert done.pop("_meta") == {PREFIX + "subscriptionId": "s"}
    del seen["_meta"], seen["resultType"]
    assert done == seen
    assert text_of(done) == "Hello, octocat"


def test_a_task_that_has_ended_before_is_told_of_at_once(wire: Wire) -> None:
    task = start(wire, "fail")
    with Opened(wire, [task]) as first:
        first.next()
        until(first, "completed")
    with Opened(wire, [task]) as second:
        second.next()
        assert second.next()["params"]["status"] == "completed"


def test_a_task_that_is_cancelled_is_told_of(wire: Wire) -> None:
    task = start(wire)
    with Opened(wire, [task]) as listener:
        listener.next()
        until(listener, "input_required")
        wire.modern("tasks/cancel", {"taskId": task}, capabilities=ABLE)
        until(listener, "cancelled")


def test_a_task_that_nobody_has_is_not_agreed_on(wire: Wire) -> None:
    task = start(wire)
    with Opened(wire, ["nobody", task, "x" * 1000]) as listener:
        assert listener.next()["params"]["notifications"] == {"taskIds": [task]}
    with Opened(wire, ["nobody"]) as listener:
        assert listener.next()["params"]["notifications"] == {}


def test_a_task_of_somebody_else_is_one_that_nobody_has(serve: Serve) -> None:
    app = MRTRServer("two", keys=[bytes(32)], auth=BearerTokens({"ann": "Ann", "bob": "Bob"}))

    @app.tool(task="required")
    async def greet(ctx: Context) -> str:
        """Ask for a name."""
        return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"

    wire = serve(app)
    message = modern("tools/call", {"name": "greet", "arguments": {}}, capabilities=ABLE)
    task = wire.post(message, {"Authorization": "Bearer ann"}).result["taskId"]
    with Opened(wire, [task], Authorization="Bearer bob") as listener:
        assert listener.next()["params"]["notifications"] == {}
    with Opened(wire, [task], Authorization="Bearer ann") as listener:
        assert listener.next()["params"]["notifications"] == {"taskIds": [task]}
        until(listener, "input_required")
