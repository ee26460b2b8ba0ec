"""Dependencies run one after another, in the order in which they are declared, up to the first failure."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Context, Depends, Elicit, KeyRing, MRTRServer, ToolError
from mrtr_server.testing import Answer, AsyncClient, accept, cancel, decline, yes

from ..support.models import Login

pytestmark = pytest.mark.anyio


class Amount(BaseModel):
    count: int


Who = Annotated[Login, Elicit("who?")]
HowMany = Annotated[Amount, Elicit("how many?")]

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("order", keys=KeyRing.generate())


def named(name: str, *, error: str = "", slow: bool = False) -> Callable[[], Any]:
    """Make a dependency that notes that it ran, and then may fail."""

    async def dependency() -> str:
        if slow:
            await asyncio.sleep(0.01)
        RAN.append(name)
        if error:
            raise ToolError(error)
        return name

    return dependency


class TestOrder:
    async def test_it_is_that_of_the_signature_with_what_each_needs_first(self, app: MRTRServer) -> None:
        def second(first: Annotated[str, Depends(named("first", slow=True))], fourth: str) -> str:
            RAN.append("second")
            return f"{first} {fourth}"

        @app.tool
        async def run(
            second: Annotated[str, Depends(second)],
            third: Annotated[str, Depends(named("third"))],
            fourth: Annotated[str, Depends(named("needed by the second"))],
        ) -> str:
            RAN.append("handler")
            return second

        assert (await AsyncClient(app).flow("run").start()).text == "first needed by the second"
        assert RAN == ["first", "needed by the second", "second", "third", "handler"]

    async def test_one_has_ended_before_the_next_begins(self, app: MRTRServer) -> None:
        at_once = 0
        most = 0
        lock = threading.Lock()

        def count(by: int) -> None:
            nonlocal at_once, most
            with lock:
                at_once += by
                most = max(most, at_once)

        async def on_loop() -> None:
            count(1)
            await asyncio.sleep(0.01)
            count(-1)

        def in_thread() -> None:
            count(1)
            threading.Event().wait(0.01)
            count(-1)

        @app.tool
        def run(
            a: Annotated[None, Depends(on_loop)],
            b: Annotated[None, Depends(in_thread)],
            c: Annotated[None, Depends(lambda: in_thread())],
            d: Annotated[None, Depends(lambda: on_loop())],
        ) -> str:
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).text == "ran"
        assert most == 1

    async def test_context_variables_go_on_to_what_comes_after(self, app: MRTRServer) -> None:
        tenant: ContextVar[str] = ContextVar("tenant")

        async def choose() -> None:
            tenant.set("acme")

        def table() -> str:
            return f"{tenant.get()}.books"

        @app.tool
        def run(chosen: Annotated[None, Depends(choose)], table: Annotated[str, Depends(table)]) -> str:
            return f"{table} of {tenant.get()}"

        assert (await AsyncClient(app).flow("run").start()).text == "acme.books of acme"


class TestFirstFailure:
    @pytest.mark.parametrize("slow", [False, True], ids=["at once", "after a while"])
    async def test_a_guard_that_refuses_tells_nothing_of_what_comes_after_it(self, app: MRTRServer, slow: bool) -> None:
        def check_stock(title: str) -> int:
            RAN.append(f"looked up {title}")
            raise ToolError(f"there is no {title}")

        @app.tool
        def order(
            title: str,
            by: Annotated[str, Depends(named("staff", error="Only staff may order.", slow=slow))],
            stock: Annotated[int, Depends(check_stock)],
            login: Who,
        ) -> str:
            return "ordered"

        said = {(await AsyncClient(app).flow("order", title="Emma").start()).failure for _ in range(50)}
        assert said == {"Only staff may order."}
        assert RAN == ["staff"] * 50

    async def test_nothing_more_is_asked(self, app: MRTRServer) -> None:
        @app.tool(confirm="go?")
        def order(
            by: Annotated[str, Depends(named("staff", error="Only staff may order."))],
            login: Who,
            amount: HowMany,
        ) -> str:
            return "ordered"

        assert (await AsyncClient(app).flow("order").start()).failure == "Only staff may order."

    async def test_an_error_of_what_a_dependency_needs_stops_the_dependency(self, app: MRTRServer) -> None:
        def inner(guard: Annotated[str, Depends(named("guard", error="no"))], login: Who) -> str:
            RAN.append("inner")
            return guard

        @app.tool
        def run(inner: Annotated[str, Depends(inner)], other: Annotated[str, Depends(named("other"))]) -> str:
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).failure == "no"
        assert RAN == ["guard"]

    async def test_an_error_beside_an_ask_of_the_same_dependency_ends_the_call(self, app: MRTRServer) -> None:
        async def guard(ctx: Context) -> None:
            await asyncio.gather(ctx.elicit("inline?", Login), named("check", error="closed")())

        @app.tool
        def run(guard: Annotated[None, Depends(guard)], login: Who) -> str:
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).failure == "closed"

    async def test_the_error_of_a_text_stops_what_is_declared_after_it(self, app: MRTRServer) -> None:
        def text() -> str:
            raise ToolError("sold out")

        def later() -> str:
            RAN.append("a later text")
            return "?"

        @app.tool
        def run(
            login: Who,
            amount: Annotated[Amount, Elicit(text)],
            other: Annotated[Amount, Elicit(later)],
            last: Annotated[str, Depends(named("last"))],
        ) -> str:
            return "ran"

        assert (await AsyncClient(app).flow("run").start()).failure == "sold out"
        assert RAN == []

    @pytest.mark.parametrize("answer", [decline, cancel], ids=str)
    async def test_a_no_stops_what_is_declared_after_it(self, app: MRTRServer, answer: Answer) -> None:
        def text() -> str:
            RAN.append("a later text")
            return "how many?"

        @app.tool
        def run(
            before: Annotated[str, Depends(named("before"))],
            login: Who,
            amount: Annotated[Amount, Elicit(text)],
            after: Annotated[str, Depends(named("after"))],
        ) -> str:
            return "ran"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).needs_input
        RAN.clear()
        assert (await flow.answer(login=answer)).failure
        assert RAN == ["before"]


class TestOpenAsks:
    async def test_one_holds_back_the_dependencies_after_it_and_what_they_stand_before(self, app: MRTRServer) -> None:
        @app.tool
        def run(
            login: Who,
            amount: HowMany,
            stock: Annotated[str, Depends(named("stock"))],
            sure: Annotated[bool, Confirm("sure?")],
        ) -> str:
            return "ran"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).questions == {"login": "who?", "amount": "how many?"}
        assert RAN == []
        assert (await flow.answer(login=accept(name="ann"))).questions == {"amount": "how many?"}
        assert RAN == []
        assert (await flow.answer(amount=accept(count=2))).questions == {"sure": "sure?"}
        assert RAN == ["stock"]
        assert (await flow.answer(sure=yes)).text == "ran"

    async def test_asks_share_a_round_with_those_of_nested_dependencies_before_them(self, app: MRTRServer) -> None:
        def account(login: Annotated[Login, Elicit("whose account?")]) -> str:
            RAN.append("account")
            return login.name

        @app.tool
        def run(amount: HowMany, account: Annotated[str, Depends(account)], login: Who) -> str:
            return f"{account} {login.name}"

        flow = AsyncClient(app).flow("run")
        # The dependency's own ask stands before it, the tool's second one after it.
        assert (await flow.start()).questions == {"amount": "how many?", "login_2": "whose account?"}
        answers = {"amount": accept(count=2), "login_2": accept(name="ann")}
        assert (await flow.send(answers)).questions == {"login": "who?"}
        assert RAN == ["account"]
        assert (await flow.answer(login=accept(name="bob"))).text == "ann bob"

    async def test_an_ask_in_the_middle_of_a_dependency_holds_back_all_that_is_after_it(self, app: MRTRServer) -> None:
        async def asking(ctx: Context) -> str:
            return (await ctx.elicit("inline?", Login)).name

        @app.tool(confirm="go?")
        def run(
            amount: HowMany,
            asking: Annotated[str, Depends(asking)],
            after: Annotated[str, Depends(named("after"))],
            login: Annotated[Login, Elicit("who?", key="who")],
        ) -> str:
            return f"{asking} {login.name}"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).questions == {"amount": "how many?"}
        assert (await flow.answer(amount=accept(count=1))).questions == {"login": "inline?"}
        assert RAN == []
        assert (await flow.answer(login=accept(name="ann"))).questions == {"who": "who?", "confirm": "go?"}
        assert RAN == ["after"]
        assert (await flow.answer(who=accept(name="bob"), confirm=yes)).text == "ann bob"

    async def test_the_confirmation_of_confirm_is_the_last_of_all(self, app: MRTRServer) -> None:
        @app.tool(confirm="go?")
        def run(login: Who, guard: Annotated[str, Depends(named("guard"))], amount: HowMany) -> str:
            return "ran"

        flow = AsyncClient(app).flow("run")
        assert (await flow.start()).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"amount": "how many?", "confirm": "go?"}
        assert RAN == ["guard"]

    async def test_what_the_client_lacks_holds_them_back_too(self, app: MRTRServer) -> None:
        @app.tool
        def run(login: Who, guard: Annotated[str, Depends(named("guard"))]) -> str:
            return "ran"

        error = (await AsyncClient(app, capabilities={}).flow("run").start()).error
        assert error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
        assert RAN == []
