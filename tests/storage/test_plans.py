"""PostgreSQL plans each statement of a connection once: it looks in an index, whatever the tables become after that."""

import pytest

from mrtr_server import SQLStore
from mrtr_server.storage.sql import store as module

from ..support.databases import TOOLS, PostgreSQL, task_row

pytestmark = pytest.mark.anyio

TIMES = 7
"""After five of them, PostgreSQL may keep a plan."""


async def test_no_statement_walks_through_a_table_that_was_empty_when_it_came_first(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.0)
    name = await postgresql.new_database()
    store = SQLStore(postgresql.url(name))
    await store.check()
    read = "SELECT sum(seq_tup_read)::int FROM pg_stat_user_tables WHERE relname <> 'mrtr_schema'"
    await store.close()  # which is when the server counts what its connection read
    before = await postgresql.fetch(read, name)
    for number in range(TIMES):
        granted = await store.redeem(f"state-{number}", "answers", lease=60, keep=600)
        assert await store.record(f"state-{number}", granted.token, b"outcome")
        await store.put(f"key-{number}", b"value", keep=600)
        row = task_row(caller="ann", owner="ann")
        await store.add_task(row)
        (claimed,) = await store.claim_tasks("mine", seconds=60, most=5, tools=TOOLS)
        assert await store.renew_tasks("mine", [row.id], seconds=60) == {row.id}
        assert len(await store.find_tasks([row.id], most_bytes=1_000)) == 1
        assert await store.list_owned_tasks("ann", before=(9e9, "z"), most=5, most_bytes=10_000)
        assert await store.change_task(claimed, status="completed", lease="", leased_until=0.0)
        await store.wait_for_tasks(0.01, tools=TOOLS)
        await store.measure(TOOLS)
        assert await store.overdue_tasks(most=5) == []
    await store.close()
    assert await postgresql.fetch(read, name) == before
