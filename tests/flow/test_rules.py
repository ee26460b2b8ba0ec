"""The eleven rules of a flow, a test class for each, in their order; then what else holds of every flow."""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal
from enum import Enum
from ipaddress import ip_network
from typing import Annotated, Any, cast
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel, HttpUrl, field_validator

from mrtr_server import (
    Confirm,
    Context,
    Elicit,
    Elicited,
    ElicitUrl,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    ListRoots,
    MRTRServer,
    Principal,
    Root,
    Sample,
    Sampled,
    State,
    ToolError,
)
from mrtr_server.flow.step_arguments import plain
from mrtr_server.protocol.dialects import DIALECTS, Envelope
from mrtr_server.protocol.drafts import SepDraftDialect
from mrtr_server.protocol.messages import Call

from ..support.direct import Exchange, headers_for, scope_of
from ..support.walk import CANCEL, DECLINE, NO, YES, Walk, accept, sampled
from ..support.wire import modern

pytestmark = pytest.mark.anyio


class Login(BaseModel):
    name: str


class Email(BaseModel):
    address: str


class Payer(BaseModel):
    name: str
    company: str = ""


class Cart(BaseModel):
    items: list[str] = []


EFFECTS: list[str] = []


@pytest.fixture(autouse=True)
def no_effects() -> None:
    EFFECTS.clear()


def effect(what: str) -> str:
    EFFECTS.append(what)
    return what


def new_ticket() -> str:
    EFFECTS.append("ticket")
    return str(EFFECTS.count("ticket"))


async def slow_effect(what: str) -> str:
    await asyncio.sleep(0.02)
    EFFECTS.append(what)
    return what


def _one_body(body: bytes) -> tuple[Any, Any]:
    """Return the `receive` and the `send` of a request whose client stays."""
    coming: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return coming.pop() if coming else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        pass

    return receive, send


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("rules", keys=KeyRing.generate())


class Currency(Enum):
    EUR = 1
    USD = 2


class Order:
    def __init__(self, id: UUID) -> None:
        self.id = id


CHANGED: dict[str, tuple[Any, Any]] = {
    "enum": (Currency.EUR, Currency.USD),
    "enums": ([{"in": Currency.EUR}], [{"in": Currency.USD}]),
    "url": (HttpUrl("https://a.example"), HttpUrl("https://b.example")),
    "network": (ip_network("10.0.0.0/24"), ip_network("10.0.1.0/24")),
    "date": (date(2030, 1, 1), date(2030, 1, 2)),
    "decimal": (Decimal("1.10"), Decimal("1.20")),
    "object": (Order(UUID(int=1)), Order(UUID(int=2))),
}


class TestRule1EveryNeedForInputIsSealed:
    """Rule 1. Every outcome that needs input is sealed, even when the handler keeps no state: the journal also carries
    the flow's id, the digests of the questions that were asked, and the budgets.
    """

    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("tools/call", "pure"),
            ("tools/call", "declared"),
            ("tools/call", "inline"),
            ("prompts/get", "prompt"),
            ("resources/read", "notes://resource"),
        ],
    )
    async def test_in_every_style_and_of_every_request_that_may_ask(
        self, app: MRTRServer, method: str, target: str
    ) -> None:
        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        @app.tool
        def declared(login: Annotated[Login, Elicit("who?")]) -> str:
            return login.name

        async def inline(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        app.tool(inline)
        app.prompt(name="prompt")(inline)
        app.resource("notes://resource")(inline)
        walk = Walk(app, target=target, method=method)
        assert await walk.questions() == {"login": "who?"}
        assert walk.state
        assert (await walk.send({"login": accept(name="ann")}))["result"]["resultType"] == "complete"

    async def test_with_the_flows_id_and_how_far_it_is(self) -> None:
        ring = KeyRing.generate()
        one, other = (MRTRServer("rules", keys=ring) for _ in range(2))

        async def ask(ctx: Context) -> str:
            EFFECTS.append(f"{ctx.flow} {ctx.round}")
            return (await ctx.elicit("who?", Login)).name

        for app in (one, other):
            app.tool(ask)
        walk = Walk(one, other, target="ask")
        await walk.questions()
        assert await walk.text({"login": accept(name="ann")}) == "ann"
        first, second = (line.split() for line in EFFECTS)
        assert first[0] == second[0]
        assert (first[1], second[1]) == ("1", "2")

    async def test_even_when_the_handler_keeps_no_state(self, app: MRTRServer) -> None:
        @app.tool
        def greet(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return f"hi {login.name}" if login else InputRequired(login=Elicit("who?", Login))

        walk = Walk(app, target="greet")
        assert await walk.questions() == {"login": "who?"}
        assert walk.state
        assert await walk.text({"login": accept(name="ann")}) == "hi ann"


class TestRule2AnswersArePinnedToQuestions:
    """Rule 2. An answer counts for a key only while the question asked now has the digest of the one that was asked:
    of its kind, its message and its schema. An answer that does not fit is asked for again, with the reason before it.
    """

    async def test_an_answer_counts_while_the_question_is_the_same(self, app: MRTRServer) -> None:
        version = {"message": "first?"}

        @app.tool
        async def ask(ctx: Context) -> str:
            login = await ctx.elicit(version["message"], Login)
            await ctx.confirm("sure?")
            return login.name

        walk = Walk(app, target="ask")
        await walk.questions()
        assert await walk.questions({"login": accept(name="ann")}) == {"confirm": "sure?"}
        version["message"] = "second?"
        assert await walk.questions({"confirm": YES}) == {"login": "second?"}
        # The confirmation was asked and answered while the first question stood; it still stands itself.
        assert await walk.text({"login": accept(name="bob")}) == "bob"

    async def test_a_changed_question_is_asked_again(self, app: MRTRServer) -> None:
        amount = iter([3, 300, 300])

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm(f"Pay {next(amount)}?")
            return effect("paid")

        walk = Walk(app, target="pay")
        assert await walk.questions() == {"confirm": "Pay 3?"}
        assert await walk.questions({"confirm": YES}) == {"confirm": "Pay 300?"}
        assert EFFECTS == []
        assert await walk.text({"confirm": YES}) == "paid"

    @pytest.mark.parametrize(
        ("first", "second", "answer"),
        [
            (Elicit("Who?", Login), ElicitUrl("Who?", "https://example.com"), accept(name="ann")),
            (Elicit("Who?", Login), Elicit("Who pays?", Login), accept(name="ann")),
            (Elicit("Who?", Login), Elicit("Who?", Payer), accept(name="ann")),
        ],
        ids=["kind", "message", "schema"],
    )
    async def test_by_their_kind_message_and_schema(
        self, app: MRTRServer, first: Elicit[Any], second: Elicit[Any] | ElicitUrl[Any], answer: dict[str, Any]
    ) -> None:
        asks = iter([first, second, second])

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.ask(it=next(asks))
            return effect("done")

        walk = Walk(app, target="ask")
        await walk.questions()
        assert await walk.questions({"it": answer}) == {"it": second.message}
        assert EFFECTS == []
        assert await walk.text({"it": answer}) == "done"

    async def test_a_pure_function_can_pin_the_message_by_giving_the_ask(self, app: MRTRServer) -> None:
        amount = iter([3, 300, 300])

        @app.tool
        def pay(inputs: Inputs) -> str | InputRequired:
            sure = Confirm(f"Pay {next(amount)}?")
            return effect("paid") if inputs.get("sure", sure) else InputRequired(sure=sure)

        walk = Walk(app, target="pay")
        assert await walk.questions() == {"sure": "Pay 3?"}
        assert await walk.questions({"sure": YES}) == {"sure": "Pay 300?"}
        assert await walk.text({"sure": YES}) == "paid"

    async def test_keys_that_were_not_asked_are_ignored(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            login = await ctx.elicit("who?", Login)
            email = await ctx.elicit("where?", Email)
            return f"{login.name} {email.address}"

        walk = Walk(app, target="ask")
        await walk.questions()
        # The second question has not been asked yet: an answer to it, sent along, does not count.
        both = {"login": accept(name="ann"), "email": accept(address="planted")}
        assert await walk.questions(both) == {"email": "where?"}
        assert await walk.text({"email": accept(address="true")}) == "ann true"

    async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        for target in ("ask", "pure"):
            walk = Walk(app, target=target)
            await walk.questions()
            assert await walk.questions({"login": accept(nom="ann")}) == {"login": "name: Field required\n\nwho?"}
            # The reason is not part of the question: its answer counts.
            assert await walk.text({"login": accept(name="ann", more="dropped")}) == "ann"

    async def test_a_pure_function_may_ask_the_same_again(self, app: MRTRServer) -> None:
        @app.tool
        def guess(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            if login is None or login.name != "ann":
                return InputRequired(login=Elicit("who?", Login))
            return "found"

        walk = Walk(app, target="guess")
        await walk.questions()
        assert await walk.questions({"login": accept(name="bob")}) == {"login": "who?"}
        assert await walk.text({"login": accept(name="ann")}) == "found"

    async def test_kept_answers_are_not_asked_for_again(self, app: MRTRServer) -> None:
        @app.tool
        def all_at_once(inputs: Inputs) -> str | InputRequired:
            login, email = inputs.get("login", Login), inputs.get("email", Email)
            if login is None or email is None:
                return InputRequired(login=Elicit("who?", Login), email=Elicit("where?", Email))
            return f"{login.name} {email.address}"

        walk = Walk(app, target="all_at_once")
        assert set(await walk.questions()) == {"login", "email"}
        assert await walk.questions({"login": accept(name="ann")}) == {"email": "where?"}
        assert await walk.text({"email": accept(address="here")}) == "ann here"


class TestRule3AnswersWithoutAState:
    """Rule 3. Answers that come without a state count for the questions of that run; not for confirmations and pages,
    and not for a `single_use` tool.
    """

    async def test_count_for_the_questions_asked_in_that_run(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert await Walk(app, target="ask").text({"login": accept(name="ann"), "other": {}}) == "ann"

    async def test_are_kept_for_later_rounds(self, app: MRTRServer) -> None:
        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            if login is None:
                return InputRequired(login=Elicit("who?", Login))
            email = inputs.get("email", Email)
            if email is None:
                return InputRequired(email=Elicit("where?", Email))
            return f"{login.name} {email.address}"

        walk = Walk(app, target="ask")
        assert await walk.questions({"login": accept(name="ann")}) == {"email": "where?"}
        assert await walk.text({"email": accept(address="here")}) == "ann here"

    async def test_never_count_for_confirmations_and_pages(self, app: MRTRServer) -> None:
        @app.tool
        async def confirm(ctx: Context) -> str:
            await ctx.confirm("sure?")
            return effect("done")

        @app.tool
        async def page(ctx: Context) -> str:
            await ctx.elicit_url("log in", "https://example.com/login")
            return effect("done")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            sure = Confirm("sure?")
            return effect("done") if inputs.get("confirm", sure) else InputRequired(confirm=sure)

        @app.tool
        def pure_page(inputs: Inputs) -> str | InputRequired:
            ask = ElicitUrl("log in", "https://example.com/login")
            return effect("done") if inputs.get("open_url", ask) else InputRequired(open_url=ask)

        for target in ("confirm", "page", "pure", "pure_page"):
            walk = Walk(app, target=target)
            assert await walk.questions({"confirm": YES, "open_url": {"action": "accept"}})
            assert EFFECTS == []
            assert await walk.text({"confirm": YES, "open_url": {"action": "accept"}}) == "done"
            EFFECTS.clear()

    async def test_never_count_for_a_single_use_tool(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def ask(ctx: Context) -> str:
            return effect((await ctx.elicit("who?", Login)).name)

        walk = Walk(app, target="ask")
        assert await walk.questions({"login": accept(name="mallory")}) == {"login": "who?"}
        assert await walk.text({"login": accept(name="ann")}) == "ann"
        assert EFFECTS == ["ann"]


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

        walk = Walk(app, target="deploy")
        await walk.questions()
        await walk.questions({"first": YES})
        assert await walk.text({"second": YES}) == "buildroll out"
        assert EFFECTS == ["build", "roll out"]

    async def test_are_numbered_in_the_order_of_calls(self, app: MRTRServer) -> None:
        @app.tool
        async def three(ctx: Context) -> str:
            done = [await ctx.step(effect, str(n)) for n in range(3)]
            await ctx.confirm("sure?")
            return ",".join([*done, await ctx.step(effect, "3")])

        walk = Walk(app, target="three")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "0,1,2,3"
        assert EFFECTS == ["0", "1", "2", "3"]

    async def test_side_by_side_replay_the_same(self, app: MRTRServer) -> None:
        delays = iter([(0.0, 0.02), (0.02, 0.0)])

        @app.tool
        async def branches(ctx: Context) -> str:
            wait = dict(zip("ab", next(delays), strict=True))

            async def branch(name: str) -> str:
                await asyncio.sleep(wait[name])  # the outside decides which branch is first
                ticket = await ctx.step(new_ticket)
                return ticket + await ctx.step(effect, name)

            both = await asyncio.gather(branch("a"), branch("b"))
            await ctx.confirm("sure?")
            return ",".join(both)

        walk = Walk(app, target="branches")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "1a,2b"
        assert sorted(EFFECTS) == ["a", "b", "ticket", "ticket"]

    @pytest.mark.parametrize("names", [("pay", "pay"), ("pay~all", "pay~all"), ("pay", "pay", "pay~2")])
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

        assert await Walk(app, target="branches").text() == str(len(names))

    async def test_a_lambda_needs_a_key(self, app: MRTRServer) -> None:
        @app.tool
        async def without(ctx: Context) -> str:
            return str(await ctx.step(lambda: effect("x")))

        @app.tool
        async def with_key(ctx: Context) -> str:
            return await ctx.step(lambda: effect("x"), key="x")

        assert "reference" in await Walk(app, target="without").failure()
        assert await Walk(app, target="with_key").text() == "x"

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

        walk = Walk(app, target="run")
        await walk.questions()
        await walk.text({"confirm": YES})
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

        walk = Walk(app, target="run")
        await walk.questions()
        # In the second round the step runs again, for it was not recorded, and this time it succeeds.
        assert await walk.text({"confirm": YES}) == "first"
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

        walk = Walk(app, target="pay")
        await walk.questions()
        assert "reference" in await walk.failure({"confirm": YES})
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

        walk = Walk(app, target="pay")
        await walk.questions()
        await walk.questions({"confirm": YES})
        assert "reference" in await walk.failure({"really": YES})
        assert EFFECTS == ["charged"]

    async def test_rerun_lets_a_step_run_again(self, app: MRTRServer) -> None:
        tries = iter([1, 2])

        @app.tool
        async def look(ctx: Context) -> str:
            seen = await ctx.step(effect, str(next(tries)), rerun=True)
            await ctx.confirm("sure?")
            return seen

        walk = Walk(app, target="look")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "2"

    async def test_the_same_key_at_once_runs_once(self, app: MRTRServer) -> None:
        @app.tool
        async def twice(ctx: Context) -> str:
            return "".join(await asyncio.gather(*(ctx.step(slow_effect, "x", key="one") for _ in range(2))))

        assert await Walk(app, target="twice").text() == "xx"
        assert EFFECTS == ["x"]


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
            walk = Walk(app, target=target)
            assert set(await walk.questions()) == {"login", "sample"}, target
            assert await walk.text({"login": accept(name="ann"), "sample": sampled("Oslo")}) == "ann Oslo"

    async def test_a_step_beside_an_ask_finishes_and_is_recorded(self, app: MRTRServer) -> None:
        @app.tool
        async def beside(ctx: Context) -> str:
            login, done = await asyncio.gather(ctx.elicit("who?", Login), ctx.step(slow_effect, "work"))
            return f"{login.name} {done}"

        walk = Walk(app, target="beside")
        await walk.questions()
        assert EFFECTS == ["work"]
        assert await walk.text({"login": accept(name="ann")}) == "ann work"
        assert EFFECTS == ["work"]

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

        walk = Walk(app, target="beside")
        await walk.questions()
        assert EFFECTS == ["one", "two"]
        assert await walk.text({"login": accept(name="ann")}) == "annonetwo"
        assert EFFECTS == ["one", "two"]

    @pytest.mark.parametrize("answer", [None, DECLINE, CANCEL, NO, {"action": "accept"}, accept(confirm="maybe")])
    async def test_nothing_swallows_it(self, app: MRTRServer, answer: dict[str, Any] | None) -> None:
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
            walk = Walk(app, target=target)
            assert await walk.questions() == {"confirm": "sure?"}
            if answer is not None:
                result = (await walk.send({"confirm": answer}))["result"]
                assert result["resultType"] == "input_required" or result["isError"], target
            assert EFFECTS == [], target

    async def test_a_yes_goes_on(self, app: MRTRServer) -> None:
        @app.tool
        async def deploy(ctx: Context) -> str:
            await ctx.confirm("sure?")
            return effect("after")

        walk = Walk(app, target="deploy")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "after"

    async def test_an_error_beside_an_open_ask_waits_for_the_answer(self, app: MRTRServer) -> None:
        @app.tool
        async def failing(ctx: Context) -> str:
            async def fail() -> None:
                raise ToolError("broken")

            await asyncio.gather(ctx.elicit("who?", Login), fail())
            return "done"

        walk = Walk(app, target="failing")
        await walk.questions()
        assert await walk.failure({"login": accept(name="ann")}) == "broken"

    async def test_a_handler_that_catches_everything_is_refused_and_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def stubborn(ctx: Context) -> str:
            with suppress(BaseException):
                await ctx.confirm("sure?")
            await ctx.step(effect, "after")
            return "done"

        await Walk(app, target="stubborn").questions()
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

        assert "reference" in await Walk(app, target="plain").failure()
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

        assert "reference" in await Walk(app, target="nested").failure()
        assert "inside the step 'inner'" in caplog.text
        assert EFFECTS == []


class TestRule5ADeclinedAskParksToo:
    """Rule 5, continued. A declined or dismissed ask parks in the same way and ends the call, unless the handler said
    that it would branch.
    """

    @pytest.mark.parametrize(("answer", "word"), [(DECLINE, "declined"), (CANCEL, "dismissed")])
    async def test_a_handler_that_wants_the_model_ends(
        self, app: MRTRServer, answer: dict[str, Any], word: str
    ) -> None:
        @app.tool
        async def inline(ctx: Context) -> str:
            await ctx.elicit("who?", Login)
            return effect("after")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            try:
                login = inputs.get("login", Login)
            except Exception:
                return effect("swallowed")
            return effect("after") if login else InputRequired(login=Elicit("who?", Login))

        for target in ("inline", "pure"):
            walk = Walk(app, target=target)
            await walk.questions()
            assert word in await walk.failure({"login": answer})
            assert EFFECTS == []

    async def test_a_no_can_not_be_swallowed_by_a_pure_function(self, app: MRTRServer) -> None:
        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            try:
                login = inputs.get("login", Login)
            except BaseException:
                return "carried out"
            return "after" if login else InputRequired(login=Elicit("who?", Login))

        walk = Walk(app, target="pure")
        await walk.questions()
        assert "declined" in await walk.failure({"login": DECLINE})

    async def test_elicited_branches(self, app: MRTRServer) -> None:
        @app.tool
        async def inline(ctx: Context) -> str:
            done = await ctx.elicit("who?", Elicited[Login])
            return f"{done.action} {done.content.name if done.content else None}"

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            done = inputs.get("login", Elicited[Login])
            if done is None:
                return InputRequired(login=Elicit("who?", Elicited[Login]))
            return f"{done.action} {done.content.name if done.content else None}"

        for target in ("inline", "pure"):
            for answer, text in ((DECLINE, "decline None"), (CANCEL, "cancel None"), (accept(name="a"), "accept a")):
                walk = Walk(app, target=target)
                await walk.questions()
                assert await walk.text({"login": answer}) == text

    async def test_prompts_and_resources_end_with_a_code_of_our_own(self, app: MRTRServer) -> None:
        @app.prompt
        async def letter(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        @app.resource("letters://mine")
        async def letters(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        for method, target in (("prompts/get", "letter"), ("resources/read", "letters://mine")):
            walk = Walk(app, target=target, method=method)
            await walk.questions()
            error = await walk.error({"login": DECLINE})
            assert not -32768 <= error["code"] <= -32000
            assert error["data"] == {"action": "decline"}


class TestRule6OrderChangesFailLoudly:
    """Rule 6. A replay that meets a step or an ask under a key of another kind is an error for the author, with both
    names. The same key twice in a run is the same question, or an author's error.
    """

    async def test_an_ask_under_the_key_of_a_step(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        version = {"new": False}

        @app.tool
        async def deploy(ctx: Context) -> str:
            if version["new"]:
                await ctx.confirm("sure?", key="effect")
            else:
                await ctx.step(effect, "x")
            await ctx.confirm("really?", key="really")
            return "done"

        walk = Walk(app, target="deploy")
        await walk.questions()
        version["new"] = True
        assert "reference" in await walk.failure({"really": YES})
        assert "An ask and a step both have the key 'effect'" in caplog.text

    async def test_a_step_under_the_key_of_an_ask(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        version = {"new": False}

        @app.tool
        async def deploy(ctx: Context) -> str:
            if version["new"]:
                await ctx.step(effect, "x", key="first")
            else:
                await ctx.confirm("sure?", key="first")
            await ctx.confirm("really?", key="really")
            return "done"

        walk = Walk(app, target="deploy")
        await walk.questions()
        await walk.questions({"first": YES})
        version["new"] = True
        assert "reference" in await walk.failure({"really": YES})
        assert "An ask and a step both have the key 'first'" in caplog.text
        assert EFFECTS == []

    async def test_the_same_key_twice_is_the_same_question(self, app: MRTRServer) -> None:
        @app.tool
        async def same(ctx: Context) -> str:
            one = await ctx.elicit("who?", Login, key="who")
            two = await ctx.elicit("who?", Login, key="who")
            return one.name + two.name

        walk = Walk(app, target="same")
        assert await walk.questions() == {"who": "who?"}
        assert await walk.text({"who": accept(name="a")}) == "aa"

    async def test_or_an_error_for_the_author(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def different(ctx: Context) -> str:
            await asyncio.gather(
                ctx.elicit("who?", Login, key="who"), ctx.elicit("whom?", Login, key="who"), return_exceptions=True
            )
            return "done"

        assert "reference" in await Walk(app, target="different").failure()
        assert "'who' is used for two different questions" in caplog.text

    async def test_default_keys_are_numbered(self, app: MRTRServer) -> None:
        @app.tool
        async def twice(ctx: Context) -> str:
            one, two = await asyncio.gather(ctx.elicit("first?", Login), ctx.elicit("second?", Login))
            third = await ctx.elicit("third?", Login)
            return f"{one.name} {two.name} {third.name}"

        walk = Walk(app, target="twice")
        assert await walk.questions() == {"login": "first?", "login_2": "second?"}
        answers = {"login": accept(name="a"), "login_2": accept(name="b")}
        assert await walk.questions(answers) == {"login_3": "third?"}
        assert await walk.text({"login_3": accept(name="c")}) == "a b c"


class TestRule7Budgets:
    """Rule 7. Rounds, state-only rounds, the life of a state and of a flow, and the size of a state have limits, and a
    flow over budget ends with a clear error. Those of a request (its size, depth, numbers and answers) are in
    `transport/test_bad_input.py`, the defaults in `test_limits.py`.
    """

    async def test_rounds_of_a_flow(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(rounds=3))

        @app.tool
        async def endless(ctx: Context) -> str:
            for n in range(100):
                await ctx.confirm(f"{n}?", key=f"c{n}")
            return "done"

        walk = Walk(app, target="endless")
        for n in range(3):
            assert await walk.questions({f"c{n - 1}": YES}) == {f"c{n}": f"{n}?"}
        error = await walk.error({"c2": YES})
        assert (error["code"], error["data"]) == (-32602, {"limit": "rounds", "value": 3})

    async def test_the_official_clients_patience_is_enough_for_the_default(self, app: MRTRServer) -> None:
        @app.tool
        async def ten(ctx: Context) -> str:
            for n in range(10):
                await ctx.confirm(f"{n}?", key=f"c{n}")
            return "done"

        walk = Walk(app, target="ten")
        await walk.questions()
        for n in range(9):
            await walk.questions({f"c{n}": YES})
        assert await walk.text({"c9": YES}) == "done"

    async def test_a_handler_that_keeps_another_state_each_time_has_all_rounds(self, app: MRTRServer) -> None:
        @app.tool
        def counting(to: int, state: State[int]) -> str | InputRequired:
            count = state.value or 0
            return f"counted to {count}" if count == to else InputRequired(state=count + 1)

        walk = Walk(app, target="counting", arguments={"to": 10})
        for _ in range(10):
            assert await walk.questions() == {}
        assert await walk.text() == "counted to 10"
        walk = Walk(app, target="counting", arguments={"to": 11})
        for _ in range(10):
            assert await walk.questions() == {}
        assert (await walk.error())["data"] == {"limit": "rounds", "value": 10}

    async def test_state_only_rounds_are_the_servers_own(self, app: MRTRServer) -> None:
        """What a handler does of its own accord is not among them, and leaves them to the server."""

        @app.tool
        async def counting(state: State[int], ctx: Context) -> str | InputRequired:
            count = state.value or 0
            for part in "ab":
                await ctx.step(effect, part, key=f"{part} {count}")
            return f"counted to {count}" if count == 4 else InputRequired(state=count + 1)

        app.drain()
        walk = Walk(app, target="counting")
        done = []
        while (reply := await walk.send())["result"]["resultType"] == "input_required":
            done.append("".join(EFFECTS))
        handed_over = [effects for effects in done if len(effects) % 2 or not effects]
        assert handed_over == ["", "a", "aba"], "three times; then it goes on here"
        assert done == ["", "a", "ab", "aba", "abab", "ababab", "abababab"]
        assert reply["result"]["content"][0]["text"] == "counted to 4"

    async def test_never_two_without_anything_new(self, app: MRTRServer) -> None:
        @app.tool
        def stuck(state: State[int]) -> str | InputRequired:
            return InputRequired(state=1)

        walk = Walk(app, target="stuck")
        assert await walk.questions() == {}
        assert (await walk.error())["data"]["limit"] == "state_only_rounds"

    async def test_the_life_of_a_state_and_of_a_flow(self) -> None:
        now = {"is": 1_000_000.0}
        limits = Limits(state_seconds=100, flow_seconds=150)
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=limits, clock=lambda: now["is"])

        @app.tool
        async def two(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            await ctx.confirm("second?", key="second")
            return "done"

        @app.tool(answer_within=5)
        async def hurried(ctx: Context) -> str:
            await ctx.confirm("first?", key="first")
            return "done"

        walk = Walk(app, target="two")
        await walk.questions()
        now["is"] += 99
        await walk.questions({"first": YES})
        now["is"] += 52  # within the state's life, past the flow's
        assert (await walk.error({"second": YES}))["code"] == -32602
        walk = Walk(app, target="two")
        await walk.questions()
        now["is"] += 101
        assert (await walk.error({"first": YES}))["code"] == -32602
        walk = Walk(app, target="hurried")
        await walk.questions()
        now["is"] += 6
        assert (await walk.error({"first": YES}))["code"] == -32602

    async def test_the_size_of_a_state_names_the_largest_entry(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), limits=Limits(state_bytes=2000))

        @app.tool
        async def big(ctx: Context) -> str:
            await ctx.step(lambda: "x" * 3000, key="download")
            await ctx.confirm("sure?")
            return "done"

        error = await Walk(app, target="big").error()
        assert error["data"] == {"limit": "state_bytes", "value": 2000}
        assert "the step 'download'" in error["message"]


class TestRule8CapabilitiesGateWhatIsSent:
    """Rule 8. An ask that the client did not declare is never sent: the call fails, naming exactly what is missing. An
    answer that is there already counts, and a tool can choose another way first.
    """

    @pytest.mark.parametrize(
        ("capabilities", "missing"),
        [
            ({}, {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}),
            ({"elicitation": {}}, {"elicitation": {"url": {}}, "sampling": {"tools": {}}, "roots": {}}),
            ({"elicitation": {"url": {}}, "roots": {}}, {"elicitation": {"form": {}}, "sampling": {"tools": {}}}),
            ({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}, {"sampling": {"tools": {}}}),
        ],
    )
    async def test_in_every_style_and_exactly(
        self, app: MRTRServer, capabilities: dict[str, Any], missing: dict[str, Any]
    ) -> None:
        def asks() -> dict[str, Any]:
            return {
                "form": Elicit("who?", Login),
                "page": ElicitUrl("open", "https://example.com"),
                "said": Sample("hi", tools=[]),
                "roots": ListRoots(),
            }

        @app.tool
        def pure() -> str | InputRequired:
            return InputRequired(asks())

        @app.tool
        async def inline(ctx: Context) -> str:
            await ctx.ask(**asks())
            return "done"

        @app.tool
        async def gathered(ctx: Context) -> str:
            each = [ctx.ask(**{key: ask}) for key, ask in asks().items()]
            await asyncio.gather(*each, return_exceptions=True)
            return "done"

        @app.tool
        def declared(
            form: Annotated[Login, Elicit("who?")],
            page: Annotated[bool, ElicitUrl("open", "https://example.com")],
            said: Annotated[Sampled, Sample("hi", tools=[])],
            roots: Annotated[list[Root], ListRoots()],
        ) -> str:
            return "done"

        for target in ("pure", "inline", "gathered", "declared"):
            error = await Walk(app, target=target, capabilities=capabilities).error()
            assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": missing})

    async def test_an_answer_that_is_there_counts(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert await Walk(app, target="ask", capabilities={}).text({"login": accept(name="ann")}) == "ann"

    async def test_a_tool_can_choose_another_way(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name if ctx.client.supports("elicitation") else "anonymous"

        assert await Walk(app, target="ask", capabilities={"sampling": {}}).text() == "anonymous"


class TestRule9SingleUse:
    """Rule 9. Each state of a `single_use` tool is redeemed once, and each from a confirmation on; a duplicate with the
    same answers gets the recorded outcome, one with others the frozen error. Here in one process;
    `flow/test_single_use.py` and `flow/test_confirmed_once.py` have the rest, and the fleet.
    """

    async def test_a_state_is_redeemed_once(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(slow_effect, "paid")

        walk = Walk(app, target="pay")
        await walk.questions()
        state = walk.state
        assert await walk.text({"confirm": YES}) == "paid"
        walk.state = state
        assert await walk.text({"confirm": YES}) == "paid"
        assert "requestState is not valid" in (await walk.error({"confirm": NO}))["message"]
        assert EFFECTS == ["paid"]

    async def test_without_it_a_state_can_be_redeemed_again(self, app: MRTRServer) -> None:
        @app.tool
        async def note(ctx: Context) -> str:
            return await ctx.step(slow_effect, (await ctx.elicit("Who?", Login)).name)

        walk = Walk(app, target="note")
        await walk.questions()
        for _ in range(2):
            await walk.text({"login": accept(name="ann")})
        assert EFFECTS == ["ann", "ann"]

    async def test_so_is_that_of_a_tool_that_confirms_first(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool(confirm=lambda amount: f"Pay {amount}?")
        def pay(amount: int) -> str:
            return effect("paid")

        assert (
            "a state of 'pay', as of every confirmation or single-use tool, is redeemed once in each process"
            in caplog.text
        )
        walk = Walk(app, target="pay", arguments={"amount": 3})
        await walk.questions()
        state = walk.state
        assert await walk.text({"confirm": YES}) == "paid"
        walk.state = state
        assert await walk.text({"confirm": YES}) == "paid"
        assert EFFECTS == ["paid"]

    async def test_so_is_every_state_from_a_confirmation_on(self, app: MRTRServer) -> None:
        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return await ctx.step(slow_effect, "paid")

        walk = Walk(app, target="pay")
        await walk.questions()
        state = walk.state
        for _ in range(2):
            walk.state = state
            assert await walk.text({"confirm": YES}) == "paid"
        assert EFFECTS == ["paid"]


class TestRule10StateOnlyOutcomes:
    """Rule 10. A server that drains, or has too many calls, ends rounds with a state and no question, at every step
    and `ctx.checkpoint()`; new calls get one at once. With real signals and processes: `system/test_draining.py`.
    """

    @pytest.fixture
    def other(self, app: MRTRServer) -> MRTRServer:
        return self.serving(MRTRServer("rules", keys=self.ring))

    @pytest.fixture
    def app(self) -> MRTRServer:
        return self.serving(MRTRServer("rules", keys=self.ring))

    ring = KeyRing.generate()

    def serving(self, app: MRTRServer) -> MRTRServer:
        """Return it a tool of each style. The gate is what a call waits for between its steps."""
        gates[app] = asyncio.Event()

        @app.tool
        def plain() -> str:
            return effect("plain")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return effect(login.name) if login else InputRequired(login=Elicit("who?", Login))

        @app.tool
        async def inline(ctx: Context) -> str:
            who = (await ctx.elicit("who?", Login)).name
            return await ctx.step(effect, who)

        @app.tool
        async def two_steps(ctx: Context) -> str:
            first = await ctx.step(effect, "first")
            await gates[app].wait()
            return first + await ctx.step(effect, "second", key="second")

        @app.tool
        async def side_by_side(ctx: Context) -> str:
            return " ".join(await asyncio.gather(ctx.step(slow_effect, "a"), self.late(ctx, gates[app])))

        @app.tool
        async def marked(ctx: Context) -> str:
            await gates[app].wait()
            await ctx.checkpoint()
            return effect("marked")

        @app.tool
        async def many(ctx: Context) -> str:
            for n in range(8):
                await ctx.step(effect, str(n), key=f"step {n}")
            return "done"

        @app.prompt
        def greeting() -> str:
            return effect("greeting")

        @app.resource("notes://{topic}")
        def note(topic: str) -> str:
            return effect(topic)

        return app

    async def late(self, ctx: Context, gate: asyncio.Event) -> str:
        await gate.wait()
        return await ctx.step(effect, "b")

    @pytest.mark.parametrize(
        ("method", "target"), [("tools/call", "plain"), ("prompts/get", "greeting"), ("resources/read", "notes://a")]
    )
    async def test_a_new_call_is_handed_back_before_anything_runs(
        self, app: MRTRServer, other: MRTRServer, method: str, target: str
    ) -> None:
        app.drain()
        walk = Walk(app, other, target=target, method=method)
        assert await walk.questions() == {}
        assert EFFECTS == []
        assert (await walk.send())["result"]["resultType"] == "complete"
        assert len(EFFECTS) == 1

    @pytest.mark.parametrize("target", ["pure", "inline"])
    async def test_the_answers_that_came_with_it_are_kept(
        self, app: MRTRServer, other: MRTRServer, target: str
    ) -> None:
        walk = Walk(app, app, other, target=target)
        await walk.questions()
        app.drain()
        assert await walk.questions({"login": accept(name="ann")}) == {}
        assert await walk.text() == "ann"
        assert EFFECTS == ["ann"]

    async def test_a_running_call_goes_at_its_next_step(self, app: MRTRServer, other: MRTRServer) -> None:
        walk = Walk(app, other, target="two_steps")
        under_way = asyncio.create_task(walk.questions())
        await happened("first")
        app.drain()
        gates[app].set()
        gates[other].set()
        assert await under_way == {}
        assert await walk.text() == "firstsecond"
        assert EFFECTS == ["first", "second"]

    async def test_or_at_its_checkpoint(self, app: MRTRServer, other: MRTRServer) -> None:
        walk = Walk(app, other, target="marked")
        under_way = asyncio.create_task(walk.questions())
        await asyncio.sleep(0.02)
        app.drain()
        gates[app].set()
        gates[other].set()
        assert await under_way == {}
        assert await walk.text() == "marked"
        assert EFFECTS == ["marked"]

    async def test_a_step_that_runs_beside_ends_first_and_is_kept(self, app: MRTRServer, other: MRTRServer) -> None:
        walk = Walk(app, other, target="side_by_side")
        under_way = asyncio.create_task(walk.questions())
        await asyncio.sleep(0.005)
        app.drain()
        gates[app].set()
        gates[other].set()
        assert await under_way == {}
        assert EFFECTS == ["a"]
        assert await walk.text() == "a b"
        assert EFFECTS == ["a", "b"]

    async def test_what_has_been_done_is_replayed_without_a_boundary(self, app: MRTRServer) -> None:
        gates[app].set()
        app.drain()
        walk = Walk(app, target="two_steps")
        assert await walk.questions() == {}
        # Nothing is new, so the first step runs here; the second is elsewhere's.
        assert await walk.questions() == {}
        assert EFFECTS == ["first"]
        assert await walk.text() == "firstsecond"

    async def test_a_call_that_comes_back_with_nothing_new_runs_here(self, app: MRTRServer) -> None:
        app.drain()
        walk = Walk(app, target="plain")
        assert await walk.questions() == {}
        assert await walk.text() == "plain"

    async def test_no_more_than_three_times_a_flow(self, app: MRTRServer) -> None:
        app.drain()
        walk = Walk(app, target="many")
        handed_over = 0
        while (await walk.send())["result"]["resultType"] == "input_required":
            handed_over += 1
        assert handed_over == 3
        assert "".join(EFFECTS) == "01234567"

    async def test_and_never_past_the_last_of_the_rounds(self) -> None:
        app = self.serving(MRTRServer("rules", keys=self.ring, limits=Limits(rounds=1)))
        walk = Walk(app, target="inline")
        await walk.questions()
        app.drain()
        assert await walk.text({"login": accept(name="ann")}) == "ann"

    async def test_nor_where_the_state_would_be_too_large(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(state_bytes=4000))

        @app.tool
        async def big(ctx: Context) -> str:
            await ctx.step(lambda: "x" * 4000, key="download")
            app.drain()
            return await ctx.step(effect, "done")

        assert await Walk(app, target="big").text() == "done"

    async def test_too_many_calls_are_shed_in_the_same_way(self, other: MRTRServer) -> None:
        app = self.serving(MRTRServer("rules", keys=self.ring, limits=Limits(shed_above=1)))
        gates[other].set()
        first = Walk(app, other, target="two_steps")
        under_way = asyncio.create_task(first.questions())
        await happened("first")
        new, stubborn = Walk(app, other, target="plain"), Walk(app, target="marked")
        assert await new.questions() == {}
        assert await stubborn.questions() == {}
        coming_back = asyncio.create_task(stubborn.text())  # has done nothing since, so it stays
        await asyncio.sleep(0.02)
        gates[app].set()
        assert await under_way == {}  # and the call that can go on elsewhere makes room
        assert await coming_back == "marked"
        assert await first.text() == "firstsecond"
        assert await new.text() == "plain"

    async def test_calls_wait_their_turn(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(max_concurrency=2))
        running: list[str] = []

        @app.tool
        async def slow(name: str) -> str:
            running.append(name)
            EFFECTS.append(str(len(running)))
            await asyncio.sleep(0.005)
            running.remove(name)
            return name

        walks = [Walk(app, target="slow", arguments={"name": name}) for name in "abcdefg"]
        assert await asyncio.gather(*(walk.text() for walk in walks)) == list("abcdefg")
        assert set(EFFECTS) <= {"1", "2"}

    async def test_a_client_that_leaves_gives_up_its_turn(self) -> None:
        app = MRTRServer("rules", keys=self.ring, limits=Limits(max_concurrency=1))
        gate = asyncio.Event()

        @app.tool
        async def slow(name: str) -> str:
            EFFECTS.append(name)
            await gate.wait()
            return name

        calls = [asyncio.create_task(Walk(app, target="slow", arguments={"name": name}).text()) for name in "abc"]
        await happened("a")
        calls[1].cancel()
        gate.set()
        assert await calls[0] == "a"
        assert await calls[2] == "c"
        assert EFFECTS == ["a", "c"]

    async def test_a_client_that_can_not_retry_is_told_when_to_come_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = self.serving(self.for_clients_that_can_not_retry(monkeypatch))
        app.drain()
        response = await self.post(app, "plain")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.headers["connection"] == "close"
        assert response.json()["error"]["code"] == -31002
        assert EFFECTS == []

    async def test_or_finishes_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = self.serving(self.for_clients_that_can_not_retry(monkeypatch))
        under_way = asyncio.create_task(self.post(app, "two_steps"))
        await happened("first")
        app.drain()
        gates[app].set()
        assert (await under_way).json()["result"]["content"][0]["text"] == "firstsecond"

    def for_clients_that_can_not_retry(self, monkeypatch: pytest.MonkeyPatch) -> MRTRServer:
        """Return a server with a dialect in which a call is one request, as in those that began with a handshake."""

        class OneRequest(SepDraftDialect):
            name = "one-request"

            def load_call(self, envelope: Envelope, principal: Principal | None, user: Any) -> Call:
                return replace(super().load_call(envelope, principal, user), can_retry=False)

        monkeypatch.setitem(cast(dict[str, Any], DIALECTS), "one-request", OneRequest)
        return MRTRServer("rules", keys=self.ring, dialects=["one-request"])

    async def post(self, app: MRTRServer, tool: str) -> httpx.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/mcp", json=message)


gates: dict[MRTRServer, asyncio.Event] = {}


async def happened(what: str) -> None:
    async with asyncio.timeout(5):
        while what not in EFFECTS:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class TestRule11AClientThatClosesTheStreamCancels:
    """Rule 11. Its request is cancelled at the next boundary: a running step finishes, nothing comes after it. A round
    whose state is redeemed once runs to its end and is recorded. With real sockets: `transport/test_endpoint.py`.
    """

    gate: asyncio.Event

    def begin(self, app: MRTRServer, streamed: bool, **params: Any) -> Exchange:
        """Send a call; with streaming, the reply is a stream from the first note on."""
        extra = {"progressToken": "p"} if streamed else {}
        message = modern("tools/call", {"name": "pay", **params}, **extra)
        return Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()

    async def charge(self) -> str:
        effect("begun")
        await self.gate.wait()
        return effect("charged")

    def add_pay(self, app: MRTRServer, *, single_use: bool = False, confirms: bool = False) -> None:
        self.gate = asyncio.Event()

        @app.tool(single_use=single_use)
        async def pay(ctx: Context) -> str:
            ctx.progress(1)
            if confirms:
                await ctx.confirm("Pay?")
            else:
                await ctx.elicit("Who pays?", Login)
            try:
                await ctx.step(self.charge)
            except asyncio.CancelledError:
                effect("cancelled")
                raise
            return await ctx.step(effect, "mailed")

    async def asked(self, app: MRTRServer) -> Walk:
        walk = Walk(app, target="pay")
        await walk.questions()
        return walk

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    async def test_at_the_next_boundary_so_a_running_step_finishes(self, app: MRTRServer, streamed: bool) -> None:
        self.add_pay(app)
        walk = await self.asked(app)
        answers = {"login": accept(name="ann")}
        under_way = self.begin(app, streamed, requestState=walk.state, inputResponses=answers)
        await happened("begun")
        under_way.disconnect()
        await happened("cancelled")
        self.gate.set()
        await under_way.end()
        await happened("charged")
        await asyncio.sleep(0.02)
        assert EFFECTS == ["begun", "cancelled", "charged"]

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    @pytest.mark.parametrize("why", [{"single_use": True}, {"confirms": True}], ids=str)
    async def test_but_a_single_use_round_runs_to_its_end_and_is_recorded(
        self, app: MRTRServer, streamed: bool, why: dict[str, bool]
    ) -> None:
        self.add_pay(app, **why)
        walk = await self.asked(app)
        answers = {"confirm": YES} if "confirms" in why else {"login": accept(name="ann")}
        under_way = self.begin(app, streamed, requestState=walk.state, inputResponses=answers)
        await happened("begun")
        under_way.disconnect()
        await under_way.end()
        self.gate.set()
        await happened("mailed")
        assert await walk.text(answers) == "mailed"
        assert EFFECTS == ["begun", "charged", "mailed"]


class TestAnyReplicaServesAnyRound:
    async def test_three_of_them_in_every_style(self) -> None:
        ring = KeyRing.generate()

        def replica() -> MRTRServer:
            app = MRTRServer("fleet", keys=ring)

            @app.tool
            async def inline(ctx: Context) -> str:
                done = await ctx.step(effect, "once")
                login = await ctx.elicit("who?", Login)
                roots = await ctx.list_roots()
                return f"{done} {login.name} {roots[0].uri}"

            @app.tool
            def pure(inputs: Inputs, state: State[Cart]) -> str | InputRequired:
                cart = state.value or Cart()
                login = inputs.get("login", Login)
                if login is None:
                    return InputRequired(login=Elicit("who?", Login), state=Cart(items=[*cart.items, "a"]))
                roots = inputs.get("roots", ListRoots())
                if roots is None:
                    return InputRequired(roots=ListRoots(), state=Cart(items=[*cart.items, "b"]))
                return f"{''.join(cart.items)} {login.name} {roots[0].uri}"

            @app.prompt
            async def letter(to: str, ctx: Context) -> str:
                login = await ctx.elicit("who?", Login)
                roots = await ctx.list_roots()
                return f"{to} {login.name} {roots[0].uri}"

            return app

        fleet = [replica() for _ in range(3)]
        listed = {"roots": {"roots": [{"uri": "file:///x"}]}}
        for target, text in (("inline", "once ann file:///x"), ("pure", "ab ann file:///x")):
            walk = Walk(*fleet, target=target)
            assert set(await walk.questions()) == {"login"}
            assert set(await walk.questions({"login": accept(name="ann")})) == {"roots"}
            assert await walk.text(listed) == text
        assert EFFECTS == ["once"]
        walk = Walk(*fleet, target="letter", arguments={"to": "Bo"}, method="prompts/get")
        await walk.questions()
        await walk.questions({"login": accept(name="ann")})
        reply = await walk.send(listed)
        assert reply["result"]["messages"][0]["content"]["text"] == "Bo ann file:///x"

    async def test_a_state_of_another_tool_argument_set_server_or_ring_is_refused(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        ring = KeyRing.generate()

        def replica(name: str, keys: KeyRing) -> MRTRServer:
            app = MRTRServer(name, keys=keys)

            async def ask(ctx: Context, n: int = 0) -> str:
                return (await ctx.elicit("who?", Login)).name

            app.tool(name="one")(ask)
            app.tool(name="two")(ask)
            app.prompt(name="one")(ask)
            return app

        home = replica("home", ring)
        walk = Walk(home, target="one", arguments={"n": 1})
        await walk.questions()
        state = walk.state
        others = {
            "belongs to another target": Walk(home, target="two", arguments={"n": 1}),
            "belongs to other arguments": Walk(home, target="one", arguments={"n": 2}),
            "belongs to another method": Walk(home, target="one", arguments={"n": 1}, method="prompts/get"),
            "belongs to another audience": Walk(replica("away", ring), target="one", arguments={"n": 1}),
            "a key that is not in the ring": Walk(
                replica("home", KeyRing.generate()), target="one", arguments={"n": 1}
            ),
        }
        errors = []
        for reason, other in others.items():
            caplog.clear()
            other.state = state
            errors.append(await other.error({"login": accept(name="mallory")}))
            assert reason in caplog.text
            assert "mallory" not in caplog.text
        assert all(error == errors[0] for error in errors)
        same = Walk(home, target="one", arguments={"n": 1.0})
        same.state = state
        assert await same.text({"login": accept(name="ann")}) == "ann"


class TestHandlersFaults:
    async def test_the_client_sees_a_reference_and_the_log_has_the_traceback(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        def broken() -> str:
            raise RuntimeError("the database password is hunter2")

        text = await Walk(app, target="broken").failure()
        assert "hunter2" not in text
        reference = text.rpartition(" ")[2].rstrip(")")
        assert reference in caplog.text
        assert "hunter2" in caplog.text

    async def test_debug_shows_it(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), debug=True)

        @app.tool
        def broken() -> str:
            raise RuntimeError("hunter2")

        assert await Walk(app, target="broken").failure() == "RuntimeError: hunter2"

    async def test_tool_errors_are_for_the_model(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        def broken() -> str:
            raise ToolError("no such city")

        with caplog.at_level(logging.WARNING):
            assert await Walk(app, target="broken").failure() == "no such city"
        assert not caplog.records


def test_roots_and_samples_read_well() -> None:
    answers = Inputs({"roots": [Root(uri="file:///x")], "said": Sampled(content={"type": "text", "text": "hi"})})
    said = answers.get("said", Sampled)
    assert said is not None
    assert said.text == "hi"


class TestNothingEndsTheServer:
    async def test_not_even_sys_exit(self, app: MRTRServer) -> None:
        @app.tool
        def plain() -> str:
            raise SystemExit(1)

        @app.tool
        async def inline(ctx: Context) -> str:
            raise SystemExit(1)

        @app.tool
        async def step(ctx: Context) -> str:
            def leave() -> None:
                raise SystemExit(1)

            await ctx.step(leave)
            return "done"

        for target in ("plain", "inline", "step"):
            assert "reference" in await Walk(app, target=target).failure()


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

        walk = Walk(app, target="pay")
        await walk.questions()
        await walk.questions({"one": YES})
        assert EFFECTS == ["a 1 NOK", "closure 1"]
        assert "reference" in await walk.failure({"two": YES})
        assert "The step 'closure' has run in an earlier round with another value of 'amount'" in caplog.text


class Account:
    def __init__(self, name: str) -> None:
        self.name = name

    def withdraw(self, amount: int) -> str:
        return effect(f"{self.name} {amount}")


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look_up(cls, value: str) -> str:
        return {"ann": "Ann"}[value]


class TestAttacks:
    """What was tried against the rules, and must not work."""

    async def test_a_function_that_raises_stop_iteration_fails(self, app: MRTRServer) -> None:
        @app.tool
        def plain() -> str:
            return next(iter(()))

        @app.tool
        async def step(ctx: Context) -> str:
            return await ctx.step(lambda: next(iter(())), key="x")

        for target in ("plain", "step"):
            assert "reference" in await asyncio.wait_for(Walk(app, target=target).failure(), 5)

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

        walk = Walk(app, target="pay")
        await walk.questions()
        await walk.text({"confirm": YES})
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

        walk = Walk(app, target="get")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "up"
        assert EFFECTS == ["down", "up", "down"]

    async def test_one_objects_step_is_not_anothers(self, app: MRTRServer) -> None:
        orders = iter(["ab", "ba"])

        @app.tool
        async def withdraw(ctx: Context) -> str:
            for name in next(orders):
                await ctx.step(Account(name).withdraw, 10)
                await ctx.confirm(f"{name}?", key=name)
            return "done"

        walk = Walk(app, target="withdraw")
        await walk.questions()
        assert "reference" in await walk.failure({"a": YES})
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

        assert "reference" in await Walk(app, target="both").failure()
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

        assert "reference" in await Walk(app, target="both").failure()
        assert "is used for two different steps" in caplog.text
        assert EFFECTS == ["first"]

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
            assert await Walk(app, target=target).questions() == {"confirm": "delete?"}
            assert EFFECTS == []

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

        assert await Walk(app, target="hurried").questions() == {"confirm": "delete?"}
        assert EFFECTS == ["work"]

    async def test_a_task_beside_the_handler_does_not_take_the_end_for_an_answer(self, app: MRTRServer) -> None:
        @app.tool
        async def waiting(ctx: Context) -> str:
            async def beside() -> None:
                await asyncio.gather(ctx.confirm("delete?"), return_exceptions=True)
                effect("deleted")

            await asyncio.wait({asyncio.create_task(beside())})
            return "done"

        assert await Walk(app, target="waiting").questions() == {"confirm": "delete?"}
        await asyncio.sleep(0.01)
        assert EFFECTS == []

    async def test_a_validator_that_fails_in_its_own_way_is_no_way_out(self, app: MRTRServer) -> None:
        @app.tool
        async def swallowing(ctx: Context) -> str:
            try:
                await ctx.elicit("who?", Picky)
            except Exception:
                effect("swallowed")
            return effect("after")

        assert (await Walk(app, target="swallowing").send({"picky": accept(name="mallory")}))["result"]
        assert EFFECTS == []

    async def test_a_result_that_is_changed_is_not_changed_in_the_journal(self, app: MRTRServer) -> None:
        def fetch():  # type: ignore[no-untyped-def]
            return {"items": ["a"]}

        @app.tool
        async def change(ctx: Context) -> str:
            order = await ctx.step(fetch)
            order["items"].append("x")
            await ctx.confirm("sure?")
            return "".join(order["items"])

        walk = Walk(app, target="change")
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "ax"

    async def test_arguments_that_are_changed_do_not_change_the_binding(self, app: MRTRServer) -> None:
        @app.tool
        async def change(options: dict[str, Any], ctx: Context) -> str:
            options["a"].append(1)
            await ctx.confirm("sure?")
            return "done"

        walk = Walk(app, target="change", arguments={"options": {"a": []}})
        await walk.questions()
        assert await walk.text({"confirm": YES}) == "done"

    async def test_sets_count_by_what_is_in_them(self) -> None:
        assert plain({"x", "y", "z"}) == ["x", "y", "z"]
        assert plain([b"\xff", {1: 2}]) == [["bytes", "/w=="], {"<int>1": 2}]

    async def test_an_iterator_is_no_argument_of_a_step(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def run(ctx: Context) -> str:
            return await ctx.step(lambda them: effect("".join(them)), iter("abc"), key="x")

        assert "reference" in await Walk(app, target="run").failure()
        assert "pass a list" in caplog.text

    async def test_a_planted_yes_does_not_count_whatever_reads_it(self, app: MRTRServer) -> None:
        class Yes(BaseModel):
            confirm: bool

        @app.tool
        def delete(inputs: Inputs) -> str | InputRequired:
            yes = inputs.get("sure", Yes)
            return effect("deleted") if yes and yes.confirm else InputRequired(sure=Confirm("delete?"))

        assert await Walk(app, target="delete").questions({"sure": YES}) == {"sure": "delete?"}
        assert EFFECTS == []

    async def test_a_yes_is_read_by_the_ask_itself(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        def pay(inputs: Inputs) -> str | InputRequired:
            return effect("paid") if inputs.get("sure", Confirm) else InputRequired(sure=Confirm("pay?"))  # type: ignore[type-var]

        assert "reference" in await Walk(app, target="pay").failure()
        assert "needs the ask itself, Confirm" in caplog.text

    async def test_a_consent_to_a_page_is_not_given_by_a_form(self, app: MRTRServer) -> None:
        page = ElicitUrl("log in", "https://example.com")

        @app.tool
        def go(inputs: Inputs) -> str | InputRequired:
            if inputs.get("k", Login) is None:
                return InputRequired(k=Elicit("who?", Login))
            return effect("gone") if inputs.get("k", page) else InputRequired(k=page)

        walk = Walk(app, target="go")
        await walk.questions()
        assert await walk.questions({"k": accept(name="ann")}) == {"k": "log in"}

    async def test_cancelling_oneself_is_a_fault_not_a_disconnect(self, app: MRTRServer) -> None:
        @app.tool
        async def odd() -> str:
            task = asyncio.create_task(asyncio.sleep(9))
            task.cancel()
            await task
            return "done"

        assert "reference" in await Walk(app, target="odd").failure()

    @pytest.mark.filterwarnings("ignore:coroutine")
    async def test_a_forgotten_await_is_an_error(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        async def forgetful(ctx: Context) -> str:
            ctx.confirm("sure?")  # type: ignore[unused-coroutine]
            return "done"

        assert "reference" in await Walk(app, target="forgetful").failure()
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

        assert "reference" in await Walk(app, target="failing").failure()
        assert "the real one" in caplog.text

    async def test_a_task_group_does_not_hide_a_no(self, app: MRTRServer) -> None:
        @app.tool
        async def grouped(inputs: Inputs) -> str | InputRequired:
            async def read() -> Any:
                return inputs.get("login", Login)

            async with asyncio.TaskGroup() as group:
                login = group.create_task(read())
            return login.result().name if login.result() else InputRequired(login=Elicit("who?", Login))

        walk = Walk(app, target="grouped")
        await walk.questions()
        assert "declined" in await walk.failure({"login": DECLINE})
