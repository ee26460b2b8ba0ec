"""What a server says that it can do is what it has."""

from collections.abc import Callable
from typing import Any

import pytest

from mrtr_server import MRTRServer
from mrtr_server.methods.discovery import Discoverer
from mrtr_server.protocol.messages import TASKS, Call, Discovery

from ..support.methods import Notes

pytestmark = pytest.mark.anyio

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


ADDED: list[tuple[Callable[[MRTRServer], object], dict[str, Any]]] = [
    (lambda app: None, {**TOOLS, **PROMPTS, **RESOURCES}),  # it gets them while it runs
    (lambda app: app.tool(name="t")(nothing), TOOLS),
    (lambda app: app.tool(name="t", task="optional")(nothing), {**TOOLS, "extensions": {TASKS: {}}}),
    (lambda app: app.prompt(name="p")(nothing), PROMPTS),
    (lambda app: app.resource("r://x", name="r")(nothing), RESOURCES),
    (lambda app: app.resource("r://{name}", name="r")(named), RESOURCES),
    (complete, {**PROMPTS, "completions": {}}),
]


def discoverer(app: MRTRServer) -> Discoverer:
    return Discoverer(app.registry, instructions="Ask.", ttl=9.0, scope="public")


async def discovered(made: Discoverer) -> Discovery:
    outcome = await made.discover(Call("server/discover", {}), Notes())
    assert isinstance(outcome, Discovery)
    return outcome


@pytest.mark.parametrize(("add", "capabilities"), ADDED)
async def test_what_is_there_is_a_capability(
    app: MRTRServer, add: Callable[[MRTRServer], object], capabilities: dict[str, Any]
) -> None:
    add(app)
    assert await discovered(discoverer(app)) == Discovery(capabilities, "Ask.", 9.0, "public")


async def test_what_comes_while_the_server_runs_is_seen_at_the_next_request(app: MRTRServer) -> None:
    made = discoverer(app)
    first = await discovered(made)
    assert await discovered(made) is first, "it is made once for what there is"
    app.tool(name="t")(nothing)
    assert (await discovered(made)).capabilities == TOOLS
