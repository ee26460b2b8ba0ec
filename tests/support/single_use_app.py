"""A single-use tool for tests that run it in several processes, and kill them.

`SINGLE_USE_DIR` holds the shared store, the ledger, while a charge is to take its time, a file `hold`, and once the
servers' clocks are to be an hour ahead, a file `later`.
"""

import asyncio
import os
import time
from pathlib import Path

from mrtr_server import Context, IdempotencyKey, Limits, MRTRServer, SQLStore
from mrtr_server.testing import replica, short_lease

LEASE = 1.0
"""In seconds."""

PLACE = Path(os.environ["SINGLE_USE_DIR"])
STORE = None if os.environ.get("SINGLE_USE_ALONE") else SQLStore(f"sqlite:///{PLACE}/store.db")

WITHIN = 3600.0
"""How long a question waits for its answer, in seconds."""


def clock() -> float:
    return time.time() + (WITHIN if (PLACE / "later").exists() else 0.0)


app = replica(MRTRServer("bank", store=STORE, limits=short_lease(LEASE, Limits(state_seconds=WITHIN))), clock=clock)


def note(*words: object) -> None:
    with (PLACE / "ledger").open("a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\n")


async def charge(amount: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> int:
    note("begin", os.getpid(), idempotency_key)
    while (PLACE / "hold").exists():  # noqa: ASYNC110  the test is another process
        await asyncio.sleep(0.01)
    note("charged", os.getpid(), idempotency_key)
    return amount


def send_mail(amount: int) -> str:
    note("mailed", os.getpid())
    return f"{amount} paid, says {os.getpid()}"


@app.tool(single_use=True)
async def pay(amount: int, ctx: Context) -> str:
    """Pay, and send a mail about it."""
    await ctx.confirm(f"Pay {amount}?")
    return await ctx.step(send_mail, await ctx.step(charge, amount))
