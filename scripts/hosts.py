"""What scripts/clients --hosts runs: real hosts with a stand-in model, in terminals where a person answers."""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import deque
from itertools import count
from pathlib import Path

from clients_fleet import Front, replicas
from clients_install import NotInstalled, select
from clients_table import as_text, write_rows
from hosts_desk import NotAsExpected, NotStarted, Outcome, desk, play_alone
from hosts_model import Model, Order
from hosts_programs import HOSTS, Home, Host, home, read_hosts
from hosts_scenarios import SCENARIOS, Scenario, waiting
from hosts_table import HOSTS_TABLE, Found
from hosts_terminal import NotSeen

SIDE_BY_SIDE = 3
"""How many hosts wait for the person at the same time."""
WENT_WRONG = (NotSeen, NotAsExpected, OSError)


class Tour:
    """A person who visits hosts.

    Args:
        model: their model.
        front: the server.
        scenarios: what they try with each.
        limit: how long a host may take for anything, in seconds.
    """

    def __init__(self, model: Model, front: Front, scenarios: list[Scenario], limit: float) -> None:
        self._model = model
        self._front = front
        self._scenarios = scenarios
        self._limit = limit
        self._numbers = count(1)

    async def visit(self, host: Host) -> Found:
        """Install a host, and play the scenarios with it."""
        found = Found(host, tried=[scenario.name for scenario in self._scenarios])
        try:
            await asyncio.to_thread(host.client.install)
        except NotInstalled as why:
            found.missing = str(why)
            return found
        self._front.versions.clear()
        with home(host, self._model.url, self._front.url) as place:
            try:
                await self._play(place, found)
                await self._play_alone(place, found)
            except (NotStarted, OSError) as error:
                found.error = str(error)
        found.era = " and ".join(sorted(self._front.versions))
        return found

    async def _play(self, place: Home, found: Found) -> None:
        left = deque(scenario for scenario in self._scenarios if not scenario.alone)
        while left:
            async with desk(place, self._model, self._limit, self._numbers) as at:
                try:
                    while left:
                        found.outcomes[left[0].name] = await at.play(left[0])
                        left.popleft()
                except WENT_WRONG as error:  # the host may be in any state: it starts anew
                    found.outcomes[left.popleft().name] = Outcome(False, str(error), drawn=at.terminal.text)

    async def _play_alone(self, place: Home, found: Found) -> None:
        for scenario in (scenario for scenario in self._scenarios if scenario.alone):
            order = Order(next(self._numbers), scenario.server, scenario.tool, scenario.arguments)
            try:
                outcome = await play_alone(place, self._model, scenario, self._limit, order)
            except WENT_WRONG as error:
                outcome = Outcome(False, str(error))
            found.outcomes[scenario.name] = outcome

    async def wait(self, found: Found, patience: int) -> None:
        """See how long a host waits for a person who takes so many seconds."""
        host = found.host
        found.patience = patience
        with home(host, self._model.url, self._front.url) as place:
            try:
                async with desk(place, self._model, self._limit, self._numbers) as at:
                    began = time.monotonic()
                    try:
                        found.waited = await at.play(waiting(patience, asked="yes" in host.can), patience)
                    except WENT_WRONG as error:
                        found.waited = Outcome(False, str(error), seconds=time.monotonic() - began)
            except (NotStarted, OSError) as error:
                found.waited = Outcome(False, str(error))


async def visit_all(hosts: list[Host], tour: Tour, given: argparse.Namespace) -> list[Found]:
    """Visit all hosts, and report how it goes."""
    results = []
    for host in hosts:
        found = await tour.visit(host)
        results.append(found)
        if given.json:
            continue
        problems = [f"{what}: {said}" for what, said in found.problems.items()]
        print(f"{host.name}: {found.missing or '; '.join(problems) or 'as it should'}", flush=True)
        for name, outcome in found.outcomes.items() if given.show else ():
            print(f"\n--- {host.name}, {name}: the model heard {outcome.said}\n{outcome.drawn}", flush=True)
    if given.patience:
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def wait(found: Found) -> None:
            async with room:
                await tour.wait(found, given.patience)

        async with asyncio.TaskGroup() as group:
            for found in results:
                if not found.missing and not found.error:
                    group.create_task(wait(found))
    return results


async def main(given: argparse.Namespace) -> int:
    """Run the hosts; return the exit code."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  we are in it
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    listed = read_hosts(given.listed)
    wanted = select((host.name for host in listed), given.only)
    hosts = [host for host in listed if host.name in wanted]
    tried = select((scenario.name for scenario in SCENARIOS), given.scenarios)
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in tried]
    async with Model().serving() as model, replicas(given.database, "hosts_server:app") as front:
        results = await visit_all(hosts, Tour(model, front, scenarios, given.limit), given)
    if given.json:
        print(json.dumps([found.as_json() for found in results]))
    else:
        print(f"\n{as_text((found.row for found in results), HOSTS_TABLE)}")
    if given.write:
        write_rows([host.client for host in listed], {each.host.name: each for each in results}, table=HOSTS_TABLE)
    missing = [found for found in results if found.missing]
    return 1 if any(found.problems for found in results) or (missing and not given.allow_missing) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="scripts/clients --hosts",
        description="Run hosts for people with a stand-in model, in terminals that are driven, against three replicas.",
    )
    parser.add_argument("--hosts", action="store_true", help=argparse.SUPPRESS)  # which is how it comes here
    parser.add_argument("--only", default="", metavar="A,B", help="these hosts, by their names")
    parser.add_argument("--scenarios", default="", metavar="A,B", help="these scenarios of scripts/hosts_scenarios.py")
    parser.add_argument(
        "--database", choices=["sqlite", "postgresql"], default="sqlite", help="what the replicas share"
    )
    parser.add_argument("--patience", type=int, default=0, metavar="S", help="find out, too, who waits that long")
    parser.add_argument(
        "--limit", type=float, default=60, metavar="S", help="how long a host may take for anything; default: 60"
    )
    parser.add_argument("--listed", type=Path, default=HOSTS, metavar="FILE", help="another list of hosts")
    parser.add_argument("--show", action="store_true", help="print the screen of each question")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="write what was found into docs/clients-in-detail.md")
    parser.add_argument("--allow-missing", action="store_true", help="a host that can't be installed is no failure")
    arguments = parser.parse_args()
    if arguments.write and arguments.scenarios:
        parser.error("--write needs all scenarios")
    try:
        sys.exit(asyncio.run(main(arguments)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)
