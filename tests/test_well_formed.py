"""Half of a surrogate pair is U+FFFD where text comes in and goes out, and costs nobody a call, a step or an answer."""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    InputSchema,
    MRTRServer,
    ProtocolError,
    ResourceContents,
    SetupError,
    State,
    ToolError,
    ToolResult,
)
from mrtr_server.logs.formats import JSONFormatter
from mrtr_server.testing import Client, sampled, yes
from mrtr_server.well_formed import escape_halves, read_json, well_formed, write_json

from .support.effects import EFFECTS, effect

Short = Annotated[str, Field(max_length=30)]

NAME, SHOWN = "report-\udcff.txt", "report-\N{REPLACEMENT CHARACTER}.txt"
"""A file whose name is not UTF-8, as `os.listdir` returns it, and as everybody sees it."""

texts = st.text(st.characters(exclude_categories=()) | st.sampled_from('\ud83d\ude00\udcff\\"/u\0a'), max_size=8)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


class Line(BaseModel):
    text: str
    more: dict[str, Any] = {}


@dataclass(frozen=True)
class Entry:
    name: str


class TestJSON:
    @given(values)
    def test_whatever_is_written_can_be_read_everywhere(self, value: Any) -> None:
        assert from_json(write_json(value)) == from_json(to_json(well_formed(value)))
        json.loads(write_json(value).decode("utf-8", "strict"))

    @given(values)
    def test_what_others_write_with_halves_is_read_as_it_is_written_here(self, value: Any) -> None:
        read = read_json(json.dumps(value).encode())
        assert to_json(read)
        halves = [text for text in _texts(value) if well_formed(text) != text]
        assert read == value or halves

    @given(texts)
    def test_each_half_is_one_character_and_all_else_stays(self, text: str) -> None:
        read: str = read_json(json.dumps(text))
        assert read == well_formed(text)
        assert len(read) == len(json.loads(json.dumps(text)))  # which joins two halves that belong together

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            (rb'"\ud800"', "\ufffd"),
            (rb'"\udc00\ud800x"', "\ufffd\ufffdx"),
            (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"),
            (rb'"\\ud800 \\\ud800"', "\\ud800 \\\ufffd"),
            (b'"\xed\xa0\x80x"', "\ufffdx"),
            (rb'{"\uDFFF": ["\uD9ab"]}', {"\ufffd": ["\ufffd"]}),
        ],
    )
    def test_a_half_is_found_however_it_is_written(self, written: bytes, read: Any) -> None:
        assert read_json(written) == read

    @pytest.mark.parametrize("body", [b'"\xff"', b'"\\ud800', b'{"\\ud800"}', b'"\\ud8"', b'\0"\\ud800"', b"\\ud800"])
    def test_what_is_no_json_stays_none(self, body: bytes) -> None:
        with pytest.raises(ValueError, match="line 1"):
            read_json(body)

    @pytest.mark.alone
    @pytest.mark.parametrize("part", [rb"\ud800", rb"\udc00", rb"\ud83d\ude00", rb"\\", b"\xed\xa0\x80"])
    def test_a_body_of_halves_takes_a_time_in_proportion_to_its_size(self, part: bytes) -> None:
        times = []
        for size in (2**18, 2**22):
            body = b'"\\ud800' + part * (size // len(part)) + b'"'
            began = process_time()
            read_json(body)
            times.append(process_time() - began)
        assert times[1] < 2  # and a tenth of that on a quiet machine
        assert times[1] < 64 * max(times[0], 0.001)

    def test_two_names_that_look_the_same_afterwards_are_both_kept(self) -> None:
        assert from_json(write_json(dict.fromkeys(("a\udcff", "a\udcfe"), 1))) == {"a\ufffd": 1, "a\\udcfe": 1}

    def test_keys_of_different_texts_stay_different(self) -> None:
        assert escape_halves("a\udcff") == r"a\udcff"
        assert escape_halves("Größe \U0001f600") == "Größe \U0001f600"


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in _texts(item))]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("halves")


class TestWhatLeaves:
    @pytest.mark.parametrize(
        ("value", "content"),
        [
            (NAME, None),
            ({NAME: [NAME]}, {SHOWN: [SHOWN]}),
            (Line(text=NAME, more={"at": NAME}), {"text": SHOWN, "more": {"at": SHOWN}}),
            ([Entry(NAME)], [{"name": SHOWN}]),
            ([Path(NAME)], [SHOWN]),
            (ToolResult(content=[NAME], structured_content={NAME: 1}, meta={"of": NAME}), {SHOWN: 1}),
        ],
        ids=["text", "names", "a model", "a dataclass", "a path", "in full"],
    )
    def test_a_result_is_shown(self, app: MRTRServer, value: Any, content: Any) -> None:
        @app.tool
        def untyped() -> Any:
            return value

        def typed() -> Any:
            return value

        typed.__annotations__["return"] = type(value)
        app.tool(typed)
        for tool in ("untyped", "typed"):
            result = Client(app).call(tool).result
            assert result["isError"] is False
            assert SHOWN in str(result["content"])
            assert result.get("structuredContent") == content

    def test_a_result_whose_type_bounds_its_texts_is_shown(self, app: MRTRServer) -> None:
        @app.tool
        def names() -> dict[str, list[Literal["a"] | str]]:
            return {"all": [NAME]}

        @app.tool
        def bounded() -> dict[str, list[Short]]:
            return {"all": [NAME]}

        for tool in ("names", "bounded"):
            assert Client(app).call(tool).structured == {"all": [SHOWN]}

    def test_an_error_says_what_its_author_wrote(self, app: MRTRServer) -> None:
        @app.tool
        def tell() -> str:
            raise ToolError(f"There is no {NAME}")

        @app.tool
        def refuse() -> str:
            raise ProtocolError(f"There is no {NAME}", {"name": NAME})

        assert Client(app).call("tell").failure == f"There is no {SHOWN}"
        error = Client(app).call("refuse").error
        assert (error.message, error.data) == (f"There is no {SHOWN}", {"name": SHOWN})

    def test_an_unexpected_error_is_shown_with_debug(self) -> None:
        app = MRTRServer("halves", debug=True)

        @app.tool
        def look() -> str:
            raise FileNotFoundError(NAME)

        assert SHOWN in Client(app).call("look").failure

    def test_prompts_resources_and_completions_are_shown(self, app: MRTRServer) -> None:
        @app.prompt
        def review() -> str:
            return NAME

        @app.resource("files://{name}")
        def file(name: str) -> list[ResourceContents]:
            return [ResourceContents(text=NAME), ResourceContents(uri=f"files://{NAME}", blob=b"\xff")]

        @app.completion(argument="name", resource="files://{name}")
        def names(value: str) -> list[str]:
            return [NAME]

        client = Client(app)
        assert SHOWN in str(client.get_prompt("review").result)
        assert str(client.read("files://a").result).count(SHOWN) == 2
        ref = {"type": "ref/resource", "uri": "files://{name}"}
        reply = client.request("completion/complete", {"ref": ref, "argument": {"name": "name", "value": ""}})
        assert reply.result["completion"]["values"] == [SHOWN]

    def test_logs_and_progress_are_sent_and_fail_no_tool(self, app: MRTRServer) -> None:
        @app.tool
        async def work(ctx: Context) -> str:
            await ctx.log(f"reading {NAME}", logger=NAME)
            for data in ({"file": Line(text=NAME)}, [Entry(NAME)], {NAME: 1}, [Path(NAME)]):
                await ctx.log(data)
            await ctx.progress(1, 2, NAME)
            return "done"

        reply = Client(app, log_level="debug").call("work")
        assert reply.text == "done"
        assert [SHOWN in str(each.data) for each in reply.messages] == [True] * 5
        assert [each.message for each in reply.progress] == [SHOWN]

    def test_pieces_of_a_result_are_sent(self, app: MRTRServer) -> None:
        @app.tool
        async def stream() -> AsyncIterator[str]:
            yield NAME
            yield "!"

        reply = Client(app, stream=True).call("stream")
        assert reply.text == f"{SHOWN}!"
        assert reply.pieces[0]["text"] == SHOWN

    def test_a_question_goes_out_and_its_answer_counts(self, app: MRTRServer) -> None:
        @app.tool
        async def delete(ctx: Context) -> str:
            await ctx.confirm(f"Delete {NAME}?", key=f"delete {NAME}")
            await ctx.sample(f"What is {NAME}?", system_prompt=NAME)
            return "done"

        @app.tool
        def pure(inputs: Inputs, state: State[str]) -> str | InputRequired:
            why = inputs.get(NAME, Elicit(f"Why {NAME}?", str))
            if why is None:
                return InputRequired({NAME: Elicit(f"Why {NAME}?", str)}, state=NAME)
            return f"{why} {state.value == NAME}"

        flow = Client(app).flow("delete")
        asked = flow.start()
        assert asked.asks[r"delete report-\udcff.txt"].message == f"Delete {SHOWN}?"
        assert SHOWN in str(flow.answer({r"delete report-\udcff.txt": yes}).message)
        assert flow.answer(sample=sampled("a report")).text == "done"
        assert Client(app).call("pure", answers={r"report-\udcff.txt": "so"}).text == "so True"

    def test_a_question_of_a_single_use_tool_is_answered_once(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def delete(ctx: Context) -> str:
            await ctx.confirm(f"Delete {NAME}?")
            return effect(NAME)

        client = Client(app)
        flow = client.flow("delete")
        flow.start()
        assert [reply.text for reply in flow.race(confirm=yes)] == [SHOWN, SHOWN]
        assert EFFECTS == [NAME]

    def test_a_step_takes_and_returns_the_text_as_it_is(self, app: MRTRServer) -> None:
        def found(folder: str, path: Path) -> list[str]:
            effect(folder)
            return [NAME, path.name]

        @app.tool
        async def clean(ctx: Context) -> str:
            names = await ctx.step(found, NAME, Path(NAME), key=f"find {NAME}")
            untyped: Any = await ctx.step(lambda: {NAME: NAME}, key="untyped")
            await ctx.confirm("Delete them?")
            return str((names, untyped) == ([NAME, NAME], {NAME: NAME}))

        assert Client(app).call("clean", answers={"confirm": yes}).text == "True"
        assert EFFECTS == [NAME]

    def test_steps_with_other_halves_are_other_steps(self, app: MRTRServer) -> None:
        given = iter(["a\udcff", "a\udcfe"])

        def keep(name: str) -> str:
            return name

        @app.tool
        async def move(ctx: Context) -> str:
            await ctx.step(keep, next(given))
            await ctx.confirm("Sure?")
            return "moved"

        flow = Client(app).flow("move")
        flow.start()
        assert "Internal error" in flow.answer(confirm=yes).failure

    def test_lines_of_json_in_the_log_hold_it(self) -> None:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "no %s", (NAME,), None)
        assert "report-" in json.loads(JSONFormatter().format(record))["message"]


class TestWhatAnAuthorWritesDown:
    def test_is_refused_when_the_decorator_runs(self, app: MRTRServer) -> None:
        def function(a: int) -> int:
            return a

        class Filled(BaseModel):
            a: str = Field(description=NAME)

        with pytest.raises(SetupError, match="look: description has half of a character"):
            app.tool(name="look", description=NAME)(function)
        with pytest.raises(SetupError, match="look: title has half"):
            app.prompt(name="look", title=NAME)(lambda: "")
        with pytest.raises(SetupError, match="look: inputSchema has half"):
            app.tool(name="look", input_schema=InputSchema({"type": "object", "title": NAME}, validate=False))(
                lambda given: ""
            )
        with pytest.raises(SetupError, match="look: uri has half"):
            app.resource(f"files://{NAME}", name="look")(lambda: "")
        with pytest.raises(SetupError, match="MRTRServer: instructions has half"):
            MRTRServer("halves", instructions=NAME)
        with pytest.raises(SetupError, match="the form of Filled has half"):
            Elicit("?", Filled)
        with pytest.raises(SetupError, match=r"can't be a form: .*str"):
            Elicit("?", Literal["\udcff"])
