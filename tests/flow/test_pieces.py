"""Tools that yield their result in pieces: what a client sees as it comes, and that the result has all of it."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from mrtr_server import (
    Context,
    Depends,
    ImageContent,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    MRTRServer,
    SetupError,
    State,
    TextContent,
    ToolError,
    ToolResult,
)
from mrtr_server.testing import EVERYTHING, Client, Reply, no, replica, sampled, yes
from mrtr_server.testing.session import ERAS
from mrtr_server.wire import HANDSHAKES

from ..support.effects import EFFECTS
from ..support.flows import pieces_of

app = MRTRServer("pieces", keys=[bytes(32)])

IMAGE = {"type": "image", "data": "eA==", "mimeType": "image/png"}


def effect(what: str) -> str:
    EFFECTS.append(what)
    return what


@app.tool
async def write(words: list[str]) -> AsyncIterator[str]:
    for word in words:
        yield word


@app.tool
async def story(ctx: Context) -> AsyncIterator[str | ImageContent]:
    """Ask in the middle of what it yields."""
    yield "Once "
    yield await ctx.step(effect, "upon a time")
    yield ImageContent(data=b"x")
    await ctx.sample("And then?", key="then")
    yield "the end"


@app.tool
async def mixed() -> AsyncIterator[Any]:
    yield "one, "
    yield "two"
    yield TextContent(text="a block of its own")
    yield None
    yield []
    yield ["three, ", "four", ImageContent(data=b"x")]
    yield "five"


@app.tool
async def fails() -> AsyncIterator[str]:
    yield "half"
    raise ToolError("Out of paper")


@app.tool
async def tells(ctx: Context) -> AsyncIterator[str]:
    """Report progress of its own."""
    yield "one"
    await ctx.progress(0.5, 1, "half")
    yield "two"


def numbers(reply: Reply) -> list[tuple[int, int]]:
    """Return the index and the block of each piece that came with a reply."""
    notes = [message["params"] for message in reply.received if message.get("method") == "notifications/tools/content"]
    return [(each["index"], each["block"]) for each in notes]


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


RETRYING_ERAS = [era for era in ERAS if era not in HANDSHAKES]
"""Those whose clients send a call again with answers, so that each round is a request of its own."""


@pytest.mark.parametrize("era", ERAS)
class TestAClientThatAsksForPieces:
    def test_gets_each_before_the_result_which_has_all(self, era: str) -> None:
        reply = Client(app, era=era, stream=True).call("write", words=["Once ", "upon ", "a time"])
        assert pieces_of(reply) == ["Once ", "upon ", "a time"]
        assert reply.content == [text("Once upon a time")]
        assert reply.progress == []

    def test_may_get_none(self, era: str) -> None:
        reply = Client(app, era=era, stream=True).call("write", words=[])
        assert (reply.pieces, reply.content) == ([], [])

    def test_is_told_which_request_they_belong_to(self, era: str) -> None:
        reply = Client(app, era=era, stream=True).call("write", words=["a", "b"])
        notes = [message for message in reply.received if message.get("method") == "notifications/tools/content"]
        assert [note["params"]["requestId"] for note in notes] == [reply.message["id"]] * 2

    def test_is_told_which_block_of_the_result_each_is_part_of(self, era: str) -> None:
        reply = Client(app, era=era, stream=True).call("mixed")
        assert pieces_of(reply) == ["one, ", "two", "a block of its own", "three, ", "four", "image", "five"]
        assert numbers(reply) == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4)]
        assert reply.content == [
            text("one, two"),
            text("a block of its own"),
            text("three, four"),
            IMAGE,
            text("five"),
        ]

    def test_gets_what_came_before_a_failure(self, era: str) -> None:
        reply = Client(app, era=era, stream=True).call("fails")
        assert pieces_of(reply) == ["half"]
        assert reply.failure == "Out of paper"


@pytest.mark.parametrize("era", ERAS)
class TestAClientThatDoesNotAsk:
    def test_gets_progress_instead(self, era: str) -> None:
        reply = Client(app, era=era).call("write", words=["Once ", "upon"])
        assert reply.pieces == []
        assert [each.progress for each in reply.progress] in ([1, 2], [2]), "newer progress may replace older"
        assert reply.progress[-1].message == (None if era == "2024-11-05" else "upon")
        assert reply.text == "Once upon"

    def test_gets_the_progress_of_a_tool_that_reports_its_own(self, era: str) -> None:
        assert [each.progress for each in Client(app, era=era).call("tells").progress] == [0.5]


@pytest.mark.parametrize("era", [era for era in ERAS if era != "2024-11-05"])
def test_progress_shows_no_more_than_the_beginning_of_a_text(era: str) -> None:
    assert Client(app, era=era).call("write", words=["x" * 5000]).progress[-1].message == "x" * 1000


@pytest.mark.parametrize("era", ERAS)
class TestAnAskInTheMiddle:
    @pytest.fixture(autouse=True)
    def forget(self) -> None:
        EFFECTS.clear()

    def test_sends_no_piece_twice(self, era: str) -> None:
        flow = Client(app, era=era, stream=True).flow("story")
        asked = flow.start()
        assert asked.needs_input
        assert pieces_of(asked) == ["Once ", "upon a time", "image"]
        done = flow.answer(then=sampled("The dog"))
        assert pieces_of(done) == ["the end"]
        assert numbers(done) == [(3, 2)]
        assert done.content == [text("Once upon a time"), IMAGE, text("the end")]
        assert EFFECTS == ["upon a time"]

    def test_leaves_the_result_whole_for_a_client_that_asks_for_them_no_more(self, era: str) -> None:
        client = Client(app, era=era, stream=True)
        flow = client.flow("story")
        flow.start()
        client.stream = False
        assert flow.answer(then=sampled("The dog")).content == [text("Once upon a time"), IMAGE, text("the end")]


@pytest.mark.parametrize("era", RETRYING_ERAS)
class TestARetry:
    def test_sends_all_to_a_client_that_asks_for_them_only_then(self, era: str) -> None:
        client = Client(app, era=era)
        flow = client.flow("story")
        flow.start()
        client.stream = True
        done = flow.answer(then=sampled("The dog"))
        assert pieces_of(done) == ["Once ", "upon a time", "image", "the end"]

    def test_may_be_answered_at_another_replica(self, era: str) -> None:
        flow = Client(app, era=era, stream=True).flow("story")
        flow.start()
        flow.move_to(replica(app))
        assert pieces_of(flow.answer(then=sampled("The dog"))) == ["the end"]


def test_a_request_that_is_sent_again_gets_its_pieces_again() -> None:
    flow = Client(app, stream=True).flow("story")
    flow.start()
    assert pieces_of(flow.drop()) == ["Once ", "upon a time", "image"]
    flow.answer(then=sampled("The dog"))
    assert numbers(flow.drop()) == [(3, 2)]


class TestWhatEndsARound:
    def test_a_no_ends_the_generator(self) -> None:
        app = MRTRServer("no", keys=KeyRing.generate())
        ends: list[str] = []

        @app.tool
        async def tool(ctx: Context) -> AsyncIterator[str]:
            try:
                yield "before"
                await ctx.confirm("Go on?")
                yield "after"
            finally:
                ends.append("closed")

        flow = Client(app, stream=True).flow("tool")
        assert pieces_of(flow.start()) == ["before"]
        assert ends == ["closed"]
        ended = flow.answer(confirm=no)
        assert (pieces_of(ended), ended.failed) == ([], True)
        assert ends == ["closed", "closed"]

    def test_what_is_yielded_after_it_goes_nowhere(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("catches", keys=KeyRing.generate())

        @app.tool
        async def tool(ctx: Context) -> AsyncIterator[str]:
            yield "before"
            try:
                await ctx.confirm("Go on?")
            except asyncio.CancelledError:
                yield "not answered"
                EFFECTS.append("went on")
            yield "after"

        flow = Client(app, stream=True).flow("tool")
        asked = flow.start()
        assert (pieces_of(asked), asked.questions) == (["before"], {"confirm": "Go on?"})
        assert "caught the cancellation" in caplog.text
        assert EFFECTS == []
        assert flow.answer(confirm=yes).text == "beforeafter"

    def test_a_generator_that_catches_it_is_closed_at_its_next_yield(self) -> None:
        app = MRTRServer("catches", keys=KeyRing.generate())
        ran: list[str] = []

        @app.tool
        async def tool(ctx: Context) -> AsyncIterator[str]:
            try:
                await ctx.confirm("Go on?")
            except asyncio.CancelledError:
                ran.append("caught")
                yield "not answered"
                ran.append("and on")
            yield "after"

        assert Client(app, stream=True).flow("tool").start().questions == {"confirm": "Go on?"}
        assert ran == ["caught"]

    def test_a_mistake_ends_what_is_sent(self) -> None:
        app = MRTRServer("mistake", keys=KeyRing.generate())

        @app.tool
        async def tool(ctx: Context) -> AsyncIterator[str]:
            yield "before"
            try:
                await ctx.elicit("?", dict)
            except Exception:
                yield "after"

        reply = Client(app, stream=True).flow("tool").start()
        assert (pieces_of(reply), reply.failed) == (["before"], True)

    def test_time_runs_out(self) -> None:
        app = MRTRServer("slow", keys=KeyRing.generate())
        ends: list[str] = []

        @app.tool(timeout=0.05)
        async def tool() -> AsyncIterator[str]:
            try:
                yield "before"
                await asyncio.Event().wait()
            finally:
                ends.append("closed")

        reply = Client(app, stream=True).call("tool")
        assert pieces_of(reply) == ["before"]
        assert "timed out" in reply.failure
        assert ends == ["closed"]

    def test_a_dependency_lives_until_the_last_piece(self) -> None:
        app = MRTRServer("depends", keys=KeyRing.generate())
        seen: list[str] = []

        async def connection() -> AsyncGenerator[str]:
            seen.append("opened")
            yield "db"
            seen.append("closed")

        @app.tool
        async def rows(db: Annotated[str, Depends(connection)]) -> AsyncIterator[str]:
            for number in range(2):
                seen.append(f"{number} of {db}")
                yield f"{number} "

        reply = Client(app, stream=True).call("rows")
        assert (reply.text, pieces_of(reply)) == ("0 1 ", ["0 ", "1 "])
        assert seen == ["opened", "0 of db", "1 of db", "closed"]


class TestBounds:
    def test_a_result_is_not_larger_than_it_may_be(self) -> None:
        app = MRTRServer("endless", keys=KeyRing.generate(), limits=Limits(streamed_bytes=1000))
        ends: list[str] = []

        @app.tool
        async def endless() -> AsyncIterator[str]:
            try:
                while True:
                    yield "x" * 100
            finally:
                ends.append("closed")

        reply = Client(app, stream=True).flow("endless").start()
        assert reply.error.data == {"limit": "streamed_bytes", "value": 1000}
        assert len(reply.pieces) == 8
        assert ends == ["closed"]

    def test_pieces_of_nothing_count_as_well(self) -> None:
        app = MRTRServer("endless", keys=KeyRing.generate(), limits=Limits(streamed_bytes=1000))

        @app.tool
        async def endless() -> AsyncIterator[str]:
            while True:
                yield ""

        assert Client(app).flow("endless").start().error.data == {"limit": "streamed_bytes", "value": 1000}

    def test_a_piece_counts_as_it_is_sent(self) -> None:
        class Measured(BaseModel):
            """Content of another library, with a number that JSON has no name for."""

            model_config = ConfigDict(ser_json_inf_nan="constants")
            type: Literal["text"] = "text"
            text: str = "x"
            value: float = math.inf

        sent = '{"type":"text","text":"x","value":null}'
        for most, fits in [(len(sent), True), (len(sent) - 1, False)]:
            app = MRTRServer("measured", keys=KeyRing.generate(), limits=Limits(streamed_bytes=most))

            @app.tool
            async def tool() -> AsyncIterator[Any]:
                yield Measured()

            reply = Client(app).flow("tool").start()
            assert reply.complete is fits


class OnlyIterates:
    """Yields pieces, and can't be closed."""

    async def __aiter__(self) -> AsyncIterator[str]:
        yield "x"


class OnlyCloses:
    """Can be closed, and yields nothing."""

    async def aclose(self) -> None:
        pass


class TestMistakes:
    """The decorator says what does not fit, and the log what was yielded that is no content."""

    @pytest.mark.parametrize("value", [3, {"a": 1}, b"x", ToolResult(content=["x"])])
    def test_what_is_no_content_ends_the_call(self, value: Any) -> None:
        app = MRTRServer("wrong", keys=KeyRing.generate())

        @app.tool
        async def tool() -> AsyncIterator[Any]:
            yield value

        reply = Client(app, stream=True).call("tool")
        assert reply.failed
        assert f"The tool yielded a {type(value).__name__}; yield text, or content" in reply.log

    def test_a_declared_type_needs_to_be_content(self) -> None:
        class Film(BaseModel):
            title: str

        app = MRTRServer("wrong", keys=KeyRing.generate())
        wrong: Any
        for wrong in (int, Film, dict[str, int], bytes, ToolResult, str | int):

            async def tool() -> AsyncIterator[Any]:
                yield 1

            tool.__annotations__["return"] = AsyncIterator[wrong]
            with pytest.raises(SetupError, match=r"tool yields .* no output schema"):
                app.tool(tool)

    @pytest.mark.parametrize(
        "right",
        [
            AsyncIterator[str],
            AsyncGenerator[str, None],
            AsyncIterator[str | ImageContent],
            AsyncIterator[list[str | ImageContent]],
            AsyncIterator[Any],
            AsyncIterator,
            Any,
        ],
    )
    def test_content_has_no_output_schema(self, right: Any) -> None:
        app = MRTRServer("right", keys=KeyRing.generate())

        async def tool() -> AsyncIterator[str]:
            yield "x"

        tool.__annotations__["return"] = right
        app.tool(tool)
        (entry,) = Client(app).request("tools/list").result["tools"]
        assert "outputSchema" not in entry
        assert Client(app).call("tool").text == "x"

    def test_one_that_is_annotated_as_what_it_yields_says_how_to(self) -> None:
        app = MRTRServer("wrong", keys=KeyRing.generate())

        async def tool() -> AsyncIterator[str]:
            yield "x"

        tool.__annotations__["return"] = str
        with pytest.raises(SetupError, match=r"annotate what it yields: AsyncIterator\[str\]"):
            app.tool(tool)

    def test_a_plain_generator_is_refused_with_the_way_out(self) -> None:
        app = MRTRServer("wrong", keys=KeyRing.generate())

        def tool() -> Iterator[str]:
            yield "x"

        with pytest.raises(SetupError, match=r"tool is a generator.*or make it an `async def`, which sends what it"):
            app.tool(tool)

    def test_prompts_and_resources_can_not_be_generators(self) -> None:
        app = MRTRServer("wrong", keys=KeyRing.generate())

        async def generator() -> AsyncIterator[str]:
            yield "x"

        for decorate in (app.prompt, app.resource("wrong://x")):
            with pytest.raises(SetupError, match="is a generator, but a call has one result; return a list"):
                decorate(generator)

    def test_the_forms_that_return_their_questions_can_not_be_generators(self) -> None:
        app = MRTRServer("wrong", keys=KeyRing.generate())

        async def reads(inputs: Inputs) -> AsyncIterator[str | InputRequired]:
            yield "x"

        async def keeps(state: State[int]) -> AsyncIterator[str]:
            yield "x"

        for function in (reads, keeps):
            with pytest.raises(SetupError, match=r"for which a function returns InputRequired.*take a Context"):
                app.tool(function)

    def test_a_wrapper_may_pass_the_generator_on(self) -> None:
        app = MRTRServer("wrapped", keys=KeyRing.generate())

        def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            return call

        @app.tool
        @wrapped
        async def tool(ctx: Context) -> AsyncIterator[str]:
            yield "x"

        reply = Client(app, stream=True).call("tool")
        assert (pieces_of(reply), reply.text) == (["x"], "x")

    @pytest.mark.parametrize("returned", ["no generator", OnlyIterates(), OnlyCloses()])
    def test_a_wrapper_that_returns_something_else_is_named(
        self, returned: object, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("wrapped", keys=KeyRing.generate())

        async def tool() -> AsyncIterator[str]:
            yield "x"

        @wraps(tool)
        def call() -> object:
            return returned

        app.tool(call)
        assert Client(app).call("tool").failed
        assert "is an async generator that is wrapped to return something else" in caplog.text


def test_a_stream_that_is_no_object_is_ignored() -> None:
    wrong: Any
    for wrong in (None, True, [], "yes"):
        params = {"name": "write", "arguments": {"words": ["a"]}, "stream": wrong}
        reply = Client(app, capabilities=EVERYTHING).request("tools/call", params)
        assert (reply.pieces, reply.text) == ([], "a")


def test_nothing_of_a_piece_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    Client(app, stream=True).call("write", words=["secret-piece"])
    assert "secret-piece" not in caplog.text
