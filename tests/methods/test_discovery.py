"""What a server says that it can do is what it has."""

from collections.abc import Callable
from typing import Any

import pytest

from mrtr_server import MRTRServer
from mrtr_server.testing import Client

TASKS = "io.modelcontextprotocol/tasks"
TOOLS = {"tools": {"listChanged": True}, "logging": {}}
PROMPTS = {"prompts": {"listChanged": True}, "logging": {}}
RESOURCES = {"resources": {"listChanged": True, "subscribe": True}, "logging": {}}


def nothing() -> str:
    return ""


def named(name: str) -> str:
    return name


def suggest(value: str) -> list[str]:
    return [value]


def complete(app: MRTRServer) -> None:
    app.prompt(name="p")(named)
    app.completion(prompt="p", argument="name")(suggest)


def capabilities_of(app: MRTRServer) -> dict[str, Any]:
    found: dict[str, Any] = Client(app).request("server/discover").result["capabilities"]
    return found


ADDED: list[tuple[Callable[[MRTRServer], object], dict[str, Any]]] = [
    (lambda app: None, {**TOOLS, **PROMPTS, **RESOURCES}),  # it gets them while it runs
    (lambda app: app.tool(name="t")(nothing), TOOLS),
    (lambda app: app.tool(name="t", task="optional")(nothing), {**TOOLS, "extensions": {TASKS: {}}}),
    (lambda app: app.prompt(name="p")(nothing), PROMPTS),
    (lambda app: app.resource("r://x", name="r")(nothing), RESOURCES),
    (lambda app: app.resource("r://{name}", name="r")(named), RESOURCES),
    (complete, {**PROMPTS, "completions": {}}),
]


@pytest.mark.parametrize(("add", "capabilities"), ADDED)
def test_what_is_there_is_a_capability(
    app: MRTRServer, add: Callable[[MRTRServer], object], capabilities: dict[str, Any]
) -> None:
    add(app)
    assert capabilities_of(app) == capabilities


def test_what_comes_while_the_server_runs_is_seen_at_the_next_request(app: MRTRServer) -> None:
    assert capabilities_of(app) == {**TOOLS, **PROMPTS, **RESOURCES}
    app.tool(name="t")(nothing)
    assert capabilities_of(app) == TOOLS
