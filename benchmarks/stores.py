"""How long a store takes for what a single-use round and a task need of it.

    python benchmarks/stores.py sqlite:///bench.db postgresql://user@host/name

A round takes two calls: the grant, and the record of its outcome. A task takes at least three: it is added, claimed
with others, and completed. It leaves its rows behind; they expire within a minute.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from secrets import token_hex

from mrtr_server import InProcessStore, SQLStore, TaskRow, TaskStore

CALLS, AT_ONCE = 1_000, 50
OUTCOME = bytes(500)


async def redeem(store: TaskStore) -> str:
    """Grant a delivery and record its outcome, and return its state."""
    state = token_hex(16)
    granted = await store.redeem(state, "answers", lease=30, keep=60)
    assert await store.record(state, granted.token, OUTCOME)
    return state


async def add(store: TaskStore) -> str:
    """Add a task, and return its id."""
    now = time.time()
    id = token_hex(16)
    await store.add_task(TaskRow(id, "", "tool", "working", "", now, now, 60, 1, now + 60, now + 60, OUTCOME, OUTCOME))
    return id


async def _span(act: Callable[[], Awaitable[object]], at_once: int) -> float:
    """Act often, and return the microseconds that each took."""
    left = count()

    async def work() -> None:
        while next(left) < CALLS:
            await act()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return 1e6 * (time.perf_counter() - start) / CALLS


async def _measure(store: TaskStore) -> None:
    state, id = await redeem(store), await add(store)

    async def finish() -> None:
        while rows := await store.claim_tasks("bench", seconds=60, most=10, tools=["tool"]):
            for row in rows:
                await store.change_task(row, status="completed", outcome=OUTCOME, lease="", leased_until=0.0)

    async def find() -> None:
        assert await store.find_task(id)

    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "a grant and its record": lambda: redeem(store),
        "a duplicate": lambda: store.redeem(state, "answers", lease=30, keep=60),
        "a task added": lambda: add(store),
        "a task found": find,
    }
    for name, act in acts.items():
        print(f"    {name:36}{await _span(act, 1):>16,.0f}{await _span(act, AT_ONCE):>16,.0f}")
    start, tasks = time.perf_counter(), 2 * CALLS + 1
    await asyncio.gather(*(finish() for _ in range(10)))
    span = 1e6 * (time.perf_counter() - start) / tasks
    print(f"    {'a task claimed and completed':36}{'':16}{span:>16,.0f}")
    await store.close()


def main(urls: list[str]) -> None:
    """Measure the store in the process, and those of the databases."""
    print(f"{'microseconds':40}{'one by one':>16}{f'{AT_ONCE} at once':>16}")
    print("in the process")
    asyncio.run(_measure(InProcessStore()))
    for store in map(SQLStore, urls):
        print(store.database.name)
        asyncio.run(_measure(store))


if __name__ == "__main__":
    main(sys.argv[1:])
