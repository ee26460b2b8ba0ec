"""Three processes with one key serve any round of any example in any order."""

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
            finished.append(reply.text)
        if name != "deploy":  # whose images are named at random
            assert all(each == finished[0] for each in finished), flow_name
