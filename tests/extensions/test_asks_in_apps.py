"""A form that a page draws (SEP-3118) is a form: named to who can draw it, and answered by any renderer."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Context, Elicit, ElicitUrl, InputRequired, Inputs, MRTRServer, SetupError
from mrtr_server.testing import Client, yes

UI = "io.modelcontextprotocol/ui"
DRAWS: dict[str, Any] = {"mimeTypes": ["text/html;profile=mcp-app"], "elicitation": {}}
ABLE = {"elicitation": {}, "extensions": {UI: DRAWS}}
ERAS = ["2026-07-28", "2025-11-25", "2025-06-18"]


class Seat(BaseModel):
    row: int


def airline() -> MRTRServer:
    app = MRTRServer("airline")
    seats = app.ui(lambda: "<p>seats", name="seats")

    @app.tool
    async def book(ctx: Context) -> str:
        """Book a seat."""
        seat = await ctx.elicit("Which seat?", Seat, ui=seats)
        await ctx.confirm("Book it?", ui=seats)
        return f"row {seat.row}"

    @app.tool
    async def declared(
        seat: Annotated[Seat, Elicit("Which seat?", ui=seats)], sure: Annotated[bool, Confirm("Book it?", ui=seats)]
    ) -> str:
        """Book a seat."""
        return f"row {seat.row}"

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        """Book a seat."""
        ask = Elicit("Which seat?", Seat, ui=seats)
        seat = inputs.get("seat", ask)
        return InputRequired(seat=ask) if seat is None else f"row {seat.row}"

    return app


TOOLS = {"book": 2, "declared": 2, "pure": 1}
"""How many questions each asks."""


def walk(app: MRTRServer, tool: str, **client: Any) -> list[Any]:
    """Answer what a tool asks; return what `_meta` of each question says."""
    flow, found = Client(app, **client).flow(tool), []
    reply = flow.start()
    while reply.asks:
        found += [asked.params.get("_meta") for asked in reply.asks.values()]
        reply = flow.answer({key: {"row": 3} if key == "seat" else yes for key in reply.asks})
    assert reply.text == "row 3"
    return found


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", TOOLS)
class TestAnAskWithAPage:
    def test_names_it_to_a_client_that_draws_forms_by_pages(self, tool: str, era: str) -> None:
        app = airline()
        found = walk(app, tool, era=era, capabilities=ABLE)
        (listed,) = Client(app).request("resources/list").result["resources"]
        assert found == [{"ui": {"resourceUri": listed["uri"]}}] * TOOLS[tool]

    @pytest.mark.parametrize(
        "capabilities",
        [
            {"elicitation": {}},
            {"elicitation": {}, "extensions": {UI: {"mimeTypes": DRAWS["mimeTypes"]}}},
            {"elicitation": {}, "extensions": {UI: {"elicitation": {}}}},
            {"elicitation": {}, "extensions": {UI: {**DRAWS, "mimeTypes": ["text/uri-list"]}}},
            {"elicitation": {}, "extensions": {UI: {**DRAWS, "mimeTypes": "text/html;profile=mcp-app"}}},
            {"elicitation": {}, "extensions": {UI: {**DRAWS, "elicitation": True}}},
        ],
    )
    def test_is_the_same_form_for_all_others(self, tool: str, era: str, capabilities: Any) -> None:
        found = walk(airline(), tool, era=era, capabilities=capabilities)
        assert found == [None] * TOOLS[tool]


def test_a_client_that_draws_and_does_not_elicit_is_not_asked() -> None:
    for era in ERAS:
        reply = Client(airline(), era=era, capabilities={"extensions": {UI: DRAWS}}).flow("book").start()
        assert reply.error.code == -32021


def test_an_answer_counts_whoever_drew_the_question() -> None:
    app = airline()
    asked = Client(app, capabilities=ABLE).flow("book")
    asked.start()
    other = Client(app, capabilities={"elicitation": {}}).flow("book")
    other.state = asked.state
    assert other.send({"seat": {"row": 3}}).asks.keys() == {"confirm"}


def test_an_included_page_has_the_address_that_clients_know() -> None:
    outer = MRTRServer("outer")
    outer.include(airline(), prefix="air")
    (meta, _) = walk(outer, "air_book", capabilities=ABLE)
    assert meta["ui"]["resourceUri"].startswith("ui://air/seats/v-")
    assert Client(outer).read(meta["ui"]["resourceUri"]).result["contents"][0]["text"].endswith("<p>seats")


def test_the_server_says_that_it_asks_by_pages() -> None:
    def declared(app: MRTRServer) -> Any:
        return Client(app).request("server/discover").result["capabilities"].get("extensions")

    assert declared(airline()) == {UI: {"elicitation": {}}}
    app = MRTRServer("shop")
    app.tool(name="orders", ui=app.ui(lambda: "", name="orders"))(lambda: None)
    assert declared(app) == {UI: {}}


def test_what_is_no_page_is_refused() -> None:
    with pytest.raises(SetupError, match="is no page"):
        Elicit("Which?", Seat, ui="https://example.com")
    with pytest.raises(SetupError, match="is no page"):
        Confirm("Sure?", ui=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ui"):
        ElicitUrl("Open it", "https://example.com", ui="ui://x")  # type: ignore[call-overload]


def test_a_task_asks_by_its_page_too() -> None:
    app = airline()
    seats = app.ui(lambda: "", name="others")

    @app.tool(task="required")
    async def later(ctx: Context) -> str:
        """Book a seat later."""
        return f"row {(await ctx.elicit('Which seat?', Seat, ui=seats)).row}"

    for era in ERAS[:2]:
        found: list[Any] = []

        def seat(asked: Any, found: list[Any] = found) -> Any:
            found.append(asked.params.get("_meta", {}).get("ui"))
            return {"row": 3}

        assert Client(app, era=era, tasks=True, capabilities=ABLE).call("later", answers={"seat": seat}).text == "row 3"
        assert found == [{"resourceUri": seats.uri}]
