"""Who reads a database finds nothing that was said in it: no argument, question, answer, result or name of a user."""

import asyncio
from pathlib import Path

import pytest

from mrtr_server import BearerTokens, Context, MRTRServer
from mrtr_server.testing import AsyncClient, yes

from ..support.models import Login

pytestmark = pytest.mark.anyio

SAID = ("argument", "question", "answered", "result", "outcome", "alice")


async def test_who_reads_the_file_finds_nothing_that_was_said(tmp_path: Path) -> None:
    words = {word: f"{word}-5c4d1e" for word in SAID}
    users = {"token": words["alice"]}
    app = MRTRServer("sealed", keys=[bytes(32)], store=f"sqlite:///{tmp_path}/store.db", auth=BearerTokens(users))

    def note(text: str) -> str:
        return f"{words['result']} {text}"

    @app.tool(task="required")
    async def work(text: str, ctx: Context) -> str:
        kept = await ctx.step(note, text)
        login = await ctx.elicit(words["question"], Login)
        return f"{kept} {login.name}"

    @app.tool(single_use=True)
    async def pay(text: str, ctx: Context) -> str:
        await ctx.confirm(words["question"])
        return f"{words['outcome']} {text}"

    def found() -> set[str]:
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"mrtr_tasks" in content
        return {word for word, text in words.items() if text.encode() in content}

    async with AsyncClient(app, token="token", tasks=True) as client:
        flow = client.flow("work", text=words["argument"])
        await flow.start()
        await flow.wait()
        assert await asyncio.to_thread(found) == set(), "while it waits"
        await flow.send({"login": {"name": words["answered"]}})
        assert words["answered"] in (await flow.wait()).text
        paid = await client.call("pay", text=words["argument"], answers={"confirm": yes})
        assert words["outcome"] in paid.text
        assert await asyncio.to_thread(found) == set()
