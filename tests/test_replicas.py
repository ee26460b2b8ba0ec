"""Three processes with one key serve any round of any example in any order."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from .serving import KEYS, in_process
from .walk import ALL_CAPABILITIES, VERSION, YES, accept, sampled

ROOTS = {"roots": [{"uri": "file:///test/root", "name": "Test Root"}]}
LOGIN = accept(name="octocat")
RESOLVED = {"workItemId": 4522, "fields": {"System.State": "Resolved"}}
ALICE = {"Authorization": "Bearer alice-token"}
MRTR = "test_input_required_result"

FLOWS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
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
        {"quantity": accept(copies=2), "address": accept(street="1 Main St", city="Paris"), "confirm": YES},
    ),
    "deploy": ("tools/call", "deploy", {"service": "shop"}, {"confirm": YES}),
    "secured": ("tools/call", "book_room", {"day": "2027-01-15"}, {}),
    "conformance/elicitation": ("tools/call", f"{MRTR}_elicitation", {}, {}),
    "conformance/sampling": ("tools/call", f"{MRTR}_sampling", {}, {}),
    "conformance/list_roots": ("tools/call", f"{MRTR}_list_roots", {}, {}),
    "conformance/request_state": ("tools/call", f"{MRTR}_request_state", {}, {}),
    "conformance/multiple_inputs": ("tools/call", f"{MRTR}_multiple_inputs", {}, {}),
    "conformance/multi_round": ("tools/call", f"{MRTR}_multi_round", {}, {}),
    "conformance/prompt": ("prompts/get", f"{MRTR}_prompt", {}, {}),
}


class Fleet:
    """Three processes of one example.

    Parameters:
        urls: their endpoints.
    """

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.client = httpx.Client(headers=ALICE)

    def send(self, replica: int, method: str, target: str, **params: Any) -> dict[str, Any]:
        """Send one request to one replica; give the result."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": ALL_CAPABILITIES,
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": target, **params, "_meta": meta}}
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method, "Mcp-Name": target}
        reply = self.client.post(self.urls[replica], json=message, headers=headers).json()
        assert "result" in reply, reply
        return dict(reply["result"])


@pytest.fixture(scope="module", params=sorted({flow.partition("/")[0] for flow in FLOWS}))
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Fleet]]:
    logs: Path = tmp_path_factory.mktemp("replicas")
    environment = {"MRTR_KEYS": KEYS, "DEPLOY_LOG": str(logs / "deploy.log")}
    with ExitStack() as stack:
        urls = []
        for number in range(3):
            log = logs / f"{request.param}-{number}.log"
            server = stack.enter_context(in_process(f"examples.{request.param}:app", log=log, environment=environment))
            assert server.port, server.text
            urls.append(f"http://127.0.0.1:{server.port}/mcp")
        fleet = Fleet(urls)
        stack.callback(fleet.client.close)
        yield request.param, fleet


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer whatever is asked, as a willing user would."""
    if request["method"] == "roots/list":
        return ROOTS
    if request["method"] == "sampling/createMessage":
        return sampled("Paris")
    values = {"string": "octocat", "boolean": True, "integer": 1, "number": 1}
    fields = request["params"]["requestedSchema"]["properties"]
    return accept(**{name: (field.get("enum") or [values[field["type"]]])[0] for name, field in fields.items()})


def test_in_any_order(example: tuple[str, Fleet]) -> None:
    name, fleet = example
    for flow, (method, target, arguments, answers) in FLOWS.items():
        if flow.partition("/")[0] != name:
            continue
        finished = []
        for order in product(range(3), repeat=3):
            params: dict[str, Any] = {"arguments": arguments}
            for replica in order:
                result = fleet.send(replica, method, target, **params)
                if result["resultType"] == "complete":
                    break
                asked = result["inputRequests"]
                given = {key: answers.get(key) or answer(request) for key, request in asked.items()}
                params = {"arguments": arguments, "requestState": result["requestState"], "inputResponses": given}
            assert result["resultType"] == "complete", (flow, order)
            assert not result.get("isError"), (flow, order)
            finished.append(result.get("content") or result.get("messages"))
        if name != "deploy":  # whose images are named at random
            assert all(each == finished[0] for each in finished), flow
