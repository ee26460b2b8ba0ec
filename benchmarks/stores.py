"""How long a store takes for the two calls of a single-use round: the grant, and the record of its outcome.

    python benchmarks/stores.py sqlite:///bench.db postgresql://user@host/name

It leaves its rows behind; they expire within a minute.
"""

import asyncio
import sys
import time
from secrets import token_hex

from mrtr_server import InProcessStore, SQLStore, Store

CALLS, AT_ONCE = 1_000, 50
OUTCOME = bytes(500)


async def _redeemed(store: Store) -> str:
    state = token_hex(16)
    granted = await store.redeem(state, "answers", lease=30, keep=60)
    assert await store.record(state, granted.token, OUTCOME)
    return state


async def _measure(store: Store) -> str:
    state = await _redeemed(store)
    start = time.perf_counter()
    for _ in range(CALLS):
        await _redeemed(store)
    one_by_one = time.perf_counter()
    for _ in range(CALLS // AT_ONCE):
        await asyncio.gather(*(_redeemed(store) for _ in range(AT_ONCE)))
    at_once = time.perf_counter()
    for _ in range(CALLS):
        await store.redeem(state, "answers", lease=30, keep=60)
    end = time.perf_counter()
    spans = (one_by_one - start, at_once - one_by_one, end - at_once)
    return "".join(f"{1e6 * span / CALLS:>16,.0f}" for span in spans)


def main(urls: list[str]) -> None:
    """Measure the store in the process, and those of the databases."""
    print(f"{'microseconds':40}{'one by one':>16}{f'{AT_ONCE} at once':>16}{'a duplicate':>16}")
    print(f"{'in the process':40}{asyncio.run(_measure(InProcessStore()))}")
    for store in map(SQLStore, urls):
        print(f"{store.database.name[:39]:40}{asyncio.run(_measure(store))}")


if __name__ == "__main__":
    main(sys.argv[1:])
