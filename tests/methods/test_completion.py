"""Completions are of one argument of something that the caller may use; whatever else is asked for is refused."""

from typing import Any

import pytest

from mrtr_server import Caller, MRTRServer, ProtocolError, ToolError
from mrtr_server.errors import InternalFault, InvalidParams, OverBudget, UnknownMethod, UnknownTarget
from mrtr_server.flow.authorization import Authorizer
from mrtr_server.limits import LONGEST_KEY, LONGEST_NAME
from mrtr_server.methods.failures import ErrorReporter
from mrtr_server.methods.prompts_and_resources import Completions
from mrtr_server.protocol.messages import Call

from ..support.methods import Notes, body

pytestmark = pytest.mark.anyio

PROMPT = {"type": "ref/prompt", "name": "essay"}
TEMPLATE = {"type": "ref/resource", "uri": "notes://{day}"}
EMPTY = {"values": [], "total": 0, "hasMore": False}


@pytest.fixture
def app(app: MRTRServer) -> MRTRServer:
    @app.prompt
    def essay(topic: str, tone: str = "") -> str:
        return topic

    @app.resource("notes://{day}")
    def notes(day: str) -> str:
        return day

    @app.completion(prompt="essay", argument="topic")
    def topics(value: str, known: dict[str, str]) -> list[str]:
        if value in ("refused", ""):
            raise ToolError(value)
        if value == "broken":
            raise ValueError("hunter2")
        return [value, *(f"{name}={given}" for name, given in known.items())]

    @app.completion(resource="notes://{day}", argument="day")
    def days(value: str) -> list[str]:
        return [f"{value}day"]

    return app


async def complete(app: MRTRServer, *, authorize: Any = None, **params: Any) -> Any:
    threads = app._parts.threads
    completions = Completions(app.registry, threads, ErrorReporter(debug=False), Authorizer(authorize, threads))
    given = {"ref": PROMPT, "argument": {"name": "topic", "value": "x"}} | params
    return body(await completions.complete(Call("completion/complete", given), Notes()))["completion"]


class TestSuggestions:
    async def test_are_those_of_the_argument(self, app: MRTRServer) -> None:
        assert (await complete(app))["values"] == ["x"]
        day = {"name": "day", "value": "sun"}
        assert (await complete(app, ref=TEMPLATE, argument=day))["values"] == ["sunday"]

    async def test_are_none_where_nothing_completes_it(self, app: MRTRServer) -> None:
        assert await complete(app, argument={"name": "tone", "value": ""}) == EMPTY
        assert await complete(app, argument={"name": "nothing", "value": ""}) == EMPTY

    async def test_may_depend_on_the_arguments_that_are_known_if_they_are_texts(self, app: MRTRServer) -> None:
        context = {"arguments": {"tone": "dry", "length": 3}}
        assert (await complete(app, context=context))["values"] == ["x", "tone=dry"]
        odds: list[Any] = [None, 3, [], {"arguments": None}, {"arguments": ["tone"]}]
        for odd in odds:
            assert (await complete(app, context=odd))["values"] == ["x"]


class TestARefusal:
    async def test_is_of_the_method_where_there_are_no_completions(self) -> None:
        with pytest.raises(UnknownMethod):
            await complete(MRTRServer("none"))

    @pytest.mark.parametrize(
        "ref", [{"type": "ref/prompt", "name": "none"}, {"type": "ref/resource", "uri": "notes://{night}"}]
    )
    async def test_is_of_what_is_not_there(self, app: MRTRServer, ref: Any) -> None:
        with pytest.raises(UnknownTarget):
            await complete(app, ref=ref)

    async def test_is_the_same_for_what_the_caller_may_not_use(self, app: MRTRServer) -> None:
        def nobody(caller: Caller, name: str) -> bool:
            return False

        with pytest.raises(UnknownTarget) as hidden:
            await complete(app, authorize=nobody)
        with pytest.raises(UnknownTarget) as missing:
            await complete(app, ref=PROMPT | {"name": "none"})
        assert str(hidden.value).replace("essay", "none") == str(missing.value)

    @pytest.mark.parametrize(
        "params",
        [
            {"ref": None},
            {"ref": "essay"},
            {"argument": None},
            {"argument": ["topic"]},
            {"argument": {"name": "topic"}},
            {"argument": {"name": "topic", "value": 3}},
            {"argument": {"name": None, "value": ""}},
            {"ref": {"name": "essay"}},
            {"ref": {"type": "ref/tool", "name": "essay"}},
            {"ref": {"type": ["ref/prompt"], "name": "essay"}},
            {"ref": {"type": "ref/prompt", "uri": "essay"}},
            {"ref": {"type": "ref/resource", "name": "notes://{day}"}},
        ],
    )
    async def test_is_of_whatever_has_another_form(self, app: MRTRServer, params: dict[str, Any]) -> None:
        with pytest.raises(InvalidParams, match="completion/complete needs"):
            await complete(app, **params)

    @pytest.mark.parametrize(
        "params",
        [
            {"ref": PROMPT | {"name": "x" * (LONGEST_NAME + 1)}},
            {"argument": {"name": "x" * (LONGEST_KEY + 1), "value": ""}},
        ],
    )
    async def test_is_of_names_that_are_too_long(self, app: MRTRServer, params: dict[str, Any]) -> None:
        with pytest.raises(OverBudget):
            await complete(app, **params)


class TestAFailure:
    @pytest.mark.parametrize(("value", "says"), [("refused", "refused"), ("", "The request failed.")])
    async def test_that_the_author_words_reaches_the_client(self, app: MRTRServer, value: str, says: str) -> None:
        with pytest.raises(ProtocolError) as error:
            await complete(app, argument={"name": "topic", "value": value})
        assert str(error.value) == says

    async def test_of_any_other_kind_has_a_reference(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(InternalFault) as error:
            await complete(app, argument={"name": "topic", "value": "broken"})
        assert "hunter2" not in str(error.value)
        assert "hunter2" in caplog.text
