"""Sizes: whatever a request has that is kept or repeated has a length, and what it may hold has a number."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.limits import has_more_values

from ..support.direct import Exchange, exchange, headers_for, scope_of
from ..support.wire import EVERYTHING, JSON, Reply, accept, modern, request

PLAIN = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
RELATED = "io.modelcontextprotocol/related-task"
RESPONSE = "io.modelcontextprotocol/elicitation-response"
TASKS: JSON = {"extensions": {"io.modelcontextprotocol/tasks": {}}}

app = MRTRServer("sizes", keys=[bytes(32)], limits=Limits(values=1000))


@app.tool
async def greet(ctx: Context) -> str:
    await ctx.confirm("Go on?")
    return "done"


@app.tool
def length(text: str) -> int:
    return len(text)


@app.completion("name", prompt="greeting")
def names(value: str) -> list[str]:
    return []


@app.resource("notes://all")
async def notes(ctx: Context) -> str:
    await ctx.confirm("Read them?")
    return "notes"


@app.tool(task="required")
async def work(ctx: Context) -> str:
    return "done"


def in_modern(message: JSON) -> Reply:
    return asyncio.run(exchange(app, json.dumps(message).encode(), headers_for(message)))


def in_draft(message: JSON) -> Reply:
    return asyncio.run(exchange(app, json.dumps(message).encode(), PLAIN))


def posted(body: bytes) -> Reply:
    return asyncio.run(exchange(app, body, PLAIN))


def refused(reply: Reply, limit: str, value: int, code: int = -32602) -> None:
    assert (reply.status, reply.code) == (400, code), reply.body
    assert reply.error.data == {"limit": limit, "value": value}


Named = Callable[[Any], Reply]
"""Sends something of that name."""


class TestLengths:
    """256 characters for keys, ids and tokens, 2,048 for names, URIs and cursors, 4,096 for ids of responses."""

    @pytest.mark.parametrize(
        ("id", "is_repeated"),
        [("x" * 257, True), ("ü" * 4096, True), ("x" * 4097, False), (10**256, False), (-(10**256), False)],
        ids=lambda id: str(id)[:5],
    )
    @pytest.mark.parametrize("send", [in_modern, in_draft])
    def test_an_id_that_is_longer_is_refused_and_repeated_within_bounds(
        self, send: Callable[[JSON], Reply], id: Any, is_repeated: bool
    ) -> None:
        make = modern if send is in_modern else request
        reply = send(make("tools/list", id=id))
        refused(reply, "id", 256, -32600)
        assert reply.message.get("id") == (id if is_repeated else None)

    @pytest.mark.parametrize("id", ["x" * 256, "ü" * 256, 10**256 - 1, 1 - 10**256], ids=lambda id: str(id)[:5])
    @pytest.mark.parametrize("send", [in_modern, in_draft])
    def test_an_id_of_that_length_is_repeated(self, send: Callable[[JSON], Reply], id: Any) -> None:
        make = modern if send is in_modern else request
        assert send(make("tools/list", id=id)).message["id"] == id

    @pytest.mark.parametrize(("length", "code"), [(4096, -32602), (4097, -32600)])
    def test_the_id_of_a_response_may_be_one_that_a_server_sealed(self, length: int, code: int) -> None:
        answer = {"_meta": {RELATED: {"taskId": "nowhere"}}, "action": "decline"}
        reply = in_draft({"jsonrpc": "2.0", "id": "x" * length, "result": answer})
        assert reply.code == code
        assert "id" not in reply.message  # it is no request

    @pytest.mark.parametrize(
        ("method", "field"),
        [
            ("tools/call", "name"),
            ("prompts/get", "name"),
            ("resources/read", "uri"),
            ("tasks/get", "taskId"),
            ("tasks/cancel", "taskId"),
            ("tools/list", "cursor"),
        ],
    )
    @pytest.mark.parametrize("dialect", ["modern", "draft"])
    def test_a_name_that_is_longer_is_refused(self, dialect: str, method: str, field: str) -> None:
        def sent(name: str) -> Reply:
            if dialect == "draft":
                return in_draft(request(method, {field: name}))
            return in_modern(modern(method, {field: name}, capabilities=TASKS))

        refused(sent("x" * 2049), field, 2048)
        longest = sent("x" * 2048)
        assert longest.code == -32602
        assert "limit" not in (longest.error.data or {}), "it is only not known"

    @pytest.mark.parametrize("token", ["x" * 257, 10**256], ids=["text", "number"])
    def test_a_progress_token_that_is_longer_is_refused(self, token: Any) -> None:
        refused(in_modern(modern("tools/call", {"name": "greet"}, progressToken=token)), "progressToken", 256)
        params = {"name": "greet", "_meta": {"progressToken": token}}
        refused(in_draft(request("tools/call", params)), "progressToken", 256)

    def test_a_key_that_is_longer_is_refused(self) -> None:
        params = {"name": "greet", "inputResponses": {"x" * 257: accept(confirm=True)}}
        refused(in_modern(modern("tools/call", params)), "inputResponses", 256)
        refused(in_draft(request("tools/call", params)), "inputResponses", 256)
        answer = {"elicitationId": "x" * 257, "action": "decline"}
        about = {"taskId": "nowhere", "_meta": {RESPONSE: answer}}
        refused(in_draft(request("tasks/get", about)), "inputResponses", 256)

    @pytest.mark.parametrize("field", ["resourceSubscriptions", "taskIds"])
    def test_what_is_listened_to_has_a_length(self, field: str) -> None:
        params = {"notifications": {field: ["x" * 2049]}}
        refused(in_modern(modern("subscriptions/listen", params, capabilities=TASKS)), field, 2048)

    def test_what_is_completed_has_a_length(self) -> None:
        def completed(name: str, argument: str) -> Reply:
            reference = {"type": "ref/prompt", "name": name}
            return in_modern(
                modern("completion/complete", {"ref": reference, "argument": {"name": argument, "value": ""}})
            )

        refused(completed("x" * 2049, "y"), "ref", 2048)
        refused(completed("x", "y" * 257), "argument.name", 256)

    LONG = "x" * 300_000

    @pytest.mark.parametrize(
        "message",
        [
            request(LONG),
            request("tools/list", id=LONG),
            request("tools/call", {"name": LONG}),
            request("tools/call", {"name": "length", "arguments": {"text": {LONG: LONG}}}),
            request("tools/call", {"name": "length", "arguments": {LONG: LONG}}),
            request("tools/call", {"name": "greet", "inputResponses": {LONG: {LONG: LONG}}, "requestState": LONG}),
            request("resources/read", {"uri": LONG}),
            request("tools/list", {"cursor": LONG}),
            request("tasks/get", {"taskId": LONG}),
            request("initialize", {"protocolVersion": LONG}),
            request("initialize", {"protocolVersion": [LONG]}),
            {"jsonrpc": LONG, "id": 1, "method": LONG},
        ],
        ids=lambda message: f"{message['method'][:12]} {sorted(message.get('params', {}))}",
    )
    def test_no_reply_is_long_because_its_request_is(self, message: JSON) -> None:
        assert len(in_draft(message).body) < 3000

    def test_no_reply_repeats_a_long_header(self) -> None:
        long = b"mcp-param-" + b"x" * 10_000
        body = json.dumps(request("tools/list")).encode()
        reply = asyncio.run(exchange(app, body, [*PLAIN, (long, b"1"), (long, b"2")]))
        assert (reply.code, len(reply.body) < 500) == (-32020, True)

    def test_what_a_task_keeps_besides_its_arguments_has_a_length(self) -> None:
        def started(size: int) -> Reply:
            params = {"name": "work", "arguments": {}}
            return in_modern(modern("tools/call", params, capabilities=TASKS, trace="x" * size))

        refused(started(65_536), "_meta", 65_536)
        assert started(60_000).result["resultType"] == "task"

    def test_a_stream_that_stays_open_keeps_nothing_of_what_its_client_says_of_itself(self) -> None:
        message = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] = {"name": "x", "version": "y" * 2_000_000}
        body = json.dumps(message).encode()

        async def scene() -> int:
            tracemalloc.start()
            under_way = Exchange(app, scope_of(headers_for(message))).body(body).start()
            await under_way.until(b"acknowledged")
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            under_way.disconnect()
            await under_way.end()
            return kept

        assert asyncio.run(scene()) < 1_000_000


texts = st.text(alphabet=st.sampled_from('",[]{}:\\n é'), max_size=30)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, min_size=1, max_size=5) | st.dictionaries(texts, inner, min_size=1, max_size=5),
)


def count(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + sum(map(count, value.values() if isinstance(value, dict) else value))
    return 1


class TestBodies:
    """Nothing that is over the limit is kept, however it comes and whatever its headers say."""

    LIMIT = 1000

    @pytest.mark.parametrize("parts", [1, 2, 5], ids=["in one message", "in two", "in five"])
    @pytest.mark.parametrize("length", [None, "10", "1001", "x"], ids=["unsaid", "understated", "said", "no number"])
    def test_over_the_limit_are_refused(self, parts: int, length: str | None) -> None:
        small = MRTRServer("small", keys=[bytes(32)], limits=Limits(body_bytes=self.LIMIT))
        headers = PLAIN if length is None else [*PLAIN, (b"content-length", length.encode())]

        async def sent(size: int, headers: list[tuple[bytes, bytes]]) -> Reply:
            body = json.dumps(request("tools/list")).encode().ljust(size)
            under_way = Exchange(small, scope_of(headers))
            step = -(-size // parts)
            for start in range(0, size, step):
                under_way.body(body[start : start + step], more=start + step < size)
            return await under_way.end()

        reply = asyncio.run(sent(self.LIMIT + 1, headers))
        assert (reply.status, reply.error.data) == (413, {"limit": "body_bytes", "value": self.LIMIT})
        assert asyncio.run(sent(self.LIMIT, PLAIN)).result["tools"] == []


class TestValues:
    """A body of some megabytes can hold millions of values, and each costs more than its bytes."""

    def test_more_than_the_limit_are_refused(self) -> None:
        def sent(count: int) -> Reply:
            params = {"name": "length", "arguments": {"text": [1] * count}}
            return in_draft(request("tools/call", params))

        assert sent(980).result["isError"]
        refused(sent(1001), "values", 1000)

    def test_they_are_counted_before_anything_is_built_of_them(self) -> None:
        refused(posted(b"[1,1e308," * 1000), "values", 1000)

    def test_text_is_one_value_whatever_is_in_it(self) -> None:
        text = '[{,"\\:' * 100_000
        assert in_draft(request("tools/call", {"name": "length", "arguments": {"text": text}})).text == str(len(text))

    @given(value=values, indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
    def test_the_count_is_that_of_the_values(self, value: Any, indent: int | None, is_ascii: bool) -> None:
        body, number = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode(errors="replace"), count(value)
        assert not has_more_values(body, number)
        assert number == 1 or has_more_values(body, number - 1)

    def test_what_is_empty_counts_twice(self) -> None:
        body = b"[" + b"[],{}," * 100 + b"1]"
        assert has_more_values(body, 300)
        assert not has_more_values(body, 402)

    @pytest.mark.parametrize(
        ("body", "is_more"),
        [
            (b'"' * 100_000, False),
            (b'"' + b"\\" * 99_999, False),
            (b'["' + b'\\",' * 50_000, False),
            (b"x" * 100_000, False),
            (b"", False),
            (b"[" + b'"",' * 30_000, True),
            (b'["' + b'",' * 30_000, True),
            (b"[" * 100_000, True),
        ],
        ids=["quotes", "backslashes", "escapes", "letters", "nothing", "empty texts", "commas in texts", "brackets"],
    )
    def test_what_is_no_json_is_counted_too(self, body: bytes, is_more: bool) -> None:
        assert has_more_values(body, 1000) is is_more
        assert not has_more_values(body, 10**6)


@pytest.mark.parametrize("arguments", [{}, {"left": "over"}, [1, 2]], ids=str)
def test_what_has_no_arguments_is_not_bound_to_any(arguments: Any) -> None:
    """A resource is its URI; what comes beside it is not even looked at."""

    def sent(**more: Any) -> Reply:
        return in_modern(modern("resources/read", {"uri": "notes://all", **more}, capabilities=EVERYTHING))

    state = sent(arguments={"other": 1}).state
    read = sent(arguments=arguments, inputResponses={"confirm": accept(confirm=True)}, requestState=state)
    assert read.result["contents"][0]["text"] == "notes"
