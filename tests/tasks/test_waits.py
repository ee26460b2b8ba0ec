"""Waits for somebody else: who may answer, what counts, and what each client of the flow that waits gets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import create_model

from mrtr_server import (
    AlreadyAnswered,
    Context,
    InProcessStore,
    Person,
    Principal,
    SetupError,
    SQLStore,
    Task,
    Ticket,
    ToolError,
)
from mrtr_server.errors import FlowError, InvalidParams
from mrtr_server.testing import AsyncClient, Clock, replica, yes
from mrtr_server.testing.answers import accept

from ..support.flows import update
from ..support.models import Login
from ..support.waiting_shop import DAY, MANAGER, SCOPE, Decision, Order, Shop, make_shop

pytestmark = pytest.mark.anyio

NO_TICKET = "This is no ticket of something that you may answer. Copy the ticket as it was given, all of it."


@pytest.fixture
async def store(store_url: str | None) -> AsyncIterator[Any]:
    made = InProcessStore() if store_url is None else SQLStore(store_url)
    yield made
    await made.close()


@pytest.fixture
def shop() -> Shop:
    return make_shop(InProcessStore())


class TestAnAnswer:
    async def test_of_somebody_else_continues_the_flow_once(self, store: Any) -> None:
        shop = make_shop(store)
        flow, ticket = await shop.begin()
        assert len(ticket) <= 512
        assert set(ticket) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        asked = await shop.manager().flow("approve", ticket=ticket).start()
        assert asked.questions == {"confirm": "Approve desk for 900?"}
        assert shop.ordered == []
        assert (await shop.approve(ticket)).text == "approved"
        assert (await flow.wait()).text == "ordered desk for 900"
        assert shop.ordered == ["desk"]
        assert await shop.tickets(least=0) == []

    async def test_is_of_the_declared_type(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        flow, ticket = await shop.begin()
        await shop.manager().call("refuse", ticket=ticket, reason="too dear")
        assert (await flow.wait()).text == "refused: too dear"

    async def test_counts_if_it_is_the_first(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        flow, ticket = await shop.begin()
        given = [shop.app.answer(ticket, Decision(approved=True), by=MANAGER, scopes=[SCOPE]) for _ in range(5)]
        ends = await asyncio.gather(*given, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == [*["AlreadyAnswered"] * 4, "NoneType"]
        assert (await flow.wait()).text == "ordered desk for 900"
        with pytest.raises(AlreadyAnswered):
            await shop.app.answer(ticket, Decision(approved=False), by=MANAGER, scopes=[SCOPE])
        assert "answered this already" in await shop.refusal(ticket)

    async def test_that_a_flow_repeats_is_no_second_answer(self) -> None:
        """A replica may die between the answer and the record of its step."""
        shop = make_shop(InProcessStore(), confirmed=False)

        @shop.app.tool
        async def decide(ticket: Annotated[Ticket[Order, Decision], shop.approval], ctx: Context) -> str:
            reason = (await ctx.elicit("Who are you?", Login)).name
            await ctx.answer(ticket, Decision(approved=False, reason=reason))
            await ctx.elicit("And then?", Login)
            return "done"

        flow, ticket = await shop.begin()
        deciding = shop.manager().flow("decide", ticket=ticket)
        await deciding.start()
        first = await deciding.answer(login=accept(name="Max"))
        assert first.questions == {"login_2": "And then?"}
        assert (await deciding.replay(first)).questions == {"login_2": "And then?"}
        assert (await flow.wait()).text == "refused: Max"

    async def test_survives_the_replica_that_the_flow_began_on(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/waits.db"
        shop = make_shop(SQLStore(url))
        begun = AsyncClient(shop.app, user="bea", tasks=True)
        async with begun:
            flow, ticket = await shop.begin(begun)
        other = replica(shop.app, store=SQLStore(url))
        async with AsyncClient(other, user="bea"):
            assert (await shop.approve(ticket, app=other)).text == "approved"
            flow.move_to(other)
            assert (await flow.wait()).text == "ordered desk for 900"
        assert shop.ordered == ["desk"]


class TestATypeThatHasChanged:
    async def test_leaves_out_of_lists_what_does_not_fit_it_any_more(
        self, store: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        await make_shop(store).begin()
        later = make_shop(store, about=create_model("Order", __base__=Order, by=(str, ...)))
        assert (await later.app.tickets(later.approval, by=MANAGER, scopes=[SCOPE])).tickets == []
        assert "A wait is left out of a list: " in caplog.text


class TestWhoMayAnswer:
    async def test_is_nobody_whose_name_is_that_of_who_began_the_flow_where_one_has_no_issuer(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        _, ticket = await shop.begin()
        for issuer in ("https://login.example.com", ""):
            by = Principal("bea", issuer)
            with pytest.raises(ToolError, match="You began this yourself"):
                await shop.app.answer(ticket, Decision(approved=True), by=by, scopes=[SCOPE])

    async def test_is_not_handed_over_to_who_began_the_flow(self, store: Any) -> None:
        shop = make_shop(store)
        _, ticket = await shop.begin()
        refused = await shop.manager().call("pass_on", ticket=ticket, to="bea")
        assert "That person began this" in refused.failure
        assert (await shop.manager().call("pass_on", ticket=ticket, to="eve")).text == "passed on"

    async def test_is_never_who_began_the_flow_by_whatever_application(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        _, ticket = await shop.begin()
        own = Principal("bea", client_id="another application")
        assert await shop.tickets(own, least=0) == []
        with pytest.raises(ToolError, match="You began this yourself"):
            await shop.app.answer(ticket, Decision(approved=True), by=own, scopes=[SCOPE])
        assert "You began this yourself" in await shop.refusal(ticket, user="bea")

    async def test_is_also_who_began_it_where_the_author_says_so(self) -> None:
        shop = make_shop(InProcessStore(), four_eyes=False)
        flow, ticket = await shop.begin()
        assert (await shop.approve(ticket, user="bea")).text == "approved"
        assert (await flow.wait()).text == "ordered desk for 900"

    async def test_is_nobody_without_the_scopes(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        _, ticket = await shop.begin()
        assert (await shop.app.tickets(shop.approval, by=MANAGER)).tickets == []
        assert await shop.refusal(ticket, scopes=("orders:write",)) == NO_TICKET
        with pytest.raises(ToolError, match="no ticket"):
            await shop.app.answer(ticket, Decision(approved=True), by=MANAGER, scopes=["orders:write"])
        with pytest.raises(ToolError, match="no ticket"):
            await shop.app.answer(ticket, Decision(approved=True), by=None, scopes=[SCOPE])

    async def test_may_be_one_person(self, store: Any) -> None:
        shop = make_shop(store, who=Person(Principal("max", client_id="whatever")), confirmed=False)
        flow, ticket = await shop.begin()
        assert await shop.tickets(Principal("eve"), least=0) == []
        assert await shop.refusal(ticket, user="eve") == NO_TICKET
        await shop.app.answer(ticket, Decision(approved=True), by=MANAGER)
        assert (await flow.wait()).text == "ordered desk for 900"

    async def test_is_narrowed_for_one_flow(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)

        @shop.app.tool(task="required")
        async def ask_max(ctx: Context) -> bool:
            about = Order(item="boat", price=1)
            return (await ctx.wait_for(shop.approval, about, who=Person(MANAGER))).approved

        await AsyncClient(shop.app, user="bea", tasks=True).flow("ask_max").start()
        (ticket,) = await shop.tickets()
        assert await shop.tickets(Principal("eve"), least=0) == []
        assert await shop.refusal(ticket, user="eve") == NO_TICKET
        with pytest.raises(ToolError, match="no ticket"):  # the scopes count, too
            await shop.app.answer(ticket, Decision(approved=True), by=MANAGER)

    async def test_is_who_it_was_handed_over_to_once(self, store: Any) -> None:
        shop = make_shop(store)
        flow, ticket = await shop.begin()
        assert (await shop.manager().call("pass_on", ticket=ticket, to="ann")).text == "passed on"
        assert await shop.tickets(least=0) == []
        (again,) = await shop.tickets(Principal("ann"))
        assert await shop.refusal(ticket) == NO_TICKET
        assert "handed over once" in str(
            (await shop.manager(user="ann").call("pass_on", ticket=again, to="max")).failure
        )
        assert (await shop.approve(again, user="ann")).text == "approved"
        assert (await flow.wait()).text == "ordered desk for 900"

    async def test_is_nobody_without_a_confirmation(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        flow, ticket = await shop.begin()
        answered = await shop.manager().call("refuse", ticket=ticket, reason="a model thinks so")
        assert "internal" in answered.failure.lower()
        assert "is answered after a confirmation of whoever answers" in caplog.text
        with pytest.raises(FlowError, match="confirmed=False"):
            await shop.app.answer(ticket, Decision(approved=True), by=MANAGER, scopes=[SCOPE])
        assert (await flow.look()).task.status == "working"
        assert (await shop.approve(ticket)).text == "approved"

    async def test_is_not_known_where_nobody_knows_who_began_the_flow(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        begun = await AsyncClient(shop.app, tasks=True).call("buy", item="desk")
        assert begun.failed
        assert "Authenticate callers, or pass four_eyes=False" in caplog.text


class TestATicket:
    @pytest.mark.parametrize("change", ["truncated", "forged", "long", "empty", "foreign keys", "another wait"])
    async def test_of_another_kind_is_refused_in_words(self, shop: Shop, change: str) -> None:
        _, ticket = await shop.begin()
        other = make_shop(InProcessStore())
        other.app = replica(other.app, keys=[bytes([1]) * 32])
        wrong = {
            "truncated": ticket[:-4],
            "forged": ("A" if ticket[40] != "A" else "B").join((ticket[:40], ticket[41:])),
            "long": ticket + "A" * 300,
            "empty": "",
        }.get(change, ticket)
        if change == "foreign keys":
            _, wrong = await other.begin()
        if change == "another wait":
            other_wait = shop.app.wait("release", about=Order, answer=Decision, who=[SCOPE])

            @shop.app.tool
            async def release(ticket: Annotated[Ticket[Order, Decision], other_wait], ctx: Context) -> str:
                return ticket.about.item

            assert (await shop.manager().call("release", ticket=ticket)).failure == NO_TICKET
            return
        why = await shop.refusal(wrong)
        assert why == NO_TICKET or (change == "long" and "at most 512" in why)

    async def test_is_withdrawn_when_what_it_is_about_has_changed(self, store: Any) -> None:
        shop = make_shop(store)

        @shop.app.tool(task=Task("required", poll=0.05))
        async def rent(ctx: Context) -> str:
            decision = asyncio.create_task(ctx.wait_for(shop.approval, Order(item="car", price=shop.price)))
            await ctx.elicit("Which colour?", Login)
            return f"rented for {shop.price}" if (await decision).approved else "not rented"

        flow = AsyncClient(shop.app, user="bea", tasks=True).flow("rent")
        await flow.start()
        (first,) = await shop.tickets()
        shop.price = 950
        await flow.wait()
        await flow.send({"login": accept(name="red")}, wait=False)
        second = await shop.changed(first)
        assert second.about.price == 950
        assert len(await shop.tickets()) == 1
        assert "can't be answered any more" in await shop.refusal(first)
        assert (await shop.approve(second)).text == "approved"
        assert (await flow.wait()).text == "rented for 950"

    async def test_shows_what_it_was_about_in_all_rounds_of_its_tool(self, shop: Shop) -> None:
        @shop.app.tool
        async def sign(ticket: Annotated[Ticket[Order, Decision], shop.approval], ctx: Context) -> str:
            await ctx.confirm("Approve?")
            await ctx.answer(ticket, Decision(approved=True))
            await ctx.elicit("Sign", Login)
            return ticket.about.item

        flow, ticket = await shop.begin()
        signing = shop.manager().flow("sign", ticket=ticket)
        await signing.start()
        await signing.answer(confirm=yes)
        await flow.wait()
        assert (await signing.answer(login=accept(name="Max"))).text == "desk"

    async def test_is_an_argument_of_a_handler_alone(self, shop: Shop) -> None:
        with pytest.raises(SetupError, match="and without a default"):

            @shop.app.tool
            async def late(ctx: Context, ticket: Annotated[Ticket[Order, Decision], shop.approval] = "") -> str:  # type: ignore[assignment]
                return ""

        with pytest.raises(SetupError, match=r"write ticket: Annotated\[Ticket\[\.\.\.\], approval\]"):

            @shop.app.tool
            async def plain(ctx: Context, ticket: Annotated[str, shop.approval]) -> str:
                return ""


class TestTheList:
    async def test_has_pages_the_newest_first(self, store: Any) -> None:
        shop = make_shop(store, confirmed=False)
        for item in ("a", "b", "c", "d", "e"):
            await shop.begin(item=item)
        found, cursor = list[str](), ""
        for _ in range(3):
            page = await shop.app.tickets(shop.approval, by=MANAGER, scopes=[SCOPE], cursor=cursor, most=2)
            found += [ticket.about.item for ticket in page.tickets]
            cursor = page.cursor
        assert (found, cursor) == (["e", "d", "c", "b", "a"], "")
        first = await shop.app.tickets(shop.approval, by=MANAGER, scopes=[SCOPE], most=2)
        with pytest.raises(InvalidParams, match="cursor"):
            await shop.app.tickets(shop.approval, by=Principal("eve"), scopes=[SCOPE], cursor=first.cursor)

    async def test_is_there_for_tools(self, shop: Shop) -> None:
        @shop.app.tool
        async def waiting(ctx: Context) -> list[str]:
            return [ticket.about.item for ticket in (await ctx.tickets(shop.approval)).tickets]

        await shop.begin()
        assert (await shop.manager().call("waiting")).structured == ["desk"]
        assert (await shop.manager(user="bea").call("waiting")).structured == []

    async def test_has_nothing_of_a_task_that_was_cancelled(self, store: Any) -> None:
        shop = make_shop(store)
        flow, ticket = await shop.begin()
        await flow.cancel()
        assert await shop.tickets(least=0) == []
        assert "can't be answered any more" in await shop.refusal(ticket)


class TestTheClientThatWaits:
    async def test_has_a_task_that_works_and_can_answer_nothing(self, store: Any) -> None:
        shop = make_shop(store)
        client = AsyncClient(shop.app, user="bea", tasks=True)
        flow, _ = await shop.begin(client)
        seen = await flow.look()
        assert seen.task.status == "working"
        assert seen.task.message == "Waiting for approval"
        assert not seen.asks
        assert seen.result["ttlMs"] >= (3 * DAY + 3600) * 1000
        row = await store.find_task(flow.task)
        assert (row.status, row.lease) == ("input_required", "")  # so no worker has it
        for key in ("approval", "approval_2"):
            answer = {"answer": [{"approved": True}, None], "action": "accept"}
            await update(client, flow, {"inputResponses": {key: answer}})
        assert (await flow.look()).task.status == "working"
        assert (await store.find_task(flow.task)).version == row.version

    async def test_is_to_look_less_and_less_often(self) -> None:
        clock = Clock()
        shop = make_shop(InProcessStore(), clock=clock)
        flow, _ = await shop.begin()
        intervals = []
        for seconds in (0, 20, 100, 3600):
            clock.advance(seconds)
            intervals.append((await flow.look()).result["pollIntervalMs"])
        assert intervals == [50, 5_000, 30_000, 60_000]

    async def test_learns_when_the_time_is_over(self) -> None:
        clock = Clock()
        shop = make_shop(InProcessStore(clock=clock), clock=clock)
        flow, ticket = await shop.begin()
        clock.advance(3 * DAY + 1)
        assert "can't be answered any more" in await shop.refusal(ticket)
        assert (await flow.look()).error.message == "The input that the task was waiting for did not come in time"
        clock.advance(3500)
        assert (await flow.look()).task.status == "failed"  # it is kept for an hour more

    async def test_of_2025_11_25_waits_for_its_result(self, shop: Shop) -> None:
        flow, ticket = await shop.begin(AsyncClient(shop.app, user="bea", era="2025-11-25", tasks=True))
        seen = await flow.look()
        assert (seen.task.status, seen.task.message) == ("working", "Waiting for approval")
        waiting = asyncio.ensure_future(flow.wait())
        assert (await shop.approve(ticket)).text == "approved"
        assert (await waiting).text == "ordered desk for 900"

    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "2025-06-18", "2024-11-05"])
    async def test_without_tasks_is_told_so_and_asks_later(self, shop: Shop, era: str) -> None:
        client = AsyncClient(shop.app, user="bea", era=era)
        listed = (await client.request("tools/list")).result["tools"]
        assert {"buy", "mrtr_result"} <= {tool["name"] for tool in listed}
        told = await client.call("buy", item="desk")
        assert "Waiting for approval" in told.text
        ask = told.text.split()[1]
        (ticket,) = await shop.tickets()
        assert (await client.call("buy", item="desk")).text.split()[1] == ask  # the same call is the same wait
        assert len(await shop.tickets()) == 1
        assert "Waiting for approval" in (await client.call("mrtr_result", ask=ask)).text
        stranger = AsyncClient(shop.app, user="eve", era=era)
        assert (await stranger.call("mrtr_result", ask=ask)).failure == "There is no such question of yours."
        assert (await shop.approve(ticket)).text == "approved"
        assert await shop.told(client, ask) == "ordered desk for 900"
        assert (await client.call("buy", item="desk")).text.split()[1] != ask  # that one has ended

    async def test_without_tasks_waits_once_for_as_long_as_it_takes(self) -> None:
        clock = Clock()
        shop = make_shop(InProcessStore(clock=clock), clock=clock)
        client = AsyncClient(shop.app, user="bea")
        told = await asyncio.gather(*(client.call("buy", item="desk") for _ in range(3)))
        clock.advance(2 * DAY)
        told.append(await client.call("buy", item="desk"))
        assert len({each.text.split()[1] for each in told}) == 1
        assert len(await shop.tickets()) == 1


class TestAServer:
    async def test_without_a_database_does_not_start(self) -> None:
        shop = make_shop(None)
        with pytest.raises(Exception, match=r"app.wait\('approval'\) needs a database"):
            async with AsyncClient(shop.app):
                pass
        assert [str(found) for found in shop.app.check() if "app.wait" in found.message] != []

    def test_says_in_its_check_what_is_waived(self) -> None:
        shop = make_shop(InProcessStore(), four_eyes=False, confirmed=False)
        found = [found.message for found in shop.app.check() if found.about == "wait approval"]
        assert ["four_eyes=False" in found[0], "confirmed=False" in found[1]] == [True, True]
        assert not [each for each in make_shop(InProcessStore()).app.check() if each.about == "wait approval"]

    def test_refuses_a_tool_that_can_not_wait(self, shop: Shop) -> None:
        with pytest.raises(SetupError, match=r'write @app.tool\(task="optional"\)'):

            @shop.app.tool
            async def lease(ctx: Context) -> bool:
                return (await ctx.wait_for(shop.approval, Order(item="car", price=1))).approved

    @pytest.mark.parametrize(("seconds", "is_refused"), [(59.9, True), (60.0, False)])
    async def test_reminds_once_a_minute_at_most(
        self, shop: Shop, seconds: float, is_refused: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        @shop.app.tool(task=Task("optional", poll=0.05))
        async def hurry(ctx: Context) -> bool:
            return (await ctx.wait_for(shop.approval, Order(item="car", price=1), remind_every=seconds)).approved

        flow = AsyncClient(shop.app, user="bea", tasks=True, log_level=None).flow("hurry")
        await flow.start()
        if is_refused:
            await flow.wait()
            assert "ctx.wait_for: remind_every=59.9 must be at least 60 s" in caplog.text
        else:
            assert [ticket.about.item for ticket in await shop.tickets()] == ["car"]

    @pytest.mark.parametrize("wrong", [{"name": "an approval"}, {"who": []}, {"who": SCOPE}, {"who": None}])
    def test_refuses_a_wait_that_nobody_could_answer(self, shop: Shop, wrong: dict[str, Any]) -> None:
        with pytest.raises(SetupError):
            shop.app.wait(**{"name": "other", "about": Order, "answer": Decision, "who": [SCOPE], **wrong})
        with pytest.raises(SetupError, match="There is a wait 'approval'"):
            shop.app.wait("approval", about=Order, answer=Decision, who=[SCOPE])

    async def test_logs_who_has_answered_whom_and_nothing_else(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "mrtr_server")
        _, ticket = await shop.begin()
        await shop.manager().call("pass_on", ticket=ticket, to="ann")
        await shop.approve(ticket, user="ann")
        lines = [record for record in caplog.records if "A wait 'approval'" in record.getMessage()]
        assert [line.fields["event"] for line in lines] == ["wait_passed_on", "wait_answered"]  # type: ignore[attr-defined]
        passed, answered = (line.fields for line in lines)  # type: ignore[attr-defined]
        assert passed["to"] == answered["by"] != passed["by"]
        assert passed["asker"] == answered["asker"] != answered["by"]
        for secret in ("desk", "bea", "max", "ann", ticket[:40]):
            assert secret not in "".join(line.getMessage() for line in lines)
