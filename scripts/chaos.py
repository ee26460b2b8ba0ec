"""What scripts/chaos runs: clients, a front, servers, and what stops, kills and restarts the servers meanwhile."""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from chaos_events import Events
from chaos_fleet import ROOT, START_TIMEOUT, Server, Strikes, free_ports, front, strike
from chaos_open_calls import OpenCalls
from chaos_outage import Outages
from chaos_rounds import Rounds
from chaos_tasks import Tasks
from chaos_waits import Waits

from mrtr_server.wire import HANDSHAKES

FINISH_TIMEOUT = 60.0
"""How long clients may take to finish once the servers are left alone, in seconds."""

SIGNALS = {"term": [signal.SIGTERM], "kill": [signal.SIGKILL], "both": [signal.SIGTERM, signal.SIGKILL]}


class Play(Protocol):
    """What the clients do, and what is promised to them."""

    target: str
    """The import string of the servers' application."""
    environment: dict[str, str]
    """Variables for the servers."""
    timeout: float
    """How long the servers are struck at most, in seconds."""
    problems: list[str]
    """What should not have happened."""
    outages: Outages | None
    """Takes the database away now and then; None if it stays."""

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients do."""
        ...

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        ...


async def run(play: Play, given: argparse.Namespace, log: Path, strikes: Strikes) -> None:
    """Run the servers, strike them while the clients are at work, and end them."""
    keygen = [str(Path(sys.executable).with_name("mrtr-server")), "keygen"]
    made = subprocess.run(keygen, check=True, capture_output=True, text=True)  # noqa: S603, ASYNC221  nothing runs yet
    inherited = {name: value for name, value in os.environ.items() if name != "WEB_CONCURRENCY"}
    environment = {**inherited, "MRTR_KEYS": made.stdout.strip(), **play.environment}
    entrance, *ports = free_ports(given.processes + 1)
    with log.open("ab") as output:
        servers = [Server(port, play.target, environment, output) for port in ports]
        try:
            await servers[0].start()  # alone, since it may have tables to make
            await asyncio.gather(*(server.start() for server in servers[1:]))
            async with front(ports, entrance):
                calm = play.outages.calm if play.outages is not None else None
                striking = asyncio.create_task(strike(servers, SIGNALS[given.signal], strikes, calm))
                away = asyncio.create_task(play.outages.happen()) if play.outages is not None else None
                clients = [asyncio.create_task(client) for client in play.clients(entrance)]
                failed = asyncio.FIRST_EXCEPTION  # others would wait in vain for who has failed
                done, late = await asyncio.wait(clients, timeout=play.timeout, return_when=failed)
                if away is not None:
                    away.cancel()
                    await asyncio.wait([away])
                if not striking.done():
                    striking.cancel()
                await asyncio.wait([striking])
                if not striking.cancelled() and (error := striking.exception()):
                    play.problems.append(f"restarting failed: {error}")
                if late:
                    further, late = await asyncio.wait(late, timeout=FINISH_TIMEOUT)
                    done |= further
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
                for server in servers:
                    if server.up:
                        server.check()
                play.problems += [f"a client failed: {error!r}" for task in done if (error := task.exception())]
        finally:
            for server in servers:
                server.send(signal.SIGTERM)
            strikes.stuck += (await asyncio.gather(*(server.ended() for server in servers))).count(False)


async def struck(play: Play, given: argparse.Namespace, log: Path, strikes: Strikes) -> int:
    """Run it until it is over, or until somebody ends it; return the exit code."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  we are in it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        async with asyncio.timeout(play.timeout + 4 * START_TIMEOUT + FINISH_TIMEOUT):
            await run(play, given, log, strikes)
    except asyncio.CancelledError:
        print("Ended before its time; the servers have ended, too.", file=sys.stderr)
        return 130
    except (RuntimeError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}\n{tail(log)}", file=sys.stderr)
        return 1
    return 0


def main(given: argparse.Namespace) -> int:
    """Run it; return the exit code."""
    strikes = Strikes()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mrtr-chaos-")))
        log = given.log or directory / "log"
        play, what = choose(given, directory, stack, strikes)
        print(f"{given.clients} clients, {given.processes} servers, {what}; signals: {given.signal}", flush=True)
        code = asyncio.run(struck(play, given, log, strikes))
        if code:
            return code
        report = {**play.report(), **{name: count for name, count in asdict(strikes).items() if name != "pids"}}
        wrong = play.problems
        if strikes.stuck:
            wrong.append(f"{strikes.stuck} servers did not end when they were told to")
        if not strikes.terminated + strikes.killed:
            wrong.append("no server was stopped or killed; let it take longer")
        if wrong:
            print(f"The servers said last:\n{tail(log)}", file=sys.stderr)
    for each in wrong[:10]:
        print(f"BROKEN: {each}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps({**report, "problems": len(wrong), "promises_hold": not wrong}), flush=True)
    return 1 if wrong else 0


def choose(given: argparse.Namespace, directory: Path, stack: ExitStack, strikes: Strikes) -> tuple[Play, str]:
    """Return what is to be run, and its name."""
    stops_only = given.signal == "term"
    if not (given.tasks or given.waits or given.events or given.era):
        name = f"{given.seconds:g} s, {'single use' if given.single_use else 'no store'}"
        clients, seconds = given.clients, given.seconds
        return Rounds(directory, clients, seconds, single_use=given.single_use, stops_only=stops_only), name
    url, outages = "", None
    if given.database == "postgresql":
        sys.path.insert(0, str(ROOT))
        from tests.support.databases import running_postgresql

        postgresql = stack.enter_context(running_postgresql())
        url = postgresql.url()
        outages = Outages(postgresql.stop, postgresql.start) if given.outages else None
    if given.era:
        name = f"{given.seconds:g} s, open calls of {given.era} on {given.database}"
        return OpenCalls(directory, given.clients, given.seconds, given.era, url, stops_only=stops_only), name
    where = f"on {given.database}{', which is away now and then' if outages else ''}"
    if given.waits:
        waits = Waits(directory, given.clients, given.waits, url, outages, strikes)
        return waits, f"{given.waits} waits for managers {where}"
    if given.events:
        return Events(directory, given.clients, given.events, url, outages), f"{given.events} events {where}"
    name = f"{given.tasks} tasks {where}"
    return Tasks(directory, given.clients, given.tasks, url, outages, strikes), name


def tail(log: Path) -> str:
    """Return the end of a log."""
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Stop, kill and restart servers while clients are at work.")
    parser.add_argument("--seconds", type=float, default=60, help="how long new flows are started (default: 60)")
    parser.add_argument("--clients", type=int, default=200, help="how many at once (default: 200)")
    parser.add_argument("--processes", type=int, default=4, help="how many servers; 3 or more (default: 4)")
    parser.add_argument("--signal", choices=["term", "kill", "both"], default="both", help="what ends them")
    parser.add_argument("--single-use", action="store_true", help="redeem each state once, in a shared database")
    parser.add_argument("--tasks", type=int, default=0, help="start so many tasks instead, until all have ended")
    parser.add_argument("--waits", type=int, default=0, help="let so many tasks wait for a manager instead")
    parser.add_argument("--events", type=int, default=0, help="emit so many events instead, until all have come")
    parser.add_argument("--era", choices=HANDSHAKES, help="let clients of this version answer while their call is open")
    parser.add_argument(
        "--database", choices=["sqlite", "postgresql"], default="sqlite", help="where tasks and open calls are"
    )
    parser.add_argument("--outages", action="store_true", help="take PostgreSQL away for longer than the lease, too")
    parser.add_argument("--log", type=Path, help="the file that the servers' output is kept in")
    options = parser.parse_args()
    durable = options.tasks or options.waits or options.events
    if options.era and (durable or options.single_use):
        parser.error("--era goes with neither --tasks, --waits, --events nor --single-use")
    if options.processes < 3:
        parser.error("--processes must be 3 or more: two are always left alone")
    if options.outages and not (durable and options.database == "postgresql"):
        parser.error("--outages needs --tasks, --waits or --events, and --database postgresql")
    sys.exit(main(options))
