"""Rule 4 of a flow: a step runs once, is told apart from every other, and its result stands."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import KEEP, Enum, Flag
from functools import partial
from ipaddress import ip_network
from typing import Any, Self, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, HttpUrl, SecretStr, field_serializer

from mrtr_server import (
    Context,
    MRTRServer,
)
from mrtr_server.errors import FlowError
from mrtr_server.flow.step_arguments import plain
from mrtr_server.testing import AsyncClient, yes

from ..support.effects import EFFECTS, effect, new_ticket, slow_effect
from ..support.models import Cart
from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio


class Currency(Enum):
    EUR = 1
    USD = 2


class Order:
    def __init__(self, id: UUID) -> None:
        self.id = id


@dataclass
class Line:
    name: str
    count: int


CHANGED: dict[str, tuple[Any, Any]] = {
    "enum": (Currency.EUR, Currency.USD),
    "enums": ([{"in": Currency.EUR}], [{"in": Currency.USD}]),
    "url": (HttpUrl("https://a.example"), HttpUrl("https://b.example")),
    "network": (ip_network("10.0.0.0/24"), ip_network("10.0.1.0/24")),
    "date": (date(2030, 1, 1), date(2030, 1, 2)),
    "decimal": (Decimal("1.10"), Decimal("1.20")),
    "object": (Order(UUID(int=1)), Order(UUID(int=2))),
    "model": (Cart(items=["a"]), Cart(items=["b"])),
    "dataclass": (Line("tea", 1), Line("tea", 2)),
}


KEYWORDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"amount": 3}, {"amount": 400}),
    ({}, {"amount": 400}),
    ({"currency": "EUR"}, {"currency": "USD"}),
    ({}, {"currency": "USD"}),
    ({"note": "one"}, {"note": "another"}),
]
"""What a step is given by keyword: in the first two rounds, and in the third."""


class Account:
    def __init__(self, name: str) -> None:
        self.name = name

    def withdraw(self, amount: int) -> str:
        return effect(f"{self.name} {amount}")


class Key(BaseModel):
    id: str = Field(alias="_id")
    value: SecretStr
    note: str = Field(exclude=True)
    day: date
    raw: bytes

    @field_serializer("day")
    def _write(self, day: date) -> str:
        return f"{day:%d.%m.%Y}"

    def dumped(self) -> str:
        return f"{self.id} {self.value.get_secret_value()} {self.note} {self.day} {self.raw!r}"


class TestRule4Steps:
    """Rule 4. Steps are named by function and numbered within each task. A result is recorded when the round ends,
    comes back by its declared type, and stands for the whole flow; arguments that moved end the flow, and a failure is
    not recorded.
    """

    async def test_run_once_in_a_flow(self, app: MRTRServer) -> None:
        @app.tool
        async def deploy(ctx: Context) -> str:
            image = await ctx.step(effect, "build")
            await ctx.confirm("first?", key="first")
            await ctx.confirm("second?", key="second")
            return image + await ctx.step(effect, "roll out")

        flow = AsyncClient(app).flow("deploy")
        assert (await flow.start()).needs_input
        assert (await flow.answer(first=yes)).needs_input
        assert (await flow.answer(second=yes)).text == "buildroll out"
        assert EFFECTS == ["build", "roll out"]

    async def test_are_numbered_in_the_order_of_calls(self, app: MRTRServer) -> None:
        @app.tool
        async def three(ctx: Context) -> str:
            done = [await ctx.step(effect, str(n)) for n in range(3)]
            await ctx.confirm("sure?")
            return ",".join([*done, await ctx.step(effect, "3")])

        flow = AsyncClient(app).flow("three")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "0,1,2,3"
        assert EFFECTS == ["0", "1", "2", "3"]

    @pytest.mark.parametrize("factory", [None, lambda loop, work, **how: asyncio.Task(work, loop=loop, **how)])
    @pytest.mark.parametrize("by_name", [False, True], ids=["by position", "by name"])
    async def test_side_by_side_replay_the_same(self, app: MRTRServer, factory: Any, by_name: bool) -> None:
        """Some versions of Python give the tasks of a factory another name."""
        asyncio.get_running_loop().set_task_factory(factory)
        firsts = iter("ab")  # the outside decides which branch is first

        @app.tool
        async def branches(ctx: Context) -> str:
            first, has_gone = next(firsts), asyncio.Event()

            async def branch(name: str) -> str:
                if name != first:
                    await has_gone.wait()
                ticket = await ctx.step(new_ticket)
                has_gone.set()
                return ticket + await ctx.step(effect, name)

            async def named(*, name: str) -> str:
                return await branch(name)

            both = await asyncio.gather(*(named(name=name) if by_name else branch(name) for name in "ab"))
            await ctx.confirm("sure?")
            return ",".join(both)

        flow = AsyncClient(app).flow("branches")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "1a,2b"
        assert sorted(EFFECTS) == ["a", "b", "ticket", "ticket"]

    @pytest.mark.parametrize(
        "names", [("pay", "pay"), ("pay", "pay", "pay"), ("pay~all", "pay~all"), ("pay", "pay", "pay~2")], ids=" ".join
    )
    async def test_side_by_side_are_each_their_own_whatever_their_tasks_are_called(
        self, app: MRTRServer, names: tuple[str, ...]
    ) -> None:
        @app.tool
        async def branches(ctx: Context) -> int:
            async def branch() -> None:
                await ctx.step(new_ticket)

            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(branch(), name=name)
            return len(EFFECTS)

        assert (await AsyncClient(app).flow("branches").start()).text == str(len(names))

    async def test_what_has_no_name_needs_a_key(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def without(ctx: Context) -> str:
            return str(await ctx.step(lambda: effect("x")))

        @app.tool
        async def nameless(ctx: Context) -> str:
            return await ctx.step(partial(effect, "x"))

        @app.tool
        async def with_key(ctx: Context) -> str:
            return await ctx.step(lambda: effect("x"), key="x")

        for target in ("without", "nameless"):
            caplog.clear()
            assert "reference" in (await AsyncClient(app).flow(target).start()).failure
            assert "A step whose function is a lambda, or has no name, needs a key=" in caplog.text
        assert EFFECTS == []
        assert (await AsyncClient(app).flow("with_key").start()).text == "x"

    async def test_is_a_function_with_its_arguments(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def called(ctx: Context) -> str:
            step: Any = ctx.step
            return str(await step(effect("x")))

        assert "reference" in (await AsyncClient(app).flow("called").start()).failure
        message = "TypeError: ctx.step takes a function and its arguments, as in ctx.step(f, 1), not 'x'"
        assert message in caplog.text

    async def test_a_mistake_is_raised_where_it_was_made_and_ends_the_flow_though_it_is_caught(
        self, app: MRTRServer
    ) -> None:
        caught: list[Exception] = []

        @app.tool
        async def nested(ctx: Context) -> str:
            async def outer() -> str:
                try:
                    return await ctx.step(effect, "inner")
                except Exception as error:
                    caught.append(error)
                    return "nothing has happened"

            return await ctx.step(outer)

        assert "reference" in (await AsyncClient(app).flow("nested").start()).failure
        (mistake,) = caught
        assert isinstance(mistake, FlowError)
        assert "a step can't contain an ask or another step" in str(mistake)
        assert EFFECTS == []

    async def test_a_plain_function_may_return_what_is_to_be_awaited(self, app: MRTRServer) -> None:
        @app.tool
        async def run(ctx: Context) -> str:
            return await ctx.step(lambda: slow_effect("slow"), key="slow")

        assert (await AsyncClient(app).flow("run").start()).text == "slow"

    async def test_the_first_run_returns_the_value_as_it_comes_back(self, app: MRTRServer) -> None:
        seen: list[Any] = []

        def plain():  # type: ignore[no-untyped-def]  # no declared type: plain JSON
            return {"at": (1, 2)}

        def typed() -> Cart:
            return Cart(items=["x"])

        @app.tool
        async def run(ctx: Context) -> str:
            seen.append((await ctx.step(plain), await ctx.step(typed)))
            await ctx.confirm("sure?")
            return "done"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text
        assert seen[0] == seen[1] == ({"at": [1, 2]}, Cart(items=["x"]))

    async def test_a_step_that_failed_is_not_recorded(self, app: MRTRServer) -> None:
        def flaky() -> str:
            effect("tried")
            if len(EFFECTS) == 1:
                raise OSError("down")
            return "up"

        @app.tool
        async def run(ctx: Context) -> str:
            try:
                await ctx.step(flaky)
            except OSError:
                await ctx.confirm("again?")
                return await ctx.step(flaky, key="again")
            return "first"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        # In the second round the step runs again, for it was not recorded, and this time it succeeds.
        assert (await flow.answer(confirm=yes)).text == "first"
        assert EFFECTS == ["tried", "tried"]

    async def test_changed_arguments_end_the_flow_and_name_the_argument(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        tries = iter([1, 2])
        account = "-".join(["secret", "account"])  # a traceback shows the source

        def charge(account: str, amount: int) -> str:
            return effect(f"{account} {amount}")

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.step(charge, account, next(tries))
            await ctx.confirm("sure?")
            return "done"

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert "reference" in (await flow.answer(confirm=yes)).failure
        assert EFFECTS == ["secret-account 1"]
        assert "another value of 'amount'" in caplog.text
        assert "secret-account" not in caplog.text

    @pytest.mark.parametrize(("first", "second"), CHANGED.values(), ids=CHANGED)
    async def test_a_change_is_seen_in_whatever_has_a_value(self, app: MRTRServer, first: Any, second: Any) -> None:
        given = iter([first, first, second])

        def charge(what: Any) -> None:
            effect("charged")

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.step(charge, next(given))
            await ctx.confirm("sure?")
            await ctx.confirm("really?", key="really")
            return "done"

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).needs_input
        assert "reference" in (await flow.answer(really=yes)).failure
        assert EFFECTS == ["charged"]

    @pytest.mark.parametrize("given", KEYWORDS, ids=lambda given: " ".join(given[0] | given[1]))
    async def test_a_change_is_seen_in_what_is_given_by_keyword(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture, given: tuple[dict[str, Any], dict[str, Any]]
    ) -> None:
        first, second = given
        keywords = iter([first, first, second])

        def charge(account: str, amount: int = 3, *, currency: str = "EUR", **more: str) -> None:
            effect("charged")

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.step(charge, "a", **next(keywords))
            await ctx.confirm("sure?")
            await ctx.confirm("really?", key="really")
            return "done"

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).questions == {"really": "really?"}, "what is the same replays"
        assert "reference" in (await flow.answer(really=yes)).failure
        assert EFFECTS == ["charged"]
        (name,) = first | second
        assert f"another value of {name!r}" in caplog.text

    async def test_an_argument_is_the_same_by_position_by_keyword_and_by_default(self, app: MRTRServer) -> None:
        def charge(account: str, amount: int = 3) -> str:
            return effect(f"{account} {amount}")

        calls: Iterator[tuple[Any, Any]] = iter([(("a", 3), {}), (("a",), {"amount": 3}), (("a",), {})])

        @app.tool
        async def pay(ctx: Context) -> str:
            args, keywords = next(calls)
            done: str = await ctx.step(charge, *args, **keywords)
            await ctx.confirm("sure?")
            await ctx.confirm("really?", key="really")
            return done

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).needs_input
        assert (await flow.answer(really=yes)).text == "a 3"
        assert EFFECTS == ["a 3"]

    async def test_a_result_is_in_all_rounds_as_it_was(self, app: MRTRServer) -> None:
        """What comes back, and what does not: `schema/test_stored.py`."""

        def make() -> Key:
            effect("made")
            return Key(_id="1", value=SecretStr("s3cret"), note="excluded", day=date(2026, 5, 1), raw=b"\xff")

        @app.tool
        async def use(ctx: Context) -> str:
            key = await ctx.step(make)
            await ctx.confirm("Use it?")
            return key.dumped()

        assert (
            await AsyncClient(app).call("use", answers={"confirm": yes})
        ).text == r"1 s3cret excluded 2026-05-01 b'\xff'"
        assert EFFECTS == ["made"]

    async def test_a_result_has_the_type_that_awaiting_it_or_the_class_gives(self, app: MRTRServer) -> None:
        class Account(BaseModel):
            opened: date

            @classmethod
            def open(cls) -> Self:
                return cls(opened=date(2026, 5, 1))

            def again(self) -> Self:
                return self

        def later() -> Coroutine[Any, Any, Account]:
            async def made() -> Account:
                return Account.open()

            return made()

        @app.tool
        async def run(ctx: Context) -> str:
            account = await ctx.step(Account.open)
            others = [await ctx.step(account.again), await ctx.step(later)]
            await ctx.confirm("Go on?")
            return str([each == account for each in others])

        assert (await AsyncClient(app).call("run", answers={"confirm": yes})).text == "[True, True]"

    @pytest.mark.parametrize("catches", [False, True], ids=["let through", "caught"])
    async def test_a_result_whose_type_has_no_json_is_refused_before_the_step_runs(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture, catches: bool
    ) -> None:
        def connect() -> Order:
            effect("connected")
            return Order(UUID(int=1))

        @app.tool
        async def run(ctx: Context) -> str:
            try:
                return str(await ctx.step(connect))
            except Exception:
                if catches:
                    return await ctx.step(effect, "something else")
                raise

        flow = AsyncClient(app).flow("run")
        assert "reference" in (await flow.start()).failure
        assert EFFECTS == []
        assert "The step 'connect' was not run" in caplog.text
        assert "tests.flow.test_steps.Order" in caplog.text

    async def test_a_result_that_changes_is_kept_and_the_log_says_so_once(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def count_people() -> int:
            return cast(int, effect("5"))

        @app.tool
        async def run(ctx: Context) -> str:
            people = await ctx.step(count_people)
            await ctx.confirm("All of them?")
            return repr(people)

        for _ in range(2):
            assert (await AsyncClient(app).call("run", answers={"confirm": yes})).text == "5"
        assert caplog.text.count("The result of the step 'count_people', a str, does not come back") == 1
        assert EFFECTS == ["5", "5"]

    @pytest.mark.parametrize("catches", [False, True], ids=["let through", "caught"])
    async def test_a_result_that_can_not_be_kept_ends_the_flow(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture, catches: bool
    ) -> None:
        def count() -> int:
            return cast(int, effect("not a number"))

        @app.tool
        async def run(ctx: Context) -> str:
            try:
                return str(await ctx.step(count))
            except Exception:
                if catches:
                    return await ctx.step(effect, "something else")
                raise

        flow = AsyncClient(app).flow("run")
        assert "reference" in (await flow.start()).failure
        assert EFFECTS == ["not a number"]
        what = (
            "The step 'count' returned a value of type str that can't be stored as its declared type, <class 'int'>: "
        )
        assert what in caplog.text
        assert "not a number" not in caplog.text, "what it returned may be a secret"

    async def test_rerun_lets_a_step_run_again(self, app: MRTRServer) -> None:
        tries = iter([1, 2])

        @app.tool
        async def look(ctx: Context) -> str:
            seen = await ctx.step(effect, str(next(tries)), rerun=True)
            await ctx.confirm("sure?")
            return seen

        flow = AsyncClient(app).flow("look")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "2"

    async def test_the_same_key_at_once_runs_once(self, app: MRTRServer) -> None:
        @app.tool
        async def twice(ctx: Context) -> str:
            return "".join(await asyncio.gather(*(ctx.step(slow_effect, "x", key="one") for _ in range(2))))

        assert (await AsyncClient(app).flow("twice").start()).text == "xx"
        assert EFFECTS == ["x"]


class TestStepsOfEveryKind:
    async def test_methods_classes_and_closures_are_named_and_compared(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Account:
            def __init__(self, name: str) -> None:
                self.name = name

            def charge(self, amount: int, *, currency: str = "EUR") -> Cart:
                return Cart(items=[effect(f"{self.name} {amount} {currency}")])

        amounts = iter([1, 1, 2])

        @app.tool
        async def pay(ctx: Context) -> str:
            def closure(amount: int) -> str:
                return effect(f"closure {amount}")

            cart = await ctx.step(Account("a").charge, 1, currency="NOK")
            other = await ctx.step(Cart, items=["made"])
            text = await ctx.step(closure, next(amounts))
            await ctx.confirm("sure?", key="one")
            await ctx.confirm("really?", key="two")
            return " ".join([*cart.items, *other.items, text])

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(one=yes)).needs_input
        assert EFFECTS == ["a 1 NOK", "closure 1"]
        assert "reference" in (await flow.answer(two=yes)).failure
        assert "The step 'closure' has run in an earlier round with another value of 'amount'" in caplog.text


class TestStepsThatMisbehave:
    """What was tried to have a step run twice, or give what it did not return."""

    async def test_a_function_that_raises_stop_iteration_fails(self, app: MRTRServer) -> None:
        @app.tool
        def plain() -> str:
            return next(iter(()))

        @app.tool
        async def step(ctx: Context) -> str:
            return await ctx.step(lambda: next(iter(())), key="x")

        for target in ("plain", "step"):
            assert "reference" in (await asyncio.wait_for(AsyncClient(app).flow(target).start(), TIMEOUT)).failure

    async def test_a_step_that_is_retried_keeps_its_key(self, app: MRTRServer) -> None:
        def charge(amount: int) -> str:
            effect("tried")
            if len(EFFECTS) == 1:
                raise ConnectionError
            return effect("charged")

        @app.tool
        async def pay(ctx: Context) -> str:
            for _ in range(3):
                with suppress(ConnectionError):
                    await ctx.step(charge, 5)
                    break
            for _ in range(3):
                with suppress(ConnectionError):
                    await ctx.step(charge, 5, key="named")
                    break
            await ctx.confirm("sure?")
            return "done"

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text
        assert EFFECTS == ["tried", "tried", "charged", "tried", "charged"]

    async def test_a_fallback_after_a_failed_step_replays(self, app: MRTRServer) -> None:
        def fetch(host: str) -> str:
            effect(host)
            if host == "down":
                raise ConnectionError
            return host

        @app.tool
        async def get(ctx: Context) -> str:
            for host in ("down", "up"):
                with suppress(ConnectionError):
                    found = await ctx.step(fetch, host)
            await ctx.confirm("sure?")
            return found

        flow = AsyncClient(app).flow("get")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "up"
        assert EFFECTS == ["down", "up", "down"]

    async def test_one_objects_step_is_not_anothers(self, app: MRTRServer) -> None:
        orders = iter(["ab", "ba"])

        @app.tool
        async def withdraw(ctx: Context) -> str:
            for name in next(orders):
                await ctx.step(Account(name).withdraw, 10)
                await ctx.confirm(f"{name}?", key=name)
            return "done"

        flow = AsyncClient(app).flow("withdraw")
        assert (await flow.start()).needs_input
        assert "reference" in (await flow.answer(a=yes)).failure
        assert EFFECTS == ["a 10"]

    async def test_functions_of_one_name_are_told_apart(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def first() -> Any:
            def save() -> str:
                return effect("first")

            return save

        def second() -> Any:
            def save() -> str:
                return effect("second")

            return save

        @app.tool
        async def both(ctx: Context) -> str:
            await ctx.step(first(), key="save")
            await ctx.step(second(), key="save")
            return "done"

        assert "reference" in (await AsyncClient(app).flow("both").start()).failure
        assert "is used for two different steps" in caplog.text
        assert EFFECTS == ["first"]

    async def test_a_step_of_the_same_name_with_other_arguments_is_another_one(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def save(what: str) -> str:
            return effect(what)

        @app.tool
        async def both(ctx: Context) -> str:
            await ctx.step(save, "first", key="save")
            await ctx.step(save, "second", key="save")
            return "done"

        assert "reference" in (await AsyncClient(app).flow("both").start()).failure
        assert "is used for two different steps" in caplog.text
        assert EFFECTS == ["first"]

    async def test_a_result_that_is_changed_is_not_changed_in_the_journal(self, app: MRTRServer) -> None:
        def fetch():  # type: ignore[no-untyped-def]
            return {"items": ["a"]}

        @app.tool
        async def change(ctx: Context) -> str:
            order = await ctx.step(fetch)
            order["items"].append("x")
            await ctx.confirm("sure?")
            return "".join(order["items"])

        flow = AsyncClient(app).flow("change")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "ax"

    async def test_what_is_nested_without_an_end_counts_as_far_as_it_is_read(self) -> None:
        endless: list[Any] = [1]
        endless.append(endless)
        other: list[Any] = [2]
        other.append(other)
        assert plain(endless) == plain(endless.copy())
        assert plain(endless) != plain(other)

    async def test_what_is_nested_deeper_still_counts_by_its_type(self) -> None:
        def nested(value: Any) -> Any:
            for _ in range(16):
                value = [value]
            return plain(value)

        assert nested([1]) == nested([2])
        assert nested([1]) != nested({"a": 1})
        assert nested(1) != nested(2)

    async def test_a_function_may_refer_to_what_is_assigned_later(self, app: MRTRServer) -> None:
        @app.tool
        async def early(ctx: Context) -> str:
            def step() -> str:
                return effect("step") if len(EFFECTS) else later

            EFFECTS.append("before")
            done = await ctx.step(step)
            later = "later"
            return done

        assert (await AsyncClient(app).flow("early").start()).text == "step"

    async def test_flags_that_have_no_names_count_by_their_value(self) -> None:
        class Rights(Flag, boundary=KEEP):
            READ = 1

        assert plain(Rights(4)) != plain(Rights(8))

    async def test_sets_count_by_what_is_in_them(self) -> None:
        letters = [chr(number) for number in range(ord("a"), ord("z") + 1)]
        assert plain(set(letters)) == plain(frozenset(letters)) == letters
        assert plain([b"\xff", {1: 2}]) == [["bytes", "/w=="], {"<int>1": 2}]

    async def test_an_iterator_is_no_argument_of_a_step(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def run(ctx: Context) -> str:
            return await ctx.step(lambda them: effect("".join(them)), iter("abc"), key="x")

        assert "reference" in (await AsyncClient(app).flow("run").start()).failure
        assert "pass a list" in caplog.text
