"""A round as its author sees it: what was answered, which steps ran, what was asked, and how it ended."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from mrtr_server import Context, Elicit, InputRequired, Inputs, MRTRServer, ToolError
from mrtr_server.dev.rounds import SeenAnswers, SeenRound, current_round
from mrtr_server.methods.middleware import Came, everywhere, watch
from mrtr_server.protocol.messages import Call, Complete, Outlet
from mrtr_server.testing import Answer, Client, accept, decline, no, yes


class Amount(BaseModel):
    copies: int


class Recorder:
    """Keeps the rounds that have ended."""

    def __init__(self) -> None:
        self.rounds: list[SeenRound] = []
        self.others: list[SeenRound] = []
        self._answers = SeenAnswers()

    def begin(self, call: Call, outlet: Outlet) -> SeenRound:
        seen = self._answers.begin(call, outlet)
        current_round.set(seen)
        return seen

    def end(self, call: Call, outlet: Outlet, seen: SeenRound, came: Came) -> None:
        current_round.set(None)
        seen.came = came
        self._answers.end(seen, outlet)
        (self.rounds if seen.is_round else self.others).append(seen)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    everywhere.append(watch(made.begin, made.end))
    yield made
    everywhere.clear()


def steps(seen: SeenRound) -> tuple[list[str], list[str]]:
    """The steps that ran, and those that were replayed."""
    return seen.call.trace.names("ran"), seen.call.trace.names("replayed")


def server() -> MRTRServer:
    app = MRTRServer("seen", keys=[bytes(32)])

    def place(title: str) -> str:
        return f"{title} ordered"

    def price(title: str) -> int:
        return len(title)

    @app.tool
    async def order(title: str, ctx: Context) -> str:
        cost = await ctx.step(price, title)
        amount = await ctx.elicit(f"How many of {title}?", Amount)
        await ctx.confirm(f"{amount.copies} for {cost}?")
        return await ctx.step(place, title)

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        amount = inputs.get("amount", Amount)
        return InputRequired(amount=Elicit("How many?", Amount)) if amount is None else str(amount.copies)

    @app.tool(task="required")
    async def deploy(ctx: Context) -> str:
        await ctx.step(price, "x")
        await ctx.confirm("Deploy?")
        return await ctx.step(place, "x")

    @app.tool
    async def sign(ctx: Context) -> str:
        await ctx.confirm("Sign?", plain=True)
        return "signed"

    @app.tool
    def fails() -> str:
        raise ToolError("no such thing")

    @app.tool
    def plain() -> str:
        seen = current_round.get()
        return "" if seen is None else seen.call.target

    @app.prompt
    async def letter(ctx: Context) -> str:
        await ctx.confirm("Write?")
        return "Dear"

    return app


def test_each_round_of_a_call(recorder: Recorder) -> None:
    Client(server()).call("order", title="Dune", answers={"amount": {"copies": 2}, "confirm": yes})
    first, second, third = recorder.rounds
    assert [each.call.trace.rounds for each in recorder.rounds] == [0, 1, 2]
    assert steps(first) == (["price"], [])
    assert {key: asked.params["message"] for key, asked in first.asked.items()} == {"amount": "How many of Dune?"}
    assert first.runs_again
    assert second.answered == {"amount": "accept"}
    assert steps(second) == ([], ["price"])
    assert list(second.asked) == ["confirm"]
    assert third.answered == {"confirm": "yes"}
    assert steps(third) == (["place"], ["price"])
    assert isinstance(third.came, Complete)
    assert not third.runs_again
    assert all(each.call.trace.seconds > 0 and each.call.target == "order" for each in recorder.rounds)


def test_a_no_is_seen_as_one(recorder: Recorder) -> None:
    Client(server()).call("order", title="Dune", answers={"amount": {"copies": 2}, "confirm": no})
    assert recorder.rounds[-1].answered == {"confirm": "no"}
    assert not recorder.rounds[-1].runs_again


@pytest.mark.parametrize(("answer", "seen"), [(accept(), "yes"), (yes, "yes"), (no, "no"), (decline, "decline")])
def test_what_a_form_without_fields_says_is_seen(recorder: Recorder, answer: Answer, seen: str) -> None:
    Client(server()).call("sign", answers={"confirm": answer})
    assert recorder.rounds[-1].answered == {"confirm": seen}


def test_a_pure_function_and_a_prompt_have_rounds_too(recorder: Recorder) -> None:
    client = Client(server())
    client.call("pure", answers={"amount": {"copies": 2}})
    client.get_prompt("letter", answers={"confirm": yes})
    assert [(each.call.target, each.call.trace.rounds + 1, list(each.asked)) for each in recorder.rounds] == [
        ("pure", 1, ["amount"]),
        ("pure", 2, []),
        ("letter", 1, ["confirm"]),
        ("letter", 2, []),
    ]


def test_a_task_has_the_rounds_of_its_worker(recorder: Recorder) -> None:
    Client(server(), tasks=True).call("deploy", answers={"confirm": yes})
    first, second = (each for each in recorder.rounds if each.task)
    assert first.task == second.task != ""
    assert (steps(first), list(first.asked)) == ((["price"], []), ["confirm"])
    assert (steps(second), second.answered) == ((["place"], ["price"]), {"confirm": "yes"})


def test_what_failed_and_what_has_no_rounds(recorder: Recorder) -> None:
    client = Client(server())
    client.call("fails")
    client.call("nothing")
    client.request("tools/list")
    failed, unknown = recorder.rounds
    assert isinstance(failed.came, Complete)
    assert failed.came.body["isError"]
    assert (failed.call.trace.end, unknown.call.trace.end) == ("tool_error", "error")
    assert isinstance(unknown.came, Exception)
    assert "tools/list" in [each.call.method for each in recorder.others]


def test_code_knows_the_round_that_it_runs_in_only_while_that_is_observed(recorder: Recorder) -> None:
    assert Client(server()).call("plain").text == "plain"
    everywhere.clear()
    assert Client(server()).call("plain").text == ""
    assert current_round.get() is None
