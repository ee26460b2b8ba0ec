"""Events over standard input and output: polls, and streams that share one output."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import Limits, MRTRServer
from mrtr_server.testing import Clock, replica

from ..support.stdio import StdioClient, over_pipes

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CLOCK = Clock()


class Incident(BaseModel):
    id: str


ALLOWED: set[str] = set()


@pytest.fixture
def client() -> Iterator[StdioClient]:
    ALLOWED.add("all")
    app = MRTRServer("ops", limits=Limits(open_requests=1, max_concurrency=1))
    event: dict[str, Any] = {"payload": Incident}
    types = {
        "plain": app.event("plain", **event),
        "guarded": app.event("guarded", authorize=lambda caller, name: "all" in ALLOWED, **event),
    }

    @app.tool
    async def emit(name: str, id: str) -> str:
        await served.emit(types[name], Incident(id=id))
        return "emitted"

    served = replica(app, clock=CLOCK)
    with over_pipes(served) as client:
        yield client


def emit(client: StdioClient, name: str, id: str, more: int = 0) -> list[dict[str, Any]]:
    """Emit an event; return the notifications that come until there are so many, besides the response."""
    begun = client.begin_call("emit", {"name": name, "id": id}, modern=True)
    came = [client.next() for _ in range(more + 1)]
    assert begun in [each.get("id") for each in came]
    return [each for each in came if "method" in each]


def follow(client: StdioClient, name: str, **params: Any) -> int:
    """Open a stream; return the id of its request."""
    id = client.begin("events/stream", {"name": name, "cursor": None, **params}, modern=True)
    opened = client.next()
    assert opened["method"] == "notifications/events/active", opened
    assert opened["params"]["_meta"] == {SUBSCRIPTION: id}
    return id


def test_whoever_polls_gets_what_happened(client: StdioClient) -> None:
    params: dict[str, Any] = {"name": "plain", "cursor": None}
    params["cursor"] = client.request("events/poll", params, modern=True)["result"]["cursor"]
    emit(client, "plain", "1")
    found = client.request("events/poll", params, modern=True)["result"]
    assert [each["data"] for each in found["events"]] == [{"id": "1"}]


def test_webhooks_need_a_caller(client: StdioClient) -> None:
    entry = client.request("events/list", modern=True)["result"]["events"][0]
    assert entry["delivery"] == ["poll", "push"]
    assert client.request("events/subscribe", {"name": "plain"}, modern=True)["error"]["code"] == -32012


def test_streams_share_the_output_and_one_that_is_cancelled_says_nothing_more(client: StdioClient) -> None:
    first, second = follow(client, "plain"), follow(client, "plain")
    told = emit(client, "plain", "1", more=2)
    assert {each["params"]["_meta"][SUBSCRIPTION] for each in told} == {first, second}
    client.send(method="notifications/cancelled", params={"requestId": first})
    (event,) = emit(client, "plain", "2", more=1)
    assert (event["params"]["_meta"], event["params"]["data"]) == ({SUBSCRIPTION: second}, {"id": "2"})
    again = follow(client, "plain", cursor=event["params"]["cursor"])
    told = emit(client, "plain", "3", more=2)
    assert {each["params"]["_meta"][SUBSCRIPTION] for each in told} == {second, again}
    client.close()
    last = client.rest()
    assert {each["id"] for each in last} <= {second, again}  # and no notification, and nothing of the first


def test_a_stream_begins_where_it_is_asked_to(client: StdioClient) -> None:
    cursor = client.request("events/poll", {"name": "plain"}, modern=True)["result"]["cursor"]
    emit(client, "plain", "old")
    CLOCK.advance(60)
    emit(client, "plain", "new")
    for age, truncated, ids in ((30_000, True, ["new"]), (3_600_000, False, ["old", "new"])):
        id = client.begin("events/stream", {"name": "plain", "cursor": cursor, "maxAgeMs": age}, modern=True)
        assert client.next()["params"]["truncated"] is truncated
        assert [client.next()["params"]["data"]["id"] for _ in ids] == ids
        client.send(method="notifications/cancelled", params={"requestId": id})


def test_one_that_is_invalid_is_an_error_and_no_stream(client: StdioClient) -> None:
    for params, code in (({"name": "no.such"}, -32011), ({"name": "plain", "arguments": {"a": 1}}, -32602)):
        assert client.request("events/stream", params, modern=True)["error"]["code"] == code


def test_access_that_has_ended_ends_a_stream_with_its_result(client: StdioClient) -> None:
    id = follow(client, "guarded")
    ALLOWED.clear()
    (said,) = emit(client, "guarded", "1", more=1)
    assert said["method"] == "notifications/events/terminated"
    assert said["params"] == {
        "error": {"code": -32012, "message": "Forbidden", "data": {"reason": "Access revoked"}},
        "_meta": {SUBSCRIPTION: id},
    }
    last = client.next()
    assert last["id"] == id
    assert last["result"].keys() == {"resultType", "_meta"}
    assert last["result"]["resultType"] == "complete"
    ALLOWED.add("all")
    assert "result" in client.request("events/list", modern=True)
