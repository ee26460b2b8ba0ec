"""Rule 5 of a flow: an ask without an answer never returns, whatever the handler does."""

import asyncio
import gc
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from mrtr_server import (
    Context,
    Elicit,
    MRTRServer,
    Sample,
    Sampled,
    ToolError,
)
from mrtr_server.testing import Answer, AsyncClient, accept, cancel, decline, no, sampled, yes

from ..support.direct import headers_for, scope_of
from ..support.effects import EFFECTS, effect, slow_effect
from ..support.models import Login
from ..support.wire import modern

pytestmark = pytest.mark.anyio


def _one_body(body: bytes) -> tuple[Any, Any]:
    """Return the `receive` and the `send` of a request whose client stays."""
    coming: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return coming.pop() if coming else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        pass

    return receive, send


class TestRule5AnUnansweredAskParks:
    """Rule 5. An ask that can't be answered never returns. The round ends when no step is running and no further ask
    has come, whatever the handler catches; no step is cut in the middle, and no code after the ask runs.
    """

    async def test_asks_side_by_side_go_out_in_one_round(self, app: MRTRServer) -> None:
        @app.tool
        async def gathered(ctx: Context) -> str:
            login, said = await asyncio.gather(ctx.elicit("who?", Login), ctx.sample("capital?"))
            return f"{login.name} {said.text}"

        @app.tool
        async def grouped(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                login = group.create_task(ctx.elicit("who?", Login))
                said = group.create_task(ctx.sample("capital?"))
            return f"{login.result().name} {said.result().text}"

        @app.tool
        async def nested(ctx: Context) -> str:
            async def inner() -> Sampled:
                (said,) = await asyncio.gather(ctx.sample("capital?"))
                return said

            login, said = await asyncio.gather(ctx.elicit("who?", Login), inner())
            return f"{login.name} {said.text}"

        @app.tool
        async def asked(ctx: Context) -> str:
            login, said = await ctx.ask(Elicit("who?", Login), Sample("capital?"))
            return f"{login.name} {said.text}"

        @app.tool
        async def named(ctx: Context) -> str:
            answers = await ctx.ask(login=Elicit("who?", Login), sample=Sample("capital?"))
            return f"{answers['login'].name} {answers['sample'].text}"

        for target in ("gathered", "grouped", "nested", "asked", "named"):
            flow = AsyncClient(app).flow(target)
            assert set((await flow.start()).questions) == {"login", "sample"}, target
            assert (await flow.answer(login=accept(name="ann"), sample=sampled("Oslo"))).text == "ann Oslo"

    async def test_waiting_for_a_branch_does_not_look_through_what_the_handler_holds(self, app: MRTRServer) -> None:
        looked: list[object] = []

        class Rows(list[int]):
            def __iter__(self) -> Iterator[int]:
                looked.append(self)
                return super().__iter__()

        async def late(ctx: Context) -> str:
            for _ in range(50):
                await asyncio.sleep(0)
            return (await ctx.sample("capital?")).text

        @app.tool
        async def report(ctx: Context) -> str:
            rows = Rows(range(9))
            login, said = await asyncio.gather(ctx.elicit("who?", Login), late(ctx))
            return f"{login.name} {said} {len(rows)}"

        assert set((await AsyncClient(app).flow("report").start()).questions) == {"login", "sample"}
        assert not looked

    async def test_a_branch_that_comes_to_its_ask_after_many_turns_is_waited_for(self, app: MRTRServer) -> None:
        async def late(ctx: Context, after: asyncio.Event | None = None) -> str:
            for _ in range(50):
                await asyncio.sleep(0)
            if after is not None:
                after.set()
            return (await ctx.sample("capital?")).text

        async def behind(ctx: Context) -> str:
            done = asyncio.Event()
            said, _ = await asyncio.gather(late(ctx, done), done.wait())
            return said

        @app.tool
        async def gathered(ctx: Context) -> str:
            login, said = await asyncio.gather(ctx.elicit("who?", Login), late(ctx))
            return f"{login.name} {said}"

        @app.tool
        async def grouped(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                login, said = group.create_task(ctx.elicit("who?", Login)), group.create_task(behind(ctx))
            return f"{login.result().name} {said.result()}"

        @app.tool
        async def of_anyio(ctx: Context) -> str:
            found: dict[str, Any] = {}

            async def find(name: str, work: Any) -> None:
                found[name] = await work

            async with anyio.create_task_group() as group:
                group.start_soon(find, "login", ctx.elicit("who?", Login))
                group.start_soon(find, "said", late(ctx))
            return f"{found['login'].name} {found['said']}"

        @app.tool
        async def waiting(ctx: Context) -> str:
            login, said = asyncio.create_task(ctx.elicit("who?", Login)), asyncio.create_task(behind(ctx))
            await asyncio.wait((login, said))
            return f"{login.result().name} {said.result()}"

        @app.tool
        async def awaited(ctx: Context) -> str:
            said = asyncio.create_task(late(ctx))
            login = asyncio.create_task(ctx.elicit("who?", Login))
            text = await said
            return f"{(await login).name} {text}"

        @app.tool
        async def in_time(ctx: Context) -> str:
            login, said = await asyncio.gather(ctx.elicit("who?", Login), asyncio.wait_for(late(ctx), 60))
            return f"{login.name} {said}"

        for target in ("gathered", "grouped", "of_anyio", "waiting", "awaited", "in_time"):
            flow = AsyncClient(app).flow(target)
            assert set((await flow.start()).questions) == {"login", "sample"}, target
            assert (await flow.answer(login=accept(name="ann"), sample=sampled("Oslo"))).text == "ann Oslo"

    async def test_a_branch_that_never_comes_to_one_is_not(self, app: MRTRServer) -> None:
        async def turn() -> None:
            for _ in itertools.count():
                await asyncio.sleep(0)

        @app.tool
        async def turning(ctx: Context) -> str:
            await asyncio.gather(ctx.confirm("sure?"), turn())
            return effect("after")

        @app.tool
        async def locked(ctx: Context) -> str:
            one = asyncio.create_task(asyncio.Event().wait())
            await asyncio.gather(ctx.confirm("sure?"), asyncio.gather(one, asyncio.wait((one,))))
            return effect("after")

        for target in ("turning", "locked"):
            assert (await AsyncClient(app).flow(target).start()).questions == {"confirm": "sure?"}

    async def test_asks_of_one_call_come_in_order_or_by_name_and_not_both(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def both(ctx: Context) -> str:
            ask: Any = ctx.ask
            return str(await ask(Elicit("who?", Login), sample=Sample("capital?")))

        assert "reference" in (await AsyncClient(app).flow("both").start()).failure
        assert "ctx.ask(...) takes asks in order or by name, not both" in caplog.text

    async def test_a_step_beside_an_ask_finishes_and_is_recorded(self, app: MRTRServer) -> None:
        @app.tool
        async def beside(ctx: Context) -> str:
            login, done = await asyncio.gather(ctx.elicit("who?", Login), ctx.step(slow_effect, "work"))
            return f"{login.name} {done}"

        flow = AsyncClient(app).flow("beside")
        assert (await flow.start()).needs_input
        assert EFFECTS == ["work"]
        assert (await flow.answer(login=accept(name="ann"))).text == "ann work"
        assert EFFECTS == ["work"]

    @pytest.mark.parametrize("step", [slow_effect, effect], ids=["async def", "def"])
    async def test_an_ask_that_a_side_branch_reaches_after_a_step_goes_out_in_the_same_round(
        self, app: MRTRServer, step: Any
    ) -> None:
        @app.tool
        async def beside(ctx: Context) -> str:
            async def branch(name: str) -> str:
                await ctx.step(step, f"{name} one")
                await ctx.step(step, f"{name} two", key=f"{name} two")
                for _ in range(3):  # as code does that awaits what is there already
                    await asyncio.sleep(0)
                return (await ctx.elicit(f"{name}?", Login, key=name)).name

            async with asyncio.TaskGroup() as group:
                first = group.create_task(ctx.elicit("who?", Login))
                others = [group.create_task(branch(name)) for name in ("a", "b")]
            return " ".join([first.result().name, *(each.result() for each in others)])

        flow = AsyncClient(app).flow("beside")
        assert set((await flow.start()).questions) == {"login", "a", "b"}
        assert (await flow.send({key: accept(name=key) for key in ("login", "a", "b")})).text == "login a b"
        assert flow.last.rounds == 2
        assert sorted(EFFECTS) == ["a one", "a two", "b one", "b two"]

    async def test_steps_in_a_row_beside_an_ask_all_finish(self, app: MRTRServer) -> None:
        @app.tool
        async def beside(ctx: Context) -> str:
            async def work() -> str:
                one = await ctx.step(slow_effect, "one")
                return one + await ctx.step(effect, "two")

            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ctx.elicit("who?", Login))
                working = group.create_task(work())
            return asking.result().name + working.result()

        flow = AsyncClient(app).flow("beside")
        assert (await flow.start()).needs_input
        assert EFFECTS == ["one", "two"]
        assert (await flow.answer(login=accept(name="ann"))).text == "annonetwo"
        assert EFFECTS == ["one", "two"]

    @pytest.mark.parametrize(
        ("answer", "ends"),
        [
            (None, False),
            (decline, True),
            (cancel, True),
            (no, True),
            (accept(), False),
            (accept(confirm="maybe"), False),
        ],
    )
    async def test_nothing_swallows_it(self, app: MRTRServer, answer: Answer | None, ends: bool) -> None:
        @app.tool
        async def excepting(ctx: Context) -> str:
            try:
                await ctx.confirm("sure?")
            except Exception:
                effect("except")
            return effect("after")

        @app.tool
        async def gathering(ctx: Context) -> str:
            await asyncio.gather(ctx.confirm("sure?"), return_exceptions=True)
            return effect("after")

        @app.tool
        async def grouping(ctx: Context) -> str:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.confirm("sure?"))
            except* Exception:
                effect("except")
            return effect("after")

        @app.tool
        async def shielding(ctx: Context) -> str:
            await asyncio.shield(ctx.confirm("sure?"))
            return effect("after")

        @app.tool
        async def hurrying(ctx: Context) -> str:
            try:
                await asyncio.wait_for(ctx.confirm("sure?"), timeout=0.3)
            except TimeoutError:
                effect("timeout")
            return effect("after")

        @app.tool
        async def catching_all(ctx: Context) -> str:
            try:
                await ctx.confirm("sure?")
            except BaseException:
                await ctx.step(effect, "after")
            return "done"

        @app.tool
        async def leaving_it_behind(ctx: Context) -> str:
            asking = asyncio.create_task(ctx.confirm("sure?"))
            await asyncio.sleep(0)
            return "done" if not asking.done() else effect("after")

        for target in (
            "excepting",
            "gathering",
            "grouping",
            "shielding",
            "hurrying",
            "catching_all",
            "leaving_it_behind",
        ):
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).questions == {"confirm": "sure?"}
            if answer is not None:
                reply = await flow.answer(confirm=answer)
                assert (reply.failed, reply.needs_input) == (ends, not ends), target
            assert EFFECTS == [], target

    async def test_a_yes_goes_on(self, app: MRTRServer) -> None:
        @app.tool
        async def deploy(ctx: Context) -> str:
            await ctx.confirm("sure?")
            return effect("after")

        flow = AsyncClient(app).flow("deploy")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "after"

    async def test_an_error_beside_an_open_ask_waits_for_the_answer(self, app: MRTRServer) -> None:
        @app.tool
        async def failing(ctx: Context) -> str:
            async def fail() -> None:
                raise ToolError("broken")

            await asyncio.gather(ctx.elicit("who?", Login), fail())
            return "done"

        flow = AsyncClient(app).flow("failing")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="ann"))).failure == "broken"

    async def test_a_handler_that_catches_everything_is_refused_and_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def stubborn(ctx: Context) -> str:
            with suppress(BaseException):
                await ctx.confirm("sure?")
            await ctx.step(effect, "after")
            return "done"

        assert (await AsyncClient(app).flow("stubborn").start()).needs_input
        assert EFFECTS == []
        assert "continued after its round had ended" in caplog.text

    async def test_one_that_has_just_finished_is_not_said_to_have_caught_anything(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate, last = asyncio.Event(), asyncio.Event()

        @app.tool
        async def finishing(ctx: Context) -> str:
            await gate.wait()
            last.set()
            return "done"

        message = modern("tools/call", {"name": "finishing", "arguments": {}})
        request = asyncio.create_task(app(scope_of(headers_for(message)), *_one_body(json.dumps(message).encode())))
        gate.set()
        await last.wait()  # the handler returns in this turn of the loop, and its round hears of it in the next
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert caplog.messages == []

    async def test_a_plain_def_is_told_to_use_another_style(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        def plain(ctx: Context) -> str:
            ctx.confirm("sure?")  # type: ignore[unused-coroutine]
            return effect("after")

        assert "reference" in (await AsyncClient(app).flow("plain").start()).failure
        assert "async def" in caplog.text

    async def test_asks_and_steps_inside_a_step_are_refused(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def nested(ctx: Context) -> str:
            async def inner() -> str:
                await ctx.confirm("sure?")
                return effect("after")

            return await ctx.step(inner)

        assert "reference" in (await AsyncClient(app).flow("nested").start()).failure
        assert "inside the step 'inner'" in caplog.text
        assert EFFECTS == []

    async def test_on_another_event_loop_asks_and_steps_are_refused(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def elsewhere(ctx: Context, what: str) -> str:
            async def work() -> str:
                with suppress(Exception):
                    await (ctx.confirm("sure?") if what == "an ask" else ctx.step(effect, "done"))
                return effect("after")

            return await asyncio.to_thread(asyncio.run, work())

        for what in ("an ask", "a step"):
            caplog.clear()
            assert "reference" in (await AsyncClient(app).flow("elsewhere", {"what": what}).start()).failure
            assert f"{what} was called on another event loop than its handler's" in caplog.text
        assert "done" not in EFFECTS

    async def test_what_a_handler_returns_that_caught_the_end_of_its_round_is_dropped_and_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def stubborn(ctx: Context) -> str:
            with suppress(asyncio.CancelledError):
                await ctx.confirm("sure?")
            return "done"

        assert (await AsyncClient(app).flow("stubborn").start()).questions == {"confirm": "sure?"}
        assert "'stubborn' caught the cancellation that ended its round, and returned a value" in caplog.text


class TestWaysAroundAnOpenAsk:
    """What was tried to get past an ask that nobody has answered."""

    async def test_a_failure_beside_an_open_ask_is_not_handed_on(self, app: MRTRServer) -> None:
        def quota() -> None:
            raise LookupError

        @app.tool
        async def gathered(ctx: Context) -> str:
            with suppress(LookupError):
                await asyncio.gather(ctx.confirm("delete?"), ctx.step(quota))
            return await ctx.step(effect, "deleted")

        @app.tool
        async def grouped(ctx: Context) -> str:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.confirm("delete?"))
                    group.create_task(ctx.step(quota))
            except* LookupError:
                pass
            return await ctx.step(effect, "deleted")

        for target in ("gathered", "grouped"):
            assert (await AsyncClient(app).flow(target).start()).questions == {"confirm": "delete?"}
            assert EFFECTS == []

    async def test_what_cleans_up_after_it_is_waited_for(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def tidy(ctx: Context) -> str:
            try:
                await ctx.confirm("delete?")
            finally:
                for _ in range(3):
                    await asyncio.sleep(0.1)
                effect("tidied")
            return "deleted"

        assert (await AsyncClient(app).flow("tidy").start()).questions == {"confirm": "delete?"}
        assert EFFECTS == ["tidied"]
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []

    async def test_a_timeout_does_not_answer(self, app: MRTRServer) -> None:
        @app.tool
        async def hurried(ctx: Context) -> str:
            running = asyncio.create_task(ctx.step(slow_effect, "work"))
            try:
                async with asyncio.timeout(0.005):
                    await ctx.confirm("delete?")
            except Exception:
                effect("timeout")
            await running
            return await ctx.step(effect, "deleted")

        assert (await AsyncClient(app).flow("hurried").start()).questions == {"confirm": "delete?"}
        assert EFFECTS == ["work"]

    async def test_a_task_beside_the_handler_does_not_take_the_end_for_an_answer(self, app: MRTRServer) -> None:
        @app.tool
        async def waiting(ctx: Context) -> str:
            async def beside() -> None:
                await asyncio.gather(ctx.confirm("delete?"), return_exceptions=True)
                effect("deleted")

            await asyncio.wait({asyncio.create_task(beside())})
            return "done"

        assert (await AsyncClient(app).flow("waiting").start()).questions == {"confirm": "delete?"}
        await asyncio.sleep(0.01)
        assert EFFECTS == []

    async def test_a_task_beside_the_handler_that_is_left_waiting_is_no_error_of_asyncios(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def leaving(ctx: Context) -> str:
            waiting = asyncio.create_task(ctx.elicit("who?", Login))
            await asyncio.sleep(0)
            assert not waiting.done()
            return "done"

        assert (await AsyncClient(app).flow("leaving").start()).questions == {"login": "who?"}
        gc.collect()
        assert caplog.messages == []

    async def test_cancelling_oneself_is_a_fault_not_a_disconnect(self, app: MRTRServer) -> None:
        @app.tool
        async def odd() -> str:
            task = asyncio.create_task(asyncio.sleep(900))
            task.cancel()
            await task
            return "done"

        assert "reference" in (await AsyncClient(app).flow("odd").start()).failure

    @pytest.mark.filterwarnings("ignore:coroutine")
    async def test_a_forgotten_await_is_an_error(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def forgetful(ctx: Context) -> str:
            ctx.confirm("sure?")  # type: ignore[unused-coroutine]
            return "done"

        assert "reference" in (await AsyncClient(app).flow("forgetful").start()).failure
        assert "never awaited" in caplog.text

    async def test_a_handlers_own_error_is_not_hidden_by_what_it_left_unstarted(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def failing(ctx: Context) -> str:
            async def fail() -> None:
                raise ValueError("the real one")

            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(0)
                group.create_task(ctx.step(effect, "x"))
            return "done"

        assert "reference" in (await AsyncClient(app).flow("failing").start()).failure
        assert "the real one" in caplog.text
