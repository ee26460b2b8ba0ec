"""`mrtr-server waits`: what an operator sees of what flows wait for, and how one is withdrawn."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mrtr_server import SQLStore
from mrtr_server.cli import main

from ..support.waiting_shop import Shop, make_shop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    store = SQLStore(f"sqlite:///{tmp_path}/waits.db")
    yield make_shop(store)
    await store.close()


async def printed(tmp_path: Path, *arguments: str, exit_code: int = 0) -> str:
    environment = {"MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/waits.db", "MRTR_KEYS": bytes(32).hex()}
    run = CliRunner(env=environment).invoke
    result = await asyncio.to_thread(run, main, ["waits", *arguments])
    assert result.exit_code == exit_code, result.output
    return str(result.output)


async def test_waits_are_listed_the_newest_first_without_what_they_are_about(shop: Shop, tmp_path: Path) -> None:
    for item in ("desk", "chair"):
        await shop.begin(item=item)
    lines = (await printed(tmp_path, "list", "--json")).splitlines()
    found: list[Any] = [json.loads(line) for line in lines]
    assert [each["name"] for each in found] == ["approval", "approval"]
    assert found[0]["began"] >= found[1]["began"]
    text = await printed(tmp_path, "list", "--name", "approval")
    assert [line.split()[0] for line in text.splitlines()] == [each["id"] for each in found]
    assert await printed(tmp_path, "list", "--name", "release") == ""
    assert "desk" not in text + "".join(lines)


async def test_the_next_page_begins_where_the_last_one_says(shop: Shop, tmp_path: Path) -> None:
    for item in ("desk", "chair", "lamp"):
        await shop.begin(item=item)
    newest, *others = [line.split()[0] for line in (await printed(tmp_path, "list")).splitlines()]
    *first, more = (await printed(tmp_path, "list", "--limit", "2")).splitlines()
    assert [line.split()[0] for line in first] == [newest, others[0]]
    second = await printed(tmp_path, "list", *more.rpartition(" or add ")[2].split())
    assert [line.split()[0] for line in second.splitlines()] == others[1:]


async def test_one_is_shown_with_its_task_and_on_demand_with_what_it_is_about(shop: Shop, tmp_path: Path) -> None:
    flow, _ = await shop.begin()
    (wait,) = map(json.loads, (await printed(tmp_path, "list", "--json")).splitlines())
    shown = json.loads(await printed(tmp_path, "show", wait["id"][:6]))
    assert (shown["task"]["id"], shown["task"]["status"]) == (flow.task, "input_required")
    assert "about" not in shown
    shown = json.loads(await printed(tmp_path, "show", wait["id"], "--values"))
    assert shown["about"] == {"item": "desk", "price": 900}
    assert "no such wait" in await printed(tmp_path, "show", "%", exit_code=1)


async def test_one_that_is_withdrawn_cancels_its_task_and_its_ticket(shop: Shop, tmp_path: Path) -> None:
    flow, ticket = await shop.begin()
    (wait,) = map(json.loads, (await printed(tmp_path, "list", "--json")).splitlines())
    assert await printed(tmp_path, "withdraw", wait["id"]) == "The wait is withdrawn; its task is cancelled\n"
    assert (await flow.look()).task.status == "cancelled"
    assert "can't be answered any more" in await shop.refusal(ticket)
    assert await printed(tmp_path, "list") == ""
