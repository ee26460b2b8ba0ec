"""What the store of one process would cost if it were SQLite in memory, instead of dictionaries.

    python benchmarks/in_memory.py

Three stores run in turn, several times: the dictionaries of `InProcessStore`; the SQL statements on a SQLite database
in memory, run on the event loop itself; and the same code path as a file, with its threads, on a file that is in memory
(`/dev/shm`). Each is measured alone, then below a server: a `single_use` flow of two rounds, and a task that is
created, finished and looked at, as requests that no network carries. Microseconds of processor time, all threads
together, the median of the runs and their range.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from secrets import token_hex
from statistics import median
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from pydantic import BaseModel
from scenarios import PROTOCOL_VERSION
from stores import OUTCOME, add, redeem

from mrtr_server import Elicit, InProcessStore, InputRequired, Inputs, MRTRServer, SQLStore, TaskStore
from mrtr_server.storage.sql.database import Database

RUNS, TIMES = 7, 500
META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


class InMemory(Database):
    """A SQLite database in memory, used on the event loop."""

    def __init__(self) -> None:
        super().__init__("sqlite", "sqlite:///:memory:")
        self._guard = Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for step in self.steps_from(None):
            self._connection.execute(step)

    async def execute(self, sql: str, given: Mapping[str, Any]) -> list[Any]:
        values = {name: json.dumps(value) if isinstance(value, list) else value for name, value in given.items()}
        values["now"] = time.time()
        with self._guard, closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    async def check(self) -> None: ...

    def time(self) -> float:
        return time.time()

    async def _change(self, steps: object) -> None: ...

    async def found_version(self) -> None: ...

    async def close(self) -> None:
        self._connection.close()


class Name(BaseModel):
    name: str


class Client:
    """Requests to a server, without a network.

    Args:
        store: what the server keeps things in.
    """

    def __init__(self, store: TaskStore) -> None:
        self._app = MRTRServer("bench", keys=[bytes(32)], store=store)

        @self._app.tool(single_use=True)
        async def greet(inputs: Inputs) -> str | InputRequired:
            name = inputs.get("name", Name)
            return InputRequired(name=Elicit("Name?", Name)) if name is None else name.name

        @self._app.tool(task="required")
        async def work() -> str:
            return "done"

    async def flow(self) -> None:
        """Go through a flow of two rounds."""
        params: dict[str, Any] = {"name": "greet", "arguments": {}}
        asked = await self._request("tools/call", "greet", params)
        (key,) = asked["inputRequests"]
        params["requestState"] = asked["requestState"]
        params["inputResponses"] = {key: {"action": "accept", "content": {"name": "x"}}}
        assert (await self._request("tools/call", "greet", params))["content"]

    async def task(self) -> None:
        """Create a task, and look at it until it is completed."""
        task = (await self._request("tools/call", "work", {"name": "work", "arguments": {}}))["taskId"]
        while (await self._request("tasks/get", task, {"taskId": task}))["status"] != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _request(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        body = json.dumps(message).encode()
        headers = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": PROTOCOL_VERSION,
            "mcp-method": method,
            "mcp-name": name,
            "content-length": str(len(body)),
        }
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "root_path": "",
            "query_string": b"",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 1),
        }
        received = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(received, None) or await asyncio.Event().wait()

        async def send(each: Any) -> None:
            sent.append(each)

        await self._app(scope, receive, send)
        return dict(json.loads(b"".join(each.get("body", b"") for each in sent))["result"])


async def claim(store: TaskStore) -> None:
    """Let a task live: added, claimed and completed."""
    await add(store)
    for row in await store.claim_tasks("bench", seconds=60, most=1, tools=["tool"]):
        await store.change_task(row, status="completed", outcome=OUTCOME, lease="", leased_until=0.0)


async def span(act: Callable[[], Awaitable[object]]) -> float:
    """Act often, and return the microseconds that each took."""
    await act()
    start = time.process_time()
    for _ in range(TIMES):
        await act()
    return 1e6 * (time.process_time() - start) / TIMES


async def measure(store: TaskStore) -> dict[str, float]:
    """Return how long each took."""
    client = Client(store)
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "a redemption": lambda: redeem(store),
        "a task's life": lambda: claim(store),
        "a single-use flow": client.flow,
        "a task, served": client.task,
    }
    return {name: await span(act) for name, act in acts.items()}


@contextmanager
def stores() -> Iterator[dict[str, TaskStore]]:
    """Make one of each."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        in_memory = SQLStore(f"sqlite:///{folder}/unused.db")
        in_memory.database = InMemory()
        yield {
            "dictionaries": InProcessStore(),
            "SQLite in memory": in_memory,
            "the same, by threads": SQLStore(f"sqlite:///{folder}/{token_hex(4)}.db"),
        }


def main() -> None:
    """Measure in turn, and print the medians."""
    logging.disable(logging.WARNING)  # each server says that its store is not shared
    spans: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):
        with stores() as made:
            for title, store in made.items():
                for name, microseconds in asyncio.run(measure(store)).items():
                    spans.setdefault(title, {}).setdefault(name, []).append(microseconds)
    for title, each in spans.items():
        print(title)
        for name, found in each.items():
            print(f"    {name:24}{median(found):>8,.0f}   ({min(found):,.0f} to {max(found):,.0f})")


if __name__ == "__main__":
    main()
