"""Compare this server with its peers, side by side, on one core: `python benchmarks/run.py`."""

import argparse
import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import handshake_load
from contenders import CONTENDERS, ENVIRONMENTS, HERE, NODE, OURS, USUAL
from environments import make_environment, read_versions
from generators import Generator, find_generator
from load import UnexpectedResponseError, check
from processes import Server, choose_cores, find_ports, running
from report import Results, to_json, to_markdown
from scenarios import SCENARIOS

BARE = ("starlette", "asgi")
WARM_UP = 1.0
BUSY = 0.9
"""Below this share, a server was not what the run measured."""


def main() -> int:
    options = read_options()
    # Ends the program as Ctrl-C does, so that the servers are stopped.
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    environments = {CONTENDERS[name].environment for name in options.only}
    pythons = {name: make_environment(name, options.venvs) for name in (*ENVIRONMENTS, *NODE) if name in environments}
    generator = find_generator(next((each for each in pythons.values() if each.suffix != ".mjs"), Path(sys.executable)))
    cores = choose_cores()
    results = Results(
        {
            "load": f"{generator.name}, {options.connections} connections",
            "runs": f"{options.rounds} of {options.seconds:g} s each, interleaved",
            "cores": f"server {cores.server}, load {cores.load}" if cores.server is not None else "not pinned",
        },
        rounds={
            scenario: {name: [] for name in options.only if scenario in CONTENDERS[name].scenarios}
            for scenario in options.scenarios
        },
        versions={name: read_versions(python) for name, python in pythons.items()},
    )
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                running(CONTENDERS[name], pythons[CONTENDERS[name].environment], port, cores.server)
            )
            for name, port in zip(options.only, find_ports(len(options.only)), strict=True)
        }
        for server in servers.values():
            server.wait_until_ready()
        results.notes += compare_answers(servers, options.scenarios)
        run_rounds(results, servers, generator, options)
        results.notes += find_idle(results)
        results.memory_mb = {name: server.memory_mb() for name, server in servers.items()}
    print(to_markdown(results))
    if options.json:
        options.json.write_text(json.dumps(to_json(results), indent=2, ensure_ascii=False) + "\n")
    if results.invalid():
        print(f"\nInvalid, because of errors: {', '.join(results.invalid())}", file=sys.stderr)
    return 1 if results.invalid() else 0


def read_options() -> argparse.Namespace:
    def names(allowed: list[str]) -> Any:
        def read(text: str) -> list[str]:
            chosen = text.split(",")
            if wrong := set(chosen) - set(allowed):
                raise argparse.ArgumentTypeError(f"not one of {', '.join(allowed)}: {', '.join(sorted(wrong))}")
            return [name for name in allowed if name in chosen]

        return read

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one short run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="short runs of each server and scenario (%(default)s)")
    parser.add_argument("--connections", type=int, default=16, help="connections of the load generator (%(default)s)")
    parser.add_argument(
        "--only",
        type=names(list(CONTENDERS)),
        default=list(USUAL),
        metavar="NAME,...",
        help=f"servers to run, of: {', '.join(CONTENDERS)} (without it: {', '.join(USUAL)})",
    )
    parser.add_argument(
        "--scenarios",
        type=names(list(SCENARIOS)),
        default=list(SCENARIOS),
        metavar="NAME,...",
        help=f"scenarios to run, of: {', '.join(SCENARIOS)} (all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE, too")
    parser.add_argument("--venvs", type=Path, default=HERE / ".venvs", help="where the environments are kept")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or options.connections < 1:
        parser.error("--rounds, --seconds and --connections have to be positive")
    return options


def compare_answers(servers: dict[str, Server], scenarios: list[str]) -> list[str]:
    """Check that every server answers rightly, and return a note for each bare app that answers unlike ours."""
    answers: dict[str, dict[str, Any]] = {}
    for name, server in servers.items():
        for scenario in scenarios:
            if scenario in CONTENDERS[name].scenarios:
                answer: dict[str, Any] = {}
                try:
                    if SCENARIOS[scenario].handshake:
                        handshake_load.check(SCENARIOS[scenario], server.port)
                    else:
                        answer = check(SCENARIOS[scenario], server.port)
                except UnexpectedResponseError as error:
                    raise RuntimeError(f"{name} failed in {scenario}: {error}\n{server.read_log()}") from error
                if scenario == "call":
                    answers[name] = answer
    return [
        f"the {CONTENDERS[name].title} answers unlike ours: {json.dumps(answers[name])}, {json.dumps(answers[OURS])}"
        for name in BARE
        if name in answers and OURS in answers and answers[name] != answers[OURS]
    ]


def run_rounds(results: Results, servers: dict[str, Server], generator: Generator, options: argparse.Namespace) -> None:
    """Run every server in turn, as often as asked; each round starts with another one."""
    for number in range(options.rounds + 1):
        warming_up = number == 0
        print("Warming up" if warming_up else f"Round {number} of {options.rounds}", file=sys.stderr)
        seconds = min(WARM_UP, options.seconds) if warming_up else options.seconds
        for scenario, contenders in results.rounds.items():
            able = list(contenders)
            first = number % max(1, len(able))
            for name in able[first:] + able[:first]:
                server = servers[name]
                before = server.cpu_seconds()
                measurement = generator.measure(SCENARIOS[scenario], server.port, seconds, options.connections)
                after = server.cpu_seconds()
                if before is not None and after is not None:
                    measurement = replace(measurement, busy=(after - before) / measurement.seconds)
                if not warming_up:
                    contenders[name].append(measurement)


def find_idle(results: Results) -> list[str]:
    """Return a note for each server that waited for the load generator: its figure is not its own."""
    return [
        f"{name} was busy for only {min(busy):.0%} of a run in {scenario}: the load generator held it back"
        for scenario, contenders in results.rounds.items()
        for name, measurements in contenders.items()
        if (busy := [each.busy for each in measurements if each.busy is not None]) and median(busy) < BUSY
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}")
