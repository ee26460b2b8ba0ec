"""One yes has one effect: from a confirmation on, every state of a flow is redeemed once, however it was asked."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from mrtr_server import Confirm, Context, Depends, InputRequired, Inputs, MRTRServer, Task
from mrtr_server.errors import InvalidRequestState
from mrtr_server.testing import AsyncClient, Client, Flow, Reply, decline, no, replicas, short_lease, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.effects import EFFECTS, effect
from ..support.flows import AsyncFlow
from ..support.models import Login
from ..support.serving import KEYS, in_process
from ..support.wire import Wire, accept, modern
from .test_single_use import WatchedStore, until

pytestmark = pytest.mark.anyio

REPLAYS = 50


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


async def agreed(ctx: Context) -> bool:
    return await ctx.confirm("Pay?")


def serving(store: WatchedStore | None, **settings: Any) -> MRTRServer:
    """Return a server with a handler for each way to ask for a confirmation."""
    app = MRTRServer("bank", keys=[bytes(32)], store=store, **settings)

    @app.tool
    async def inline(ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return await ctx.step(effect, "paid")

    @app.tool
    async def together(ctx: Context) -> str:
        await ctx.ask(confirm=Confirm("Pay?"))
        return effect("paid")

    @app.tool
    def declared(confirm: Annotated[bool, Confirm("Pay?")]) -> str:
        return effect("paid")

    @app.tool
    def dependent(agreed: Annotated[bool, Depends(agreed)]) -> str:
        return effect("paid")

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        sure = Confirm("Pay?")
        return effect("paid") if inputs.get("confirm", sure) else InputRequired(confirm=sure)

    @app.tool(confirm="Pay?")
    def option() -> str:
        return effect("paid")

    @app.prompt
    def prompt(confirm: Annotated[bool, Confirm("Pay?")]) -> str:
        return effect("paid")

    @app.resource("accounts://{number}")
    async def resource(number: str, ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return effect("paid")

    return app


WAYS = [
    *(("tools/call", tool) for tool in ("inline", "together", "declared", "dependent", "pure", "option")),
    ("prompts/get", "prompt"),
    ("resources/read", "accounts://1"),
]
each_way = pytest.mark.parametrize(("method", "target"), WAYS, ids=[target for _, target in WAYS])


def walking(*apps: MRTRServer, method: str = "tools/call", target: str, tasks: bool = False) -> AsyncFlow:
    return Flow(AsyncClient(*apps, tasks=tasks), method, target, {})


async def asked(app: MRTRServer, method: str = "tools/call", target: str = "inline") -> AsyncFlow:
    """Begin a flow on three replicas, up to its confirmation."""
    flow = walking(*replicas(app, 3), method=method, target=target)
    assert (await flow.start()).questions == {"confirm": "Pay?"}
    return flow


def without_id(reply: Reply) -> Any:
    """Return a reply without its id, which is that of the request."""
    return {name: value for name, value in reply.message.items() if name != "id"}


def frozen(reply: Reply) -> bool:
    return reply.error.message == InvalidRequestState.MESSAGE


class TestOneYes:
    @each_way
    async def test_has_one_effect_however_often_it_is_delivered(
        self, store: WatchedStore, method: str, target: str
    ) -> None:
        flow = await asked(serving(store), method, target)
        first = await flow.answer(confirm=yes)
        assert first.complete
        for reply in await asyncio.gather(*(flow.replay(first) for _ in range(REPLAYS - 1))):
            assert without_id(reply) == without_id(first)
        assert EFFECTS == ["paid"]

    @each_way
    async def test_that_comes_to_all_replicas_at_once_has_one(
        self, store: WatchedStore, method: str, target: str
    ) -> None:
        replies = await (await asked(serving(store), method, target)).race(confirm=yes)
        assert len(replies) == 3
        assert [without_id(reply) for reply in replies] == [without_id(replies[0])] * 3
        assert EFFECTS == ["paid"]

    @each_way
    async def test_never_comes_after_a_no(self, store: WatchedStore, method: str, target: str) -> None:
        flow = await asked(serving(store), method, target)
        before = flow.state
        for answer in (no, decline):
            flow.state = before
            await flow.send({"confirm": answer})
        flow.state = before
        assert frozen(await flow.send({"confirm": yes}))
        assert EFFECTS == []

    @each_way
    async def test_is_safe_to_send_again_when_the_reply_was_lost(
        self, store: WatchedStore, method: str, target: str
    ) -> None:
        flow = await asked(serving(store), method, target)
        lost = await flow.answer(confirm=yes)
        assert without_id(await flow.drop()) == without_id(lost)
        assert EFFECTS == ["paid"]

    async def test_that_fails_fails_once(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[bytes(32)], store=store)

        @app.prompt
        async def failing(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            effect("paid")
            raise RuntimeError("the password is swordfish")

        flow = await asked(app, "prompts/get", "failing")
        first = await flow.answer(confirm=yes)
        assert first.error.code == -32603
        assert without_id(await flow.replay()) == without_id(first)
        assert EFFECTS == ["paid"]
        assert b"swordfish" not in next(iter(store.recorded.values()))


class TestEveryLaterState:
    async def test_is_redeemed_once_whatever_it_asks(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[bytes(32)], store=store)

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            receipt = await ctx.step(effect, "paid")
            login = await ctx.elicit("Who?", Login)
            return await ctx.step(effect, f"{receipt} by {login.name}")

        flow = await asked(app, target="pay")
        form = await flow.answer(confirm=yes)
        assert without_id(await flow.replay()) == without_id(form), "the same next state, so that nobody has two"
        state = flow.state
        done = await flow.answer(login={"name": "ann"})
        assert without_id(await flow.replay()) == without_id(done)
        flow.state = state
        assert frozen(await flow.send({"login": {"name": "bob"}}))
        assert EFFECTS == ["paid", "paid by ann"]

    async def test_is_redeemed_once_where_the_question_is_gone_from_it(self, store: WatchedStore) -> None:
        """The client left the confirmation open, and the handler asks for something else now."""
        app = MRTRServer("bank", keys=[bytes(32)], store=store)
        rounds: list[int] = []

        @app.tool
        async def pay(ctx: Context) -> str:
            rounds.append(ctx.round)
            if ctx.round == 1:
                await ctx.confirm("Pay?")
            return await ctx.step(effect, (await ctx.elicit("Who?", Login)).name)

        flow = await asked(app, target="pay")
        assert (await flow.answer()).questions == {"login": "Who?"}
        await flow.answer(login={"name": "ann"})
        await flow.replay()
        assert EFFECTS == ["ann"]
        assert rounds == [1, 2, 3]

    async def test_is_redeemed_once_where_it_was_handed_over(self, store: WatchedStore) -> None:
        app = serving(store)
        flow = await asked(app)
        (leaving,) = replicas(app, 1)
        leaving.drain()
        flow.move_to(leaving, *replicas(app, 2))
        handed_over = await flow.answer(confirm=yes)
        assert handed_over.questions == {}
        assert EFFECTS == []
        assert without_id(await flow.replay()) == without_id(handed_over)
        assert (await flow.answer()).text == "paid"
        await flow.replay()
        assert EFFECTS == ["paid"]

    async def test_is_redeemed_once_in_a_version_that_confirms_no_more(self, store: WatchedStore) -> None:
        newer = MRTRServer("bank", keys=[bytes(32)], store=store)

        @newer.tool
        async def inline(ctx: Context) -> str:
            return await ctx.step(effect, (await ctx.elicit("Who?", Login)).name)

        flow = await asked(serving(store))
        flow.move_to(newer)
        await flow.answer(confirm=yes)
        await flow.answer(login={"name": "ann"})
        await flow.replay()
        assert EFFECTS == ["ann"]

    async def test_no_state_before_the_confirmation_is_redeemed_once(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[bytes(32)], store=store)

        @app.tool
        async def pay(ctx: Context) -> str:
            login = await ctx.elicit("Who?", Login)
            await ctx.confirm(f"Pay for {login.name}?")
            return await ctx.step(effect, "paid")

        flow = walking(app, target="pay")
        await flow.start()
        form = flow.state
        assert (await flow.answer(login={"name": "ann"})).questions == {"confirm": "Pay for ann?"}
        flow.state = form
        assert (await flow.send({"login": {"name": "bob"}})).questions == {"confirm": "Pay for bob?"}
        assert store.redeemed == []
        assert (await flow.answer(confirm=yes)).text == "paid"
        assert [redemption.verdict for redemption in store.redeemed] == ["granted"]

    async def test_a_flow_without_a_confirmation_never_touches_the_store(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[bytes(32)], store=store)
        store.down = {"redeem", "renew", "record"}

        @app.tool
        async def greet(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Login)).name

        assert (await AsyncClient(app).call("greet", answers={"login": {"name": "ann"}})).text == "ann"
        assert store.failures == 0


class TestATask:
    """One that begins after a yes begins once."""

    @pytest.mark.parametrize("target", ["in_the_background", "at_once"])
    async def test_is_one(self, target: str) -> None:
        app = MRTRServer("bank", keys=[bytes(32)])

        @app.tool(task=Task(rounds_first=True))
        async def in_the_background(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            await ctx.background()
            return await ctx.step(effect, "paid")

        @app.tool(task="optional")
        async def at_once(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(effect, "paid")

        # A client that takes no tasks begins it, where the tool has no rounds for one that does.
        flow = walking(app, target=target, tasks=target == "in_the_background")
        assert (await flow.start()).questions == {"confirm": "Pay?"}
        follower = walking(app, target=target, tasks=True)
        follower.state = flow.state
        first = await follower.send({"confirm": yes})
        again = [await follower.replay(first) for _ in range(REPLAYS - 1)]
        assert {reply.task.id for reply in again} == {first.task.id}
        assert (await follower.wait()).text == "paid"
        assert EFFECTS == ["paid"]

    async def test_is_one_also_where_two_states_of_its_flow_were_confirmed(self) -> None:
        """Whoever sends the round before twice has two states that ask; they are one flow's."""
        app = MRTRServer("bank", keys=[bytes(32)])

        @app.tool(task=Task(rounds_first=True))
        async def pay(ctx: Context) -> str:
            await ctx.elicit("Who?", Login)
            await ctx.confirm("Pay?")
            await ctx.background()
            return await ctx.step(effect, "paid")

        flow = walking(app, target="pay", tasks=True)
        await flow.start()
        form, tasks = flow.state, set()
        for _ in range(2):
            flow.state, flow.task = form, None
            await flow.send({"login": {"name": "ann"}})
            tasks.add((await flow.send({"confirm": yes})).task.id)
        assert len(tasks) == 1
        await flow.wait()
        assert EFFECTS == ["paid"]


class TestTheRound:
    async def test_runs_to_its_end_when_its_client_leaves(self, store: WatchedStore) -> None:
        gate = asyncio.Event()
        app = MRTRServer("bank", keys=[bytes(32)], store=store)

        @app.prompt
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            await gate.wait()
            return effect("paid")

        flow = await asked(app, "prompts/get", "pay")
        answers = {"confirm": accept(confirm=True)}
        message = modern("prompts/get", {"name": "pay", "requestState": flow.state, "inputResponses": answers})
        leaving = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
        await until(lambda: store.redeemed)
        leaving.disconnect()
        await leaving.end()
        assert not store.recorded
        gate.set()
        await until(lambda: store.recorded)
        assert (await flow.send({"confirm": yes})).complete
        assert EFFECTS == ["paid"]

    async def test_begins_nothing_new_while_its_lease_is_in_doubt(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[bytes(32)], store=store, limits=short_lease(0.3))
        hold = asyncio.Event()

        async def charge() -> str:
            effect("charged")
            await hold.wait()
            return "charged"

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(charge) + await ctx.step(effect, "mailed")

        flow = await asked(app, target="pay")
        store.down = {"renew"}
        frozen_replica = asyncio.ensure_future(flow.answer(confirm=yes))
        await until(lambda: EFFECTS)
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.4)
        hold.set()
        assert (await frozen_replica).questions == {}, "handed over, with what has been done"
        assert EFFECTS == ["charged"]
        store.down = set()
        assert (await flow.answer()).text == "chargedmailed"
        assert EFFECTS == ["charged", "mailed"]

    async def test_does_nothing_without_its_store(self, store: WatchedStore) -> None:
        flow = await asked(serving(store))
        state = flow.state
        store.down = {"redeem"}
        assert (await flow.answer(confirm=yes)).error.message.startswith("Nothing was done")
        assert EFFECTS == []
        store.down, flow.state = set(), state
        assert (await flow.send({"confirm": yes})).text == "paid"


def told(log: pytest.LogCaptureFixture) -> int:
    return log.text.count("there is no shared store")


Register = Callable[[MRTRServer], Any]


def in_a_signature(app: MRTRServer) -> Any:
    @app.tool
    def pay(confirm: Annotated[bool, Confirm("Pay?")]) -> str:
        return effect("paid")


def in_a_dependency(app: MRTRServer) -> Any:
    def sure(confirm: Annotated[bool, Confirm("Pay?")]) -> bool:
        return confirm

    @app.tool(name="pay_by_dependency")
    def pay(sure: Annotated[bool, Depends(sure)]) -> str:
        return effect("paid")


def of_a_prompt(app: MRTRServer) -> Any:
    @app.prompt
    def pay(confirm: Annotated[bool, Confirm("Pay?")]) -> str:
        return effect("paid")


def of_a_resource(app: MRTRServer) -> Any:
    @app.resource("accounts://{number}")
    def pay(number: str, confirm: Annotated[bool, Confirm("Pay?")]) -> str:
        return effect("paid")


def by_the_option(app: MRTRServer) -> Any:
    app.tool(confirm="Pay?")(effect)


DECLARED = [in_a_signature, in_a_dependency, of_a_prompt, of_a_resource, by_the_option]


class TestWithoutASharedStore:
    @pytest.mark.parametrize("register", DECLARED)
    def test_the_log_says_at_start_how_far_a_declared_one_goes(
        self, register: Register, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("bank", keys=[bytes(32)])
        register(app)
        Client(app).request("tools/list")
        assert told(caplog) == 1
        assert "is redeemed once in each process" in caplog.text
        assert "MRTR_DATABASE_URL" in caplog.text

    def test_once_for_all_of_them(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("bank", keys=[bytes(32)])
        for register in DECLARED:
            register(app)
        Client(app).request("tools/list")
        Client(app).request("tools/list")
        assert told(caplog) == 1

    async def test_the_log_says_at_its_first_use_how_far_an_inline_one_goes_and_then_no_more(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("bank", keys=[bytes(32)])

        @app.tool
        async def greet(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Login)).name

        for name in ("pay", "send"):

            @app.tool(name=name)
            async def pay(ctx: Context) -> str:
                await ctx.confirm("Pay?")
                return await ctx.step(effect, "paid")

        await AsyncClient(app).call("greet", answers={"login": {"name": "ann"}})
        assert told(caplog) == 0
        for name in ("pay", "send", "pay"):
            flow = walking(app, target=name)
            await flow.start()
            assert told(caplog) == 1
            await flow.answer(confirm=yes)
            await flow.replay()
        assert told(caplog) == 1
        assert "a state of 'pay', as of every confirmation or single-use tool" in caplog.text
        assert EFFECTS == ["paid"] * 3, "within the process, each once"

    async def test_nothing_is_said_where_it_is_shared(
        self, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "mrtr_server")
        await (await asked(serving(store))).answer(confirm=yes)
        assert caplog.text == ""

    def test_several_workers_are_no_reason_to_refuse(self, tmp_path: Path) -> None:
        """A tool that was declared `single_use` is one: its author asked for that."""
        target = "tests.support.moving:app"
        with in_process(target, "--workers", "2", log=tmp_path / "log", environment={"MRTR_KEYS": KEYS}) as server:
            assert "no shared store" not in server.text
            with closing(Wire(f"http://127.0.0.1:{server.port}/mcp")) as wire:
                first = wire.call("confirmed")
                done = wire.call("confirmed", answers={"confirm": accept(confirm=True)}, state=first.state)
            assert done.text.startswith("by ")
            assert (
                "a state of 'confirmed', as of every confirmation or single-use tool, is redeemed once in each process"
                in server.text
            )
