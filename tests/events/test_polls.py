"""Events that a client polls: which there are, which of them it gets, and where it continues."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, Events, EventType, Lists, MRTRServer, Principal, SetupError, Webhooks
from mrtr_server.errors import FlowError
from mrtr_server.testing import AsyncClient, Client, Clock, SharedStore, replica, replicas

pytestmark = pytest.mark.anyio

EXTENSION: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/events": {}}}
USERS = BearerTokens({"ann": "ann", "ben": "ben"})


class Filter(BaseModel):
    severity: Literal["P1", "P2"] | None = None


class Incident(BaseModel):
    id: str
    severity: str


def is_wanted(incident: Incident, wants: Filter, caller: Caller) -> bool:
    return wants.severity in (None, incident.severity)


def served(**options: Any) -> tuple[MRTRServer, EventType[Filter, Incident]]:
    app = MRTRServer("ops", **options)
    return app, app.event(
        "incident.created",
        arguments=Filter,
        payload=Incident,
        matches=is_wanted,
        description="Something is broken",
    )


async def poll(client: AsyncClient, cursor: str | None, **params: Any) -> dict[str, Any]:
    reply = await client.request("events/poll", {"name": "incident.created", "cursor": cursor, **params})
    return dict(reply.result)


def ids(result: dict[str, Any]) -> list[str]:
    return [each["data"]["id"] for each in result["events"]]


def test_the_types_are_listed_with_their_schemas_and_both_capabilities_are_declared() -> None:
    client = Client(served()[0])
    (entry,) = client.request("events/list").result["events"]
    assert (entry["name"], entry["description"]) == ("incident.created", "Something is broken")
    assert entry["delivery"] == ["poll", "push"]  # nobody is authenticated, so nobody can have a webhook
    assert entry["inputSchema"]["properties"].keys() == {"severity"}
    assert entry["payloadSchema"]["required"] == ["id", "severity"]
    capabilities = client.request("server/discover").result["capabilities"]
    assert capabilities["events"] == {}
    assert capabilities["extensions"]["io.modelcontextprotocol/events"] == {}
    assert "events" not in Client(MRTRServer("none")).request("server/discover").result["capabilities"]


def test_the_handshake_era_has_no_events() -> None:
    client = Client(served()[0], era="2025-11-25")
    assert "events" not in json.dumps(client.begin().result["capabilities"])
    assert client.request("events/list").error.code == -32601


async def test_who_polls_gets_what_happened_since_once_and_what_it_wants_alone() -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        begun = await poll(client, None, arguments={"severity": "P1"})
        assert (begun["events"], begun["truncated"], begun["hasMore"]) == ([], False, False)
        assert begun["nextPollMs"] == 30_000
        for number, severity in enumerate(("P1", "P2", "P1")):
            assert await app.emit(incidents, Incident(id=str(number), severity=severity), id=f"INC-{number}", at=7.5)
        found = await poll(client, begun["cursor"], arguments={"severity": "P1"})
        assert ids(found) == ["0", "2"]
        first = found["events"][0]
        assert first == {
            "eventId": "INC-0",
            "name": "incident.created",
            "timestamp": "1970-01-01T00:00:07.500Z",
            "data": {"id": "0", "severity": "P1"},
        }
        assert ids(await poll(client, found["cursor"], arguments={"severity": "P1"})) == []
        assert ids(await poll(client, begun["cursor"], arguments={"severity": "P1"})) == ["0", "2"]


async def test_an_id_counts_once() -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        begun = await poll(client, None)
        assert await app.emit(incidents, Incident(id="1", severity="P1"), id="INC-1")
        assert not await app.emit(incidents, Incident(id="1", severity="P1"), id="INC-1")
        assert ids(await poll(client, begun["cursor"])) == ["1"]


async def test_a_page_is_bounded_and_the_rest_comes_with_the_next_poll() -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        cursor = (await poll(client, None, arguments={"severity": "P2"}))["cursor"]
        for number in range(7):
            await app.emit(incidents, Incident(id=str(number), severity="P1" if number % 2 else "P2"))
        found: list[str] = []
        more = True
        while more:
            page = await poll(client, cursor, maxEvents=2, arguments={"severity": "P2"})
            assert len(page["events"]) <= 2
            found, cursor, more = found + ids(page), page["cursor"], page["hasMore"]
        assert found == ["0", "2", "4", "6"]


@pytest.mark.parametrize("cursor", ["nonsense", "", "A" * 5000, 7, {"a": 1}])
async def test_a_cursor_that_does_not_open_begins_now_and_says_so(cursor: Any) -> None:
    app, incidents = served()
    async with AsyncClient(app) as client:
        await app.emit(incidents, Incident(id="1", severity="P1"))
        found = await poll(client, cursor)
        assert (ids(found), found["truncated"]) == ([], True)
        await app.emit(incidents, Incident(id="2", severity="P1"))
        after = await poll(client, found["cursor"])
        assert (ids(after), after["truncated"]) == (["2"], False)


async def test_a_cursor_is_of_its_principal_its_type_and_its_arguments() -> None:
    app, incidents = served(auth=USERS)
    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben:
        cursor = (await poll(ann, None))["cursor"]
        await app.emit(incidents, Incident(id="1", severity="P1"))
        assert ids(await poll(ann, cursor)) == ["1"]
        for found in (await poll(ben, cursor), await poll(ann, cursor, arguments={"severity": "P1"})):
            assert (ids(found), found["truncated"]) == ([], True)


async def test_what_is_too_old_for_the_client_is_left_out_and_said() -> None:
    clock = Clock()
    app, incidents = served()
    moved = replica(app, clock=clock)
    async with AsyncClient(moved) as client:
        cursor = (await poll(client, None))["cursor"]
        await moved.emit(incidents, Incident(id="old", severity="P1"))
        clock.advance(60)
        await moved.emit(incidents, Incident(id="new", severity="P1"))
        assert ids(await poll(client, cursor, maxAgeMs=3_600_000)) == ["old", "new"]
        found = await poll(client, cursor, maxAgeMs=30_000)
        assert (ids(found), found["truncated"]) == (["new"], True)
        assert not (await poll(client, found["cursor"], maxAgeMs=30_000))["truncated"]
        everything = await poll(client, cursor, maxAgeMs=2**53 - 1)  # as a client says "however old"
        assert (ids(everything), everything["truncated"]) == (["old", "new"], False)
        assert ids(await poll(client, None, maxAgeMs=3_600_000)) == []  # now, whatever it says beside


async def test_what_is_gone_by_age_or_count_is_said() -> None:
    clock = Clock()
    app, incidents = served(events=Events(keep_seconds=60, keep_most=50))
    moved = replica(app, clock=clock)
    async with AsyncClient(moved) as client:
        cursor = (await poll(client, None))["cursor"]
        await moved.emit(incidents, Incident(id="old", severity="P1"))
        clock.advance(61)
        await moved.emit(incidents, Incident(id="new", severity="P1"))
        found = await poll(client, cursor)
        assert (ids(found), found["truncated"]) == (["new"], True)
        for number in range(120):
            await moved.emit(incidents, Incident(id=str(number), severity="P1"))
        page = await poll(client, found["cursor"])
        assert page["truncated"]
        assert len(page["events"]) < 120
        assert ids(page)[-1] == "119"


async def test_an_event_for_one_person_is_for_nobody_else() -> None:
    app, incidents = served(auth=USERS)
    async with AsyncClient(app, token="ann") as ann, AsyncClient(app, token="ben") as ben:
        cursors = [(await poll(each, None))["cursor"] for each in (ann, ben)]
        await app.emit(incidents, Incident(id="1", severity="P1"), to=Principal("ann"))
        assert ids(await poll(ann, cursors[0])) == ["1"]
        assert ids(await poll(ben, cursors[1])) == []


async def test_any_replica_serves_any_poll() -> None:
    app, incidents = served(store=SharedStore())
    one, other = replicas(app, 2)
    async with AsyncClient(one) as here, AsyncClient(other) as there:
        cursor = (await poll(here, None))["cursor"]
        await other.emit(incidents, Incident(id="1", severity="P1"))
        assert ids(await poll(there, cursor)) == ["1"]
        assert ids(await poll(here, cursor)) == ["1"]


async def test_a_payload_is_cut_for_who_gets_it() -> None:
    app = MRTRServer("ops", auth=USERS)

    async def without_id(incident: Incident, wants: None, caller: Caller) -> Incident:
        assert caller.principal is not None
        return Incident(id=f"for {caller.principal.subject}", severity=incident.severity)

    incidents = app.event("incident.created", payload=Incident, shape=without_id)
    async with AsyncClient(app, token="ann") as ann:
        cursor = (await poll(ann, None))["cursor"]
        await app.emit(incidents, Incident(id="1", severity="P1"))
        assert ids(await poll(ann, cursor)) == ["for ann"]


async def test_a_function_that_fails_leaves_an_event_out_and_that_is_said() -> None:
    app = MRTRServer("ops")

    def fails(incident: Incident, wants: None, caller: Caller) -> bool:
        if incident.severity == "bad":
            raise RuntimeError("no such severity")
        return True

    incidents = app.event("incident.created", payload=Incident, matches=fails)
    async with AsyncClient(app) as client:
        cursor = (await poll(client, None))["cursor"]
        await app.emit(incidents, Incident(id="1", severity="bad"))
        await app.emit(incidents, Incident(id="2", severity="P1"))
        found = await poll(client, cursor)
        assert (ids(found), found["truncated"]) == (["2"], True)


async def test_an_event_that_could_not_be_delivered_is_refused_by_name() -> None:
    app, incidents = served()
    with pytest.raises(FlowError, match=r"app.emit\('incident.created'\): the payload takes \d+ bytes"):
        await app.emit(incidents, Incident(id="x" * 300_000, severity="P1"))
    wrong: Any = {"id": 1}
    with pytest.raises(FlowError, match="another type"):
        await app.emit(incidents, wrong)
    for id in ("", "x" * 257, "ü", " 1", "a\nb", "line\nwebhook-signature: v1,"):
        with pytest.raises(FlowError, match="id= must be"):
            await app.emit(incidents, Incident(id="1", severity="P1"), id=id)


# What is refused, by both tables of codes


@pytest.mark.parametrize(
    ("capabilities", "not_found", "forbidden", "unsupported"),
    [({}, -32011, -32012, -32014), (EXTENSION, -32023, -32024, -32026)],
)
def test_codes_are_those_that_the_client_knows(
    capabilities: dict[str, Any], not_found: int, forbidden: int, unsupported: int
) -> None:
    app, _ = served()
    app.event("polled.only", payload=Incident, modes=["poll"])
    client = Client(app, capabilities=capabilities)
    unknown = client.request("events/poll", {"name": "no.such"}).error
    assert (unknown.code, unknown.data) == (not_found, {"kind": "event"})
    assert client.request("events/stream", {"name": "no.such"}).error.code == not_found
    nobody = client.request("events/subscribe", {"name": "incident.created"}).error
    assert (nobody.code, nobody.message) == (forbidden, "Forbidden: a webhook needs a caller who is authenticated")
    refused = client.request("events/stream", {"name": "polled.only"}).error
    assert (refused.code, refused.data) == (unsupported, {"feature": "deliveryMode", "value": "push"})
    for params in (
        {},
        {"name": 1},
        {"name": "incident.created", "arguments": []},
        {"name": "incident.created", "arguments": {"severity": "P9"}},
        {"name": "incident.created", "arguments": {"unknown": 1}},
        {"name": "incident.created", "maxEvents": "many"},
        {"name": "incident.created", "maxEvents": 0},
        {"name": "incident.created", "maxEvents": 1.5},
        {"name": "incident.created", "cursor": "x", "maxAgeMs": -1},
    ):
        assert client.request("events/poll", params).error.code == -32602, params


def test_what_a_caller_may_not_see_is_as_good_as_unknown() -> None:
    app = MRTRServer("ops", auth=BearerTokens({"ann": "ann", "ben": "ben"}, scopes={"ann": ["admin"]}))
    app.event("hidden", payload=Incident, visible=["admin"])
    app.event("asked", payload=Incident, authorize=lambda caller, name: "admin" in caller.scopes)
    app.event("scoped", payload=Incident, scopes=["admin"])
    ann, ben = Client(app, token="ann"), Client(app, token="ben")
    assert [each["name"] for each in ann.request("events/list").result["events"]] == ["hidden", "asked", "scoped"]
    assert [each["name"] for each in ben.request("events/list").result["events"]] == ["scoped"]
    for name in ("hidden", "asked"):
        assert ann.request("events/poll", {"name": name}).result["events"] == []
        assert ben.request("events/poll", {"name": name}).error.code == -32011
    lacking = ben.request("events/poll", {"name": "scoped"})
    assert (lacking.status, lacking.error.data) == (403, {"requiredScopes": ["admin"]})


def test_the_list_has_pages() -> None:
    app = MRTRServer("ops", lists=Lists(page_size=2))
    for number in range(5):
        app.event(f"event.{number}", payload=Incident)
    client = Client(app)
    names: list[str] = []
    params: dict[str, Any] = {}
    for _ in range(3):
        page = client.request("events/list", params).result
        names += [each["name"] for each in page["events"]]
        params = {"cursor": page.get("nextCursor")}
    assert names == [f"event.{number}" for number in range(5)]
    assert params == {"cursor": None}
    assert client.request("events/list", {"cursor": "other"}).error.code == -32602


def test_a_type_that_can_be_none_is_refused_where_it_is_declared() -> None:
    app, _ = served()
    wrong: Any = int
    for options, why in (
        ({"name": "incident.created"}, "already"),
        ({"name": "a b"}, "a name is"),
        ({"payload": wrong}, "must be an object"),
        ({"arguments": wrong}, "must be an object"),
        ({"modes": ["pigeon"]}, "modes="),
        ({"modes": []}, "modes="),
    ):
        given: dict[str, Any] = {"name": "other", "payload": Incident, **options}
        with pytest.raises(SetupError, match=why):
            app.event(**given)


def test_events_of_an_application_that_is_included_are_served_too() -> None:
    inner, _ = served()
    outer = MRTRServer("all")
    outer.include(inner)
    assert [each["name"] for each in Client(outer).request("events/list").result["events"]] == ["incident.created"]
    with pytest.raises(SetupError, match="already"):
        outer.event("incident.created", payload=Incident)


def test_what_a_deployment_lacks_for_events_is_named() -> None:
    app, _ = served()
    found = {(each.level, each.about) for each in app.check(host="127.0.0.1")}
    assert {("warning", "database"), ("warning", "webhooks")} <= found
    assert ("error", "database") in {(each.level, each.about) for each in app.check(host="127.0.0.1", workers=2)}
    endless, _ = served(auth=USERS, webhooks=Webhooks(endless=True), store=SharedStore())
    assert ["endless" in each.message for each in endless.check() if each.about == "webhooks"] == [True]
    fine, _ = served(auth=USERS, store=SharedStore())
    assert [each for each in fine.check() if each.about in ("webhooks", "database")] == []


def test_a_store_that_keeps_no_events_is_refused_where_one_is_declared() -> None:
    class Small(SharedStore):
        keeps_events = False

    with pytest.raises(SetupError, match="can't keep events"):
        served(store=Small())


async def test_the_log_says_once_that_events_end_with_the_process(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = served()
    app.event("other", payload=Incident)
    async with app.running():
        pass
    assert caplog.text.count("are kept in this process, and end with it") == 1


async def test_a_poll_that_finds_little_reads_the_log_in_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    app, incidents = served(store=(store := SharedStore()))
    async with AsyncClient(app) as client:
        cursor = (await poll(client, None))["cursor"]
        for number in range(300):
            await app.emit(incidents, Incident(id=str(number), severity="P1"))
        read, reads = store.read_events, list[int]()

        async def counted(*given: Any, **more: Any) -> Any:
            reads.append(more["most"])
            return await read(*given, **more)

        monkeypatch.setattr(store, "read_events", counted)
        found = await poll(client, cursor, maxEvents=1, arguments={"severity": "P2"})
        assert (found["events"], found["hasMore"]) == ([], False)
        assert len(reads) <= 3
