"""Confirmations fail closed: in every style, whatever the client sends and whatever the code around catches."""

import time
from contextlib import suppress
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Context, Depends, InputRequired, Inputs, MRTRServer
from mrtr_server.errors import InvalidRequestState
from mrtr_server.testing import Answer, AsyncClient, Clock, cancel, decline, no, replica, yes
from mrtr_server.testing import accept as accept_it

from ..conftest import Serve
from ..support.wire import Wire, accept

DONE: list[str] = []
CLOCK = Clock()

app = replica(MRTRServer("confirmations", keys=[bytes(32)]), clock=CLOCK)


def done(what: str) -> str:
    DONE.append(what)
    return what


@app.tool
def declared(path: str, sure: Annotated[bool, Confirm(lambda path: f"Delete {path}?", key="confirm")]) -> str:
    """Ask by a parameter."""
    return done("declared")


@app.tool(confirm=lambda path: f"Delete {path}?")
def option(path: str) -> str:
    """Ask by the option of the decorator."""
    return done("option")


@app.tool
async def inline(path: str, ctx: Context) -> str:
    """Ask in the middle of the code, and catch all that can be caught."""
    with suppress(Exception):
        await ctx.confirm(f"Delete {path}?")
    return done("inline")


@app.tool
def pure(path: str, inputs: Inputs) -> str | InputRequired:
    """Ask by what is returned."""
    sure = Confirm(f"Delete {path}?")
    with suppress(Exception):
        return done("pure") if inputs.get("confirm", sure) else InputRequired(confirm=sure)
    return done("pure, swallowed")


async def agreed(path: str, ctx: Context) -> bool:
    try:
        await ctx.confirm(f"Delete {path}?")
    except Exception:
        done("dependency, swallowed")
    return True


@app.tool
def dependency(path: str, agreed: Annotated[bool, Depends(agreed)]) -> str:
    """Ask in a dependency."""
    return done("dependency")


@app.prompt
def prompt(path: str, sure: Annotated[bool, Confirm(lambda path: f"Delete {path}?", key="confirm")]) -> str:
    """Ask for a prompt."""
    return done("prompt")


@app.resource("trash://{path}")
def resource(path: str, sure: Annotated[bool, Confirm(lambda path: f"Delete {path}?", key="confirm")]) -> str:
    """Ask for a resource."""
    return done("resource")


TOOLS = ["declared", "option", "inline", "pure", "dependency"]
STYLES = pytest.mark.parametrize("tool", TOOLS)
X = {"path": "x"}
QUESTION = "Delete x?"

DECLINED = "The user was asked to confirm and declined, so the request was not carried out."
DISMISSED = "The user dismissed the confirmation without a choice, so the request was not carried out."


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    DONE.clear()
    CLOCK.now = time.time()


@pytest.fixture(name="wire")
def _wire(serve: Serve) -> Wire:
    return serve(app)


@STYLES
def test_only_an_accepted_true_answer_goes_on(wire: Wire, tool: str) -> None:
    first = wire.call(tool, X)
    assert first.questions["confirm"] == QUESTION
    assert DONE == []
    assert wire.call(tool, X, answers={"confirm": accept(confirm=True)}, state=first.state).text == tool
    assert [tool] == DONE


PLAIN_FORM = {"type": "object", "properties": {}}


class TestAPlainOne:
    """A form without fields: to accept it is a yes."""

    pytestmark = pytest.mark.anyio
    TOOLS = ("declared", "option", "inline", "pure")

    @pytest.fixture
    def plain(self) -> MRTRServer:
        plain = MRTRServer("plain", keys=[bytes(32)])

        @plain.tool
        def declared(sure: Annotated[bool, Confirm("Delete?", key="confirm", plain=True)]) -> str:
            return done("declared")

        @plain.tool(confirm=Confirm("Delete?", plain=True))
        def option() -> str:
            return done("option")

        @plain.tool
        async def inline(ctx: Context) -> str:
            await ctx.confirm("Delete?", plain=True)
            return done("inline")

        @plain.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            sure = Confirm("Delete?", plain=True)
            return done("pure") if inputs.get("confirm", sure) else InputRequired(confirm=sure)

        return plain

    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "2025-06-18", "sep-draft"])
    @pytest.mark.parametrize("answer", [accept_it(), accept_it({}), yes], ids=["alone", "empty", "yes"])
    async def test_is_confirmed_by_accepting_it(self, plain: MRTRServer, answer: Answer, era: Any) -> None:
        for tool in self.TOOLS:
            flow = AsyncClient(plain, era=era).flow(tool)
            asked = await flow.start()
            assert asked.asks["confirm"].schema == PLAIN_FORM
            assert (await flow.answer(confirm=answer)).text == tool
        assert list(self.TOOLS) == DONE

    @pytest.mark.parametrize("answer", [decline, cancel, no], ids=str)
    async def test_by_nothing_else(self, plain: MRTRServer, answer: Answer) -> None:
        for tool in self.TOOLS:
            flow = AsyncClient(plain).flow(tool)
            await flow.start()
            assert "The user" in (await flow.answer(confirm=answer)).failure
        assert DONE == []

    async def test_not_before_it_was_asked(self, plain: MRTRServer) -> None:
        for tool in self.TOOLS:
            assert (await AsyncClient(plain).flow(tool).start(confirm=accept_it())).needs_input
        assert DONE == []

    async def test_nor_by_the_answer_to_one_with_a_box(self) -> None:
        both, shown = MRTRServer("both", keys=[bytes(32)]), {"plain": False}

        @both.tool
        async def delete(ctx: Context) -> str:
            await ctx.confirm("Delete?", plain=shown["plain"])
            return done("delete")

        flow = AsyncClient(both).flow("delete")
        await flow.start()
        shown["plain"] = True
        assert (await flow.answer(confirm=yes)).asks["confirm"].schema == PLAIN_FORM
        assert DONE == []


@STYLES
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "decline"}, DECLINED),
        (accept(confirm=False), DECLINED),
        ({"action": "decline", "content": {"confirm": True}}, DECLINED),
        ({"action": "cancel"}, DISMISSED),
        ({"action": "cancel", "content": {"confirm": True}}, DISMISSED),
    ],
    ids=str,
)
def test_declined_and_dismissed_end_the_call_with_distinct_results(
    wire: Wire, tool: str, answer: dict[str, Any], said: str
) -> None:
    reply = wire.call(tool, X, answers={"confirm": answer}, state=wire.call(tool, X).state)
    assert reply.result["isError"] is True
    assert reply.result["content"][0]["text"].startswith(said)
    assert DONE == []


@STYLES
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"sampling": {}, "roots": {}}], ids=str)
def test_a_client_that_can_not_ask_gets_the_missing_capability(
    wire: Wire, tool: str, capabilities: dict[str, Any]
) -> None:
    reply = wire.call(tool, X, capabilities=capabilities)
    assert (reply.status, reply.code) == (400, -32021)
    assert reply.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert DONE == []


@STYLES
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"action": "yes"},
        {"action": ["accept"]},
        {"action": "accept"},
        {"action": "accept", "content": True},
        {"action": "accept", "content": [True]},
        accept(),
        accept(confirm="true"),
        accept(confirm=1),
        accept(confirm=None),
        accept(Confirm=True),
        {"confirm": True},
        {"action": True},
    ],
    ids=str,
)
def test_a_malformed_answer_is_asked_for_again(wire: Wire, tool: str, answer: dict[str, Any]) -> None:
    again = wire.call(tool, X, answers={"confirm": answer}, state=wire.call(tool, X).state)
    assert again.questions["confirm"].endswith(QUESTION)
    assert DONE == []
    assert wire.call(tool, X, answers={"confirm": accept(confirm=True)}, state=again.state).text == tool


@STYLES
def test_a_late_answer_gets_the_frozen_error(wire: Wire, tool: str) -> None:
    state = wire.call(tool, X).state
    CLOCK.advance(3601)
    reply = wire.call(tool, X, answers={"confirm": accept(confirm=True)}, state=state)
    assert (reply.code, reply.error.message) == (-32602, InvalidRequestState.MESSAGE)
    assert DONE == []


@STYLES
def test_a_yes_counts_with_the_state_that_asked_and_for_what_was_asked(wire: Wire, tool: str) -> None:
    yes = {"confirm": accept(confirm=True)}
    assert wire.call(tool, X, answers=yes).questions["confirm"] == QUESTION
    state = wire.call(tool, X).state
    other = wire.call(tool, {"path": "y"}, answers=yes, state=state)
    assert (other.code, other.error.message) == (-32602, InvalidRequestState.MESSAGE)
    assert wire.call(tool, X, state=state).questions["confirm"] == QUESTION
    elsewhere = TOOLS[TOOLS.index(tool) - 1]
    assert wire.call(elsewhere, X, answers=yes, state=state).error.message == InvalidRequestState.MESSAGE
    assert DONE == []


@pytest.mark.parametrize(("answer", "said"), [({"action": "decline"}, DECLINED), ({"action": "cancel"}, DISMISSED)])
@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "prompt", "arguments": X}), ("resources/read", {"uri": "trash://x"})],
    ids=["prompt", "resource"],
)
def test_in_a_prompt_or_resource_they_are_distinct_errors(
    wire: Wire, method: str, params: dict[str, Any], answer: dict[str, Any], said: str
) -> None:
    first = wire.modern(method, params)
    assert first.questions["confirm"] == QUESTION
    error = wire.modern(method, {**params, "requestState": first.state, "inputResponses": {"confirm": answer}}).error
    assert error.message.startswith(said)
    assert error.data == {"action": answer["action"]}
    assert DONE == []


def test_the_option_asks_with_whatever_else_can_be_asked_and_before_the_function_runs(wire: Wire) -> None:
    @app.tool(name="option_and_more", confirm="Go?")
    async def option_and_more(sure: Annotated[bool, Confirm("Sure?")], ctx: Context) -> str:
        await ctx.step(done, "step")
        await ctx.confirm("Really?")
        return done("all")

    first = wire.call("option_and_more")
    assert first.result["inputRequests"].keys() == {"confirm", "sure"}
    yes = accept(confirm=True)
    second = wire.call("option_and_more", answers={"confirm": yes}, state=first.state)
    assert second.result["inputRequests"].keys() == {"sure"}
    assert DONE == []
    third = wire.call("option_and_more", answers={"sure": yes}, state=second.state)
    assert third.result["inputRequests"].keys() == {"confirm_2"}
    assert DONE == ["step"]
    assert wire.call("option_and_more", answers={"confirm_2": yes}, state=third.state).text == "all"


@pytest.mark.anyio
async def test_an_answer_to_a_form_that_looks_the_same_is_no_yes() -> None:
    class Yes(BaseModel):
        confirm: bool

    app = MRTRServer("twins", keys=[bytes(32)])
    asked: list[str] = []

    @app.tool
    async def act(ctx: Context) -> str:
        if not asked:
            asked.append("form")
            await ctx.elicit("Delete it?", Yes, key="sure")
        await ctx.confirm("Delete it?", key="sure")
        return "deleted"

    flow = AsyncClient(app).flow("act")
    assert (await flow.start()).questions == {"sure": "Delete it?"}
    assert (await flow.answer(sure={"confirm": True})).questions == {"sure": "Delete it?"}
    assert (await flow.answer(sure={"confirm": True})).text == "deleted"
