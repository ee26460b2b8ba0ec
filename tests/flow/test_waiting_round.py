"""A round whose handler waits for answers and runs steps, with no server around it: in the foreground and in a task."""

import asyncio
import gc
import logging
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, field_validator
from starlette.requests import Request

from mrtr_server import ClientInfo, Context, Depends, Elicit, MRTRServer, StoreUnavailable
from mrtr_server.concurrency.threads import Threads
from mrtr_server.errors import FlowError
from mrtr_server.flow.endings import Asking, Backgrounded, Completed, Failed, RoundEnd, Yielded, YieldReason
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.runner import WIND_DOWN_SECONDS, run
from mrtr_server.flow.url_asks import UNFINISHED, Callbacks, Reports
from mrtr_server.flow.waiting_round import LOOK_AGAIN_AFTER, WaitingRound
from mrtr_server.protocol.messages import NOTHING, Call, Note, Nothing, Question

from ..support.models import Email, Login
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

ANSWERS: dict[str, dict[str, Any]] = {
    "login": {"action": "accept", "content": {"name": "ann"}},
    "paid": {"action": "accept"},
    "email": {"action": "accept", "content": {"address": "a@b.example"}},
}


class Silent:
    def send(self, note: Note) -> Nothing:
        return NOTHING


class Task:
    """The task that a round belongs to."""

    def __init__(self, did: list[str]) -> None:
        self.lost = False
        self.published: list[list[str]] = []
        """The keys of what was asked, each time that it was published."""
        self.fails: Exception | None = None
        """What keeping and publishing raise."""
        self._did = did
        self.take: Callable[[], None] = lambda: None
        self.checks = 0
        """How often it was asked whether a step may begin."""
        self.check: Callable[[], Awaitable[object]] | None = None
        """What that takes."""
        self.store: Callable[[], Awaitable[object]] | None = None
        """What keeping takes."""

    async def may_begin(self) -> bool:
        self.checks += 1
        if self.check is not None:
            await self.check()
        return not self.lost

    async def keep(self) -> None:
        if self.store is not None:
            await self.store()
        self._did.append("kept")
        if self.fails is not None:
            raise self.fails

    async def publish(self, asked: Mapping[str, Question]) -> None:
        self.published.append(sorted(asked))
        if self.fails is not None:
            raise self.fails

    journal = Journal(0.0)

    def should_yield(self) -> YieldReason | None:
        return None

    def send(self, note: Note) -> Awaitable[None]:
        return NOTHING

    def on_answers(self, take: Callable[[], None]) -> None:
        self.take = take

    def say(self, message: str) -> None:
        pass


class Bench:
    """One round, and what its handler did.

    Args:
        callbacks: makes links to callbacks.
        in_task: whether the round is one of a task.
    """

    def __init__(self, callbacks: Callbacks, *, in_task: bool) -> None:
        self.did: list[str] = []
        self.leaves: YieldReason | None = None
        """Why the round is to be continued elsewhere, from the next boundary on."""
        self.task = Task(self.did)
        self.callbacks = callbacks
        self.app = MRTRServer("bench", keys=[bytes(32)])
        self.paid = self.app.callback("paid")(self.report)
        callbacks.known = {"paid": self.paid}
        self.gate = asyncio.Event()
        """Lets `slow` and `breaks` end."""
        self.round = WaitingRound(
            Call("tools/call", {}, client=ClientInfo(capabilities={"elicitation": {"form": {}, "url": {}}})),
            Journal(0.0),
            "tested",
            Threads(1),
            callbacks=callbacks,
            should_yield=lambda: self.leaves,
            task=self.task if in_task else None,
        )

    def keep(self, key: str) -> None:
        """Put the answer of an ask into the journal."""
        self.round.journal.keep(key, self.round.asked[key].digest, ANSWERS[key])

    def answer(self, *keys: str) -> None:
        """Let answers come while the round runs."""
        for key in keys:
            self.keep(key)
        self.task.take()

    async def slow(self) -> str:
        await self.gate.wait()
        self.did.append("slow")
        return "slow"

    async def work(self, name: str) -> None:
        self.did.append(name)

    async def breaks(self) -> None:
        await self.gate.wait()
        raise LookupError("broken")

    async def report(self, request: Request) -> int:
        return 5

    async def run(self, function: Any) -> RoundEnd:
        self.app.tool(function)
        handler = self.app.registry.tools[function.__name__].handler
        async with asyncio.timeout(TIMEOUT):
            return await run(handler, {}, self.round, Silent(), Threads(1))

    def begin(self, function: Any) -> "asyncio.Task[RoundEnd]":
        return asyncio.create_task(self.run(function))

    async def parks(self, count: int = 1) -> None:
        """Wait until so many coroutines of the handler are parked."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.round.parked) < count:  # noqa: ASYNC110  it lasts for a few turns of the loop only
                await asyncio.sleep(0)

    async def publishes(self) -> None:
        """Wait until what is asked has been published."""
        async with asyncio.timeout(TIMEOUT):
            while not self.task.published:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture(params=[False, True], ids=["in the foreground", "in a task"])
def bench(request: pytest.FixtureRequest, callbacks: Callbacks) -> Bench:
    return Bench(callbacks, in_task=request.param)


@pytest.fixture
def foreground(callbacks: Callbacks) -> Bench:
    return Bench(callbacks, in_task=False)


@pytest.fixture
def background(callbacks: Callbacks) -> Bench:
    return Bench(callbacks, in_task=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class TestAQuestion:
    def test_of_a_task_is_to_be_published_until_it_was_or_its_round_ends(self, bench: Bench) -> None:
        round_ = bench.round
        assert not round_.may_publish
        round_.asked["login"] = Elicit("who?", Login).question()
        assert round_.may_publish == (round_.task is not None)
        round_.leave(YieldReason.FULL)
        assert not round_.may_publish

    async def test_of_a_task_is_published_once_beside_what_runs(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return str(await asyncio.gather(ctx.step(background.slow), ctx.elicit("who?", Login)))

        running = background.begin(asks)
        await background.publishes()
        assert background.did == []
        background.gate.set()
        assert isinstance(await running, Asking)
        assert background.task.published == [["login"]]

    async def test_that_can_not_be_published_fails_the_round(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return str(await asyncio.gather(ctx.step(background.slow), ctx.elicit("who?", Login)))

        background.task.fails = ValueError("too much to keep")
        running = background.begin(asks)
        await background.publishes()
        background.gate.set()
        assert await running == Failed(background.task.fails)

    async def test_in_a_round_that_ends_never_returns_though_it_is_answered(self, bench: Bench) -> None:
        async def asks(ctx: Context) -> str:
            bench.round.leave(YieldReason.FULL)
            with suppress(Exception):
                await ctx.elicit("who?", Login)
            bench.did.append("after")
            return "done"

        digest = Elicit("who?", Login).question().digest
        bench.round.journal.keep("login", digest, ANSWERS["login"])
        assert await bench.run(asks) == Yielded(YieldReason.FULL)
        assert bench.did == []

    @pytest.mark.parametrize("what", ["elicit", "ask", "step", "checkpoint", "background"])
    async def test_and_any_other_boundary_is_a_mistake_where_nobody_awaits_it(self, bench: Bench, what: str) -> None:
        async def forgets(ctx: Context) -> str:
            calls: dict[str, Callable[[], Any]] = {
                "elicit": lambda: ctx.elicit("who?", Login),
                "ask": lambda: ctx.ask(Elicit("who?", Login)),
                "step": lambda: ctx.step(bench.slow),
                "checkpoint": ctx.checkpoint,
                "background": ctx.background,
            }
            calls[what]()
            return "done"

        with pytest.warns(RuntimeWarning, match=f"coroutine 'Context.{what}' was never awaited"):
            end = await bench.run(forgets)
        assert isinstance(end, Failed)
        assert isinstance(end.error, FlowError)
        place = "forgets" if what in ("checkpoint", "background") else "<lambda>"
        assert f"ctx.{what}() was called but never awaited; write `await ctx.{what}(...)`" in str(end.error)
        assert str(end.error).endswith(f"in {place}")

    @pytest.mark.parametrize("beside", [False, True], ids=["by the handler", "by a task beside it"])
    async def test_has_the_key_of_one_that_was_answered_only_where_all_come_in_order(
        self, bench: Bench, beside: bool
    ) -> None:
        async def asks(ctx: Context) -> str:
            ask = ctx.elicit("who?", Login)
            return (await asyncio.create_task(ask) if beside else await ask).name

        bench.round.journal.keep("login", Elicit("whom?", Login).question().digest, ANSWERS["login"])
        end = await bench.run(asks)
        assert isinstance(end, Asking)
        assert list(end.questions) == (["login_2"] if beside or bench.round.task is not None else ["login"])

    async def test_counts_before_a_round_that_is_to_be_left_in_the_foreground_alone(self, bench: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return str(await asyncio.gather(ctx.elicit("who?", Login), self.leave(ctx, bench)))

        assert type(await bench.run(asks)) is (Asking if bench.round.task is None else Yielded)

    async def leave(self, ctx: Context, bench: Bench) -> None:
        bench.leaves = YieldReason.FULL
        await ctx.checkpoint()

    @pytest.mark.parametrize("why", ["asked", "left"])
    async def test_that_nobody_awaits_is_none_where_the_round_ends_without_the_handler(
        self, bench: Bench, why: str
    ) -> None:
        async def forgets(ctx: Context) -> str:
            if why == "asked":
                branches.append(asyncio.create_task(ctx.elicit("where?", Email)))
                await asyncio.sleep(0)
            else:
                bench.round.leave(YieldReason.FULL)
            ctx.elicit("who?", Login)  # type: ignore[unused-coroutine]
            return "done"

        branches: list[asyncio.Task[Email]] = []
        with pytest.warns(RuntimeWarning, match="coroutine 'Context.elicit' was never awaited"):
            end = await bench.run(forgets)
        assert isinstance(end, Asking if why == "asked" else Yielded)

    async def test_with_nothing_beside_it_is_published_with_the_end_of_the_round_alone(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert isinstance(await background.run(asks), Asking)
        assert background.task.published == []

    @pytest.mark.parametrize("what", ["one", "several", "a step", "a checkpoint", "the background"])
    async def test_or_any_other_boundary_inside_a_step_is_a_mistake(self, bench: Bench, what: str) -> None:
        async def nests(ctx: Context) -> str:
            async def inner() -> None:
                calls: dict[str, Callable[[], Any]] = {
                    "one": lambda: ctx.elicit("who?", Login),
                    "several": lambda: ctx.ask(Elicit("who?", Login), Elicit("where?", Email)),
                    "a step": lambda: ctx.step(bench.slow),
                    "a checkpoint": ctx.checkpoint,
                    "the background": ctx.background,
                }
                await calls[what]()

            await ctx.step(inner)
            return "done"

        end = await bench.run(nests)
        assert isinstance(end, Failed)
        assert isinstance(end.error, FlowError)
        assert "was called inside the step 'inner'" in str(end.error)

    async def test_that_a_task_of_its_own_still_waits_for_is_no_error_of_asyncios(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def leaves(ctx: Context) -> str:
            waiting = asyncio.create_task(ctx.elicit("who?", Login))
            await asyncio.sleep(0)
            return "done" if not waiting.done() else ""

        assert isinstance(await bench.run(leaves), Asking)
        bench.round.parked.clear()
        gc.collect()
        assert caplog.messages == []


class TestAnAnswerInATask:
    async def test_lets_its_branch_do_what_is_no_step(self, background: Bench) -> None:
        async def greets(ctx: Context) -> str:
            login = await ctx.elicit("who?", Login)
            await asyncio.sleep(5)
            return login.name

        async def asks(ctx: Context) -> list[str]:
            return list(await asyncio.gather(ctx.step(background.slow), greets(ctx)))

        running = background.begin(asks)
        await background.publishes()
        background.answer("login")
        background.gate.set()
        assert await running == Completed(["slow", "ann"])

    async def test_counts_until_the_handler_is_stopped(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            login = await ctx.elicit("who?", Login)
            await asyncio.sleep(5)
            return login.name

        running = background.begin(asks)
        await background.parks()
        background.answer("login")
        assert await running == Completed("ann")

    async def test_continues_nothing_once_the_round_has_ended(self, background: Bench) -> None:
        beside: list[asyncio.Task[None]] = []

        async def greets(ctx: Context) -> None:
            background.did.append((await ctx.elicit("who?", Login)).name)

        async def leaves(ctx: Context) -> str:
            beside.append(asyncio.create_task(greets(ctx)))
            await asyncio.sleep(0)
            return "done"

        assert isinstance(await background.run(leaves), Asking)
        background.answer("login")
        await settle()
        assert background.did == []
        beside[0].cancel()
        await asyncio.wait(beside)

    async def test_continues_nothing_while_the_round_is_ending(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return str(await asyncio.gather(ctx.step(background.slow), ctx.elicit("who?", Login)))

        running = background.begin(asks)
        await background.publishes()
        failure = ValueError("it ends")
        background.round.fail_with(failure)
        waiting = list(background.round.parked)
        background.answer("login")
        assert background.round.parked == waiting
        background.gate.set()
        assert await running == Failed(failure)

    async def test_to_a_branch_that_is_cancelled_beside_another_question_ends_the_round(
        self, background: Bench
    ) -> None:
        branches: list[asyncio.Task[None]] = []

        async def greets(ctx: Context) -> None:
            try:
                await ctx.elicit("who?", Login)
            except BaseException as error:
                background.did.append(type(error).__name__)
                raise

        async def asks(ctx: Context) -> str:
            branches.append(asyncio.create_task(greets(ctx)))
            return str(await asyncio.gather(ctx.elicit("where?", Email), ctx.step(background.slow)))

        running = background.begin(asks)
        await background.publishes()
        background.answer("login")
        branches[0].cancel()
        await settle()
        assert background.did == []
        background.gate.set()
        end = await running
        assert isinstance(end, Asking)
        assert "email" in end.questions
        branches[0].cancel()
        await asyncio.wait(branches)

    async def test_to_the_last_question_lets_a_step_that_failed_be_cancelled(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            work = asyncio.create_task(ctx.step(background.breaks))
            await ctx.elicit("who?", Login)
            work.cancel()
            (result,) = await asyncio.gather(work, return_exceptions=True)
            return type(result).__name__

        running = background.begin(asks)
        await background.publishes()
        background.gate.set()
        await background.parks(2)
        background.answer("login")
        assert await running == Completed("CancelledError")

    async def test_that_does_not_fit_is_asked_for_again_with_the_reason_whoever_asked(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            twice = [ctx.elicit("who?", Login, key="login") for _ in range(2)]
            return str(await asyncio.gather(ctx.step(background.slow), *twice))

        running = background.begin(asks)
        await background.publishes()
        round_ = background.round
        round_.journal.keep("login", round_.asked["login"].digest, {"action": "accept", "content": {}})
        background.task.take()
        await settle()
        background.gate.set()
        end = await running
        assert isinstance(end, Asking)
        message = end.questions["login"].params["message"]
        assert message != "who?"
        assert message.endswith(" — who?")

    async def asks_for_a_page(self, ctx: Context, bench: Bench) -> str:
        page, login = ctx.elicit_url("pay!", callback=bench.paid), ctx.elicit("who?", Login)
        return str(await asyncio.gather(ctx.step(bench.slow), page, login))

    async def test_to_one_question_leaves_the_page_of_another_alone(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return await self.asks_for_a_page(ctx, background)

        running = background.begin(asks)
        await background.publishes()
        background.answer("login")
        await settle()
        background.gate.set()
        end = await running
        assert isinstance(end, Asking)
        assert list(end.questions) == ["paid"]

    async def test_to_a_page_that_is_still_open_lets_the_round_be_continued_elsewhere(self, background: Bench) -> None:
        async def asks(ctx: Context) -> str:
            return await self.asks_for_a_page(ctx, background)

        running = background.begin(asks)
        await background.publishes()
        background.leaves = YieldReason.DRAINING
        background.answer("paid")
        await settle()
        background.gate.set()
        assert await running == Yielded(YieldReason.DRAINING)
        assert "paid" in background.round.journal.answers, "so who continues waits for the page again"

    async def test_is_read_once_whatever_comes_later(self, background: Bench) -> None:
        class Read(BaseModel):
            name: str

            @field_validator("name")
            @classmethod
            def note(cls, name: str) -> str:
                background.did.append(name)
                return name

        async def asks(ctx: Context) -> str:
            who = Elicit("who?", Read, key="login")
            return str(await asyncio.gather(ctx.step(background.slow), ctx.ask(who, Elicit("where?", Email))))

        running = background.begin(asks)
        await background.publishes()
        background.answer("login")
        await settle()
        background.answer("email")
        await settle()
        assert background.did == ["ann"]
        background.gate.set()
        assert isinstance(await running, Completed)

    async def test_to_a_page_that_does_not_report_in_time_is_asked_for_again(
        self, background: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited: list[list[str]] = []

        async def wait(flow: Journal, should_yield: Any) -> Reports[YieldReason]:
            waited.append(sorted(flow.answers))
            return Reports({}, (("paid", digest),))

        async def asks(ctx: Context) -> str:
            return await self.asks_for_a_page(ctx, background)

        running = background.begin(asks)
        await background.publishes()
        digest = background.round.asked["paid"].digest
        monkeypatch.setattr(background.callbacks, "reports", wait)
        background.answer("login", "paid")
        await settle()
        background.gate.set()
        end = await running
        assert isinstance(end, Asking)
        assert (list(end.questions), waited) == (["paid"], [["paid"]])
        assert end.questions["paid"].params["message"] == f"{UNFINISHED} — pay!"

    async def test_to_a_page_is_looked_for_again_a_while_after_the_store_was_away(
        self, background: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[float] = []

        async def wait(flow: Any, should_yield: Any) -> Any:
            looked.append(asyncio.get_running_loop().time())
            if len(looked) < 3:
                raise StoreUnavailable("away")
            return await Callbacks.reports(background.callbacks, flow, should_yield)

        async def asks(ctx: Context) -> str:
            return await self.asks_for_a_page(ctx, background)

        running = background.begin(asks)
        await background.publishes()
        monkeypatch.setattr(background.callbacks, "reports", wait)
        background.leaves = YieldReason.DRAINING
        background.answer("paid")
        asyncio.get_running_loop().call_later(2, background.gate.set)
        await running
        assert [at - looked[0] for at in looked] == pytest.approx([0, LOOK_AGAIN_AFTER, 2 * LOOK_AGAIN_AFTER])


class TestAStep:
    async def test_of_a_task_is_kept_before_its_result_is_used(self, bench: Bench) -> None:
        async def works(ctx: Context) -> str:
            await ctx.step(bench.slow)
            bench.did.append("used")
            return "done"

        bench.gate.set()
        assert await bench.run(works) == Completed("done")
        assert bench.did == (["slow", "used"] if bench.round.task is None else ["slow", "kept", "used"])

    async def test_of_a_task_is_used_by_no_branch_before_it_is_kept(self, background: Bench) -> None:
        async def use(ctx: Context) -> None:
            await ctx.step(background.work, "step", key="step")
            background.did.append("used")

        async def works(ctx: Context) -> None:
            first = asyncio.create_task(use(ctx))
            await settle()
            asyncio.get_running_loop().call_later(1, background.gate.set)
            await use(ctx)
            await first

        background.task.store = background.gate.wait
        assert await background.run(works) == Completed(None)
        assert background.did == ["step", "kept", "used", "used"]

    @pytest.mark.parametrize(
        ("name", "branch"),
        [("pay", "pay"), (None, "beside"), ("None", "beside")],
        ids=["its author named", "nobody named", "a task factory of Python 3.12 made"],
    )
    async def test_has_a_key_with_the_name_of_the_task_beside_the_handler_that(
        self, bench: Bench, name: str | None, branch: str
    ) -> None:
        async def beside(ctx: Context) -> None:
            await ctx.step(bench.work, "step")

        async def works(ctx: Context) -> None:
            await asyncio.create_task(beside(ctx), name=name)

        assert await bench.run(works) == Completed(None)
        (key,) = bench.round.journal.steps
        task, _, step = key.partition("#")
        assert (task.partition(":")[0], step) == (branch, "work")

    async def test_of_a_task_begins_unchecked_only_where_one_was_kept_just_now(self, background: Bench) -> None:
        checks: list[int] = []

        async def works(ctx: Context) -> None:
            for name, pause in (("one", 0), ("two", 0), ("three", 1), ("one", 0), ("four", 0)):
                await ctx.step(background.work, name, key=name)
                checks.append(background.task.checks)
                if pause:
                    await asyncio.sleep(pause)

        assert await background.run(works) == Completed(None)
        assert checks == [1, 1, 1, 1, 2]

    async def test_of_a_task_that_is_lost_when_that_is_checked_does_not_begin(self, background: Bench) -> None:
        async def lose() -> None:
            background.task.lost = True

        background.task.check = lose
        await background.run(self.works_once(background))
        assert background.did == []

    async def test_of_a_task_that_is_to_be_left_when_that_is_checked_does_not_begin(self, background: Bench) -> None:
        async def leave() -> None:
            background.leaves = YieldReason.DRAINING

        background.task.check = leave
        assert await background.run(self.works_once(background)) == Yielded(YieldReason.DRAINING)
        assert background.did == []

    async def test_that_can_not_be_checked_fails_the_round(self, background: Bench) -> None:
        failure = ValueError("the store is away")

        async def fail() -> None:
            raise failure

        background.task.check = fail
        assert await background.run(self.works_once(background)) == Failed(failure)
        assert background.did == []

    async def test_that_is_still_checked_when_its_handler_is_cancelled_never_begins_and_returns_nowhere(
        self, background: Bench
    ) -> None:
        checked, branches = asyncio.Event(), list[asyncio.Task[None]]()

        async def beside(ctx: Context) -> None:
            try:
                await ctx.step(background.work, "step")
            except Exception as error:
                background.did.append(repr(error))
            background.did.append("after")

        async def works(ctx: Context) -> None:
            branches.append(asyncio.create_task(beside(ctx)))
            await asyncio.Future()

        background.task.check = checked.wait
        running = background.begin(works)
        await settle()
        running.cancel()
        await settle()
        checked.set()
        await asyncio.wait([running])
        await settle()
        assert (running.cancelled(), background.did) == (True, [])
        branches[0].cancel()
        await asyncio.wait(branches)

    def works_once(self, bench: Bench) -> Callable[[Context], Any]:
        async def works(ctx: Context) -> str:
            await ctx.step(bench.work, "step")
            return "done"

        return works

    async def test_that_has_run_returns_its_result_though_the_round_is_to_be_left(self, bench: Bench) -> None:
        async def works(ctx: Context) -> str:
            await ctx.step(bench.work, "step", key="step")
            bench.leaves = YieldReason.FULL
            await ctx.step(bench.work, "step", key="step")
            bench.did.append("used")
            await ctx.step(bench.work, "another", key="another")
            return "done"

        assert await bench.run(works) == Yielded(YieldReason.FULL)
        assert [what for what in bench.did if what != "kept"] == ["step", "used"]

    async def test_that_has_run_returns_nothing_in_a_round_that_ends(self, bench: Bench) -> None:
        async def works(ctx: Context) -> str:
            await ctx.step(bench.work, "step", key="step")
            bench.round.leave(YieldReason.FULL)
            await ctx.step(bench.work, "step", key="step")
            bench.did.append("after")
            return "done"

        assert await bench.run(works) == Yielded(YieldReason.FULL)
        assert "after" not in bench.did

    async def test_that_has_run_in_an_earlier_round_is_told_once_to_who_watches(
        self, bench: Bench, callbacks: Callbacks
    ) -> None:
        async def works(ctx: Context) -> str:
            for _ in range(2):
                await ctx.step(bench.work, "step", key="step")
            return "done"

        assert await bench.run(works) == Completed("done")
        again = Bench(callbacks, in_task=bench.round.task is not None)
        again.round.journal.steps |= bench.round.journal.steps
        assert await again.run(works) == Completed("done")
        assert (again.round.call.trace.names("ran"), again.round.call.trace.names("replayed")) == ([], ["step"])

    async def test_that_would_end_the_process_fails(self, bench: Bench) -> None:
        async def leave() -> None:
            sys.exit()

        async def works(ctx: Context) -> str:
            await ctx.step(leave)
            return "done"

        end = await bench.run(works)
        assert isinstance(end, Failed)
        assert repr(end.error) == "RuntimeError(\"The step 'leave' called sys.exit()\")"

    async def test_that_can_not_be_kept_fails_the_round(self, background: Bench) -> None:
        async def works(ctx: Context) -> str:
            await ctx.step(background.slow)
            background.did.append("used")
            return "done"

        background.gate.set()
        background.task.fails = ValueError("the store is away")
        assert await background.run(works) == Failed(background.task.fails)
        assert background.did == ["slow", "kept"]

    async def test_of_the_handler_has_a_key_of_its_own_after_those_of_a_dependency(self, bench: Bench) -> None:
        async def needed(ctx: Context) -> str:
            return await ctx.step(bench.slow)

        async def uses(ctx: Context, it: Annotated[str, Depends(needed)]) -> str:
            return it + await ctx.step(bench.slow)

        bench.gate.set()
        assert await bench.run(uses) == Completed("slowslow")
        first, second = bench.round.journal.steps
        assert (first.endswith("#slow"), second) == (True, "slow")

    async def leave_beside(self, bench: Bench, works: Callable[[Context], Any]) -> RoundEnd:
        """Let the round end beside a step, which ends later."""

        async def leaves(ctx: Context) -> None:
            await asyncio.sleep(1)
            bench.leaves = YieldReason.FULL
            asyncio.get_running_loop().call_later(1, bench.gate.set)
            await ctx.checkpoint()
            bench.did.append("after the checkpoint")

        async def both(ctx: Context) -> str:
            await asyncio.gather(works(ctx), leaves(ctx))
            return "done"

        return await bench.run(both)

    async def test_that_ends_in_a_round_that_is_ending_is_used_in_the_foreground_alone(self, bench: Bench) -> None:
        async def works(ctx: Context) -> None:
            bench.did.append("used " + await ctx.step(bench.slow))

        assert await self.leave_beside(bench, works) == Yielded(YieldReason.FULL)
        assert bench.did == (["slow", "used slow"] if bench.round.task is None else ["slow", "kept"])

    async def test_that_fails_in_a_round_that_is_ending_runs_again_in_the_next(self, bench: Bench) -> None:
        async def works(ctx: Context) -> None:
            try:
                await ctx.step(bench.breaks)
            except LookupError:
                bench.did.append("handled")

        assert await self.leave_beside(bench, works) == Yielded(YieldReason.FULL)
        assert (bench.did, bench.round.journal.steps) == ([], {})


class TestAHandlerThatReturns:
    @pytest.mark.parametrize("raises", [False, True], ids=["a result", "an error"])
    async def test_waits_for_all_steps_that_a_task_beside_it_runs_in_a_row(self, bench: Bench, raises: bool) -> None:
        branches: list[asyncio.Task[None]] = []

        async def beside(ctx: Context) -> None:
            await ctx.step(bench.slow)
            await ctx.step(bench.work, "more")

        async def leaves(ctx: Context) -> str:
            branches.append(asyncio.create_task(beside(ctx)))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(1, bench.gate.set)
            if raises:
                raise LookupError("broken")
            return "done"

        assert isinstance(await bench.run(leaves), Failed if raises else Completed)
        assert [what for what in bench.did if what != "kept"] == ["slow", "more"]
        await asyncio.wait(branches)

    async def test_waits_for_a_step_beside_it_though_it_is_cancelled_meanwhile(self, bench: Bench) -> None:
        branches: list[asyncio.Task[str]] = []

        async def leaves(ctx: Context) -> str:
            loop, main = asyncio.get_running_loop(), asyncio.current_task()
            assert main is not None
            branches.append(asyncio.create_task(ctx.step(bench.slow)))
            await asyncio.sleep(0)
            loop.call_later(1, main.cancel)
            loop.call_later(2, bench.gate.set)
            return "done"

        await asyncio.wait([bench.begin(leaves)])
        assert "slow" in bench.did
        await asyncio.wait(branches)


class TestATeardown:
    """What the dependencies of a handler do at the end of its round."""

    async def test_stops_a_task_beside_the_handler_that_asks_and_the_round_ends_as_it_did(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        branches: list[asyncio.Task[None]] = []

        async def beside(ctx: Context) -> None:
            await bench.gate.wait()
            try:
                await ctx.elicit("who?", Login)
            finally:
                bench.did.append("stopped")

        async def session() -> AsyncIterator[None]:
            yield
            bench.gate.set()
            await asyncio.wait(branches)

        async def leaves(ctx: Context, it: Annotated[None, Depends(session)]) -> str:
            branches.append(asyncio.create_task(beside(ctx)))
            return "done"

        assert isinstance(await bench.run(leaves), Completed)
        assert (bench.did, branches[0].cancelled()) == (["stopped"], True)
        assert "'tested' continued after its round had ended" in caplog.text

    async def test_in_a_task_that_runs_elsewhere_by_now_gets_a_cancellation(self, background: Bench) -> None:
        async def session() -> AsyncIterator[None]:
            try:
                yield
            except BaseException as error:
                background.did.append(type(error).__name__)
                raise
            background.did.append("committed")

        async def works(it: Annotated[None, Depends(session)]) -> str:
            background.task.lost = True
            return "done"

        await background.run(works)
        assert background.did == ["CancelledError"]

    async def test_has_what_is_asked_published_by_the_end_of_the_round_alone(self, background: Bench) -> None:
        branches: list[asyncio.Task[Login]] = []

        async def session() -> AsyncIterator[None]:
            yield
            await asyncio.sleep(1)

        async def leaves(ctx: Context, it: Annotated[None, Depends(session)]) -> str:
            branches.append(asyncio.create_task(ctx.elicit("who?", Login)))
            await asyncio.sleep(0)
            return "done"

        assert isinstance(await background.run(leaves), Asking)
        assert background.task.published == []
        branches[0].cancel()
        await asyncio.wait(branches)

    async def test_commits_nothing_where_the_loop_has_ended_before_the_handler(self, bench: Bench) -> None:
        async def session() -> AsyncIterator[None]:
            yield
            bench.did.append("committed")

        async def waits(it: Annotated[None, Depends(session)]) -> None:
            await asyncio.Future()

        running = bench.begin(waits)
        await settle()
        assert bench.round.main is not None
        coroutine: Any = bench.round.main.get_coro()
        coroutine.close()  # as a loop does that nobody runs any more
        running.cancel()
        await asyncio.wait([running])
        assert bench.did == []

    async def test_of_an_error_leaves_no_frames_in_its_traceback(self, bench: Bench) -> None:
        async def session() -> AsyncIterator[None]:
            yield

        async def fails(it: Annotated[None, Depends(session)]) -> str:
            raise LookupError("broken")

        end = await bench.run(fails)
        assert isinstance(end, Failed)
        frames = [frame.name for frame in traceback.extract_tb(end.error.__traceback__)]
        assert ("fails" in frames, "session" in frames) == (True, False)

    @pytest.mark.parametrize("breaks", [False, True], ids=["returns", "fails"])
    async def test_of_a_cancellation_comes_after_what_runs_in_a_thread_whose_outcome_is_dropped(
        self, foreground: Bench, breaks: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop, gate = asyncio.get_running_loop(), threading.Event()

        async def session() -> AsyncIterator[None]:
            yield
            foreground.did.append("committed")

        def cancel() -> None:
            assert foreground.round.main is not None
            foreground.round.main.cancel()
            loop.call_soon(gate.set)

        def works(it: Annotated[None, Depends(session)]) -> str:
            loop.call_soon_threadsafe(cancel)
            assert gate.wait(TIMEOUT)
            foreground.did.append("worked")
            if breaks:
                raise LookupError("broken")
            return "done"

        async def error() -> str:
            end = await foreground.run(works)
            return str(end.error) if isinstance(end, Failed) else ""

        assert await asyncio.create_task(error()) == "'tested' raised CancelledError, but was not cancelled"
        foreground.round.main = None  # or what it raised holds what ran
        gc.collect()
        assert (foreground.did, caplog.messages) == (["worked"], [])

    async def test_is_cut_by_a_second_cancellation_however_late_it_began(self, bench: Bench) -> None:
        async def session() -> AsyncIterator[None]:
            with suppress(asyncio.CancelledError):
                yield
            bench.did.append("began")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                bench.did.append("cut")

        async def winds_down(it: Annotated[None, Depends(session)]) -> None:
            try:
                await asyncio.Future()
            finally:
                await asyncio.sleep(1)

        running = bench.begin(winds_down)
        await settle()
        running.cancel()
        await asyncio.sleep(2)
        assert bench.did == ["began"]
        running.cancel()
        await asyncio.wait([running])
        await settle()
        assert bench.did == ["began", "cut"]


class TestAHandlerThatIsStopped:
    async def run_winding_down(self, bench: Bench, seconds: float) -> float:
        """Run a handler that takes so long to end; return how long the round takes."""

        async def winds_down(ctx: Context) -> str:
            try:
                await asyncio.gather(ctx.elicit("who?", Login))
            except asyncio.CancelledError:
                await asyncio.sleep(seconds)
                bench.did.append("wound down")
                raise
            return "done"

        began = asyncio.get_running_loop().time()
        assert isinstance(await bench.run(winds_down), Asking)
        return asyncio.get_running_loop().time() - began

    async def test_has_time_to_wind_down(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        assert await self.run_winding_down(bench, 3) == pytest.approx(3)
        assert (bench.did, caplog.messages) == (["wound down"], [])

    async def test_is_abandoned_when_that_is_over(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        assert await self.run_winding_down(bench, 30) == pytest.approx(WIND_DOWN_SECONDS)
        assert bench.did == []
        assert caplog.record_tuples == [
            ("mrtr_server", logging.ERROR, "'tested' does not end when it is cancelled, and is abandoned")
        ]
        await asyncio.sleep(30)

    async def test_since_its_flow_becomes_a_task_is_not_to_be_continued_elsewhere(self, foreground: Bench) -> None:
        async def moves(ctx: Context) -> None:
            await asyncio.gather(ctx.step(foreground.slow), ctx.background(), leaves(ctx))

        async def leaves(ctx: Context) -> None:
            await asyncio.sleep(1)
            foreground.leaves = YieldReason.FULL
            foreground.gate.set()
            await ctx.checkpoint()

        foreground.round._may_become_task = True
        assert isinstance(await foreground.run(moves), Backgrounded)

    async def test_does_not_go_on_after_a_checkpoint_that_its_own_timeout_cuts(self, bench: Bench) -> None:
        async def hurries(ctx: Context) -> str:
            running = asyncio.create_task(ctx.step(bench.slow))
            await settle()
            bench.leaves = YieldReason.FULL
            asyncio.get_running_loop().call_later(2, bench.gate.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await ctx.checkpoint()
            bench.did.append("after")
            return await running

        assert await bench.run(hurries) == Yielded(YieldReason.FULL)
        assert [what for what in bench.did if what != "kept"] == ["slow"]

    async def test_gives_asyncio_nothing_to_report_of_a_task_that_waits_for_the_client(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def works(ctx: Context) -> None:
            waiting = asyncio.create_task(ctx.elicit("who?", Login))
            await ctx.step(bench.slow)
            assert not waiting.done()

        running = bench.begin(works)
        await bench.parks()
        running.cancel()
        await settle()
        bench.gate.set()
        await asyncio.wait([running])
        assert running.cancelled()
        del running  # and all else that holds the task
        vars(bench).clear()
        gc.collect()
        assert caplog.messages == []

    async def test_winds_down_though_its_client_leaves_then(self, bench: Bench) -> None:
        async def winds_down(ctx: Context) -> None:
            try:
                await asyncio.gather(ctx.elicit("who?", Login))
            finally:
                await asyncio.sleep(3)
                bench.did.append("wound down")

        running = bench.begin(winds_down)
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        assert (running.cancelled(), bench.did) == (True, ["wound down"])

    async def test_is_abandoned_at_once_where_it_waits_for_a_task_that_waits_for_the_client(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        branches: list[asyncio.Task[Login]] = []

        async def insists(ctx: Context) -> None:
            branches.append(asyncio.create_task(ctx.elicit("who?", Login)))
            while not branches[0].done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(branches)

        began = asyncio.get_running_loop().time()
        assert isinstance(await bench.run(insists), Asking)
        assert asyncio.get_running_loop().time() == began
        assert caplog.messages == ["'tested' does not end when it is cancelled, and is abandoned"]
        branches[0].cancel()
        await asyncio.wait(branches)

    async def test_that_never_ends_gives_asyncio_nothing_to_report(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def stays(ctx: Context) -> None:
            try:
                await asyncio.gather(ctx.elicit("who?", Login))
            finally:
                await asyncio.Future()

        await asyncio.wait([bench.begin(stays)])
        vars(bench).clear()  # all that holds the handler
        gc.collect()
        assert caplog.messages == ["'tested' does not end when it is cancelled, and is abandoned"]

    @pytest.mark.parametrize("seconds", [0, 30], ids=["in time", "after it was abandoned"])
    async def test_that_fails_for_nobody_gives_asyncio_nothing_to_report(
        self, bench: Bench, seconds: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Odd(BaseException):
            """What nobody catches."""

        async def session() -> AsyncIterator[None]:
            try:
                yield
            finally:
                bench.did.append("failed")
                raise Odd

        async def waits(it: Annotated[None, Depends(session)]) -> None:
            try:
                await asyncio.Future()
            finally:
                await asyncio.sleep(seconds)

        running = bench.begin(waits)
        await settle()
        running.cancel()
        await asyncio.wait([running])
        await asyncio.sleep(seconds)
        await settle()
        bench.round.main = None
        gc.collect()
        assert (running.cancelled(), bench.did) == (True, ["failed"])
        abandoned = ["'tested' does not end when it is cancelled, and is abandoned"] if seconds else []
        assert caplog.messages == abandoned

    async def test_whose_step_fails_for_nobody_gives_asyncio_nothing_to_report(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def works(ctx: Context) -> None:
            await ctx.step(bench.breaks)

        running = bench.begin(works)
        await settle()
        running.cancel()
        await settle()
        bench.gate.set()
        await asyncio.wait([running])
        assert running.cancelled()
        del running  # and all else that holds the step
        vars(bench).clear()
        gc.collect()
        assert caplog.messages == []

    @pytest.mark.parametrize("leaves", [False, True], ids=["by its round", "by a client that leaves"])
    async def test_ends_though_a_timeout_of_its_own_has_cancelled_its_ask_before(
        self, bench: Bench, leaves: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def hurries(ctx: Context) -> str:
            running = asyncio.create_task(ctx.step(bench.slow))
            try:
                async with asyncio.timeout(1):
                    await ctx.elicit("who?", Login)
            finally:
                bench.did.append("ended")
            return await running

        running = bench.begin(hurries)
        await asyncio.sleep(2)
        if leaves:
            running.cancel()
        await settle()
        bench.gate.set()
        with suppress(asyncio.CancelledError):
            assert isinstance(await running, Asking)
        assert running.cancelled() == leaves
        work = ["slow"] if bench.round.task is None else ["slow", "kept"]
        assert (bench.did, caplog.messages) == (["ended", *work] if leaves else [*work, "ended"], [])
