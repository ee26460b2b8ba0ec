"""Rolling upgrades: what a flow that begins on one version finds on another, as docs/operating.md says it."""

from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Context, Elicit, InputRequired, Inputs, KeyRing, MRTRServer, State
from mrtr_server.testing import Client, Flow, Reply, yes

RING = KeyRing.generate()
Tool = Callable[..., Awaitable[str]]


class Login(BaseModel):
    name: str


class LoginWithTeam(BaseModel):
    name: str
    team: str


def charge(amount: int) -> str:
    return f"receipt {amount}"


def named(function: Callable[..., Any], *, name: str = "", module: str = "") -> Callable[..., Any]:
    """Give the same function as if it had another name, or stood in another module."""
    assert isinstance(function, FunctionType)
    twin = FunctionType(function.__code__, function.__globals__, name or function.__name__)
    twin.__qualname__, twin.__module__ = twin.__name__, module or function.__module__
    twin.__annotations__ = dict(function.__annotations__)
    return twin


def version(tool: Any, name: str = "shop") -> MRTRServer:
    server = MRTRServer(name, keys=RING)
    server.tool(name="buy")(tool)
    return server


def upgraded(old: Any, new: Any, **answers: Any) -> Reply:
    """Begin a flow on the old version, and answer what it asked to the new one."""
    flow: Flow = Client(version(old)).flow("buy")
    flow.start()
    flow.move_to(version(new))
    return flow.answer(answers)


class TestAnswersAreKeptByKeyAndQuestion:
    async def buy(self, ctx: Context) -> str:
        return (await ctx.elicit("Who are you?", Login, key="who")).name

    def test_what_is_asked_alike_is_not_asked_again(self) -> None:
        async def same(ctx: Context) -> str:
            login = await ctx.elicit("Who are you?", Login, key="who")
            await ctx.confirm(f"Is it you, {login.name}?")
            return login.name

        assert upgraded(self.buy, same, who=Login(name="ann")).questions == {"confirm": "Is it you, ann?"}

    def test_another_message_is_another_question(self) -> None:
        async def reworded(ctx: Context) -> str:
            return (await ctx.elicit("Who pays?", Login, key="who")).name

        assert upgraded(self.buy, reworded, who=Login(name="ann")).questions == {"who": "Who pays?"}

    def test_so_is_another_form(self) -> None:
        async def widened(ctx: Context) -> str:
            return (await ctx.elicit("Who are you?", LoginWithTeam, key="who")).team

        asked = upgraded(self.buy, widened, who=Login(name="ann"))
        assert asked.asks["who"].schema["required"] == ["name", "team"]

    def test_a_yes_to_one_sum_is_none_to_another(self) -> None:
        def buy(amount: int) -> Callable[[Inputs], str | InputRequired]:
            def run(inputs: Inputs) -> str | InputRequired:
                sure = Confirm(f"Pay {amount}?")
                return "paid" if inputs.get("sure", sure) else InputRequired(sure=sure)

            return run

        assert upgraded(buy(3), buy(300), sure=yes).questions == {"sure": "Pay 300?"}


class TestStepsAreKeptByKey:
    async def buy(self, ctx: Context) -> str:
        receipt = await ctx.step(charge, 3)
        await ctx.confirm("Send it?")
        return receipt

    def test_one_that_has_run_gives_its_result(self) -> None:
        done = upgraded(self.buy, self.buy, confirm=yes)
        assert (done.text, done.steps, done.replayed) == ("receipt 3", [], ["charge"])

    def test_a_new_one_before_it_runs(self) -> None:
        async def buy(ctx: Context) -> str:
            await ctx.step(len, [1])
            return await self.buy(ctx)

        done = upgraded(self.buy, buy, confirm=yes)
        assert (done.steps, done.replayed) == (["len"], ["charge"])

    def test_other_arguments_end_the_flow(self) -> None:
        async def buy(ctx: Context) -> str:
            return await ctx.step(charge, 4)

        ended = upgraded(self.buy, buy, confirm=yes)
        assert ended.failed
        assert ended.steps == []
        assert "The step 'charge' has run in an earlier round with another value of 'amount'" in ended.log

    def test_a_call_of_the_same_function_before_it_takes_its_number(self) -> None:
        def buy(**key: str) -> Tool:
            async def run(ctx: Context) -> str:
                await ctx.step(charge, 1, **key)
                return await self.buy(ctx)

            return run

        assert "with another value of 'amount'" in upgraded(self.buy, buy(), confirm=yes).log
        assert upgraded(self.buy, buy(key="fee"), confirm=yes).steps == ["fee"]

    def test_a_function_of_another_module_ends_the_flow(self) -> None:
        async def buy(ctx: Context) -> str:
            return str(await ctx.step(named(charge, module="shop.payments")))

        ended = upgraded(self.buy, buy, confirm=yes)
        assert ended.failed
        assert "The step 'charge' is shop.payments.charge now and was tests.test_rolling_upgrades.charge" in ended.log

    def test_a_renamed_function_is_a_new_step(self) -> None:
        async def buy(ctx: Context) -> str:
            return str(await ctx.step(named(charge, name="take_money"), 3))

        done = upgraded(self.buy, buy, confirm=yes)
        assert (done.steps, done.replayed) == (["take_money"], [])

    def test_a_result_that_fits_its_type_no_more_ends_the_flow(self) -> None:
        async def buy(ctx: Context) -> str:
            strict = named(charge)
            strict.__annotations__["return"] = int
            return str(await ctx.step(strict, 3))

        ended = upgraded(self.buy, buy, confirm=yes)
        assert "The recorded result of the step 'charge' is not of its declared type any more" in ended.log


class TestTheHandlersOwnState:
    @pytest.mark.parametrize(("kind", "fits"), [(int, True), (Login, False)])
    def test_must_fit_its_type_in_both_versions(self, kind: Any, fits: bool) -> None:
        def old(inputs: Inputs) -> InputRequired:
            return InputRequired(login=Elicit("Who?", Login), state=3)

        def new(inputs: Inputs, kept: State[kind]) -> str:
            return str(kept.value)

        reply = upgraded(old, new, login=Login(name="ann"))
        assert reply.failed is not fits
        assert ("The kept state does not fit 'kept' any more" in reply.log) is not fits


def test_versions_of_another_name_open_no_state_of_each_other() -> None:
    async def buy(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        return "bought"

    flow = Client(version(buy)).flow("buy")
    flow.start()
    flow.move_to(version(buy, name="bank"))
    assert "belongs to another audience" in flow.answer(confirm=yes).log


@pytest.mark.parametrize("state_only", [True, False])
def test_a_version_that_asks_nothing_finishes_what_the_other_began(state_only: bool) -> None:
    def old(inputs: Inputs) -> InputRequired:
        return InputRequired(state=1) if state_only else InputRequired(login=Elicit("Who?", Login))

    assert upgraded(old, lambda: "bought").text == "bought"


@pytest.mark.parametrize("upgrade", [True, False], ids=["takes one fewer", "takes one more"])
def test_a_version_that_takes_other_arguments_goes_on_with_those_that_were_sent(upgrade: bool) -> None:
    """A state is bound to all of them, whichever of them a version takes."""

    async def with_note(item: str, ctx: Context, note: str = "") -> str:
        await ctx.confirm(f"Buy {item}?")
        return f"{item} {note}".rstrip()

    async def without(item: str, ctx: Context) -> str:
        await ctx.confirm(f"Buy {item}?")
        return item

    old, new = (with_note, without) if upgrade else (without, with_note)
    sent = {"item": "tea", "note": "soon"} if upgrade else {"item": "tea"}
    flow = Client(version(old)).flow("buy", **sent)
    flow.start()
    flow.move_to(version(new))
    assert flow.answer({"confirm": yes}).text == "tea"
