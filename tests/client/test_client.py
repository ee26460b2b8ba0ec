"""The client runs calls to their end against real servers, and takes little from those that are hostile."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, Field

from mrtr_server import (
    Confirm,
    Context,
    ElicitUrl,
    Header,
    ListRoots,
    MRTRServer,
    ProtocolError,
    Sample,
    Task,
    ToolError,
)
from mrtr_server.client import (
    CallFailed,
    Choice,
    Client,
    Form,
    Link,
    NotAnswered,
    Piece,
    Progress,
    RequestRefused,
    Sampling,
    TaskCancelled,
    TaskState,
)

from ..support.serving import TIMEOUT, in_thread, until

pytestmark = pytest.mark.anyio

app = MRTRServer("shop", keys=[bytes(32)])


class Order(BaseModel):
    copies: Annotated[int, Field(ge=1)]


@app.tool
async def order(ctx: Context, title: str) -> str:
    """Order copies of a book."""
    copies = (await ctx.elicit(f"How many copies of {title}?", Order)).copies
    await ctx.ask(Confirm(f"Order {copies}?"))
    return f"{copies} × {title} ordered"


@app.tool
async def everything(ctx: Context) -> str:
    said, roots = await ctx.ask(Sample("Where to?"), ListRoots())
    return f"{said.text} from {roots[0].uri}"


@app.tool
async def agree(ctx: Context) -> str:
    await ctx.ask(ElicitUrl("Read the terms", "https://example.com/terms"))
    return "agreed"


@app.tool
async def count(ctx: Context, to: int) -> dict[str, int]:
    for n in range(to):
        await ctx.progress(n + 1, to, f"counted {n + 1}")
    return {"counted": to}


@app.tool
async def recite(ctx: Context) -> AsyncIterator[str]:
    yield "one "
    yield "two "
    await ctx.elicit("How many?", Order)
    yield "three"


@app.tool
def region(region: Annotated[str, Header("Region")]) -> str:
    return f"in {region}"


@app.tool
def broken() -> str:
    raise ToolError("Out of paper")


@app.tool
def refused() -> str:
    raise ProtocolError("Not today", data={"until": "tomorrow"})


@app.tool(task=Task("required", poll=0.05, rounds_first=True))
async def print_book(ctx: Context) -> str:
    await ctx.background()
    await ctx.progress(message="Warming up")
    return f"{(await ctx.elicit('How many?', Order)).copies} printed"


@app.tool(task=Task("required", poll=0.05, rounds_first=True))
async def endless(ctx: Context) -> str:
    await ctx.background()
    await asyncio.sleep(3600)
    return "never"


@app.prompt
async def greeting(ctx: Context, name: str) -> str:
    return f"Greet {name}, who wants {(await ctx.elicit('How many?', Order)).copies}"


@app.resource("shop://hours")
def hours() -> str:
    return "9 to 5"


@app.resource("shop://books/{title}")
def book(title: str) -> str:
    return f"The book {title}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def fill(form: Form) -> dict[str, Any]:
    return {form.confirms: True} if form.confirms else {"copies": 3}


async def test_a_call_is_answered_round_by_round(url: str) -> None:
    asked: list[str] = []

    async def answer(form: Form) -> dict[str, Any]:
        asked.append(form.message)
        return fill(form)

    async with Client(url, on_elicit=answer) as client:
        assert (await client.call("order", title="Emma")).text == "3 × Emma ordered"
    assert asked == ["How many copies of Emma?", "Order 3?"]


async def test_samplings_and_roots_are_answered(url: str) -> None:
    def sample(question: Sampling) -> str:
        return f"{question.text} To Rome"

    async with Client(url, on_sample=sample, on_roots=lambda: ["file:///home"]) as client:
        assert (await client.call("everything")).text == "Where to? To Rome from file:///home"


async def test_only_what_has_a_callback_is_declared(url: str) -> None:
    async with Client(url, on_elicit=fill) as client:
        for tool, lacking in (("everything", {"sampling", "roots"}), ("agree", {"elicitation"})):
            with pytest.raises(RequestRefused, match="did not declare") as refusal:
                await client.call(tool)
            assert refusal.value.data["requiredCapabilities"].keys() == lacking


async def test_a_declined_link_ends_the_call(url: str) -> None:
    opened: list[str] = []

    def link(question: Link) -> Choice:
        opened.append(question.url)
        return "decline"

    async with Client(url, on_link=link) as client:
        with pytest.raises(CallFailed):
            await client.call("agree")
    assert opened == ["https://example.com/terms"]


async def test_progress_is_told_as_it_comes(url: str) -> None:
    told: list[Progress] = []
    async with Client(url, on_progress=told.append) as client:
        reply = await client.call("count", to=3)
    assert reply.structured_content == {"counted": 3}
    assert told[-1] == Progress(3, 3, "counted 3")


async def test_each_piece_of_a_result_is_told_once_and_the_result_has_all(url: str) -> None:
    told: list[Piece] = []
    async with Client(url, on_piece=told.append, on_elicit=lambda form: {"copies": 1}) as client:
        reply = await client.call("recite")
        assert [(piece.index, piece.block, piece.text) for piece in told] == [
            (0, 0, "one "),
            (1, 0, "two "),
            (2, 0, "three"),
        ]
        assert reply.text == "one two three"
        await client.call("recite")
    assert len(told) == 6, "each call has pieces of its own"


async def test_without_that_no_pieces_are_asked_for(url: str) -> None:
    sent: list[Any] = []
    async with Client(
        url, on_elicit=lambda form: {"copies": 1}, on_message=lambda _, each: sent.append(each)
    ) as client:
        assert (await client.call("recite")).text == "one two three"
    assert not any("stream" in each.get("params", {}) for each in sent)
    assert not any(each.get("method") == "notifications/tools/content" for each in sent)


async def test_headers_that_mirror_arguments_are_learned_from_the_list(url: str) -> None:
    async with Client(url) as client:
        assert (await client.call("region", region="Zürich")).text == "in Zürich"


async def test_a_tool_that_fails_raises_what_it_says(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(CallFailed, match="Out of paper") as failed:
            await client.call("broken")
    assert failed.value.result["isError"] is True


async def test_a_refusal_has_its_code_and_its_data(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(RequestRefused, match="Not today") as refusal:
            await client.call("refused")
        assert (refusal.value.code, refusal.value.data) == (-32603, {"until": "tomorrow"})
        with pytest.raises(RequestRefused, match="nowhere"):
            await client.call("nowhere")


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_callback_can_leave_a_question_open(url: str, grouped: bool) -> None:
    async def leave(form: Form) -> dict[str, Any]:
        raise ExceptionGroup("several", [NotAnswered()]) if grouped else NotAnswered

    async with Client(url, on_elicit=leave) as client:
        with pytest.raises(NotAnswered) as left:
            await client.call("order", title="Emma")
    assert [each["params"]["message"] for each in left.value.questions.values()] == ["How many copies of Emma?"]


async def test_a_task_is_followed_and_its_questions_answered(url: str) -> None:
    told: list[TaskState] = []
    async with Client(url, on_elicit=fill, on_task=told.append) as client:
        assert (await client.call("print_book")).text == "3 printed"
        assert (await client.follow(told[0].task_id)).text == "3 printed"
    assert {"working", "completed"} <= {each.status for each in told}


async def test_a_cancelled_call_cancels_its_task(url: str) -> None:
    told: list[TaskState] = []
    async with Client(url, on_task=told.append) as client:
        call = asyncio.create_task(client.call("endless"))
        await until(lambda: told, "the task")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(TaskCancelled):
            await client.follow(told[0].task_id)


async def test_lists_prompts_and_resources_are_typed(url: str) -> None:
    async with Client(url, on_elicit=fill) as client:
        assert {each.name for each in await client.list_tools()} >= {"order", "region"}
        (prompt,) = await client.list_prompts()
        assert (prompt.name, prompt.arguments[0].name, prompt.arguments[0].required) == ("greeting", "name", True)
        assert [each.uri for each in await client.list_resources()] == ["shop://hours"]
        assert [each.uri_template for each in await client.list_templates()] == ["shop://books/{title}"]
        assert (await client.get_prompt("greeting", name="Ann")).text == "Greet Ann, who wants 3"
        assert (await client.read("shop://hours")).text == "9 to 5"


async def test_the_programs_own_http_client_stays_open(url: str) -> None:
    async with httpx.AsyncClient(timeout=TIMEOUT) as http:
        async with Client(url, http=http) as client:
            assert (await client.read("shop://hours")).text == "9 to 5"
        assert not http.is_closed
