"""What a server does in a person's name at the provider: with their own token, and with no more than they allowed."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mrtr_server import Context, MRTRServer, Task

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
    app = server(stage.provider, store=database)
    client = stage.client(stage.serve(app))
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


def test_a_task_without_a_store_says_what_it_needs(stage: Stage) -> None:
    client = stage.client(stage.serve(server(stage.provider)))
    result = task_result(client, client.tokens(stage.browser(), scope="repo"))
    assert result["isError"] is True
    assert "has no database" in result["content"][0]["text"]


def task_result(client: Client, tokens: Any, tool: str = "later") -> Any:
    """Return the result of a task, by a client of the kit."""
    from mrtr_server import testing

    kit = testing.Client(
        f"{client.base}/mcp", capabilities={}, tasks=True, headers={"authorization": f"Bearer {tokens['access_token']}"}
    )
    return kit.call(tool).result


def test_a_token_of_the_provider_that_is_too_long_needs_a_store(stage: Stage, tmp_path: Path) -> None:
    stage.provider.set(padding=3000)
    refused = stage.client(stage.serve(server(stage.provider)))
    came = refused.came(stage.browser())
    assert came["error"] == "access_denied"
    app = server(stage.provider, store=f"sqlite:///{tmp_path}/logins.db")
    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser(), scope="repo")
    assert len(tokens["access_token"]) <= 2048
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
