"""Idempotency keys: what the service behind a step knows a repetition by."""

from __future__ import annotations  # so that the annotations here are strings

import re
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from mrtr_server import Context, IdempotencyKey, KeyRing, MRTRServer, SetupError
from mrtr_server.flow.step_arguments import key_parameter
from mrtr_server.testing import AsyncClient, replica, yes

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.anyio

KEYS: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def no_keys() -> None:
    KEYS.clear()


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("bank", keys=KeyRing.generate())


def charge(amount: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> int:
    KEYS.append((f"charge {amount}", idempotency_key))
    return amount


async def refund(amount: int, key: IdempotencyKey | None = None) -> int:
    KEYS.append((f"refund {amount}", key or ""))
    return amount


def add_pay(app: MRTRServer) -> None:
    @app.tool
    async def pay(ctx: Context) -> str:
        await ctx.confirm("Sure?")
        await ctx.step(charge, 1)
        await ctx.step(charge, 1)
        await ctx.step(charge, 2)
        await ctx.step(refund, 1)
        return "done"


class TestAKey:
    async def test_is_the_same_in_every_run_of_the_flow(self, app: MRTRServer) -> None:
        add_pay(app)
        flow = AsyncClient(app, replica(app)).flow("pay")  # which share no store
        assert (await flow.start()).needs_input
        state = flow.state
        for _ in range(2):
            flow.state = state
            assert (await flow.send({"confirm": yes})).text == "done"
        assert KEYS[:4] == KEYS[4:]

    async def test_is_no_other_steps(self, app: MRTRServer) -> None:
        add_pay(app)
        for _ in range(2):
            flow = AsyncClient(app).flow("pay")
            assert (await flow.start()).needs_input
            assert (await flow.answer(confirm=yes)).text
        keys = [key for _, key in KEYS]
        assert len(set(keys)) == 8, "each call of each flow has its own"
        assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)

    async def test_stays_when_a_step_fails_and_is_tried_again(self, app: MRTRServer) -> None:
        def flaky(amount: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> int:
            KEYS.append(("flaky", idempotency_key))
            if len(KEYS) < 3:
                raise TimeoutError("no answer")
            return amount

        @app.tool
        async def pay(ctx: Context) -> int:
            while True:
                try:
                    return await ctx.step(flaky, 5)
                except TimeoutError:
                    continue

        assert (await AsyncClient(app).flow("pay").start()).text
        assert len(KEYS) == 3
        assert len(set(KEYS)) == 1

    async def test_is_another_with_other_arguments(self, app: MRTRServer) -> None:
        amounts = iter([5, 6])

        @app.tool
        async def pay(ctx: Context) -> int:
            paid = await ctx.step(charge, next(amounts), rerun=True)
            await ctx.confirm("Sure?")
            return paid

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "6"
        (_, first), (_, second) = KEYS
        assert first != second

    async def test_takes_no_part_in_the_arguments(self, app: MRTRServer) -> None:
        """A step that has run under another version of its function stands, though that had no key."""

        def version_1(amount: int) -> int:
            return amount

        def version_2(amount: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> int:
            raise AssertionError("it has run")

        version_2.__qualname__ = version_1.__qualname__
        version_2.__name__ = version_1.__name__
        versions: list[Any] = [version_1, version_2]

        @app.tool
        async def pay(ctx: Context) -> int:
            paid: int = await ctx.step(versions.pop(0), 5)
            await ctx.confirm("Sure?")
            return paid

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "5"

    async def test_of_the_callers_own_stands(self, app: MRTRServer) -> None:
        @app.tool
        async def pay(ctx: Context) -> int:
            return await ctx.step(charge, 5, idempotency_key=IdempotencyKey("order-7"))

        assert (await AsyncClient(app).flow("pay").start()).text
        assert KEYS == [("charge 5", "order-7")]

    async def test_comes_by_name(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        def wrong(key: IdempotencyKey = IdempotencyKey(), /) -> None: ...

        @app.tool
        async def pay(ctx: Context) -> None:
            await ctx.step(wrong)

        assert (await AsyncClient(app).flow("pay").start()).failure
        assert "which is passed by name" in caplog.text


class Till:
    def charge(self, amount: int, key: IdempotencyKey = IdempotencyKey()) -> str:
        return key

    def __call__(self, key: IdempotencyKey = IdempotencyKey()) -> str:
        return key


@wraps(charge)
def wrapped(*args: Any, **kwargs: Any) -> int:
    return charge(*args, **kwargs)


def optional(key: IdempotencyKey | None = None) -> str | None:
    return key


def unrelated(amount: int | None = None, name: str | bytes = "") -> None: ...


class Charged:
    """A step may make an object."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, key: IdempotencyKey = IdempotencyKey()) -> str:
        return key


def keys_of_others(keys: list[IdempotencyKey]) -> list[IdempotencyKey]:
    return keys


def strange(amount: Decimal, key: Annotated[IdempotencyKey, "Stripe's"] = IdempotencyKey()) -> str:
    """Has an annotation that only a type checker can read."""
    return key


class TestTheParameter:
    FOUND = (
        (charge, "idempotency_key"),
        (refund, "key"),
        (partial(partial(charge), 5), "idempotency_key"),
        (Till().charge, "key"),
        (partial(Till().charge, 5), "key"),
        (Till(), "key"),
        (wrapped, "idempotency_key"),
        (lru_cache(charge), "idempotency_key"),
        (strange, "key"),
        (optional, "key"),
    )

    @pytest.mark.parametrize(("function", "name"), FOUND)
    def test_is_found_in_whatever_can_be_called(self, function: Any, name: str) -> None:
        for _ in range(2):
            assert key_parameter(function) == name

    @pytest.mark.parametrize(
        "function",
        [print, int, Till, len, "".join, no_keys, keys_of_others, unrelated, Charged, re.compile, lambda x: x],
    )
    def test_is_not_seen_where_there_is_none(self, function: Any) -> None:
        assert key_parameter(function) is None

    async def test_is_filled_in_whatever_is_called(self, app: MRTRServer) -> None:
        till = Till()

        @app.tool
        async def pay(ctx: Context) -> list[str]:
            return [
                await ctx.step(till.charge, 5),
                await ctx.step(partial(till.charge, 5), key="partly"),
                await ctx.step(till, key="till"),
                await ctx.step(strange, 5),  # type: ignore[call-overload]
            ]

        result = (await AsyncClient(app).flow("pay").start()).structured
        assert len(set(result)) == 4
        assert all(re.fullmatch("[0-9a-f]{32}", key) for key in result)

    def test_is_none_of_a_handlers_own(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="a client could fill parameter 'idempotency_key'"):
            app.tool(charge)

    def test_has_a_default_so_that_the_function_can_be_called_as_it_is(self) -> None:
        assert charge(5) == 5
        assert KEYS == [("charge 5", "")]
