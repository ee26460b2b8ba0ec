"""The recipes of the cookbook do what they say."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from mrtr_server.testing import Client, accept, decline, yes

from ..support.databases import PostgreSQL
from ..support.serving import ROOT, in_thread, wait_until
from .test_pages import blocks

LOGIN, APPROVE, CHOICES, FILES, UPLOAD, CANCEL, SESSION, ASYNC, GATEWAYS = blocks(ROOT / "docs" / "guides.md", "python")
FORM = blocks(ROOT / "docs" / "asking.md", "python")[0]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code, "guide.py", "exec"), names)  # noqa: S102  a block of the page
    return names


def test_a_user_of_the_site_is_the_user_of_the_server() -> None:
    app = run(LOGIN)["app"]
    ann = Client(app, path="/tools/mcp", headers={"x-api-key": "ann-key"})
    assert ann.call("greet", answers={"confirm": yes}).text == "Hello, ann"
    stranger = Client(app, path="/tools/mcp")
    assert stranger.request("tools/list").result["tools"] == []
    assert "Unknown tool" in stranger.flow("greet").start().error.message
    flow = ann.flow("greet")
    flow.start()
    flow.headers = {}
    assert flow.answer(confirm=yes).error


def test_the_choices_stay_those_that_were_shown() -> None:
    names = run(CHOICES)
    flow = Client(names["app"]).flow("book", day="today")
    assert flow.start().asks["room"].schema["properties"]["name"]["enum"] == ["Rigi", "Säntis"]
    names["FREE"]["today"] = ["Pilatus"]
    assert flow.answer(room={"name": "Säntis"}).text == "Säntis is booked for today"
    assert Client(names["app"]).call("book", day="never").failure == "No room is free never."


def test_another_choice_is_asked_for_again() -> None:
    flow = Client(run(CHOICES)["app"]).flow("book", day="today")
    flow.start()
    assert flow.send({"room": {"name": "Pilatus"}}).needs_input


def test_labels_are_shown_and_values_returned() -> None:
    flow = Client(run(FORM)["app"]).flow("order")
    fields = flow.start().asks["shirt"].schema["properties"]
    assert fields["copies"]["title"] == "How many"
    assert [choice["title"] for choice in fields["size"]["oneOf"]] == ["Small", "Large"]
    assert flow.answer(shirt={"size": "s", "copies": 2}).questions == {"name": "For whom?"}
    assert flow.answer(name="Ann").text == "2 of size s for Ann"


def test_nobody_approves_their_own_request() -> None:
    names = run(APPROVE)
    ann, manager = (Client(names["app"], token=f"{who}-token") for who in ("ann", "max"))
    assert [len(each.request("tools/list").result["tools"]) for each in (ann, manager)] == [1, 2]
    for client, number in ((ann, 1), (manager, 2)):
        asked = client.call("request_payment", amount=30, answers={"confirm": yes})
        assert asked.text == f"A manager decides on number {number}."
    assert "Unknown tool" in ann.flow("approve", number=1).start().error.message
    done = manager.call("approve", number=1, answers={"confirm": yes})
    assert done.asked["confirm"].message == "Pay 30 for ann?"
    assert done.text == "30 paid for ann"
    assert "your own" in manager.call("approve", number=2).failure
    assert "no such request" in manager.call("approve", number=1).failure


def test_a_file_is_taken_from_a_person() -> None:
    names = run(UPLOAD)
    flow = Client(names["app"]).flow("claim", what="a taxi")
    address = flow.start().asks["receipt"].url

    async def upload() -> list[int]:
        transport = httpx.ASGITransport(names["app"])
        async with httpx.AsyncClient(transport=transport) as browser:
            form = await browser.get(address)
            nothing = await browser.post(address, files={"file": ("", b"")})
            sent = await browser.post(address, files={"file": ("../taxi.pdf", b"%PDF-")})
            return [form.status_code, nothing.status_code, sent.status_code]

    assert asyncio.run(upload()) == [200, 400, 200]
    assert flow.answer(receipt=accept()).text == "a taxi: a receipt of 5 bytes"
    assert "/" not in next(iter(names["STORAGE"]))


def test_a_result_has_files_and_images() -> None:
    client = Client(run(FILES)["app"])
    content = client.call("chart", year="2025").result["content"]
    assert [part["type"] for part in content] == ["text", "image", "resource", "resource_link"]
    assert client.read(content[3]["uri"]).result["contents"][0]["text"] == content[2]["resource"]["text"] == "3\n5\n8"


def test_a_dependency_learns_of_a_cancellation() -> None:
    names = run(CANCEL)
    assert Client(names["app"]).call("film", scenes=2).text == '["scene 0 by renderer 1","scene 1 by renderer 1"]'
    assert names["said"] == ["started"]
    with in_thread(names["app"]) as port:
        flow = Client(f"http://127.0.0.1:{port}/mcp", tasks=True).flow("film", scenes=10_000)
        flow.start()
        wait_until(lambda: names["said"] == ["started"] * 2, "the task to begin")
        flow.cancel()
        wait_until(lambda: names["said"] == ["started", "started", "stopped"], "the clean-up")


def test_a_session_is_committed_by_a_result_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.db"
    monkeypatch.setenv("SHOP", f"sqlite:///{file}")
    names = run(SESSION)
    client = Client(names["app"])
    ordered = client.call("order", item="tea", answers={"copies": 2, "sure": yes})
    assert ordered.text == "2 × tea ordered"
    assert ordered.rolled_back == ["Depends(session)"] * 2
    assert "declined" in client.call("order", item="tea", answers={"copies": 2, "sure": decline}).failure
    assert client.call("order", item="tea", answers={"copies": 101, "sure": yes}).failure == "There are not so many."
    reserved = client.call("reserve", item="rum", answers={"value": 1, "confirm": yes})
    assert (reserved.text, reserved.steps) == ("Order 2 is sent", ["insert"])
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT item, copies FROM orders").fetchall() == [("tea", 2), ("rum", 1)]
    names["engine"].dispose()


def test_an_async_session_is_committed_by_a_result_alone(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(postgresql.fetch("CREATE TABLE IF NOT EXISTS orders (item text)"))
    monkeypatch.setenv("SHOP", postgresql.url().replace("postgresql:", "postgresql+asyncpg:"))
    client = Client(run(ASYNC)["app"])
    assert client.call("order", item="tea", answers={"confirm": yes}).text == "tea ordered"
    assert "declined" in client.call("order", item="rum", answers={"confirm": decline}).failure
    assert asyncio.run(postgresql.fetch("SELECT string_agg(item, ' ') FROM orders")) == "tea"


def test_a_gateway_reads_the_same_in_each_round_as_the_server() -> None:
    client = Client(run(GATEWAYS)["app"])
    done = client.call("cancel", number=7, region="eu", answers={"confirm": yes})
    assert done.text == "7 is cancelled by the servers of eu"
    assert done.rounds == 2
    client.headers["mcp-param-region"] = "us"
    assert client.flow("cancel", number=7, region="eu").start().status == 400
