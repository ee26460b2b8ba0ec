"""Tokens and scopes in each era, on streams that stay open, and in tasks."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from mrtr_server import Caller, Context, InsufficientScope, JWTAuth, MRTRServer
from mrtr_server.concurrency.threads import Threads
from mrtr_server.flow.authorization import Authorizer, compile_hook
from mrtr_server.testing import AsyncClient

from ..support.authorization_server import Tenant
from ..support.direct import Exchange, exchange, headers_for, scope_of
from ..support.handshake import OLDER, Handshake
from ..support.serving import TIMEOUT, in_thread
from ..support.wire import ACCEPT, Reply, modern, request
from .callers import AUDIENCE, make

JSON = dict[str, Any]


def with_tools(auth: Any, **options: Any) -> MRTRServer:
    app = make(auth, **options)

    @app.tool(scopes=["files:write"])
    def save() -> str:
        return "saved"

    @app.resource("note://one", scopes=["notes"])
    def note() -> str:
        return "one"

    @app.prompt(scopes=["prompts"])
    def greet(name: str = "") -> str:
        return f"hello {name}"

    @app.completion("name", prompt="greet")
    def names(value: str) -> list[str]:
        return ["ann"]

    return app


Begin = Callable[..., Handshake]


@pytest.fixture
def begin(issuer: Tenant) -> Iterator[Begin]:
    """Serve the tools, and begin a session with a token."""
    with ExitStack() as stack:
        app = with_tools(JWTAuth(issuer.url, audience=AUDIENCE), scopes=["use"])
        port = stack.enter_context(in_thread(app, wait=False))

        def start(scope: str = "use", **given: Any) -> Handshake:
            token = issuer.mint(AUDIENCE, scope=scope)
            headers = {"Authorization": f"Bearer {token}"}
            client = Handshake([f"http://127.0.0.1:{port}/mcp"], headers=headers, **given)
            stack.callback(client.close)
            client.begin()
            return client

        yield start


class TestTheHandshakeEra:
    def test_is_challenged_before_it_begins(self, begin: Begin) -> None:
        client = begin()
        for token, status in ({"Authorization": None}, 401), ({"Authorization": "Bearer x.y.z"}, 401):
            assert client.post(client.request("ping"), **token).status == status
            for method in ("GET", "DELETE"):
                assert client.http.request(method, client.urls[0], headers=client.given(**token)).status_code == status

    @pytest.mark.parametrize("version", ["2025-11-25", *OLDER])
    @pytest.mark.parametrize(
        ("method", "params", "needed"),
        [
            ("tools/call", {"name": "save", "arguments": {}}, "use files:write"),
            ("resources/read", {"uri": "note://one"}, "use notes"),
            ("resources/subscribe", {"uri": "note://one"}, "use notes"),
            ("prompts/get", {"name": "greet"}, "use prompts"),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": ""}},
                "use prompts",
            ),
        ],
    )
    def test_is_told_which_scopes_it_lacks(
        self, begin: Begin, version: str, method: str, params: JSON, needed: str
    ) -> None:
        client = begin(version=version)
        reply = client.post(client.request(method, params))
        assert (reply.status, reply.code) == (403, -31003)
        assert f'error="insufficient_scope", scope="{needed}"' in reply.headers["www-authenticate"]

    def test_a_batch_says_it_in_the_part(self, begin: Begin) -> None:
        client = begin(version="2025-03-26")
        parts = [client.request("ping"), client.request("tools/call", {"name": "save", "arguments": {}})]
        pong, refused = json.loads(client.post(parts).body)
        assert pong["result"] == {}
        assert refused["error"]["data"] == {"requiredScopes": ["files:write"]}

    def test_begins_and_calls_with_them(self, begin: Begin) -> None:
        client = begin("use files:write")
        reply = client.post(client.request("tools/call", {"name": "save", "arguments": {}}))
        assert reply.result["content"][0]["text"] == "saved"


@pytest.mark.anyio
class TestASubscription:
    async def test_ends_with_the_token_that_it_was_begun_with(self, issuer: Tenant) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))
        token = issuer.mint(AUDIENCE, claims={"exp": int(time.time()) - 57})  # which is taken for three seconds more
        message = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        headers = [*headers_for(message), (b"authorization", f"Bearer {token}".encode())]
        exchange = Exchange(app, scope_of(headers)).body(json.dumps(message).encode()).start()
        await exchange.until(b"acknowledged")
        reply = await asyncio.wait_for(exchange.end(), TIMEOUT)
        assert reply.status == 200


@pytest.mark.anyio
class TestATask:
    async def test_needs_its_scopes_when_it_begins_and_has_those_of_its_request_as_it_runs(
        self, issuer: Tenant
    ) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))

        @app.tool(task="required", scopes=["work"])
        async def work(ctx: Context) -> str:
            return f"{ctx.user.identity} with {' '.join(sorted(ctx.scopes))}"

        async with AsyncClient(app, token=issuer.mint(AUDIENCE), tasks=True, log_level=None) as client:
            assert (await client.request("tools/call", {"name": "work", "arguments": {}})).status == 403
        token = issuer.mint(AUDIENCE, scope="work more")
        async with AsyncClient(app, token=token, tasks=True, log_level=None) as client:
            assert (await client.call("work")).text == "alice with more work"

    @pytest.mark.parametrize("more", [{"mcp-protocol-version": "2025-11-25"}, {}], ids=["2025-11-25", "sep-draft"])
    async def test_that_failed_for_a_scope_challenges_nobody_who_fetches_that(
        self, issuer: Tenant, more: dict[str, str]
    ) -> None:
        app = make(JWTAuth(issuer.url, audience=AUDIENCE))

        @app.tool(task="required")
        async def work() -> str:
            raise InsufficientScope("more")

        given = {"authorization": f"Bearer {issuer.mint(AUDIENCE)}", "accept": ACCEPT, **more}
        headers = [(name.encode(), value.encode()) for name, value in given.items()]

        async def ask(method: str, params: JSON) -> Reply:
            content = json.dumps(request(method, params)).encode()
            return await exchange(app, content, [(b"content-type", b"application/json"), *headers])

        begun = (await ask("tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 60_000}})).message["result"]
        reply = await ask("tasks/result", {"taskId": begun["task"]["taskId"]})
        assert (reply.status, reply.code) == (200, -31003)
        assert "www-authenticate" not in reply.headers

    async def test_may_not_go_on_when_its_tool_needs_more_than_its_request_had(self) -> None:
        authorizer, caller = Authorizer(None, Threads(1)), Caller(scopes=frozenset({"work"}))
        assert await authorizer.still_allowed(caller, (compile_hook("work", None, ["work"]), "work"))
        assert not await authorizer.still_allowed(caller, (compile_hook("work", None, ["work", "more"]), "work"))


@pytest.mark.anyio
class TestScopesOfSeveralThings:
    async def test_are_challenged_where_that_is_asked_for_and_hide_nothing_from_lists(self) -> None:
        authorizer, caller = Authorizer(None, Threads(1)), Caller(scopes=frozenset({"work"}))
        asked = [(compile_hook(name, None, [name]), name) for name in ("work", "more", "most")]
        assert await authorizer.allowed(caller, "subscriptions/listen", asked) == [True, False, False]
        assert await authorizer.shown(caller, "tools/list", asked) == [True, True, True]
        with pytest.raises(InsufficientScope) as challenge:
            await authorizer.allowed(caller, "subscriptions/listen", asked, challenges=True)
        assert challenge.value.scopes == ("more", "most")
