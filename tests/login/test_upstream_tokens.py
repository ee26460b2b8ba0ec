"""What a server does in a person's name at the provider: with their own token, and with no more than they allowed."""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mrtr_server import Context, InProcessStore, MRTRServer, Task, testing
from mrtr_server.testing import yes

from ..support import github
from ..support.databases import PostgreSQL
from .conftest import Provider, Stage, make
from .people import Client
from .test_logins import said


def server(provider: Provider, **options: Any) -> MRTRServer:
    """Make a server whose tools use the person's token."""
    app = make(provider.login(), **options)

    @app.tool
    async def repos(ctx: Context) -> list[str]:
        """Use the token."""
        token = await ctx.upstream_token("repo")
        return await scopes_at(provider, token)

    @app.tool
    async def status(ctx: Context) -> list[str]:
        """Use a scope that another one includes."""
        return await scopes_at(provider, await ctx.upstream_token("repo:status"))

    @app.tool(task=Task(rounds_first=True))
    async def later(ctx: Context) -> list[str]:
        """Use the token in a task."""
        await ctx.background()
        return await scopes_at(provider, await ctx.upstream_token("repo"))

    @app.tool(task=Task(rounds_first=True))
    async def later_if_allowed(ctx: Context) -> list[str]:
        """Make sure of the token before the task begins."""
        await ctx.upstream_token("repo")
        await ctx.background()
        return await scopes_at(provider, await ctx.upstream_token("repo"))

    return app


async def scopes_at(provider: Provider, token: str) -> list[str]:
    """Return the scopes that the provider finds behind a token."""
    async with httpx.AsyncClient(trust_env=False) as http:
        found = await http.get(f"{provider.url}/api/user", headers={"authorization": f"Bearer {token}"})
    return sorted(found.json()["scope"].split())


@pytest.fixture(params=["without a store", "sqlite", "postgresql"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings of the server."""
    if request.param == "without a store":
        return {}
    if request.param == "sqlite":
        return {"store": f"sqlite:///{tmp_path}/logins.db"}
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    return {"store": postgresql.url(asyncio.run(postgresql.new_database()))}


def test_a_missing_scope_is_asked_for_and_the_call_comes_again(stage: Stage, options: Any) -> None:
    client, browser = stage.client(stage.serve(server(stage.provider, **options))), stage.browser()
    tokens = client.tokens(browser)
    refused = client.call(tokens, "repos")
    assert refused.status_code == 403
    assert 'error="insufficient_scope", scope="repo"' in refused.headers["www-authenticate"]
    tokens = client.tokens(browser, scope="repo")
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
    assert said(client.call(tokens, "status")) == ["read:user", "repo"]


def test_a_token_that_ends_soon_is_refreshed(stage: Stage, options: Any) -> None:
    now = time.time()
    stage.clock = lambda: now
    stage.provider.set(expires=300, refreshed=0)
    client = stage.client(stage.serve(server(stage.provider, **options)))
    tokens = client.tokens(stage.browser(), scope="repo")
    if not options:
        assert tokens["expires_in"] <= 300
    now += 290
    if not options:
        tokens = client.refresh(tokens).json()
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
    assert stage.provider.set()["refreshed"] >= 1


def test_many_calls_refresh_a_token_once(stage: Stage, database: str) -> None:
    now = time.time()
    stage.clock = lambda: now
    stage.provider.set(expires=300, refreshed=0)
    address = "http://127.0.0.1:7074"
    bases = [stage.serve(server(stage.provider, store=database, base_url=address)) for _ in range(3)]
    ports = [int(each.rpartition(":")[2]) for each in bases]
    stage.front(ports, 7074)
    client = stage.client(address)
    tokens = client.tokens(stage.browser(), scope="repo")
    now += 290
    token = f"Bearer {tokens['access_token']}"

    async def call(http: httpx.AsyncClient) -> httpx.Response:
        message, headers = client.message("repos")
        return await http.post(f"{client.base}/mcp", json=message, headers={**headers, "authorization": token})

    async def calls() -> list[httpx.Response]:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            return await asyncio.gather(*(call(http) for _ in range(20)))

    assert [said(each) for each in asyncio.run(calls())] == [["read:user", "repo"]] * 20
    assert stage.provider.set()["refreshed"] == 1


def test_a_refresh_is_stored_though_whoever_needed_it_has_left(stage: Stage, database: str) -> None:
    now = time.time()
    stage.clock = lambda: now
    stage.provider.set(expires=300, refreshed=0)
    app = server(stage.provider, store=database)

    @app.tool
    async def hasty(ctx: Context) -> str:
        """Give up soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await ctx.upstream_token("repo")
        return "gone"

    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser(), scope="repo")
    now += 290
    stage.provider.set(slow=0.5)
    assert said(client.call(tokens, "hasty")) == "gone"
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
    assert stage.provider.set()["refreshed"] == 1


def test_a_login_ends_with_its_account_at_the_provider(stage: Stage, options: Any) -> None:
    now = time.time()
    stage.clock = lambda: now
    stage.provider.set(expires=300)
    client = stage.client(stage.serve(server(stage.provider, **options)))
    tokens = client.tokens(stage.browser())
    github.TOKENS.clear()
    now += 290
    refused = client.refresh(tokens)
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")


def test_a_task_uses_the_token_in_the_store(stage: Stage, database: str) -> None:
    app = server(stage.provider, store=database)
    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser(), scope="repo")
    assert task_result(client, tokens)["structuredContent"] == ["read:user", "repo"]


def test_a_person_is_asked_for_a_scope_before_a_task_begins_and_not_within_it(stage: Stage, tmp_path: Path) -> None:
    client = stage.client(stage.serve(server(stage.provider, store=f"sqlite:///{tmp_path}/logins.db")))
    tokens = client.tokens(stage.browser())
    failed = task_result(client, tokens)
    assert failed["isError"] is True
    assert "has to log in again, and to allow" in failed["content"][0]["text"]
    refused = client.call(tokens, "later_if_allowed")
    assert refused.status_code == 403
    assert 'scope="repo"' in refused.headers["www-authenticate"]
    tokens = client.tokens(stage.browser(), scope="repo")
    assert task_result(client, tokens, "later_if_allowed")["structuredContent"] == ["read:user", "repo"]


def test_what_a_provider_refreshed_is_kept_though_it_says_nothing_of_the_person_after_that(
    stage: Stage, options: Any
) -> None:
    login = stage.provider.login(allow=["my-org"], upstream=("read:user", "read:org"))
    client = stage.client(stage.serve(make(login, **options)))
    stage.provider.set(orgs={"my-org": ["octocat"]}, expires=300)
    tokens = client.tokens(stage.browser())
    stage.provider.set(silent=True)
    assert client.refresh(tokens).status_code == 503
    stage.provider.set(silent=False)
    assert client.refresh(tokens).status_code == 200


class TestTaskWithoutAStore:
    def test_uses_the_token_of_the_latest_request(self, stage: Stage) -> None:
        client = stage.client(stage.serve(server(stage.provider)))
        tokens = client.tokens(stage.browser(), scope="repo")
        assert task_result(client, tokens)["structuredContent"] == ["read:user", "repo"]

    @pytest.mark.parametrize("tool", ["slow", "slow_step"])
    def test_asks_for_the_next_request_once_that_token_has_ended(self, stage: Stage, tool: str) -> None:
        held = Held(stage, tool)
        held.now += 700  # the token of ours has ended, and nobody has refreshed it
        status = held.go_on()
        held.sign(held.client.refresh(held.tokens).json())
        if tool == "slow_step":
            assert held.flow.wait().failure == "This step can't have the person's account now. Start this once more."
            return
        assert status == "input_required"
        reply = held.flow.look()  # of the client that has the task, with a token of the same login
        assert list(reply.questions.values()) == [f"This needs your account at {stage.provider.url}. Go on?"]
        assert held.flow.finish(upstream_token_1=yes).structured == ["read:user", "repo"]

    def test_goes_on_with_what_another_login_of_the_same_client_brings(self, stage: Stage) -> None:
        held = Held(stage, "slow")
        held.client.post("/revoke", token=held.tokens["refresh_token"])
        assert held.go_on() == "input_required"
        held.sign(held.client.tokens(stage.browser(), scope="repo"))
        held.flow.look()
        assert held.flow.finish(upstream_token_1=yes).structured == ["read:user", "repo"]

    def test_fails_where_the_answer_comes_from_another_application(self, stage: Stage) -> None:
        held = Held(stage, "slow")
        held.now += 700
        assert held.go_on() == "input_required"
        held.sign(stage.client(held.client.base, client_name="Another").tokens(stage.browser(), scope="repo"))
        held.flow.look()
        failure = held.flow.finish(upstream_token_1=yes).failure
        assert "did not come from the application that this was started with" in failure


class Held:
    """A task of a server without a database, before it asks for the token.

    Args:
        stage: what the test has.
        tool: whether it asks within a step.
    """

    def __init__(self, stage: Stage, tool: str) -> None:
        self.now = time.time()
        stage.clock = lambda: self.now
        self._store = InProcessStore()
        self._went_on, came = threading.Event(), threading.Event()
        app = server(stage.provider, store=self._store)

        async def use(ctx: Context) -> list[str]:
            return await scopes_at(stage.provider, await ctx.upstream_token("repo"))

        @app.tool(task=Task(rounds_first=True))
        async def slow(ctx: Context) -> list[str]:
            """Use the token after a while."""
            await ctx.background()
            came.set()
            await asyncio.to_thread(self._went_on.wait, 30)
            return await use(ctx)

        @app.tool(task=Task(rounds_first=True))
        async def slow_step(ctx: Context) -> list[str]:
            """Use the token after a while, in a step."""
            await ctx.background()
            came.set()
            await asyncio.to_thread(self._went_on.wait, 30)
            return await ctx.step(use, ctx)

        self.client = stage.client(stage.serve(app))
        self.tokens = self.client.tokens(stage.browser(), scope="repo")
        self.flow = kit_of(self.client, self.tokens).flow(tool)
        self._id = self.flow.start().task.id
        assert came.wait(30)

    def go_on(self) -> str:
        """Let the task ask for the token; return its status once it has."""
        self._went_on.set()
        while (row := asyncio.run(self._store.find_task(self._id))) is not None and row.status == "working":
            time.sleep(0.01)
        assert row is not None
        return row.status

    def sign(self, tokens: Any) -> None:
        """Send further requests with other tokens."""
        self.flow.headers = {"authorization": f"Bearer {tokens['access_token']}"}


def kit_of(client: Client, tokens: Any) -> testing.Client:
    """Return a client of the kit that calls with tokens."""
    return testing.Client(
        f"{client.base}/mcp", tasks=True, headers={"authorization": f"Bearer {tokens['access_token']}"}
    )


def task_result(client: Client, tokens: Any, tool: str = "later") -> Any:
    """Return the result of a task, by a client of the kit."""
    return kit_of(client, tokens).call(tool).result


def test_a_token_of_the_provider_that_is_too_long_needs_a_store(stage: Stage, tmp_path: Path) -> None:
    stage.provider.set(padding=3000)
    refused = stage.client(stage.serve(server(stage.provider)))
    came = refused.came(stage.browser())
    assert (came["error"], "has to give it a database" in came["error_description"]) == ("access_denied", True)
    app = server(stage.provider, store=f"sqlite:///{tmp_path}/logins.db")
    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser(), scope="repo")
    assert len(tokens["access_token"]) <= 2048
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
