"""What scripts/clients runs: real clients, one after the other, against three replicas behind a round robin."""

import argparse
import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

from clients_fleet import Front, foreign, read_address, replicas
from clients_install import LISTED, Client, NotInstalled, environment, read_clients, select
from clients_table import Result, as_text, write_rows
from demo_fleet import end_session

SIDE_BY_SIDE = 6
"""How many clients wait for the person at the same time."""


async def run(client: Client, url: str, limit: float, patience: float = 0) -> tuple[dict[str, Any], str]:
    """Run the program of a client; return what it reported, and why it did not come to its end.

    Args:
        client: the client.
        url: the server's endpoint.
        limit: how long it may take, in seconds, besides the person's time.
        patience: how long the person takes to answer, in seconds; if given, this alone is tried.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *client.command(url),
            env={**environment(), "PATIENCE": f"{patience:g}"},
            cwd=client.folder,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return {}, str(error)
    try:
        async with asyncio.timeout(limit + patience):
            output, errors = await process.communicate()
    except TimeoutError:
        return {}, f"It did not end within {limit + patience:g} s"
    finally:
        await end_session(process)
    reported = [line for line in output.decode(errors="replace").splitlines() if line.startswith("{")]
    if not reported:
        said = errors.decode(errors="replace").strip().splitlines()
        return {}, said[-1] if said else f"It ended with {process.returncode}, and reported nothing"
    outcomes: dict[str, Any] = json.loads(reported[-1])
    return outcomes, outcomes.pop("error", "")


async def visit(client: Client, front: Front, limit: float) -> Result:
    """Install a client, and let it do all that it can."""
    try:
        await asyncio.to_thread(client.install)
    except NotInstalled as why:
        return Result(client, missing=str(why))
    front.versions.clear()
    outcomes, error = await run(client, front.url, limit)
    negotiated = outcomes.pop("era", "")
    return Result(client, era=" and ".join(sorted(front.versions)) or negotiated, outcomes=outcomes, error=error)


async def wait_for_the_person(results: list[Result], front: Front, limit: float, patience: float) -> None:
    """See how long each client waits for a person who takes so many seconds, several clients side by side."""
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def wait(result: Result) -> None:
        async with room:
            outcomes, why = await run(result.client, front.url, limit, patience)
        result.patience = patience
        result.outcomes["patience"] = outcomes.get("patience", {"ok": False, "seconds": 0, "said": why})

    async with asyncio.TaskGroup() as group:
        for result in results:
            if not result.missing and not result.error:
                group.create_task(wait(result))


async def visit_all(clients: list[Client], front: Front, given: argparse.Namespace) -> list[Result]:
    """Run all clients, and report how it goes."""
    results = []
    for client in clients:
        result = await visit(client, front, given.limit)
        results.append(result)
        if not given.json:
            problems = [f"{what}: {said}" for what, said in result.failed.items()]
            print(f"{client.name}: {result.missing or '; '.join(problems) or 'as it should'}", flush=True)
    if given.patience:
        if not given.json:
            print(f"\nNow each waits for a person who takes {given.patience:g} s.", flush=True)
        await wait_for_the_person(results, front, given.limit, given.patience)
    return results


async def main(given: argparse.Namespace) -> int:
    """Run the clients; return the exit code."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  we are in it
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    listed = read_clients(given.clients)
    wanted = select((client.name for client in listed), given.only)
    clients = [client for client in listed if client.name in wanted and (client.quick or not given.quick)]
    async with foreign(given.server) if given.server else replicas(given.database) as front:
        results = await visit_all(clients, front, given)
    if given.json:
        print(json.dumps([result.as_json() for result in results]))
    else:
        print(f"\n{as_text(result.row for result in results)}")
    if given.write:
        write_rows(listed, {result.client.name: result for result in results})
    missing = [result for result in results if result.missing]
    return 1 if any(result.failed for result in results) or (missing and not given.allow_missing) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run real clients against three replicas behind a round robin.")
    parser.add_argument("--only", default="", metavar="A,B", help="these clients, by their names")
    parser.add_argument("--quick", action="store_true", help="only those that install in a few seconds")
    parser.add_argument(
        "--server", type=read_address, metavar="URL", help="another server of this machine, with the same tools"
    )
    parser.add_argument(
        "--database", choices=["sqlite", "postgresql"], default="sqlite", help="what the replicas share"
    )
    parser.add_argument("--patience", type=float, default=0, metavar="S", help="find out, too, who waits that long")
    parser.add_argument("--limit", type=float, default=90, metavar="S", help="how long a client may take; default: 90")
    parser.add_argument("--clients", type=Path, default=LISTED, metavar="FILE", help="another list of clients")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="write what was found into docs/clients-in-detail.md")
    parser.add_argument("--allow-missing", action="store_true", help="a client that can't be installed is no failure")
    try:
        sys.exit(asyncio.run(main(parser.parse_args())))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)
