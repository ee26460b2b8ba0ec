"""What is written to the log of a database, which each standby receives and each backup keeps."""

import asyncio

import pytest
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.requests import HTTPConnection

from mrtr_server import Context, MRTRServer, SQLStore
from mrtr_server.testing import AsyncClient, yes

from ..support.databases import PostgreSQL

pytestmark = pytest.mark.anyio

TIMES = 30


class Somebody(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser("somebody")


@pytest.mark.alone
@pytest.mark.parametrize("auth", [None, Somebody()], ids=["nobody", "somebody"])
async def test_a_task_with_one_answer_takes_six_kilobytes_at_most(
    postgresql: PostgreSQL, auth: AuthenticationBackend | None
) -> None:
    store = SQLStore(postgresql.url(await postgresql.new_database()))
    app = MRTRServer("log", keys=[bytes(32)], auth=auth, store=store)

    @app.tool(task="required")
    async def asks(ctx: Context) -> str:
        await ctx.confirm("Go on?")
        return "went on"

    client = AsyncClient(app, token="token" if auth else None, tasks=True, log_level=None)
    written: list[float] = []
    for times in (5, TIMES):  # the first ones make pages
        begin = await postgresql.fetch("SELECT pg_current_wal_insert_lsn()::text")
        for _ in range(times):
            assert (await client.call("asks", answers={"confirm": yes})).text == "went on"
        await asyncio.sleep(0.2)  # until notices are sent
        written.append(await postgresql.fetch(f"SELECT (pg_current_wal_insert_lsn() - '{begin}')::float") / times)
    await app._parts.worker.close()
    await store.close()
    assert written[-1] < 6 * 1024
