"""Three processes with one key serve any round of any example in any order."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mrtr_server.testing import Answer, Asked, Client, Flow, accept, roots, sampled, yes

from ..support.serving import KEYS, in_process

LOGIN = accept(name="octocat")
RESOLVED = {"workItemId": 4522, "fields": {"System.State": "Resolved"}}
MRTR = "test_input_required_result"

FLOWS: dict[str, tuple[str, str, dict[str, Any], dict[str, Answer]]] = {
    "weather": ("tools/call", "get_weather", {"location": "New York"}, {"github_login": LOGIN}),
    "work_items": (
        "tools/call",
        "update_work_item",
        RESOLVED,
        {"resolution": accept(resolution="Duplicate"), "duplicate_of": accept(duplicateOfId=4301)},
    ),
    "mixed_asks": ("tools/call", "introduce", {}, {"github_login": LOGIN, "capital_of_france": sampled("Paris")}),
    "bookshop": (
        "tools/call",
        "buy",
        {"title": "Emma"},
        {"quantity": accept(copies=2), "address": accept(street="1 Main St", city="Paris"), "confirm": yes},
    ),
    "deploy": ("tools/call", "deploy", {"service": "shop"}, {"confirm": yes}),
    "secured": ("tools/call", "book_room", {"day": "2027-01-15"}, {}),
    "conformance/elicitation": ("tools/call", f"{MRTR}_elicitation", {}, {}),
    "conformance/sampling": ("tools/call", f"{MRTR}_sampling", {}, {}),
    "conformance/list_roots": ("tools/call", f"{MRTR}_list_roots", {}, {}),
    "conformance/request_state": ("tools/call", f"{MRTR}_request_state", {}, {}),
    "conformance/multiple_inputs": ("tools/call", f"{MRTR}_multiple_inputs", {}, {}),
    "conformance/multi_round": ("tools/call", f"{MRTR}_multi_round", {}, {}),
    "conformance/prompt": ("prompts/get", f"{MRTR}_prompt", {}, {}),
}


FINISHED: dict[str, tuple[int, str]] = {
    "weather": (2, "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy"),
    "work_items": (
        3,
        r"Bug #4522 resolved as Duplicate of Bug #4301\. State set to Resolved and duplicate link created\.",
    ),
    "mixed_asks": (2, r"Hello, octocat\. Paris"),
    "bookshop": (3, r"2 × Emma are on their way to Paris\."),
    "deploy": (2, r"shop:[0-9a-f]{8} is in production\."),
    "secured": (2, r"Booked for alice: a room for 1 on 2027-01-15\."),
    "conformance/elicitation": (2, "Hello, octocat!"),
    "conformance/sampling": (2, "Paris"),
    "conformance/list_roots": (2, "Roots: file:///test/root"),
    "conformance/request_state": (2, "state-ok: True"),
    "conformance/multiple_inputs": (2, r"Paris, octocat\. You work in 1 places\."),
    "conformance/multi_round": (3, r"octocat likes octocat\."),
    "conformance/prompt": (2, r"Tell me more about octocat\."),
}
"""How many rounds each takes at least and at most, and what comes of it; `deploy` names its images at random."""


@pytest.fixture(scope="module", params=sorted({flow.partition("/")[0] for flow in FLOWS}))
def example(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, list[str]]]:
    logs: Path = tmp_path_factory.mktemp("replicas")
    environment = {"MRTR_KEYS": KEYS, "DEPLOY_LOG": str(logs / "deploy.log")}
    with ExitStack() as stack:
        urls = []
        for number in range(3):
            log = logs / f"{request.param}-{number}.log"
            server = stack.enter_context(in_process(f"examples.{request.param}:app", log=log, environment=environment))
            assert server.port, server.text
            urls.append(f"http://127.0.0.1:{server.port}/mcp")
        yield request.param, urls


def answer(asked: Asked) -> Answer:
    """Answer whatever is asked, as a willing user would."""
    if asked.kind == "roots":
        return roots("file:///test/root")
    if asked.kind == "sample":
        return sampled("Paris")
    values = {"string": "octocat", "boolean": True, "integer": 1, "number": 1}
    fields = asked.schema["properties"]
    return accept({name: (field.get("enum") or [values[field["type"]]])[0] for name, field in fields.items()})


def test_in_any_order(example: tuple[str, list[str]]) -> None:
    name, urls = example
    for flow_name, (method, target, arguments, answers) in FLOWS.items():
        if flow_name.partition("/")[0] != name:
            continue
        finished = []
        for order in product(urls, repeat=3):
            flow: Flow = Flow(Client(*order, token="alice-token"), method, target, arguments)
            reply = flow.start()
            while reply.needs_input:
                reply = flow.answer({key: answers.get(key, answer) for key in reply.asks})
            finished.append((len(flow.replies), reply.text))
        rounds, text = FINISHED[flow_name]
        assert {each for each, _ in finished} == {rounds}, flow_name
        assert [each for _, each in finished if not re.fullmatch(text, each)] == [], flow_name
