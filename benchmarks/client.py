"""Measure our client for programs beside that of `mcp`: calls a second, and the time of the processor in its process.

Run it with a Python that has mrtr_server[client] and mcp. Both call one server, in slices that alternate, so that a
busy machine is busy for both.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

import mcp
from mcp_types import ElicitResult

from mrtr_server.client import Client, Form

SERVERS = Path(__file__).parent / "servers"
START_WITHIN = 60.0
MOST_SECONDS = 300.0
TOGETHER = 8

Call = Callable[[], Awaitable[str]]
Sample = tuple[float, float]
"""Seconds a call, and seconds of the processor a call."""


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Run the server of the benchmarks; return its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "ours:app", "--port", str(port), "--no-access-log"]
    environment = {**os.environ, "MRTR_KEYS": "00" * 32}
    process = subprocess.Popen(  # noqa: ASYNC220  it takes no time that is measured
        [*command, "--log-level", "warning"], cwd=SERVERS, env=environment
    )
    try:
        async with asyncio.timeout(START_WITHIN):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def fill(_: Form) -> dict[str, str]:
    return {"name": "octocat"}


async def fill_theirs(context: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "octocat"})


def calls_of_ours(client: Client) -> dict[str, Call]:
    async def add() -> str:
        return (await client.call("add", a=1, b=2)).text

    async def weather() -> str:
        return (await client.call("get_weather", location="Oslo")).text

    return {"call": add, "flow of two rounds": weather}


def calls_of_theirs(client: mcp.Client) -> dict[str, Call]:
    async def add() -> str:
        return str((await client.call_tool("add", {"a": 1, "b": 2})).content[0].text)  # type: ignore[union-attr]

    async def weather() -> str:
        return str((await client.call_tool("get_weather", {"location": "Oslo"})).content[0].text)  # type: ignore[union-attr]

    return {"call": add, "flow of two rounds": weather}


async def slice_of(call: Call, count: int, together: int) -> Sample:
    """Make some calls, and return what each took."""

    async def work() -> None:
        for _ in range(count // together):
            await call()

    began, spent = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(work())
    made = count // together * together
    return (time.perf_counter() - began) / made, (time.process_time() - spent) / made


async def main(pairs: int, count: int) -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving())
        ours = calls_of_ours(await stack.enter_async_context(Client(url, on_elicit=fill)))
        their_client = mcp.Client(url, mode="2026-07-28", elicitation_callback=fill_theirs)
        theirs = calls_of_theirs(await stack.enter_async_context(their_client))
        print("| what | a second, ours | `mcp` | ratio | µs of the processor, ours | `mcp` | ratio |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for name in ours:
            if await ours[name]() != await theirs[name]():
                raise SystemExit(f"The two clients got something else for a {name}")
            for together in (1, TOGETHER):
                samples: list[tuple[Sample, Sample]] = []
                for pair in range(pairs + 1):
                    order = (ours, theirs) if pair % 2 else (theirs, ours)
                    found = {id(each): await slice_of(each[name], count, together) for each in order}
                    samples.append((found[id(ours)], found[id(theirs)]))
                del samples[0]  # which warmed up
                print(row(f"{name}, {together} at a time", samples))


def row(what: str, samples: list[tuple[Sample, Sample]]) -> str:
    """Return a line of the table: medians, and the medians of the ratios of the pairs."""
    rate, theirs = (median(1 / each[which][0] for each in samples) for which in (0, 1))
    spent, their_spent = (1e6 * median(each[which][1] for each in samples) for which in (0, 1))
    faster = median(each[1][0] / each[0][0] for each in samples)
    cheaper = median(each[1][1] / each[0][1] for each in samples)
    return (
        f"| {what} | {rate:,.0f} | {theirs:,.0f} | {faster:.1f} | {spent:,.0f} | {their_spent:,.0f} | {cheaper:.1f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure our client for programs beside that of mcp.")
    parser.add_argument("--pairs", type=int, default=11, help="of slices (default: 11)")
    parser.add_argument("--calls", type=int, default=200, help="in each slice (default: 200)")
    given = parser.parse_args()

    async def bounded() -> None:
        async with asyncio.timeout(MOST_SECONDS):
            await main(given.pairs, given.calls)

    asyncio.run(bounded())
