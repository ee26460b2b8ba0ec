"""Events of the server's own: what becomes of tasks, and of waits for somebody else."""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Context, Events, MRTRServer, SetupError, Ticket
from mrtr_server.testing import AsyncClient, Client, SharedStore

pytestmark = pytest.mark.anyio

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}
USERS = BearerTokens(
    {"bea": "bea", "max": "max", "eve": "eve"}, scopes={"bea": ["orders:approve"], "max": ["orders:approve"]}
)


class Order(BaseModel):
    item: str


class Decision(BaseModel):
    approved: bool


def shop(**options: Any) -> MRTRServer:
    app = MRTRServer("shop", auth=USERS, **{"store": SharedStore(), **options})
    approval = app.wait("approval", about=Order, answer=Decision, who=["orders:approve"], confirmed=False)

    @app.tool(task="optional")
    async def buy(item: str, ctx: Context, remind: float | None = None) -> str:
        decision = await ctx.wait_for(approval, Order(item=item), remind_every=remind)
        return f"{item}: {decision.approved}"

    @app.tool(task="optional")
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("How many?", int))

    @app.tool(scopes=["orders:approve"])
    async def approve(ticket: Annotated[Ticket[Order, Decision], approval], ctx: Context) -> str:
        await ctx.answer(ticket, Decision(approved=True))
        return ticket.about.item

    return app


async def cursors(client: AsyncClient, *names: str) -> dict[str, str]:
    return {name: (await poll(client, name, None))["cursor"] for name in names}


async def begin(client: AsyncClient, tool: str, **arguments: Any) -> str:
    """Begin a task; return its id."""
    reply = await client.request("tools/call", {"name": tool, "arguments": arguments})
    return str(reply.result["taskId"])


async def poll(client: AsyncClient, name: str, cursor: str | None, **arguments: Any) -> dict[str, Any]:
    reply = await client.request("events/poll", {"name": name, "cursor": cursor, "arguments": arguments})
    return dict(reply.result)


async def found(client: AsyncClient, name: str, cursor: str) -> list[dict[str, Any]]:
    return [each["data"] for each in (await poll(client, name, cursor))["events"]]


async def test_a_task_says_when_it_asks_and_when_it_has_ended_to_its_own_caller() -> None:
    app = shop()
    async with (
        app.running(),
        AsyncClient(app, token="bea", capabilities=TASKS) as bea,
        AsyncClient(app, token="max") as max_,
    ):
        own = await cursors(bea, "task.input_required", "task.ended")
        others = await cursors(max_, "task.input_required", "task.ended")
        task = await begin(bea, "ask")
        asked = await wait(bea, "task.input_required", own)
        assert asked == [{"taskId": task, "tool": "ask", "status": "input_required", "message": ""}]
        (key,) = (await bea.request("tasks/get", {"taskId": task})).result["inputRequests"]
        answers = {key: {"action": "accept", "content": {"value": 3}}}
        await bea.request("tasks/update", {"taskId": task, "inputResponses": answers})
        ended = await wait(bea, "task.ended", own)
        assert [(each["taskId"], each["status"]) for each in ended] == [(task, "completed")]
        for name, cursor in others.items():
            assert await found(max_, name, cursor) == []


async def wait(client: AsyncClient, name: str, cursors: dict[str, str]) -> list[dict[str, Any]]:
    while not (events := await found(client, name, cursors[name])):  # noqa: ASYNC110  nothing tells of it
        await asyncio.sleep(0.02)
    return events


async def test_whoever_may_answer_a_wait_hears_of_it_and_its_asker_of_the_answer() -> None:
    app = shop()
    async with (
        app.running(),
        AsyncClient(app, token="bea", capabilities=TASKS) as bea,
        AsyncClient(app, token="max") as max_,
        AsyncClient(app, token="eve") as eve,
    ):
        names = ("wait.requested", "wait.answered")
        of_bea, of_max, of_eve = [await cursors(each, *names) for each in (bea, max_, eve)]
        task = await begin(bea, "buy", item="lamp")
        (requested,) = await wait(max_, "wait.requested", of_max)
        assert (requested["wait"], requested["about"]) == ("approval", {"item": "lamp"})
        # Neither who began it, by four eyes, nor who lacks the scope.
        assert await found(bea, "wait.requested", of_bea["wait.requested"]) == []
        assert await found(eve, "wait.requested", of_eve["wait.requested"]) == []
        assert (await max_.call("approve", ticket=requested["ticket"])).text == "lamp"
        (answered,) = await wait(bea, "wait.answered", of_bea)
        assert answered == {"wait": "approval", "taskId": task, "tool": "buy"}
        assert await found(max_, "wait.answered", of_max["wait.answered"]) == []
        # What was answered needs nobody any more.
        assert await found(max_, "wait.requested", of_max["wait.requested"]) == []


async def test_a_wait_is_brought_to_mind_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrtr_server.flow.waits.SHORTEST_REMINDER", 0.05)
    store = SharedStore()
    app = shop(store=store)
    async with (
        app.running(),
        AsyncClient(app, token="bea", capabilities=TASKS) as bea,
        AsyncClient(app, token="max") as max_,
    ):
        stream = max_.follow("wait.requested")
        await stream.open()
        await begin(bea, "buy", item="lamp", remind=0.05)
        seen = [(await stream.next()).received[0]["params"] for _ in range(3)]
        assert len({each["eventId"] for each in seen}) == 3
        assert {each["data"]["ticket"] for each in seen} == {seen[0]["data"]["ticket"]}
        await max_.call("approve", ticket=seen[0]["data"]["ticket"])
        while any(each.kind == "reminder" for each in await store.list_subscriptions(most=10)):  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.02)
        await stream.close()


def test_which_of_them_a_server_offers() -> None:
    def offered(app: MRTRServer) -> list[str]:
        reply = Client(app, token="bea").request("events/list")
        return [] if "error" in reply.message else [each["name"] for each in reply.result["events"]]

    def tool_of(app: MRTRServer) -> MRTRServer:
        @app.tool(task="optional")
        async def work(ctx: Context) -> str:
            return "done"

        return app

    assert offered(tool_of(MRTRServer("a", auth=USERS))) == []
    assert offered(tool_of(MRTRServer("a", auth=USERS, events=Events(tasks=True)))) == [
        "task.input_required",
        "task.ended",
    ]
    declaring = tool_of(MRTRServer("a", auth=USERS))
    declaring.event("mine", payload=Order)
    assert offered(declaring) == ["mine", "task.input_required", "task.ended"]
    without = tool_of(MRTRServer("a", auth=USERS, events=Events(tasks=False)))
    without.event("mine", payload=Order)
    assert offered(without) == ["mine"]
    assert set(offered(shop())) == {"task.input_required", "task.ended", "wait.requested", "wait.answered"}
    with pytest.raises(SetupError, match="itself"):
        declaring.event("task.ended", payload=Order)


async def test_what_a_flow_emits_is_there_once() -> None:
    app = MRTRServer("shop", auth=USERS)
    sold = app.event("order.placed", payload=Order)

    @app.tool
    async def order(item: str, ctx: Context) -> str:
        await ctx.emit(sold, Order(item=item))
        await ctx.elicit("Really?", bool)
        await ctx.emit(sold, Order(item=f"{item} again"))
        return "done"

    async with AsyncClient(app, token="bea") as client:
        cursor = (await poll(client, "order.placed", None))["cursor"]
        await client.call("order", item="lamp", answers={"value": True})
        assert await found(client, "order.placed", cursor) == [{"item": "lamp"}, {"item": "lamp again"}]
