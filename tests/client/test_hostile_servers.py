"""The client repeats only what is safe, and takes little from servers that are busy, broken or hostile."""

import asyncio
import json
from collections.abc import AsyncIterator
from time import process_time, thread_time
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from mrtr_server import SetupError
from mrtr_server.client import (
    BadReply,
    Bounds,
    Client,
    NoReply,
    Piece,
    Progress,
    RequestRefused,
)
from mrtr_server.wire import Event, EventReader

from ..support.answering import asks, breaks_off, completed, replied, serving

pytestmark = pytest.mark.anyio


async def test_a_first_round_that_may_have_had_effects_is_not_sent_again() -> None:
    async def handler(request: Request, message: Any) -> Response:
        return await breaks_off(message)

    with serving(handler) as (url, got):
        async with Client(url) as client:
            with pytest.raises(NoReply):
                await client.call("tool")
            assert len(got) == 1
            with pytest.raises(NoReply):
                await client.list_prompts()
    assert len(got) == 1 + 1 + Bounds().resends


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_waited_for(status: int) -> None:
    async def handler(request: Request, message: Any) -> Response:
        busy = Response(status_code=status, headers={"Retry-After": "0"})
        return busy if len(got) < 3 else completed(message["id"])

    with serving(handler) as (url, got):
        async with Client(url) as client:
            assert (await client.call("tool")).text == "done"
    assert len(got) == 3


async def test_a_wait_that_is_too_long_is_not_begun() -> None:
    async def handler(request: Request, message: Any) -> Response:
        return Response(status_code=503, headers={"Retry-After": "3600"})

    with serving(handler) as (url, got):
        async with Client(url) as client:
            with pytest.raises(RequestRefused, match="503") as refusal:
                await client.call("tool")
    assert (len(got), refusal.value.status) == (1, 503)


async def test_redirects_stay_in_the_origin() -> None:
    seen: list[str | None] = []

    async def elsewhere(request: Request, message: Any) -> Response:
        seen.append(request.headers.get("authorization"))
        return completed(message["id"])

    async def handler(request: Request, message: Any) -> Response:
        if request.url.path == "/other":
            return completed(message["id"], "moved")
        return RedirectResponse(other if message["params"]["name"] == "out" else "/other", 307)

    with serving(elsewhere) as (other, _), serving(handler) as (url, _):
        async with Client(url, token="secret") as client:
            assert (await client.call("in")).text == "moved"
            with pytest.raises(BadReply, match="another origin"):
                await client.call("out")
    assert seen == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "no JSON-RPC message"),
        (b"[" * 100_000, "no JSON-RPC message"),
        (b'{"jsonrpc":"2.0","id":77,"result":{}}', "not to what was asked"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"other"}}', "of no kind"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required"}}', "neither"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":7}}', "no ToolReply: content"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"task"}}', "a task without a taskId"),
        (b" " * 2000, "more than 1000 bytes"),
    ],
)
async def test_what_is_no_reply_is_refused(body: bytes, why: str) -> None:
    async def handler(request: Request, message: Any) -> Response:
        return Response(body, media_type="application/json")

    bounds = Bounds(response_bytes=1000 if why.startswith("more") else 1_000_000)
    with serving(handler) as (url, got):
        async with Client(url, bounds=bounds) as client:
            with pytest.raises(BadReply, match=why):
                await client.call("tool")
    assert len(got) == 1


async def test_rounds_questions_and_pages_have_an_end() -> None:
    async def handler(request: Request, message: Any) -> Response:
        if message["method"] == "tools/call":
            return asks(message["id"], str(len(got)))
        return replied(message["id"], {"prompts": [], "nextCursor": str(len(got))})

    with serving(handler) as (url, got):
        async with Client(url, on_elicit=lambda form: {}, bounds=Bounds(rounds=5, pages=4)) as client:
            with pytest.raises(BadReply, match="after 5 rounds"):
                await client.call("tool")
            with pytest.raises(BadReply, match="more than 4 pages"):
                await client.list_prompts()
    assert len(got) == 9


async def test_what_was_not_declared_is_not_answered() -> None:
    async def handler(request: Request, message: Any) -> Response:
        return asks(message["id"], "one")

    with serving(handler) as (url, _):
        async with Client(url) as client:
            with pytest.raises(BadReply, match="did not declare"):
                await client.call("tool")


async def test_a_request_has_a_time_limit() -> None:
    async def handler(request: Request, message: Any) -> Response:
        await asyncio.sleep(3600)
        return Response()

    with serving(handler) as (url, _):
        async with Client(url, bounds=Bounds(request_seconds=0.1)) as client:
            with pytest.raises(NoReply, match=r"within 0\.1 s"):
                await client.call("tool")


# What is sent again


async def test_a_later_round_is_sent_again_where_the_program_says_that_rounds_count_once() -> None:
    async def handler(request: Request, message: Any) -> Response:
        if "requestState" not in message["params"]:
            return asks(message["id"], "one")
        return await breaks_off(message) if len(got) == 2 else completed(message["id"])

    with serving(handler) as (url, got):
        async with Client(url, on_elicit=lambda form: {}, rounds_count_once=True) as client:
            assert (await client.call("tool")).text == "done"
    assert got[1] == got[2]
    assert got[1]["params"]["requestState"] == "one"


async def test_a_piece_that_comes_again_or_is_none_is_not_told() -> None:
    def piece(number: Any, **fields: Any) -> bytes:
        params = {"requestId": number, "index": 0, "block": 0, "content": {"type": "text", "text": "x"}, **fields}
        note = {"jsonrpc": "2.0", "method": "notifications/tools/content", "params": params}
        return b"event: message\ndata: " + json.dumps(note).encode() + b"\n\n"

    async def handler(request: Request, message: Any) -> Response:
        if "requestState" not in message["params"]:
            return asks(message["id"], "one")

        async def stream() -> AsyncIterator[bytes]:
            for number in (message["id"], message["id"], "another"):
                yield piece(number)
            for wrong in ({"index": "1"}, {"index": True}, {"content": "x"}, {"block": None}, {"content": None}):
                yield piece(message["id"], **wrong)
            yield piece(message["id"], index=1, content={"type": "image", "data": "eA=="})
            if len(got) > 2:
                yield b"event: message\ndata: " + completed(message["id"]).body + b"\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    told: list[Piece] = []
    with serving(handler) as (url, got):
        async with Client(url, on_elicit=lambda form: {}, on_piece=told.append, rounds_count_once=True) as client:
            assert (await client.call("tool")).text == "done"
    assert len(got) == 3, "the reply was lost, and the request sent again"
    assert [(each.index, each.text) for each in told] == [(0, "x"), (1, "")]


async def test_a_later_round_that_may_have_had_effects_is_not_sent_again() -> None:
    async def handler(request: Request, message: Any) -> Response:
        return asks(message["id"], "one") if "requestState" not in message["params"] else await breaks_off(message)

    with serving(handler) as (url, got):
        async with Client(url, on_elicit=lambda form: {}) as client:
            with pytest.raises(NoReply):
                await client.call("tool")
    assert len(got) == 2


async def test_headers_are_learned_again_when_the_server_has_changed() -> None:
    def tool(header: str) -> dict[str, Any]:
        region = {"type": "string", "x-mcp-header": header}
        return {"name": "tool", "inputSchema": {"type": "object", "properties": {"region": region}}}

    async def handler(request: Request, message: Any) -> Response:
        if message["method"] == "tools/list":
            return replied(message["id"], {"tools": [tool("Old" if len(got) == 1 else "New")]})
        if "mcp-param-new" in request.headers:
            return completed(message["id"])
        return JSONResponse(
            {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32020, "message": "headers"}}, status_code=400
        )

    with serving(handler) as (url, got):
        async with Client(url) as client:
            await client.list_tools()
            assert (await client.call("tool", region="eu")).text == "done"
            with pytest.raises(RequestRefused, match="headers"):
                await client.call("tool")  # the list says nothing new
    assert [each["method"] for each in got[:4]] == ["tools/list", "tools/call", "tools/list", "tools/call"]
    assert len(got) == 6


# What a program gives


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        ("http://shop.example/mcp", True),
        ("https://shop.example/mcp", False),
        ("http://127.0.0.1:8000/mcp", False),
        ("http://[::1]:8000/mcp", False),
        ("http://localhost/mcp", False),
    ],
)
async def test_a_token_over_plain_http_to_another_machine_is_warned_of(
    url: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Client(url)
    assert not caplog.records
    Client(url, token="s3cret")
    assert ("The token goes to shop.example over plain http" in caplog.text) is is_told
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("token", ["secret\n", "secr\u00e9t", "sec\rret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(SetupError, match="Authorization") as refusal:
        Client("http://127.0.0.1:9/mcp", token=token)
    assert "sec" not in str(refusal.value)


def test_a_url_with_a_password_takes_no_token_beside_it() -> None:
    with pytest.raises(SetupError, match="either") as refusal:
        Client("http://ann:secret@127.0.0.1:9/mcp", token="token")
    assert "secret" not in str(refusal.value)


async def test_a_time_limit_of_a_callback_is_its_own() -> None:
    async def handler(request: Request, message: Any) -> Response:
        note = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}'
        return Response(f"data: {note}\n\n", media_type="text/event-stream")

    def tell(_: Progress) -> None:
        raise TimeoutError("of the program")

    with serving(handler) as (url, _):
        async with Client(url, on_progress=tell) as client:
            with pytest.raises(TimeoutError, match="of the program"):
                await client.call("tool")


# Hostile servers


@pytest.mark.parametrize(
    "pieces",
    [[b"x"] * 600_000, [b"data:\n" * 600_000], [b": \n" * 600_000], [b"data:", *[b"y"] * 600_000, b"\n\n"]],
    ids=["no line", "lines of data", "comments", "a long line"],
)
def test_a_stream_takes_time_by_its_length(pieces: list[bytes]) -> None:
    """Each kind would take minutes if what came before were copied with each piece."""
    reader, before = EventReader(Event), process_time()
    for piece in pieces:
        reader.feed(piece)
    reader.feed(b"\n\n")
    assert process_time() - before < 20


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("get_prompt", '{"messages":[' + ",".join(["{}"] * 1_000_000) + "]}"),
        ("call", '{"content":[' + ",".join(["1"] * 1_000_000) + "]}"),
        ("read", '{"contents":[' + ",".join(["1"] * 1_000_000) + "]}"),
    ],
)
async def test_a_reply_that_is_wrong_a_million_times_is_wrong_once(method: str, result: str) -> None:
    async def handler(request: Request, message: Any) -> Response:
        body = f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{result}}}'
        return Response(body, media_type="application/json")

    with serving(handler) as (url, _):
        async with Client(url) as client:
            began = thread_time()
            with pytest.raises(BadReply, match=r"The server sent what is no [A-Za-z]+: \w+\.0"):
                await getattr(client, method)("it")
            assert thread_time() - began < 2  # some is for reading it


async def test_very_many_parameters_that_headers_mirror_take_a_time_by_their_number() -> None:
    properties = {f"p{each}": {"type": "string", "x-mcp-header": f"p{each}"} for each in range(50_000)}
    tool = {"name": "tool", "inputSchema": {"type": "object", "properties": properties}}

    async def handler(request: Request, message: Any) -> Response:
        return (
            replied(message["id"], {"tools": [tool]}) if message["method"] == "tools/list" else completed(message["id"])
        )

    with serving(handler) as (url, got):
        async with Client(url) as client:
            await client.list_tools()
            began = thread_time()
            assert (await client.call("tool", p7="x")).text == "done"
            assert thread_time() - began < 2
    assert got[-1]["params"]["arguments"] == {"p7": "x"}


@pytest.mark.parametrize("poll", ["NaN", "1" + "0" * 400, "true", '"soon"', "-1"])
async def test_a_pace_of_a_task_that_is_no_number_is_as_good_as_none(poll: str) -> None:
    async def handler(request: Request, message: Any) -> Response:
        status = "working" if len(got) < 3 else "completed"
        more = ',"result":{"content":[]}' if status == "completed" else ""
        task = f'{{"resultType":"task","taskId":"t","status":"{status}","pollIntervalMs":{poll}{more}}}'
        body = f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{task}}}'
        return Response(body, media_type="application/json")

    with serving(handler) as (url, got):
        async with Client(url) as client:
            if poll == "NaN":  # which JSON does not have
                with pytest.raises(BadReply):
                    await client.call("tool")
            else:
                assert (await client.call("tool")).text == ""


@pytest.mark.parametrize("number", ["1" + "0" * 400, "true", '"1"', "1e999"])
async def test_progress_that_is_no_number_is_not_told(number: str) -> None:
    async def handler(request: Request, message: Any) -> Response:
        params = f'{{"progressToken":1,"progress":{number}}}'
        note = f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'
        done = '{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
        return Response(f"data: {note}\n\ndata: {done}\n\n", media_type="text/event-stream")

    told: list[Progress] = []
    with serving(handler) as (url, _):
        async with Client(url, on_progress=told.append) as client:
            await client.call("tool")
    assert told == []


@pytest.mark.parametrize("status", [200, 202, 302])
async def test_a_reply_without_a_message_is_none_and_is_not_asked_for_again(status: int) -> None:
    async def handler(request: Request, message: Any) -> Response:
        return Response(status_code=status)

    with serving(handler) as (url, got):
        async with Client(url) as client:
            with pytest.raises(BadReply, match=f"HTTP {status}"):
                await client.list_prompts()
    assert len(got) == 1


async def test_a_list_is_bounded_over_all_its_pages() -> None:
    async def handler(request: Request, message: Any) -> Response:
        page = [{"name": "x" * 400, "arguments": []}]
        return replied(message["id"], {"prompts": page, "nextCursor": str(len(got))})

    with serving(handler) as (url, got):
        async with Client(url, bounds=Bounds(response_bytes=2000)) as client:
            with pytest.raises(BadReply, match="more than 2000 bytes"):
                await client.list_prompts()
    assert len(got) < 6


async def test_a_stream_that_never_ends_does() -> None:
    async def handler(request: Request, message: Any) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            while True:
                yield b": still here\n\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(stream(), media_type="text/event-stream")

    with serving(handler) as (url, _):
        async with Client(url, bounds=Bounds(request_seconds=0.3)) as client:
            with pytest.raises(NoReply, match="within"):
                await client.call("tool")
        async with Client(url, bounds=Bounds(response_bytes=100)) as client:
            with pytest.raises(BadReply, match="more than 100 bytes"):
                await client.call("tool")


async def test_what_a_server_says_of_an_error_is_cut() -> None:
    async def handler(request: Request, message: Any) -> Response:
        error = {"code": -1, "message": "x" * 1_000_000}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})

    with serving(handler) as (url, _):
        async with Client(url) as client:
            with pytest.raises(RequestRefused) as refusal:
                await client.call("tool")
    assert len(str(refusal.value)) < 3000


async def test_fields_that_are_null_are_not_there() -> None:
    async def handler(request: Request, message: Any) -> Response:
        if message["method"] == "tools/list":
            tool: dict[str, Any] = {
                "name": "tool",
                "title": None,
                "description": None,
                "annotations": None,
                "inputSchema": {},
            }
            return replied(message["id"], {"tools": [tool], "nextCursor": None})
        return replied(message["id"], {"content": [], "isError": None, "structuredContent": None, "_meta": None})

    with serving(handler) as (url, _):
        async with Client(url) as client:
            assert (await client.list_tools())[0].description == ""
            assert (await client.call("tool")).is_error is False
