"""Rule 9 of a flow: with `single_use`, each state is redeemed once in the fleet, and a repeated request is safe."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import from_json

from examples import payments
from mrtr_server import (
    Context,
    Elicit,
    EventRow,
    IdempotencyKey,
    InProcessStore,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    MRTRServer,
    Redemption,
    SetupError,
    Shutdown,
    SignedCodec,
    State,
    Store,
    StoreUnavailable,
    Task,
    TaskRow,
    ToolError,
    ToolResult,
)
from mrtr_server.crypto.place_codec import PlainCodec
from mrtr_server.errors import Busy, Full, InvalidRequestState, overloaded
from mrtr_server.flow import single_use as redemption
from mrtr_server.protocol.messages import Call, Complete
from mrtr_server.storage.quotas import Quotas
from mrtr_server.storage.rows import Lease
from mrtr_server.testing import (
    EVERYTHING,
    Answer,
    AsyncClient,
    Clock,
    Reply,
    accept,
    decline,
    no,
    replica,
    short_lease,
    yes,
)

from ..support.databases import freeze
from ..support.direct import Exchange, headers_for, scope_of
from ..support.effects import EFFECTS, effect
from ..support.flows import AsyncFlow, is_state_only
from ..support.models import Login
from ..support.serving import KEYS, TIMEOUT, Process, in_process, lines_of, started, wait_until
from ..support.virtual_time import VirtualTime
from ..support.wire import JSON, Wire, modern
from ..support.wire import Reply as WireReply
from ..transport.test_endpoint import connected, raw_request

pytestmark = pytest.mark.anyio

KEY = bytes(32)


async def slow_effect(what: str) -> str:
    EFFECTS.append(what)
    await asyncio.sleep(0.1)
    return what


async def until(true: Callable[[], object]) -> None:
    """Wait until a function gives something true."""
    async with asyncio.timeout(TIMEOUT):
        while not true():  # noqa: ASYNC110  what it waits for tells nobody
            await asyncio.sleep(0.005)


class WatchedStore(Store):
    """A store in the process that counts, can be down, and shows what it was given.

    Args:
        shared: whether it says that other processes see what it keeps.
        clock: of the store.
    """

    def __init__(self, *, shared: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.shared = shared
        self.store = InProcessStore(clock=clock)
        self.down: set[str] = set()
        self.failures = 0
        self.redeemed: list[Redemption] = []
        self.recorded: dict[str, bytes] = {}
        self.swap: dict[str, bytes] = {}
        self.released = 0
        self.closed = 0

    def _fail(self, what: str) -> None:
        if what in self.down:
            self.failures += 1
            raise StoreUnavailable(f"no {what} today")

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float, **more: Any) -> Redemption:
        self._fail("redeem")
        found = await self.store.redeem(state, answers, lease=lease, keep=keep, **more)
        self.redeemed.append(found)
        if found.verdict == "recorded" and state in self.swap:
            return Redemption("recorded", outcome=self.swap[state])
        return found

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        self._fail("renew")
        return await self.store.renew(state, token, lease=lease)

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        self._fail("record")
        self.recorded[state] = outcome
        return await self.store.record(state, token, outcome)

    async def release(self, state: str, token: str) -> None:
        self.released += 1
        await self.store.release(state, token)

    async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
        return await self.store.put(key, value, keep=keep, **more)

    async def get(self, key: str) -> bytes | None:
        return await self.store.get(key)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no holder that may come back, but where that is what is tested."""
    monkeypatch.setattr(redemption, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(redemption, "RECORD_INTERVAL", 0.02)


@pytest.fixture
def store(virtual_time: VirtualTime) -> WatchedStore:
    return WatchedStore(clock=virtual_time.time)


@pytest.fixture
def app(store: WatchedStore) -> MRTRServer:
    return MRTRServer("bank", keys=[KEY], store=store, limits=short_lease(0.3))


def again(
    app: MRTRServer,
    flow: AsyncFlow,
    state: str | None,
    *,
    arguments: Mapping[str, Any] | None = None,
    capabilities: Mapping[str, Any] = EVERYTHING,
) -> AsyncFlow:
    """Return a second client, or the same one that lost a reply: it sends the state once more."""
    tool = from_json(flow.last.request.body)["params"]["name"]
    other = AsyncClient(app, capabilities=capabilities).flow(tool, arguments or flow.arguments)
    other.state = state
    return other


def came(reply: Reply) -> JSON:
    """Return the message of a reply without its id, which is that of the request."""
    return {name: value for name, value in reply.message.items() if name != "id"}


def add_pay(app: MRTRServer, step: Callable[..., Any] = slow_effect) -> None:
    @app.tool(single_use=True)
    async def pay(amount: int, ctx: Context) -> str:
        await ctx.confirm(f"Pay {amount}?")
        return str(await ctx.step(step, f"{amount} paid"))


async def asked(app: MRTRServer, target: str = "pay", **arguments: Any) -> AsyncFlow:
    flow = AsyncClient(app).flow(target, arguments or ({"amount": 5} if target == "pay" else {}))
    assert (await flow.start()).questions
    return flow


def begin(app: MRTRServer, flow: AsyncFlow, answers: Mapping[str, Answer]) -> Exchange:
    """Send the next round of a flow, and do not wait for its reply."""
    message = from_json(flow.last.request.body)
    message["params"]["requestState"] = flow.state
    message["params"]["inputResponses"] = {key: answer.raw for key, answer in answers.items()}
    return Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()


class TestADuplicate:
    """The first delivery of a state runs; a duplicate gets what came of it."""

    async def test_that_comes_later_gets_the_recorded_outcome(self, app: MRTRServer) -> None:
        add_pay(app)
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        assert (await flow.send({"confirm": yes})).text == "5 paid"
        for _ in range(3):
            assert came(await repeated.send({"confirm": yes})) == came(flow.last)
        assert EFFECTS == ["5 paid"]

    async def test_that_comes_at_the_same_time_waits_for_the_first(self, app: MRTRServer) -> None:
        add_pay(app)
        flow = await asked(app)
        replies = await asyncio.gather(*(again(app, flow, flow.state).send({"confirm": yes}) for _ in range(5)))
        assert [came(reply) for reply in replies] == [came(replies[0])] * 5
        assert replies[0].text == "5 paid"
        assert EFFECTS == ["5 paid"]

    async def test_that_waits_asks_the_store_less_and_less_often(self, app: MRTRServer, store: WatchedStore) -> None:
        gate = asyncio.Event()

        @app.tool(single_use=True)
        async def hold(ctx: Context) -> str:
            who = (await ctx.elicit("Who?", Login)).name
            await gate.wait()
            return who

        flow = AsyncClient(app).flow("hold")
        assert (await flow.start()).needs_input
        store.redeemed.clear()
        flows = [again(app, flow, flow.state), again(app, flow, flow.state)]
        replies = [asyncio.create_task(each.send({"login": accept(name="ann")})) for each in flows]
        await asyncio.sleep(1)
        gate.set()
        assert [(await reply).text for reply in replies] == ["ann", "ann"]
        assert len(store.redeemed) < 40, "it begins with a hundred a second"

    async def test_on_another_replica_gets_it_too(self, app: MRTRServer, store: WatchedStore) -> None:
        other = MRTRServer("bank", keys=[KEY], store=store)
        add_pay(app)
        add_pay(other)
        flow = await asked(app)
        at_once = again(other, flow, flow.state)
        replies = await asyncio.gather(flow.send({"confirm": yes}), at_once.send({"confirm": yes}))
        later = await again(other, flow, flow.state).send({"confirm": yes})
        assert came(replies[0]) == came(replies[1]) == came(later)
        assert EFFECTS == ["5 paid"]

    async def test_is_one_however_its_json_is_written(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            login = await ctx.elicit("Who?", Login)
            return await ctx.step(slow_effect, login.name)

        flow = await asked(app, "pay", x=1)
        repeated = again(app, flow, flow.state)
        one = Answer({"action": "accept", "content": {"name": "ann", "age": 1.0}})
        assert (await flow.send({"login": one})).text == "ann"
        other = Answer({"content": {"age": 1, "name": "ann"}, "action": "accept"})
        assert (await repeated.send({"login": other})).text == "ann"
        assert EFFECTS == ["ann"]

    async def test_gets_the_same_next_state(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            login = await ctx.elicit("Who?", Login)
            receipt = await ctx.step(slow_effect, login.name)
            await ctx.confirm(f"Send {receipt}?")
            return await ctx.step(slow_effect, "sent")

        flow = await asked(app, "pay", x=1)
        repeated = again(app, flow, flow.state)
        answers = {"login": accept(name="ann")}
        assert (
            (await flow.send(answers)).questions == (await repeated.send(answers)).questions == {"confirm": "Send ann?"}
        )
        assert flow.state == repeated.state, "so that nobody can go on from here twice"
        assert (await flow.send({"confirm": yes})).text == (await repeated.send({"confirm": yes})).text == "sent"
        assert EFFECTS == ["ann", "sent"]

    async def test_of_a_readable_state_is_one_as_well(self, store: WatchedStore) -> None:
        ring = KeyRing([KEY])
        app = MRTRServer("bank", keys=ring, codec=SignedCodec(ring), store=store)
        add_pay(app)
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        assert (await flow.send({"confirm": yes})).text == (await repeated.send({"confirm": yes})).text
        assert EFFECTS == ["5 paid"]


class TestOtherAnswers:
    """A state that was redeemed with other answers gets the frozen error."""

    async def test_are_refused_later(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        add_pay(app)
        flow = await asked(app)
        changed = [again(app, flow, flow.state) for _ in range(3)]
        assert "declined" in (await flow.send({"confirm": no})).failure
        for other, answers in zip(changed, ({"confirm": yes}, {}, {"confirm": no, "more": yes}), strict=True):
            error = (await other.send(answers)).error
            assert (error.code, error.message) == (-32602, InvalidRequestState.MESSAGE)
        assert "refused a requestState: redeemed already, with other answers" in caplog.text
        assert EFFECTS == [], "a no can't be turned into a yes"

    async def test_are_refused_while_the_first_runs(self, app: MRTRServer) -> None:
        add_pay(app)
        flow = await asked(app)
        first = asyncio.create_task(again(app, flow, flow.state).send({"confirm": yes}))
        await until(lambda: EFFECTS)
        assert (await again(app, flow, flow.state).send({"confirm": no})).error.message == InvalidRequestState.MESSAGE
        assert (await first).text == "5 paid"

    async def test_no_answers_and_an_empty_map_are_the_same(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        def wipe() -> str:
            return effect("wiped")

        flow = AsyncClient(app).flow("wipe")
        assert is_state_only(await flow.start())
        repeated = again(app, flow, flow.state)
        assert (await flow.send()).text == (await repeated.send({})).text == "wiped"
        assert EFFECTS == ["wiped"]


OUTCOMES: dict[str, Any] = {
    "text": ["done"],
    "structure": {"a": [1, 2.5, None, {"b": "ü"}]},
    "tool error": ToolError("it is closed"),
    "fault": RuntimeError("the password is swordfish"),
}


class TestEveryOutcomeIsRecorded:
    @pytest.mark.parametrize("kind", OUTCOMES)
    async def test_of_a_handler(self, app: MRTRServer, kind: str) -> None:
        @app.tool(single_use=True)
        async def act(ctx: Context) -> Any:
            await ctx.confirm("Sure?")
            effect("acted")
            outcome = OUTCOMES[kind]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        flow = await asked(app, "act")
        repeated = again(app, flow, flow.state)
        assert came(await flow.send({"confirm": yes})) == came(await repeated.send({"confirm": yes}))
        assert "swordfish" not in str(flow.last.message)
        assert EFFECTS == ["acted"]

    async def test_a_refusal(self, app: MRTRServer) -> None:
        add_pay(app)
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        assert came(await flow.send({"confirm": decline})) == came(await repeated.send({"confirm": decline}))
        assert flow.last.failed

    async def test_an_error_of_the_flow(self, store: WatchedStore) -> None:
        app = MRTRServer("bank", keys=[KEY], store=store, limits=Limits(rounds=2))

        @app.tool(single_use=True)
        async def act(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            await ctx.step(slow_effect, "acted")
            if not ctx.client.supports("sampling"):
                await ctx.list_roots()
            await ctx.confirm("Really?", key="really")
            await ctx.confirm("Truly?", key="truly")
            return "done"

        flow = await asked(app, "act")
        flow, repeated = (again(app, flow, flow.state, capabilities={"elicitation": {}}) for _ in range(2))
        assert came(await flow.send({"confirm": yes})) == came(await repeated.send({"confirm": yes}))
        assert flow.last.error.data == {"requiredCapabilities": {"roots": {}}}
        assert EFFECTS == ["acted"]

        flow = await asked(app, "act")
        assert (await flow.send({"confirm": yes})).needs_input
        repeated = again(app, flow, flow.state)
        assert came(await flow.send({"really": yes})) == came(await repeated.send({"really": yes}))
        assert flow.last.error.data == {"limit": "rounds", "value": 2}

    async def test_a_result_that_no_reply_can_be_made_of(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool(single_use=True)
        async def act(ctx: Context) -> Any:
            await ctx.confirm("Sure?")
            effect("acted")
            result = ToolResult(content=["done"])
            result.meta = {"when": object()}  # which is not looked at again before it is written
            return result

        flow = await asked(app, "act")
        repeated = again(app, flow, flow.state)
        error = (await flow.send({"confirm": yes})).error
        assert error.data["reference"] in caplog.text
        assert (await repeated.send({"confirm": yes})).error == error
        assert EFFECTS == ["acted"]


class TestWhatIsNotRedeemed:
    async def test_a_request_that_does_not_come_to_the_handler(self, app: MRTRServer, store: WatchedStore) -> None:
        add_pay(app)
        flow = await asked(app)
        assert flow.state is not None
        forged = again(app, flow, flow.state[:-4] + "AAAA")
        assert (await forged.send({"confirm": yes})).error
        elsewhere = again(app, flow, flow.state, arguments={"amount": 6})
        assert (await elsewhere.send({"confirm": yes})).error
        misfit = again(app, flow, flow.state, arguments={"amount": "much"})
        assert (await misfit.send({"confirm": yes})).failure
        crowded = again(app, flow, flow.state)
        assert (await crowded.send({str(number): yes for number in range(65)})).error
        assert store.redeemed == []
        assert (await flow.send({"confirm": yes})).text == "5 paid"

    async def test_the_states_of_other_tools(self, app: MRTRServer, store: WatchedStore) -> None:
        @app.tool
        async def greet(ctx: Context) -> str:
            return effect((await ctx.elicit("Who?", Login)).name)

        flow = await asked(app, "greet")
        repeated = again(app, flow, flow.state)
        answers = {"login": accept(name="ann")}
        assert (await flow.send(answers)).text == (await repeated.send(answers)).text == "ann"
        assert EFFECTS == ["ann", "ann"]
        assert store.redeemed == []


class TestAStateComesBeforeTheFirstEffect:
    """Every effect belongs to a flow that a retry can name."""

    async def test_by_a_state_only_round_before_the_first_step(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            return await ctx.step(slow_effect, "paid") + await ctx.step(slow_effect, ", mailed")

        flow = AsyncClient(app).flow("pay")
        assert is_state_only(await flow.start())
        assert EFFECTS == []
        repeated = again(app, flow, flow.state)
        assert (await flow.send()).text == (await repeated.send()).text == "paid, mailed"
        assert EFFECTS == ["paid", ", mailed"]

    async def test_by_the_first_ask(self, app: MRTRServer) -> None:
        add_pay(app)
        assert (await AsyncClient(app).flow("pay", amount=1).start()).questions == {"confirm": "Pay 1?"}

    async def test_by_an_ask_beside_the_first_step(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            both = await asyncio.gather(ctx.step(slow_effect, "paid"), ctx.elicit("Who?", Login))
            return f"{both[0]} by {both[1].name}"

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).questions == {"login": "Who?"}
        assert EFFECTS == []
        assert (await flow.answer(login=accept(name="ann"))).text == "paid by ann"

    async def test_before_a_function_that_is_all_effect_is_called(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        def plain() -> str:
            return effect("plain")

        @app.tool(single_use=True)
        async def coroutine() -> str:
            return effect("coroutine")

        @app.tool(single_use=True)
        def with_context(ctx: Context) -> str:
            ctx.log("about to")
            return effect("with_context")

        @app.tool(single_use=True)
        def with_state(state: State[int]) -> str:
            return effect("with_state")

        for name in ("plain", "coroutine", "with_context", "with_state"):
            flow = AsyncClient(app).flow(name)
            assert is_state_only(await flow.start(x=yes))
            assert EFFECTS == []
            repeated = again(app, flow, flow.state)
            assert (await flow.send()).text == (await repeated.send()).text == name
            assert EFFECTS.pop() == name
            assert EFFECTS == []

    async def test_a_pure_function_asks_by_its_nature(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool(single_use=True)
        def greet(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return effect(login.name) if login else InputRequired(login=Elicit("Who?", Login))

        flow = AsyncClient(app).flow("greet")
        assert (await flow.start(login=accept(name="planted"))).questions == {"login": "Who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"
        assert "first round" not in caplog.text

    async def test_one_that_is_done_in_its_first_round_is_told_once_what_that_means(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool(single_use=True)
        def hasty(inputs: Inputs) -> str:
            return effect("done")

        @app.tool(single_use=True)
        async def hurried(ctx: Context) -> str:
            return effect("done")

        @app.tool(single_use=True)
        async def failing(ctx: Context) -> str:
            raise ToolError("closed")

        for target in ("hasty", "hurried"):
            for _ in range(2):
                assert (await AsyncClient(app).flow(target).start()).text == "done"
        assert (await AsyncClient(app).flow("failing").start()).failure == "closed", "and has done nothing"
        warnings = [record.getMessage() for record in caplog.records if "in its first round" in record.getMessage()]
        assert len(warnings) == 2
        assert "ctx.step" in warnings[0]

    async def test_answers_without_a_state_do_not_count(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def greet(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Login)).name

        flow = AsyncClient(app).flow("greet")
        assert (await flow.start(login=accept(name="planted"))).questions == {"login": "Who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"


class TestARoundForWhichThereIsNoRoom:
    @pytest.fixture
    def redeemer(self, store: WatchedStore, virtual_time: VirtualTime) -> redemption.Redeemer:
        quotas = Quotas(KeyRing([KEY]), Limits())
        return redemption.Redeemer(store, PlainCodec(), quotas, lease=60, clock=virtual_time.time)

    async def test_gives_its_state_back_at_once(
        self, redeemer: redemption.Redeemer, store: WatchedStore, virtual_time: VirtualTime
    ) -> None:
        async def refused(_: Lease) -> Complete:
            raise overloaded(1.0)

        async def run(_: Lease) -> Complete:
            return Complete({"paid": True})

        call, expires = Call("tools/call", {}, "pay", state="sealed"), virtual_time.time() + 300
        with pytest.raises(Busy):
            await redeemer.once(call, expires, refused)
        assert (len(store.redeemed), store.released, store.recorded) == (1, 1, {})
        assert await redeemer.once(call, expires, run) == Complete({"paid": True})

    async def test_gets_the_outcome_of_the_replica_that_took_it_over_meanwhile(
        self, redeemer: redemption.Redeemer, store: WatchedStore, virtual_time: VirtualTime
    ) -> None:
        async def run(_: Lease) -> Complete:
            return Complete({"paid": True})

        async def refused(_: Lease) -> Complete:
            await asyncio.sleep(61)
            assert await redeemer.once(call, expires, run) == Complete({"paid": True})
            raise overloaded(1.0)

        store.down = {"renew"}
        call, expires = Call("tools/call", {}, "pay", state="sealed"), virtual_time.time() + 300
        assert await redeemer.once(call, expires, refused) == Complete({"paid": True})
        assert [each.verdict for each in store.redeemed] == ["granted", "granted", "recorded"]


class TestAClientThatLeaves:
    """A round that has begun runs to its end, and is recorded."""

    async def test_does_not_end_it(self, app: MRTRServer, store: WatchedStore) -> None:
        async def long_effect(what: str) -> str:
            effect(f"{what}...")
            await asyncio.sleep(0.5)  # longer than the lease
            return effect(what)

        add_pay(app, long_effect)
        flow = await asked(app)
        under_way = begin(app, flow, {"confirm": yes})
        await until(lambda: EFFECTS)
        under_way.disconnect()
        assert (await under_way.end()).status == 499
        assert EFFECTS == ["5 paid..."]
        assert (await flow.send({"confirm": yes})).text == "5 paid", "the retry waits for it"
        assert EFFECTS == ["5 paid...", "5 paid"]
        assert [redemption.verdict for redemption in store.redeemed].count("granted") == 1

    async def test_may_be_gone_for_good(self, app: MRTRServer, store: WatchedStore) -> None:
        add_pay(app)
        flow = await asked(app)
        under_way = begin(app, flow, {"confirm": yes})
        await until(lambda: EFFECTS)
        under_way.disconnect()
        await until(lambda: store.recorded)

    async def test_before_it_has_begun_ends_it(self, app: MRTRServer, store: WatchedStore) -> None:
        add_pay(app)
        flow = await asked(app)
        began, slow, plain = asyncio.Event(), asyncio.Event(), store.redeem

        async def slow_redeem(*args: Any, **kwargs: Any) -> Redemption:
            began.set()
            await slow.wait()
            return await plain(*args, **kwargs)

        store.redeem = slow_redeem  # type: ignore[method-assign]
        under_way = begin(app, flow, {"confirm": yes})
        await began.wait()
        under_way.disconnect()
        assert (await under_way.end()).status == 499
        slow.set()
        await until(lambda: store.released)
        assert EFFECTS == []
        assert (await flow.send({"confirm": yes})).text == "5 paid", "the retry need not wait for the lease to run out"

    async def test_a_waiting_duplicate_does_not_wait_on(self, app: MRTRServer, store: WatchedStore) -> None:
        add_pay(app)
        flow = await asked(app)
        calls = 0

        async def busy(*args: Any, **kwargs: Any) -> Redemption:
            nonlocal calls
            calls += 1
            return Redemption("running")

        store.redeem = busy  # type: ignore[method-assign]
        under_way = begin(app, flow, {"confirm": yes})
        await until(lambda: calls > 2)
        under_way.disconnect()
        assert (await under_way.end()).status == 499
        await asyncio.sleep(0.1)
        seen = calls
        await asyncio.sleep(0.3)
        assert calls == seen


class TestTheStore:
    async def test_can_not_be_read_by_who_has_it(self, app: MRTRServer, store: WatchedStore) -> None:
        @app.tool(single_use=True)
        async def tell(ctx: Context) -> str:
            login = await ctx.elicit("Who?", Login)
            return f"{login.name}, the secret is swordfish"

        flow = await asked(app, "tell")
        assert "swordfish" in (await flow.send({"login": accept(name="octocat")})).text
        (kept,) = store.recorded.values()
        assert kept
        for secret in (b"swordfish", b"octocat", b"content", (flow.state or "").encode()):
            assert secret not in kept

    async def test_can_not_give_a_state_the_outcome_of_another(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        add_pay(app)
        flows = [await asked(app, amount=amount) for amount in (1, 1000)]
        repeated = [again(app, flow, flow.state) for flow in flows]
        assert [(await flow.send({"confirm": yes})).text for flow in flows] == ["1 paid", "1000 paid"]
        (one, its), (other, others) = store.recorded.items()
        store.swap = {one: others, other: its[:-4] + b"AAAA"}
        for each, reason in zip(repeated, ("for another delivery", "forged or damaged"), strict=True):
            error = (await each.send({"confirm": yes})).error
            assert error.code == -32603
            assert error.data["reference"] in caplog.text
            assert reason in caplog.text
            assert "paid" not in str(error)

    async def test_that_is_down_runs_nothing(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        add_pay(app)
        flow = await asked(app)
        store.down = {"redeem"}
        error = (await flow.send({"confirm": yes})).error
        assert error.code == -32603
        assert error.message.startswith("Nothing was done")
        assert error.data["reference"] in caplog.text
        assert "no redeem today" in caplog.text
        assert "no redeem" not in str(error)
        assert EFFECTS == []
        store.down = set()
        assert (await flow.send({"confirm": yes})).text == "5 paid", "the client may just try again"

    async def test_that_is_down_for_a_moment_is_tried_again(
        self, app: MRTRServer, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "RECORD_AGAIN", (0.05, 0.05, 0.05))
        add_pay(app)
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        store.down = {"record"}
        first = asyncio.create_task(flow.send({"confirm": yes}))
        await until(lambda: store.failures)
        store.down = set()
        await first
        assert came(await repeated.send({"confirm": yes})) == came(flow.last)
        assert EFFECTS == ["5 paid"]

    async def test_that_fails_a_round_that_ends_with_its_request_is_offered_the_outcome_again(
        self, store: WatchedStore, virtual_time: VirtualTime
    ) -> None:
        ring = KeyRing([KEY])
        redeemer = redemption.Redeemer(
            store, PlainCodec(), Quotas(ring, Limits()), lease=60, clock=virtual_time.time, outlives=False
        )

        async def run(_: Lease) -> Complete:
            EFFECTS.append("paid")
            return Complete({"paid": True})

        store.down = {"record"}
        call = Call("tools/call", {}, "pay", state="sealed")
        first = asyncio.create_task(redeemer.once(call, virtual_time.time() + 300, run))
        await until(lambda: store.failures > len(redemption.RECORD_AGAIN) + 1)
        store.down = set()
        assert await first == Complete({"paid": True})
        assert await redeemer.once(call, virtual_time.time() + 300, run) == Complete({"paid": True})
        assert EFFECTS == ["paid"]

    @pytest.mark.parametrize(("down_for", "warnings"), [(1.9, 0), (5.0, 1)], ids=["shortly", "longer"])
    async def test_that_is_down_is_waited_for_for_two_seconds_with_the_answer(
        self,
        store: WatchedStore,
        virtual_time: VirtualTime,
        caplog: pytest.LogCaptureFixture,
        down_for: float,
        warnings: int,
    ) -> None:
        ring = KeyRing([KEY])
        redeemer = redemption.Redeemer(
            store, PlainCodec(), Quotas(ring, Limits()), lease=60, clock=virtual_time.time, outlives=True
        )

        async def run(_: Lease) -> Complete:
            return Complete({"paid": True})

        store.down = {"record"}
        began = time.monotonic()
        asyncio.get_running_loop().call_later(down_for, store.down.clear)
        call = Call("tools/call", {}, "pay", state="sealed")
        assert await redeemer.once(call, virtual_time.time() + 300, run) == Complete({"paid": True})
        assert time.monotonic() - began == pytest.approx(2.0)
        assert len(caplog.records) == warnings

    async def test_is_closed_when_the_server_ends(self, app: MRTRServer, store: WatchedStore) -> None:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[str] = []

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert store.closed == 1


class TestAnOutcomeThatTheStoreDoesNotTake:
    """The replica that ran the round keeps it, answers with it, and offers it until the state has expired."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redemption, "RECORD_AGAIN", (0.01,))

    async def paid(self, app: MRTRServer, store: WatchedStore) -> tuple[AsyncFlow, AsyncFlow]:
        """Pay while the store takes no outcome; return the client, and one that has sent nothing yet."""
        add_pay(app)
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        store.down = {"record", "renew"}
        assert (await flow.send({"confirm": yes})).text == "5 paid", "what was done is not hidden from the client"
        return flow, repeated

    async def test_is_what_repetitions_get_meanwhile_though_its_lease_has_ended(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow, repeated = await self.paid(app, store)
        await asyncio.sleep(0.4)  # longer than the lease
        for down in ({"record", "renew"}, {"record", "renew", "redeem"}):
            store.down = down
            assert came(await again(app, flow, repeated.state).send({"confirm": yes})) == came(flow.last)
            refused = (await again(app, flow, repeated.state).send({"confirm": no})).error
            assert refused.message == InvalidRequestState.MESSAGE
        assert EFFECTS == ["5 paid"]
        (line,) = (each for each in caplog.messages if "could not be recorded" in each)
        assert "no record today" in line
        assert "stopped" not in caplog.text

    async def test_is_recorded_once_the_store_takes_it_and_every_replica_has_it_then(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow, repeated = await self.paid(app, store)
        await asyncio.sleep(0.4)
        store.down = set()
        await until(lambda: "has been recorded" in caplog.text)
        other = MRTRServer("bank", keys=[KEY], store=store)
        add_pay(other)
        for server in (app, other):
            assert came(await again(server, flow, repeated.state).send({"confirm": yes})) == came(flow.last)
        assert EFFECTS == ["5 paid"]
        assert app._parts.redeemer._unrecorded == {}
        assert app._parts.redeemer._under_way == set()

    async def test_does_not_hold_up_its_client_where_the_store_stalls(
        self, app: MRTRServer, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "RECORD_AGAIN", (0.1, 0.1))
        attempts: list[float] = []

        async def stalled(*_: Any) -> bool:
            attempts.append(time.monotonic())
            await asyncio.sleep(0.3)
            raise StoreUnavailable("no answer in time")

        monkeypatch.setattr(store, "record", stalled)
        add_pay(app)
        flow = await asked(app)
        assert (await flow.send({"confirm": yes})).text == "5 paid"
        assert len(attempts) == 1, "the first of them took all the time that there was"
        monkeypatch.undo()
        await until(lambda: store.recorded)

    async def test_is_what_a_delivery_gets_that_waited_for_it(self, app: MRTRServer, store: WatchedStore) -> None:
        add_pay(app)
        flow = await asked(app)
        store.down = {"record"}
        deliveries = [again(app, flow, flow.state).send({"confirm": yes}) for _ in range(3)]
        async with asyncio.timeout(TIMEOUT):
            replies = await asyncio.gather(*deliveries)
        assert [came(reply) for reply in replies] == [came(replies[0])] * 3
        assert EFFECTS == ["5 paid"]
        store.down = set()

    async def test_gives_way_to_one_that_another_replica_has_recorded(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        flow, repeated = await self.paid(app, store)
        (state,) = app._parts.redeemer._unrecorded
        (answers,) = {each.answers for each in app._parts.redeemer._unrecorded.values()}
        await asyncio.sleep(0.4)
        theirs = await store.store.redeem(state, answers, lease=60, keep=60)
        assert theirs.attempt == 2
        store.down = {"redeem", "renew"}  # or a renewal may tell it sooner than the record
        await until(lambda: "its lease ended while the outcome could not be recorded" in caplog.text)
        until_known = await again(app, flow, repeated.state).send({"confirm": yes})
        assert came(until_known) == came(flow.last)
        assert await store.store.record(state, theirs.token, store.recorded[state])
        store.down = set()
        await until(lambda: not app._parts.redeemer._unrecorded)
        assert came(await again(app, flow, repeated.state).send({"confirm": yes})) == came(flow.last)
        assert EFFECTS == ["5 paid"]

    async def test_is_given_up_when_no_replica_takes_its_state_any_more(
        self, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = Clock()
        app = replica(MRTRServer("bank", keys=[KEY], store=store, limits=Limits(state_seconds=100)), clock=clock)
        _, repeated = await self.paid(app, store)
        clock.advance(101)
        kept = repeated.state
        assert (await repeated.send({"confirm": yes})).text == "5 paid", "it was redeemed in time"
        clock.advance(60)
        await until(lambda: not app._parts.redeemer._under_way)
        assert app._parts.redeemer._unrecorded == {}
        assert (await again(app, repeated, kept).send({"confirm": yes})).error.message == InvalidRequestState.MESSAGE
        assert "its outcome was never recorded, and its state has expired" in caplog.text

    async def test_adds_to_no_more_than_there_is_room_for(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "MOST_UNRECORDED_BYTES", 1)
        flow, repeated = await self.paid(app, store)
        other = await asked(app)
        error = (await again(app, other, other.state).send({"confirm": yes})).error
        assert error.message.startswith("Nothing was done")
        assert error.data["reference"] in caplog.text
        assert "1 outcomes of other rounds wait to be recorded" in caplog.text
        assert came(await repeated.send({"confirm": yes})) == came(flow.last)
        store.down = set()
        await until(lambda: not app._parts.redeemer._unrecorded)
        assert (await again(app, other, other.state).send({"confirm": yes})).text == "5 paid"
        assert EFFECTS == ["5 paid"] * 2

    async def test_is_waited_for_by_the_end_of_the_server(
        self, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("bank", keys=[KEY], store=store, shutdown=Shutdown(lame_duck=0, seconds=1))
        phases = iter(["startup", "shutdown"])

        async def receive() -> Any:
            phase = next(phases)
            if phase == "shutdown":
                await self.paid(app, store)
            return {"type": f"lifespan.{phase}"}

        async def send(message: Any) -> None:
            assert message["type"].endswith(".complete")

        async with asyncio.timeout(TIMEOUT):
            await app({"type": "lifespan"}, receive, send)
        assert "(1 of them, of which 1 have run)" in caplog.text
        store.down = set()


class Away(InProcessStore):
    """A store that takes no task and no event now and then."""

    shared = True
    no_tasks: Exception | None = None
    no_events: Exception | None = None

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, **more: Any) -> bool:
        if self.no_tasks is not None:
            raise self.no_tasks
        return await super().add_task(row, seconds=seconds, **more)

    async def add_event(self, row: EventRow) -> bool:
        if self.no_events is not None:
            raise self.no_events
        return await super().add_event(row)


@pytest.fixture
def away() -> Away:
    return Away()


class TestARoundThatBecomesATask:
    """A task that the store does not take is no outcome: the client is told to try again, and that must help."""

    @pytest.fixture
    def bank(self, away: Away) -> MRTRServer:
        return MRTRServer("bank", keys=[KEY], store=away)

    async def try_again(self, bank: MRTRServer, away: Away, target: str) -> AsyncFlow:
        """Become a task while the store takes none, and once more when it does."""
        capabilities: JSON = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        flow = AsyncClient(bank, capabilities=capabilities).flow(target)
        asked = (await flow.start()).asks
        await self.refused(flow, away, {"confirm": yes} if asked else {})
        return flow

    async def refused(self, flow: AsyncFlow, away: Away, answers: Mapping[str, Answer]) -> None:
        away.no_tasks = StoreUnavailable("no room for tasks")
        state = flow.state
        for _ in range(2):
            flow.state = state
            error = (await flow.send(answers)).error
            assert (error.code, list(error.data)) == (-32603, ["reference"])
        away.no_tasks = None
        flow.state = state
        assert (await flow.send(answers, wait=False)).is_task

    async def test_at_once_may_be_sent_again(self, bank: MRTRServer, away: Away) -> None:
        @bank.tool(task="required", single_use=True)
        async def run(ctx: Context) -> str:
            return "ran"

        await self.try_again(bank, away, "run")
        await bank._parts.worker.close()

    async def test_after_a_question_may_be_sent_again(self, bank: MRTRServer, away: Away) -> None:
        @bank.tool(task=Task("required", rounds_first=True))
        async def run(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            await ctx.background()
            return "ran"

        await self.try_again(bank, away, "run")
        await bank._parts.worker.close()

    async def test_after_a_step_goes_on_from_there_when_it_is_sent_again(self, bank: MRTRServer, away: Away) -> None:
        @bank.tool(task=Task("required", rounds_first=True))
        async def run(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            paid = await ctx.step(effect, "paid")
            await ctx.background()
            return paid

        capabilities: JSON = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        flow = AsyncClient(bank, capabilities=capabilities).flow("run")
        assert (await flow.start()).questions == {"confirm": "Sure?"}
        repeated = again(bank, flow, flow.state, capabilities=capabilities)
        away.no_tasks = StoreUnavailable("no room for tasks")
        assert is_state_only(await flow.send({"confirm": yes})), "what was done is in the state"
        assert is_state_only(await repeated.send({"confirm": yes}))
        assert repeated.state == flow.state
        await self.refused(flow, away, {})
        assert EFFECTS == ["paid"]
        await bank._parts.worker.close()


class Noted(BaseModel):
    what: str


class TestARoundThatLosesItsStore:
    """The client is told to send the same again, and that must help: what says so is no outcome."""

    @pytest.fixture
    def bank(self, away: Away) -> MRTRServer:
        bank = MRTRServer("bank", keys=[KEY], store=away)
        noted = bank.event("noted", payload=Noted)

        @bank.tool(single_use=True)
        async def note(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            await ctx.emit(noted, Noted(what="note"))
            return "noted"

        @bank.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            paid = await ctx.step(effect, "paid")
            await ctx.emit(noted, Noted(what=paid))
            return paid

        return bank

    @pytest.mark.parametrize("error", [StoreUnavailable("no answer in time"), Full("stored_bytes", 10)])
    async def test_runs_again_when_it_is_sent_again(self, bank: MRTRServer, away: Away, error: Exception) -> None:
        flow = await asked(bank, "note")
        repeated = [again(bank, flow, flow.state) for _ in range(3)]
        away.no_events = error
        for each in repeated[:2]:
            assert "again" in (await each.send({"confirm": yes}, wait=False)).error.message
        away.no_events = None
        assert (await repeated[2].send({"confirm": yes})).text == "noted"
        assert came(await flow.send({"confirm": yes})) == came(repeated[2].last)

    async def test_goes_on_behind_what_it_has_done(self, bank: MRTRServer, away: Away) -> None:
        flow = AsyncClient(bank).flow("pay")
        assert (await flow.start()).questions
        repeated = again(bank, flow, flow.state)
        away.no_events = StoreUnavailable("no answer in time")
        assert is_state_only(await flow.send({"confirm": yes})), "what was done is in the state"
        assert is_state_only(await repeated.send({"confirm": yes}))
        assert repeated.state == flow.state
        error = (await again(bank, flow, flow.state).send(wait=False)).error
        assert (error.code, list(error.data)) == (-32603, ["reference"])
        away.no_events = None
        assert (await flow.send()).text == "paid"
        assert EFFECTS == ["paid"]

    @pytest.mark.parametrize("kind", ["prompt", "resource"])
    async def test_of_a_prompt_or_a_resource_goes_on_behind_it_too(
        self, bank: MRTRServer, away: Away, kind: str
    ) -> None:
        written = bank.event("written", payload=Noted)

        async def letter(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            paid = await ctx.step(effect, "paid")
            await ctx.emit(written, Noted(what=paid))
            return paid

        bank.prompt(letter) if kind == "prompt" else bank.resource("letter://new")(letter)
        client = AsyncClient(bank)
        flow = client.prompt_flow("letter") if kind == "prompt" else client.resource_flow("letter://new")
        assert (await flow.start()).questions
        away.no_events = StoreUnavailable("no answer in time")
        assert is_state_only(await flow.send({"confirm": yes})), "what was done is in the state"
        away.no_events = None
        assert "paid" in str((await flow.send()).result)
        assert EFFECTS == ["paid"]

    async def test_of_a_task_goes_on_when_the_store_is_back(self, bank: MRTRServer, away: Away) -> None:
        paid = bank.event("paid", payload=Noted)

        @bank.tool(task="required")
        async def run(ctx: Context) -> str:
            what = await ctx.step(effect, "paid")
            await ctx.emit(paid, Noted(what=what))
            return what

        capabilities: JSON = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        away.no_events = StoreUnavailable("no answer in time")
        flow = AsyncClient(bank, capabilities=capabilities).flow("run")
        assert (await flow.start()).is_task
        await until(lambda: EFFECTS)
        await asyncio.sleep(0.1)
        away.no_events = None
        assert (await flow.wait()).text == "paid"
        assert EFFECTS == ["paid"]
        await bank._parts.worker.close()


class TestALeaseThatHasEnded:
    """Its holder may live, and be about to record what it did: it has a while for that."""

    async def test_is_left_to_its_holder_for_a_while(
        self, app: MRTRServer, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "GRACE_SECONDS", 0.3)
        monkeypatch.setattr(redemption, "RECORD_AGAIN", ())
        add_pay(app)
        other = MRTRServer("bank", keys=[KEY], store=store)
        add_pay(other)
        flow = await asked(app)
        repeated = again(other, flow, flow.state)
        store.down = {"record", "renew"}
        assert (await flow.send({"confirm": yes})).text == "5 paid"
        await asyncio.sleep(0.4)  # longer than the lease
        waiting = asyncio.create_task(repeated.send({"confirm": yes}))
        await asyncio.sleep(0.1)
        store.down = set()  # as the holder finds out within that time
        assert came(await waiting) == came(flow.last)
        assert EFFECTS == ["5 paid"]

    async def test_is_taken_when_that_is_over(
        self, app: MRTRServer, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "GRACE_SECONDS", 0.3)
        add_pay(app)
        flow = await asked(app)

        async def dead(state: str, answers: str, **given: Any) -> Redemption:
            return await store.store.redeem(state, answers, **given | {"lease": 0.01})

        store.redeem = dead  # type: ignore[method-assign]
        monkeypatch.setattr(app._parts.redeemer, "_run", lambda *_: asyncio.Event().wait())
        lost = asyncio.create_task(again(app, flow, flow.state).send({"confirm": yes}))
        await until(lambda: store.store._redeemed._items)
        del store.redeem
        other = MRTRServer("bank", keys=[KEY], store=store)
        add_pay(other)
        began = time.monotonic()
        assert (await again(other, flow, flow.state).send({"confirm": yes})).text == "5 paid"
        assert time.monotonic() - began >= 0.3
        lost.cancel()


class TestTheEndOfTheServer:
    """A round whose client has gone holds the server's end, since nobody else does."""

    async def ended(self, app: MRTRServer, under_way: Callable[[], Any]) -> None:
        """Let a server live for as long as `under_way` takes."""
        phases = iter(["startup", "shutdown"])

        async def receive() -> Any:
            phase = next(phases)
            if phase == "shutdown":
                await under_way()
            return {"type": f"lifespan.{phase}"}

        async def send(message: Any) -> None:
            assert message["type"].endswith(".complete")

        await app({"type": "lifespan"}, receive, send)

    async def test_waits_until_it_is_recorded(self, app: MRTRServer, store: WatchedStore) -> None:
        async def leave() -> None:
            flow = await asked(app)
            under_way = begin(app, flow, {"confirm": yes})
            await until(lambda: EFFECTS)
            await asyncio.sleep(0.06)
            under_way.disconnect()
            assert (await under_way.end()).status == 499
            assert not store.recorded

        async def longer(what: str) -> str:
            effect(what)
            await asyncio.sleep(0.25)
            return what

        add_pay(app, longer)
        await self.ended(app, leave)
        assert EFFECTS == ["5 paid"]
        assert len(store.recorded) == 1, "or the next delivery would run it again"
        assert store.closed == 1

    async def test_hands_over_what_has_not_begun(self, app: MRTRServer, store: WatchedStore) -> None:
        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            await ctx.confirm("Sure?")
            what = await ctx.step(longer, "paid")
            return what + await ctx.step(effect, " and mailed")

        async def longer(what: str) -> str:
            effect(what)
            await asyncio.sleep(0.3)
            return what

        flow = await asked(app, "pay", x=1)

        async def leave() -> None:
            under_way = begin(app, flow, {"confirm": yes})
            await until(lambda: EFFECTS)
            await asyncio.sleep(0.1)
            under_way.disconnect()
            await under_way.end()

        await self.ended(app, leave)
        assert EFFECTS == ["paid"]
        assert is_state_only(await flow.send({"confirm": yes}))
        assert (await flow.send()).text == "paid and mailed"
        assert EFFECTS == ["paid", " and mailed"]

    async def test_waits_no_longer_than_the_shutdown_may_take(
        self, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("bank", keys=[KEY], store=store, shutdown=Shutdown(lame_duck=0, seconds=1))
        never = asyncio.Event()

        async def stuck(what: str) -> str:
            effect(what)
            await never.wait()
            return what

        async def leave() -> None:
            under_way = begin(app, await asked(app), {"confirm": yes})
            await until(lambda: EFFECTS)
            await asyncio.sleep(0.1)
            under_way.disconnect()
            await under_way.end()

        add_pay(app, stuck)
        async with asyncio.timeout(TIMEOUT):
            await self.ended(app, leave)
        assert "single-use rounds still run" in caplog.text
        never.set()
        await until(lambda: store.recorded)


class TestTheLease:
    """Distinguishes a replica that died while it ran from one that takes its time."""

    async def test_is_renewed_while_a_round_runs(self, app: MRTRServer, store: WatchedStore) -> None:
        async def long_effect(what: str) -> str:
            await asyncio.sleep(1.0)  # three leases
            return effect(what)

        add_pay(app, long_effect)
        flow = await asked(app)
        replies = await asyncio.gather(*(again(app, flow, flow.state).send({"confirm": yes}) for _ in range(2)))
        assert came(replies[0]) == came(replies[1])
        assert EFFECTS == ["5 paid"]

    async def test_that_ran_out_lets_the_next_delivery_run(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        began = asyncio.Event()

        async def stuck(what: str) -> str:
            effect(what)
            if len(EFFECTS) == 1:
                began.set()
                await asyncio.Event().wait()
            return what

        add_pay(app, stuck)
        flow = await asked(app)
        first = asyncio.create_task(again(app, flow, flow.state).send({"confirm": yes}))
        await began.wait()
        store.down = {"renew"}  # it is cut off, for all that the others can see
        assert (await flow.send({"confirm": yes})).text == "5 paid"
        assert "the round runs again" in caplog.text
        assert EFFECTS == ["5 paid", "5 paid"]
        first.cancel()

    async def test_in_doubt_lets_no_further_step_begin(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        hold = asyncio.Event()

        async def charge(what: str) -> str:
            effect(f"{what} charged")
            if EFFECTS == ["5 charged"]:
                await hold.wait()
            return what

        @app.tool(single_use=True)
        async def pay(amount: int, ctx: Context) -> str:
            await ctx.confirm("Sure?")
            what = await ctx.step(charge, str(amount))
            return await ctx.step(slow_effect, f"{what} mailed by {len(EFFECTS)}")

        flow = await asked(app)
        cut_off = asyncio.create_task(again(app, flow, flow.state).send({"confirm": yes}))
        await until(lambda: EFFECTS)
        store.down = {"renew"}
        assert (await flow.send({"confirm": yes})).text == "5 mailed by 2"
        store.down = set()
        hold.set()
        assert came(await cut_off) == came(flow.last), "what is recorded counts"
        assert EFFECTS == ["5 charged", "5 charged", "5 mailed by 2"]
        assert "silent for longer than its lease" in caplog.text

    async def test_in_doubt_lets_not_even_the_first_step_begin(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing has been done since the state, so there is nothing to hand over; the step must not begin all the
        same.
        """
        hold, waiting = asyncio.Event(), asyncio.Event()

        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            if ctx.round == 2 and not waiting.is_set():
                waiting.set()
                await hold.wait()  # frozen
            return await ctx.step(effect, "paid")

        flow = AsyncClient(app).flow("pay", x=1)
        assert is_state_only(await flow.start())
        frozen = asyncio.create_task(again(app, flow, flow.state).send())
        await waiting.wait()
        store.down = {"renew"}
        assert (await flow.send()).text == "paid", "the other replica has taken over"
        store.down = set()
        hold.set()
        assert came(await frozen) == came(flow.last)
        assert EFFECTS == ["paid"]

    async def test_in_doubt_with_nothing_to_hand_over_lets_the_client_try_again(
        self, app: MRTRServer, store: WatchedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = True

        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            if ctx.round == 2 and late:
                await asyncio.sleep(0.5)
            return await ctx.step(effect, "paid")

        flow = AsyncClient(app).flow("pay", x=1)
        assert is_state_only(await flow.start())
        state = flow.state
        store.down = {"renew"}
        assert "send the request again" in str((await flow.send()).message)
        assert EFFECTS == []
        store.down, late = set(), False
        assert (await again(app, flow, state).send()).text == "paid"
        assert EFFECTS == ["paid"]

    async def test_in_doubt_for_nothing_goes_on_in_another_round(self, app: MRTRServer, store: WatchedStore) -> None:
        async def charge() -> str:
            await asyncio.sleep(0.5)
            return effect("charged")

        @app.tool(single_use=True)
        async def pay(x: int, ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return await ctx.step(charge) + await ctx.step(slow_effect, " and mailed")

        flow = await asked(app, "pay", x=1)
        store.down = {"renew"}
        assert is_state_only(await flow.send({"confirm": yes}))
        assert (await flow.send()).text == "charged and mailed"
        assert EFFECTS == ["charged", " and mailed"]


class TakenOver(WatchedStore):
    """A store in which another replica takes a delivery over, just before its outcome would have been recorded.

    Args:
        clock: of the store.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.lease_clock = clock
        self.taken_over = asyncio.Event()
        self.asked: list[tuple[str, str]] = []

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float, **more: Any) -> Redemption:
        self.asked.append((state, answers))
        return await super().redeem(state, answers, lease=lease, keep=keep, **more)

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        if not self.taken_over.is_set():
            self.lease_clock.advance(31)
            other = await self.store.redeem(*self.asked[0], lease=30, keep=3600)
            assert (other.verdict, other.attempt) == ("granted", 2)
            self.taken_over.set()
        return await super().record(state, token, outcome)


class TestFaultsInARow:
    """Another replica took the delivery over while this one ran it, and then something else goes wrong."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def store(self, clock: Clock) -> TakenOver:
        return TakenOver(clock)

    @pytest.fixture
    def app(self, store: TakenOver, clock: Clock) -> MRTRServer:
        app = replica(MRTRServer("bank", keys=[KEY], store=store, limits=Limits(lease_seconds=30)), clock=clock)
        add_pay(app)
        return app

    async def test_a_store_that_is_away_by_then_does_not_hide_what_was_done(
        self, app: MRTRServer, store: TakenOver
    ) -> None:
        flow = await asked(app)
        paying = asyncio.create_task(flow.send({"confirm": yes}))
        await store.taken_over.wait()
        store.down = {"redeem"}
        assert (await paying).text == "5 paid", "not that nothing was done"
        assert EFFECTS == ["5 paid"]
        assert store.failures > 0

    async def test_what_a_client_did_not_wait_for_is_recorded_once_the_other_replica_is_no_more(
        self, app: MRTRServer, store: TakenOver, clock: Clock
    ) -> None:
        flow = await asked(app)
        repeated = again(app, flow, flow.state)
        left = begin(app, flow, {"confirm": yes})
        await until(lambda: EFFECTS)
        left.disconnect()
        await left.end()
        await store.taken_over.wait()
        clock.advance(31)  # the other one was killed
        await until(lambda: [each.verdict for each in store.redeemed].count("granted") == 2)
        assert (await repeated.send({"confirm": yes})).text == "5 paid"
        assert EFFECTS == ["5 paid"], "a round that ran is recorded, and not given back"
        assert store.released == 0


class TestRecordsOutliveTheState:
    """What was redeemed in time has its outcome a minute longer, and nothing begins in that minute."""

    async def test_a_state_whose_record_has_expired_is_refused(self) -> None:
        clock = Clock(1_000_000.0)
        store = WatchedStore(clock=clock)
        app = replica(
            MRTRServer("bank", keys=[KEY], store=store, limits=Limits(state_seconds=100, lease_seconds=5)), clock=clock
        )
        add_pay(app, effect)
        flow = await asked(app)
        kept = flow.state
        clock.advance(30)
        assert (await flow.send({"confirm": yes})).text == "5 paid"
        clock.advance(69)
        assert (await again(app, flow, kept).send({"confirm": yes})).text == "5 paid"
        # A replica whose clock is behind may still take the state for good, within the leeway.
        slow = replica(MRTRServer("bank", keys=[KEY], store=store), clock=lambda: clock() - 60)
        add_pay(slow, effect)
        clock.advance(60)
        for server in (app, slow):
            assert (await again(server, flow, kept).send({"confirm": yes})).text == "5 paid"
        clock.advance(1)
        for server in (app, slow):
            error = (await again(server, flow, kept).send({"confirm": yes})).error
            assert error.message == InvalidRequestState.MESSAGE
        (state,) = store.recorded
        assert (await store.store.redeem(state, "other", lease=1, keep=1)).verdict == "granted", "it is gone"
        assert EFFECTS == ["5 paid"]

    async def test_what_comes_late_begins_nothing(self) -> None:
        clock = Clock(1_000_000.0)
        store = WatchedStore(clock=clock)
        app = replica(MRTRServer("bank", keys=[KEY], store=store, limits=Limits(state_seconds=100)), clock=clock)
        add_pay(app, effect)
        flow = await asked(app)
        clock.advance(100)
        assert (await flow.send({"confirm": yes})).error.message == InvalidRequestState.MESSAGE
        assert EFFECTS == []
        assert store.released == 1, "nothing is remembered of it"

    async def test_a_duplicate_does_not_wait_past_that(self, store: WatchedStore) -> None:
        clock = Clock(1_000_000.0)
        app = replica(MRTRServer("bank", keys=[KEY], store=store, limits=Limits(state_seconds=100)), clock=clock)
        add_pay(app)

        async def busy(*args: Any, **kwargs: Any) -> Redemption:
            return Redemption("running")

        store.redeem = busy  # type: ignore[method-assign]
        flow = await asked(app)
        waiting = asyncio.create_task(flow.send({"confirm": yes}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        clock.advance(160)
        async with asyncio.timeout(TIMEOUT):
            assert (await waiting).error.message == InvalidRequestState.MESSAGE


class TestWithoutASharedStore:
    async def test_it_works_within_the_process_and_the_log_says_so_once(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("bank", keys=[KEY])
        add_pay(app)
        app.tool(name="wipe", single_use=True)(effect)
        assert caplog.text == "", "nobody is served yet"
        flow = await asked(app)
        assert caplog.text.count("there is no shared store") == 1
        assert "MRTR_DATABASE_URL" in caplog.text
        repeated = again(app, flow, flow.state)
        assert (await flow.send({"confirm": yes})).text == (await repeated.send({"confirm": yes})).text
        assert EFFECTS == ["5 paid"]

    async def test_nothing_is_said_where_no_tool_needs_one_or_it_is_shared(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        add_pay(app)
        MRTRServer("plain", keys=[KEY]).tool(effect)
        assert "store" not in caplog.text

    @pytest.mark.parametrize("included", [False, True])
    async def test_what_several_workers_can_not_keep_is_not_served(
        self, included: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MRTR_WORKERS", "2")
        app, part = MRTRServer("bank", keys=[KEY]), MRTRServer("part", keys=[KEY])
        (part if included else app).tool(single_use=True, confirm="Sure?")(effect)
        if included:
            app.include(part)
        exchange = Exchange(app, scope_of([], method="GET", path="/ready")).body(b"")
        assert (await exchange.end()).status == 503
        assert any(
            found.level == "error" and "redemptions of effect" in found.message for found in app.check(workers=2)
        )

    def test_several_workers_are_refused(self, tmp_path: Path) -> None:
        environment = {"MRTR_KEYS": KEYS, "SINGLE_USE_DIR": str(tmp_path), "SINGLE_USE_ALONE": "1"}
        arguments = ("tests.support.single_use_app:app", "--workers", "2")
        with started(*arguments, log=tmp_path / "log", environment=environment) as server:
            server.wait()
            assert "'pay' is single_use, and 2 workers need one shared store" in server.text
            assert "MRTR_DATABASE_URL" in server.text
            assert "Traceback" not in server.text


def test_what_is_no_store_is_refused() -> None:
    no_store: Any = object()
    with pytest.raises(SetupError, match="store= takes the URL of a database"):
        MRTRServer("x", keys=[KEY], store=no_store)


class Fleet:
    """Processes that share a store.

    Args:
        place: their directory.
        servers: the processes.
    """

    def __init__(self, place: Path, servers: list[Process]) -> None:
        self.servers = servers
        self.wires = [Wire(f"http://127.0.0.1:{server.port}/mcp") for server in servers]
        self.pids = [str(server.process.pid) for server in servers]
        self._place = place
        self._threads = ThreadPoolExecutor(4)

    def ask(self, replica: int = 0) -> str:
        reply = self.wires[replica].call("pay", {"amount": 5})
        assert "confirm" in reply.result["inputRequests"]
        return reply.state

    def pay(self, replica: int, state: str, answer: Answer = yes) -> WireReply:
        return self.wires[replica].call("pay", {"amount": 5}, answers={"confirm": answer.raw}, state=state)

    def begin(self, replica: int, state: str) -> Any:
        """Send a delivery, and do not wait for its reply."""
        return self._threads.submit(self.pay, replica, state)

    def ledger(self, kind: str = "") -> list[list[str]]:
        return [line.split()[1:] for line in lines_of(self._place / "ledger") if line.startswith(kind)]

    def hold(self) -> None:
        (self._place / "hold").touch()

    def go_on(self) -> None:
        (self._place / "hold").unlink(missing_ok=True)

    def wait_for(self, kind: str, count: int = 1) -> None:
        wait_until(lambda: len(self.ledger(kind)) >= count, f"{count} lines with {kind} in the ledger")

    def close(self) -> None:
        self.go_on()
        for server in self.servers:
            with suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
        self._threads.shutdown()
        for wire in self.wires:
            wire.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    environment = {"MRTR_KEYS": KEYS, "SINGLE_USE_DIR": str(tmp_path)}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                in_process("tests.support.single_use_app:app", log=tmp_path / f"log-{number}", environment=environment)
            )
            for number in range(2)
        ]
        assert all(server.port for server in servers), servers[0].text
        fleet = Fleet(tmp_path, servers)
        stack.callback(fleet.close)
        yield fleet


@pytest.mark.processes
class TestOfTwoReplicas:
    """Real processes, and a store in a file that they share."""

    def test_one_runs_and_every_duplicate_gets_what_came_of_it(self, fleet: Fleet) -> None:
        state = fleet.ask()
        fleet.hold()
        sent = [fleet.begin(replica, state) for replica in (0, 1, 0, 1)]
        fleet.wait_for("begin")
        time.sleep(0.2)
        fleet.go_on()
        texts = {each.result().text for each in sent}
        later = {fleet.pay(replica, state).text for replica in (0, 1)}
        assert texts == later
        assert len(texts) == 1
        assert [len(fleet.ledger(kind)) for kind in ("begin", "charged", "mailed")] == [1, 1, 1]
        for number in (0, 1):
            assert fleet.pay(number, state, no).error.message == InvalidRequestState.MESSAGE
            assert fleet.pay(number, state, decline).error.message == InvalidRequestState.MESSAGE

    def test_one_that_is_killed_in_the_middle_is_followed_by_the_other(self, fleet: Fleet) -> None:
        state = fleet.ask()
        fleet.hold()
        lost = fleet.begin(0, state)
        fleet.wait_for("begin")
        os.kill(fleet.servers[0].process.pid, signal.SIGKILL)
        with suppress(Exception):
            lost.result()
        fleet.go_on()
        killed = time.monotonic()
        assert fleet.pay(1, state).text == f"5 paid, says {fleet.pids[1]}"
        assert 0.3 < time.monotonic() - killed < 10, "once the lease has run out"
        (first, key), (second, other_key) = fleet.ledger("begin")
        assert (first, second) == (fleet.pids[0], fleet.pids[1]), "the step that was cut in the middle ran again"
        assert key == other_key, "by its key the payment service tells that it is the same order"
        assert len(fleet.ledger("mailed")) == 1
        assert "the lease of this round ended without an outcome" in fleet.servers[1].text

    def test_one_that_was_killed_is_followed_though_the_state_has_expired_meanwhile(
        self, fleet: Fleet, tmp_path: Path
    ) -> None:
        """The answer came in time; a state that nobody brought in time is refused."""
        state, other = fleet.ask(), fleet.ask()
        fleet.hold()
        lost = fleet.begin(0, state)
        fleet.wait_for("begin")
        os.kill(fleet.servers[0].process.pid, signal.SIGKILL)
        with suppress(Exception):
            lost.result()
        fleet.go_on()
        (tmp_path / "later").touch()
        for _ in range(2):
            assert fleet.pay(1, state).text == f"5 paid, says {fleet.pids[1]}"
        assert fleet.pay(1, other).error.message == InvalidRequestState.MESSAGE
        assert len(fleet.ledger("mailed")) == 1

    def test_one_that_was_frozen_begins_nothing_more_and_gives_what_the_other_recorded(
        self, fleet: Fleet, tmp_path: Path
    ) -> None:
        state = fleet.ask()
        fleet.hold()
        frozen = fleet.begin(0, state)
        fleet.wait_for("begin")
        freeze(fleet.servers[0].process.pid, tmp_path / "store.db")
        other = fleet.begin(1, state)
        fleet.wait_for("begin", 2)
        fleet.go_on()
        text = other.result().text
        assert text == f"5 paid, says {fleet.pids[1]}"
        os.kill(fleet.servers[0].process.pid, signal.SIGCONT)
        assert frozen.result().text == text
        assert fleet.ledger("mailed") == [[fleet.pids[1]]]
        assert "silent for longer than its lease" in fleet.servers[0].text

    def test_one_whose_store_takes_no_outcome_keeps_it_and_no_other_runs_the_round_again(
        self, fleet: Fleet, tmp_path: Path
    ) -> None:
        state = fleet.ask()
        fleet.hold()
        paying = fleet.begin(0, state)
        fleet.wait_for("begin")
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # nobody writes, for much longer than the lease
            fleet.go_on()
            text = paying.result().text
            assert text == f"5 paid, says {fleet.pids[0]}"
            assert fleet.pay(0, state).text == text
            assert fleet.pay(1, state).error.message.startswith("Nothing was done")
            database.execute("ROLLBACK")
        assert fleet.pay(1, state).text == text
        assert [len(fleet.ledger(kind)) for kind in ("begin", "charged", "mailed")] == [1, 1, 1]
        wait_until(lambda: "its outcome has been recorded" in fleet.servers[0].text, "the log to say so")
        assert "the round runs again" not in fleet.servers[1].text

    def test_a_lost_reply_is_safe_to_ask_for_again(self, fleet: Fleet) -> None:
        state = fleet.ask()
        fleet.hold()
        params = {
            "name": "pay",
            "arguments": {"amount": 5},
            "requestState": state,
            "inputResponses": {"confirm": yes.raw},
        }
        with connected(fleet.wires[0]) as connection:
            connection.sendall(raw_request(modern("tools/call", params)))
            fleet.wait_for("begin")
            connection.shutdown(socket.SHUT_RDWR)
        time.sleep(0.2)  # the server sees that its client has gone
        fleet.go_on()
        fleet.wait_for("mailed")
        assert fleet.pay(1, state).text == f"5 paid, says {fleet.pids[0]}"
        assert len(fleet.ledger("begin")) == 1


class TestTheExample:
    async def test_pays_once_however_often_it_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(payments, "LEDGER", tmp_path / "payments.db")
        flow = await asked(payments.app, "pay", to="Ann", euros=25)
        repeated, changed = (again(payments.app, flow, flow.state) for _ in range(2))
        assert (
            (await flow.send({"confirm": yes})).text
            == (await repeated.send({"confirm": yes})).text
            == "Paid 25 € to Ann, receipt 1."
        )
        assert (await changed.send({"confirm": no})).error.message == InvalidRequestState.MESSAGE
        assert (await AsyncClient(payments.app).flow("balance", of="Ann").start()).text == "25"

    def test_pays_once_even_when_its_step_runs_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(payments, "LEDGER", tmp_path / "payments.db")
        order, other = IdempotencyKey("1f"), IdempotencyKey("2e")
        assert payments.charge("Ann", 25, idempotency_key=order) == payments.charge("Ann", 25, idempotency_key=order)
        assert payments.charge("Ann", 25, idempotency_key=other).number == 2
