"""An extension is declared by both sides, and each learns in every era what the other one says of it."""

import json
from typing import Any

import pytest

from mrtr_server import Context, MRTRServer, SetupError
from mrtr_server.testing import Client, Unexpected

ORDERS, TASKS, UI = "com.example/orders", "io.modelcontextprotocol/tasks", "io.modelcontextprotocol/ui"
MODERN, NEWEST, OLDEST = "2026-07-28", "2025-11-25", "2024-11-05"
ERAS = (MODERN, NEWEST, OLDEST)


def server(**options: Any) -> MRTRServer:
    app = MRTRServer("shop", **options)

    @app.tool
    def told(id: str, ctx: Context) -> dict[str, Any]:
        return {"settings": ctx.client.extension(id), "supports": ctx.client.supports(f"extensions.{id}")}

    return app


def declared(app: MRTRServer, era: str) -> Any:
    client = Client(app, era=era)
    reply = client.request("server/discover") if era == MODERN else client.begin()
    return reply.result["capabilities"].get("extensions", {})


def told(app: MRTRServer, era: str, extensions: Any, id: str = ORDERS) -> Any:
    client = Client(app, era=era, capabilities={"extensions": extensions})
    return json.loads(client.call("told", id=id).text)


@pytest.mark.parametrize("era", ERAS)
class TestAnExtensionOfAnAuthor:
    def test_is_declared_with_its_settings(self, era: str) -> None:
        assert declared(server(extensions={ORDERS: {"currencies": ["EUR"]}}), era) == {ORDERS: {"currencies": ["EUR"]}}
        assert declared(server(), era) == {}

    def test_is_known_as_its_client_declared_it(self, era: str) -> None:
        app = server()
        assert told(app, era, {ORDERS: {"limit": 3}}) == {"settings": {"limit": 3}, "supports": True}
        assert told(app, era, {ORDERS: {}}) == {"settings": {}, "supports": True}
        assert told(app, era, {"com.example/other": {}}) == {"settings": None, "supports": False}
        for broken in (None, True, [ORDERS], {ORDERS: None}, {ORDERS: 5}):
            assert told(app, era, broken)["settings"] is None

    def test_has_dots_in_its_id(self, era: str) -> None:
        dotted = "com.example/orders.v2"
        assert told(server(), era, {dotted: {}}, dotted) == {"settings": {}, "supports": True}
        assert told(server(), era, {UI: {"elicitation": {}}}, f"{UI}.elicitation")["supports"] is True
        assert told(server(), era, {UI: {}}, f"{UI}.elicitation")["supports"] is False


@pytest.mark.parametrize("era", [NEWEST, OLDEST])
def test_of_a_client_that_says_it_once_little_is_kept_and_the_protocols_own_first(era: str) -> None:
    long = {"com.example/long": {"text": "x" * 300}, UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}
    assert told(server(), era, long, UI)["settings"] == {"mimeTypes": ["text/html;profile=mcp-app"]}
    assert told(server(), era, long, "com.example/long")["settings"] == {}, "settings that are too long count as empty"
    many: dict[str, Any] = {f"com.example/{number}": {} for number in range(500)}
    kept = [told(server(), era, many, id)["settings"] for id in ("com.example/0", "com.example/499")]
    assert kept == [{}, None]


@pytest.mark.parametrize(
    ("extensions", "reason"),
    [
        ({"orders": {}}, "it has a prefix"),
        ({"com.example/": {}}, "it has a prefix"),
        ({"com example/x": {}}, "it has a prefix"),
        ({"com.example/" + "x" * 300: {}}, "it has a prefix"),
        ({5: {}}, "it has a prefix"),
        ({TASKS: {}}, "is one of the server's own"),
        ({UI: {}}, "is one of the server's own"),
        ({ORDERS: True}, "are a dictionary"),
        ({ORDERS: {"most": float("inf")}}, "NaN or an infinity"),
        ({ORDERS: {"what": object()}}, "can't be written as JSON"),
        ([ORDERS], "takes a dictionary"),
    ],
)
def test_what_is_no_extension_is_refused(extensions: Any, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        server(extensions=extensions)


class TestIncluding:
    def test_merges_what_is_declared_now_and_later(self) -> None:
        inner, middle = server(extensions={ORDERS: {}}), MRTRServer("middle", extensions={"com.example/m": {"a": 1}})
        outer = MRTRServer("outer", extensions={ORDERS: {}})
        outer.include(middle, prefix="m")
        assert declared(outer, MODERN) == {ORDERS: {}, "com.example/m": {"a": 1}}
        middle.include(MRTRServer("late", extensions={"com.example/late": {}}), prefix="late")
        assert declared(outer, MODERN).keys() == {ORDERS, "com.example/m", "com.example/late"}
        outer.include(inner, prefix="inner")
        assert declared(outer, NEWEST).keys() == {ORDERS, "com.example/m", "com.example/late"}

    def test_refuses_two_meanings_of_one(self) -> None:
        outer = MRTRServer("outer", extensions={ORDERS: {"currencies": ["EUR"]}})
        with pytest.raises(SetupError, match=r"outer and shop declare the extension .*orders. with different"):
            outer.include(server(extensions={ORDERS: {}}), prefix="shop")
        assert Client(outer).request("tools/list").result["tools"] == []


def test_tasks_are_an_extension_where_there_are_some() -> None:
    app = server()
    assert declared(app, MODERN) == {}
    app.tool(name="build", task="optional")(lambda: None)
    assert declared(app, MODERN) == {TASKS: {}}
    assert declared(app, NEWEST) == {}, "this version has a capability of its own for them"
    with pytest.raises(Unexpected, match="capabilities that the client did not declare: tasks"):
        Client(app, capabilities={}).request("tasks/get", {"taskId": "x"}).result  # noqa: B018  it raises
