"""Rolling upgrades: what a flow that begins on one version finds on another, as docs/operating.md says it."""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import product
from types import FunctionType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, field_validator

from mrtr_server import Confirm, Context, Depends, Elicit, InputRequired, Inputs, KeyRing, MRTRServer, State
from mrtr_server.testing import Client, Flow, Reply, accept, yes

from ..support.models import Login

RING = KeyRing.generate()
Tool = Callable[..., Awaitable[str]]


class LoginWithTeam(BaseModel):
    name: str
    team: str


def charge(amount: int) -> str:
    return f"receipt {amount}"


def named(function: Callable[..., Any], *, name: str = "", module: str = "") -> Callable[..., Any]:
    """Return the same function as if it had another name, or stood in another module."""
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

    def test_another_form_is_another_question(self) -> None:
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

    def test_one_that_a_newer_version_takes_no_more_is_asked_for_again_with_the_reason(self) -> None:
        class LongLogin(Login):
            @field_validator("name")
            @classmethod
            def long(cls, name: str) -> str:
                if len(name) < 3:
                    raise ValueError("three letters at least")
                return name

        async def stricter(ctx: Context) -> str:
            return (await ctx.elicit("Who are you?", LongLogin, key="who")).name

        asked = upgraded(self.buy, stricter, who=Login(name="al"))
        assert asked.questions == {"who": "name: Value error, three letters at least — Who are you?"}

    def test_a_rollback_finds_the_answer_that_it_had(self) -> None:
        async def reworded(ctx: Context) -> str:
            who = await ctx.elicit("Who pays?", Login, key="who")
            await ctx.confirm("Sure?")
            return who.name

        old, new = version(self.buy), version(reworded)
        flow = Client(old).flow("buy")
        flow.start()
        flow.move_to(new)
        assert flow.answer(who=Login(name="ann")).questions == {"who": "Who pays?"}
        assert flow.answer(who=Login(name="bob")).questions == {"confirm": "Sure?"}
        flow.move_to(old)
        assert flow.answer(confirm=yes).text == "ann"


Version = Callable[[int], MRTRServer]
"""Makes version 1 or 2 of a server whose tool `buy` asks `who` and then `sure`, in words or forms of its own."""


def inline(number: int) -> MRTRServer:
    async def buy(ctx: Context) -> str:
        who = await ctx.elicit(f"Who are you, {number}?", Login, key="who")
        await ctx.confirm(f"Sure, {number}?", key="sure")
        return who.name

    return version(buy)


def declared(number: int) -> MRTRServer:
    def is_sure(who: Login) -> str:
        return f"Sure, {who.name}, {number}?"

    def buy(
        who: Annotated[Login, Elicit(f"Who are you, {number}?")], sure: Annotated[bool, Confirm(is_sure, key="sure")]
    ) -> str:
        return who.name

    return version(buy)


def in_a_dependency(number: int) -> MRTRServer:
    async def who(ctx: Context) -> str:
        return (await ctx.elicit(f"Who are you, {number}?", Login, key="who")).name

    async def buy(who: Annotated[str, Depends(who)], ctx: Context) -> str:
        await ctx.confirm(f"Sure, {number}?", key="sure")
        return who

    return version(buy)


def pure(number: int) -> MRTRServer:
    who, sure = Elicit(f"Who are you, {number}?", Login), Confirm(f"Sure, {number}?")

    def buy(inputs: Inputs) -> str | InputRequired:
        login = inputs.get("who", who)
        if login is None:
            return InputRequired(who=who)
        return login.name if inputs.get("sure", sure) else InputRequired(sure=sure)

    return version(buy)


class LoginAtOld(Login):
    shop: str = "old"


class LoginAtNew(Login):
    shop: str | None = None


def pure_by_form(number: int) -> MRTRServer:
    """Read the answer by the form alone, which is another one in each version."""
    form = (LoginAtOld, LoginAtNew)[number - 1]
    sure = Confirm(f"Sure, {number}?")

    def buy(inputs: Inputs) -> str | InputRequired:
        login = inputs.get("who", form)
        if login is None:
            return InputRequired(who=Elicit("Who are you?", form))
        return login.name if inputs.get("sure", sure) else InputRequired(sure=sure)

    return version(buy)


def as_task(number: int) -> MRTRServer:
    """Go on in the background once both are answered, so that the journal is a row's from there on."""

    async def buy(ctx: Context) -> str:
        who = await ctx.elicit(f"Who are you, {number}?", Login, key="who")
        await ctx.confirm(f"Sure, {number}?", key="sure")
        await ctx.background()
        return who.name

    server = MRTRServer("shop", keys=RING)
    server.tool(name="buy", task="optional")(buy)
    return server


class TestAFleetOfTwoVersions:
    """Each person is asked at most twice: once by each version, whichever their rounds come to."""

    VERSIONS = (inline, declared, in_a_dependency, pure, pure_by_form, as_task)
    LONGEST = 5
    """The first round, and two for each question."""

    @pytest.mark.parametrize("make", VERSIONS)
    def test_does_not_ask_the_same_again_whatever_the_way_of_the_rounds(self, make: Version) -> None:
        servers = make(1), make(2)
        for way in product((0, 1), repeat=self.LONGEST):
            asked: Counter[str] = Counter()
            flow = Client(servers[0], tasks=make is as_task).flow("buy")
            reply = None
            for at in way:
                flow.move_to(servers[at])
                reply = flow.start() if reply is None else flow.answer({key: self.answer(key) for key in reply.asks})
                if not reply.needs_input:
                    break
                asked.update(f"{key}: {ask.message} {ask.schema}" for key, ask in reply.asks.items())
            assert reply is not None
            assert (flow.wait() if reply.is_task else reply).text == "ann", way
            assert set(asked.values()) == {1}, f"asked twice by one version on {way}: {asked}"

    def answer(self, key: str) -> Any:
        return yes if key == "sure" else accept(name="ann")

    def test_finds_the_answers_to_each_one_in_a_task_too(self) -> None:
        """The versions take turns at the task, which lies in a row."""
        server = MRTRServer("shop", keys=RING)
        rounds: list[int] = []

        @server.tool(task="required")
        async def buy(ctx: Context) -> str:
            rounds.append(0)
            number = len(rounds) % 2  # the version that has claimed it this time
            who = await ctx.elicit(f"Who are you, {number}?", Login, key="who")
            await ctx.confirm(f"Sure, {number}?", key="sure")
            return who.name

        flow = Client(server, tasks=True).flow("buy")
        flow.start()
        asked: list[str] = []
        while (reply := flow.wait()).needs_input and len(asked) < 9:
            asked += reply.questions.values()
            flow.answer({key: self.answer(key.partition("_")[0]) for key in reply.asks})
        assert reply.text == "ann"
        assert sorted(asked) == sorted(set(asked)), "each of the four questions once"


class TestAQuestionThatIsAskedAnew:
    """A pure function that asks again under a key, in other words, saw the answer and wants another."""

    def test_does_not_bring_back_an_answer_that_was_seen(self) -> None:
        def buy(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("who", Login)
            if login is None:
                return InputRequired(who=Elicit("Who are you?", Login))
            if login.name != "ann":
                return InputRequired(who=Elicit(f"Not {login.name}. Who else?", Login))
            return login.name

        flow = Client(version(buy)).flow("buy")
        flow.start()
        assert flow.answer(who=Login(name="bob")).questions == {"who": "Not bob. Who else?"}
        assert flow.answer(who=Login(name="eve")).questions == {"who": "Not eve. Who else?"}
        assert flow.answer().questions == {"who": "Who are you?"}, "neither bob nor eve"
        assert flow.answer(who=Login(name="ann")).text == "ann"

    def test_does_not_bring_back_an_answer_that_does_not_fit(self) -> None:
        class Adult(BaseModel):
            age: int

            @field_validator("age")
            @classmethod
            def grown(cls, age: int) -> int:
                if age < 18:
                    raise ValueError("come back later")
                return age

        def buy(inputs: Inputs) -> str | InputRequired:
            adult = inputs.get("age", Adult)
            return str(adult.age) if adult else InputRequired(age=Elicit("How old?", Adult))

        flow = Client(version(buy)).flow("buy")
        flow.start()
        for age in (3, 4):
            assert flow.answer(age=accept(age=age)).questions == {"age": "age: Value error, come back later — How old?"}
        assert flow.answer(age=accept(age=30)).text == "30"


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
        was = "tests.system.test_rolling_upgrades.charge"
        assert f"The step 'charge' was {was} when it ran, and is shop.payments.charge now" in ended.log

    def test_a_renamed_function_is_a_new_step(self) -> None:
        async def buy(ctx: Context) -> str:
            return str(await ctx.step(named(charge, name="take_money"), 3))

        done = upgraded(self.buy, buy, confirm=yes)
        assert (done.steps, done.replayed) == (["take_money"], [])

    def test_a_result_that_fits_its_type_no_more_ends_the_flow(self) -> None:
        """The effect has happened, so it must not be repeated; and nobody can go on with what it gave."""

        async def buy(ctx: Context) -> str:
            strict = named(charge)
            strict.__annotations__["return"] = int
            try:
                return str(await ctx.step(strict, 3))
            except Exception:
                return "refunded"

        ended = upgraded(self.buy, buy, confirm=yes)
        assert ended.failed
        assert ended.steps == []
        assert "The recorded result of the step 'charge' no longer fits its declared type" in ended.log
        assert "receipt 3" not in ended.log
        assert "reference" in ended.failure

    def test_a_result_whose_type_fails_in_its_own_way_ends_the_flow(self) -> None:
        class Receipt(str):
            @classmethod
            def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
                from pydantic_core import core_schema

                return core_schema.no_info_plain_validator_function(cls.read)

            @classmethod
            def read(cls, value: Any) -> str:
                raise LookupError(value)

        async def buy(ctx: Context) -> str:
            strict = named(charge)
            strict.__annotations__["return"] = Receipt
            try:
                return str(await ctx.step(strict, 3))
            except LookupError:
                return "refunded, for a payment that was made"

        ended = upgraded(self.buy, buy, confirm=yes)
        assert ended.failed
        assert "no longer fits its declared type: LookupError" in ended.log

    def test_one_that_may_run_again_does(self) -> None:
        async def buy(ctx: Context) -> str:
            strict = named(charge)
            strict.__annotations__["return"] = dict[str, str]
            strict.__code__ = (lambda amount: {"receipt": str(amount)}).__code__
            receipt = await ctx.step(strict, 3, rerun=True)
            return str(receipt["receipt"])

        done = upgraded(self.buy, buy, confirm=yes)
        assert (done.text, done.steps, done.replayed) == ("3", ["charge"], [])


class Cart(BaseModel):
    items: list[str]


class Priced(BaseModel):
    items: dict[str, int]

    @field_validator("items")
    @classmethod
    def known(cls, items: dict[str, int]) -> dict[str, int]:
        return {item: {"tea": 3}[item] for item in items}  # KeyError


class TestTheHandlersOwnState:
    """One that does not fit is None, as in a first round; nothing of it is in the log."""

    def old(self, inputs: Inputs, cart: State[Cart]) -> str | InputRequired:
        if inputs.get("login", Login) is None:
            return InputRequired(login=Elicit("Who?", Login), state=Cart(items=["swordfish"]))
        return str(cart.value)

    @pytest.mark.parametrize(("kind", "fits"), [(int, True), (Login, False)])
    def test_must_fit_its_type_in_both_versions_to_be_there(self, kind: Any, fits: bool) -> None:
        def old(inputs: Inputs) -> InputRequired:
            return InputRequired(login=Elicit("Who?", Login), state=3)

        def new(inputs: Inputs, kept: State[kind]) -> str:
            return str(kept.value)

        reply = upgraded(old, new, login=Login(name="ann"))
        assert reply.text == ("3" if fits else "None")
        assert ("the kept state no longer fits the type of 'kept' (model_type), so it is None" in reply.log) is (
            not fits
        )

    @pytest.mark.parametrize(
        ("kept", "why"), [({"items": ["swordfish"]}, "dict_type"), ({"items": {"swordfish": 1}}, "KeyError")]
    )
    def test_is_none_whatever_is_wrong_with_it_and_the_log_has_no_value(self, kept: Any, why: str) -> None:
        def old(inputs: Inputs) -> InputRequired:
            return InputRequired(login=Elicit("Who?", Login), state=kept)

        def new(inputs: Inputs, cart: State[Priced]) -> str:
            return str(cart.value)

        reply = upgraded(old, new, login=Login(name="ann"))
        assert reply.text == "None"
        assert f"tools/call 'buy': the kept state no longer fits the type of 'cart' ({why})" in reply.log
        assert "swordfish" not in reply.log

    def test_is_there_again_after_a_rollback_unless_another_was_kept(self) -> None:
        def new(inputs: Inputs, cart: State[Priced]) -> str | InputRequired:
            return InputRequired(sure=Confirm("Sure?")) if cart.value is None else "priced"

        flow = Client(version(self.old)).flow("buy")
        flow.start()
        flow.move_to(version(new))
        assert flow.answer(login=Login(name="ann")).questions == {"sure": "Sure?"}
        flow.move_to(version(self.old))
        assert flow.answer(sure=yes).text == "items=['swordfish']"

    def test_is_none_in_a_task_too(self) -> None:
        async def old(inputs: Inputs, cart: State[Cart], ctx: Context) -> str | InputRequired:
            return InputRequired(login=Elicit("Who?", Login), state=Cart(items=["tea"]))

        async def new(inputs: Inputs, cart: State[Priced], ctx: Context) -> str | InputRequired:
            return str(cart.value)

        servers = []
        for tool in (old, new):
            servers.append(MRTRServer("shop", keys=RING))
            servers[-1].tool(name="buy", task="required")(tool)
        flow = Client(servers[0], tasks=True).flow("buy")
        flow.start()
        flow.wait()
        servers[0].remove_tool("buy")
        servers[0].tool(name="buy", task="required")(new)  # the worker is of the new version now
        assert flow.answer(login=Login(name="ann")).text == "None"


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
