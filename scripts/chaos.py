"""What scripts/chaos runs: clients, a front, servers, and what stops, kills and restarts the servers meanwhile."""

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from chaos_ledger import Counted, Ledger

ROOT = Path(__file__).resolve().parent.parent

THINKING = (0.2, 1.0)
"""How long a person thinks about an answer, in seconds."""

STRIKES = (0.3, 1.2)
"""How long the servers are left alone between two strikes, in seconds."""

BACKOFF = (0.05, 2.0)
"""How long a client waits before it tries again: the first time, and at most, in seconds."""

REQUEST_PATIENCE = 30.0
START_PATIENCE = 30.0
STOP_PATIENCE = 20.0
FINISH_PATIENCE = 60.0
"""How long flows may take to finish once no more are started, in seconds."""

EFFECTS_OF_A_FLOW = 2
ANSWERS: dict[str, Any] = {
    "wish": {"action": "accept", "content": {"item": "a kettle"}},
    "confirm": {"action": "accept", "content": {"confirm": True}},
}


@dataclass
class Tally:
    """What happened, as the clients and the striker saw it.

    Parameters:
        flows_started, flows_finished: what clients meant to do, and what came to its end.
        retries: requests that were sent again, since there was no response or one that said to come back.
        handed_over: rounds that ended with a state and no question.
        terminated, killed: servers that were told to end, and that were ended.
        stuck: servers that did not end in time when they were told to.
        problems: what should not have happened.
    """

    flows_started: int = 0
    flows_finished: int = 0
    retries: int = 0
    handed_over: int = 0
    terminated: int = 0
    killed: int = 0
    stuck: int = 0
    problems: list[str] = field(default_factory=list)


# Servers


class Server:
    """A server process at a port of its own, again and again.

    Parameters:
        port: where it listens.
        target: the import string of its application.
        environment: its variables.
        log: the file for its output.
    """

    def __init__(self, port: int, target: str, environment: dict[str, str], log: IO[bytes]) -> None:
        self.port = port
        self.up = False
        self._command = [sys.executable, "-m", "uvicorn", target, "--app-dir", "scripts", "--port", str(port)]
        self._environment = environment
        self._log = log
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens. Raises `RuntimeError` if it does not."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--no-access-log", "--ws", "none", "--log-level", "warning"),
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that Ctrl-C reaches us alone, and we end it
        )
        async with asyncio.timeout(START_PATIENCE):
            while not await listens(self.port):
                if self._process.returncode is not None:
                    raise RuntimeError(f"the server at port {self.port} ended with {self._process.returncode}")
                await asyncio.sleep(0.05)
        self.up = True

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.up = False
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> bool:
        """Wait for its end, and bring it about if that takes too long; say whether it came by itself."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                await self._process.wait()
        except TimeoutError:
            return False
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        return True


async def listens(port: int) -> bool:
    """Say whether somebody listens at a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def free_ports(count: int) -> list[int]:
    """Find ports that nobody has, and below those that the system gives to connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)  # noqa: S311
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


@asynccontextmanager
async def front(ports: list[int], port: int) -> AsyncIterator[None]:
    """Run the front in a process of its own. It tries another server only where no connection could be made."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.round_robin", *map(str, ports), "--port", str(port)),
        cwd=ROOT,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None  # noqa: S101  it is a pipe
    reading = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(START_PATIENCE):
            while not await listens(port):
                if process.returncode is not None:
                    raise RuntimeError(f"the front ended: {(await reading).decode()}")
                await asyncio.sleep(0.05)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def strike(servers: list[Server], signals: list[signal.Signals], tally: Tally) -> None:
    """Stop or kill one server after the other, and start it again; until cancelled. Two are always left alone."""
    restarting: set[asyncio.Task[None]] = set()
    try:
        while True:
            await asyncio.sleep(random.uniform(*STRIKES))  # noqa: S311
            for task in [task for task in restarting if task.done()]:
                restarting.remove(task)
                await task
            up = [server for server in servers if server.up]
            if len(up) <= 2:
                continue
            number = random.choice(signals)  # noqa: S311
            server = random.choice(up)  # noqa: S311
            server.send(number)
            if number is signal.SIGKILL:
                tally.killed += 1
            else:
                tally.terminated += 1
            restarting.add(asyncio.create_task(restart(server, tally)))
    finally:
        for task in restarting:
            task.cancel()
        await asyncio.gather(*restarting, return_exceptions=True)


async def restart(server: Server, tally: Tally) -> None:
    """Wait until a server has ended, and start it again."""
    if not await server.ended():
        tally.stuck += 1
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await server.start()


# Clients


class NoResponse(Exception):
    """There was no whole response, or one that says to come back later."""


async def post(port: int, body: bytes, name: str) -> dict[str, Any]:
    """Send a request on a connection of its own; give the JSON of the response. Raises `NoResponse`."""
    head = (
        "POST /mcp HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(REQUEST_PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode() + body)
                received = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise NoResponse(type(error).__name__) from None
    start, _, content = received.partition(b"\r\n\r\n")
    lines = start.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), -1)
    if length != len(content):
        raise NoResponse("cut off")
    status = int(lines[0].split()[1])
    if status >= 500 or status == 429:
        raise NoResponse(str(status))
    reply: dict[str, Any] = json.loads(content)
    return reply


class Client:
    """A client that orders things, one after the other, and sends again what got no response.

    Parameters:
        port: of the front.
        tally: counts what happens.
    """

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    async def run(self, until: float) -> None:
        """Order until a time is reached; then finish what was begun."""
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(*THINKING))  # noqa: S311
            intent = secrets.token_hex(8)
            self._tally.flows_started += 1
            try:
                text = await self._order(intent)
            except (LookupError, ValueError) as error:
                self._tally.problems.append(f"{type(error).__name__}: {error}")
            else:
                if text == f"reservation for {intent}, charge for {intent}":
                    self._tally.flows_finished += 1
                else:
                    self._tally.problems.append(text)

    async def _order(self, intent: str) -> str:
        params: dict[str, Any] = {
            "name": "order",
            "arguments": {"intent": intent},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
            },
        }
        while True:
            reply = await self._send(params)
            if "error" in reply:
                raise LookupError(f"refused: {reply['error']}")
            result = reply["result"]
            if result["resultType"] == "complete":
                return str(result["content"][0]["text"])
            params.pop("inputResponses", None)
            params["requestState"] = result["requestState"]
            if asked := result.get("inputRequests"):
                await asyncio.sleep(random.uniform(*THINKING))  # noqa: S311
                params["inputResponses"] = {key: ANSWERS[key] for key in asked}
            else:
                self._tally.handed_over += 1

    async def _send(self, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        wait, longest = BACKOFF
        while True:
            try:
                return await post(self._port, body, "order")
            except NoResponse:
                self._tally.retries += 1
            await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311
            wait = min(wait * 2, longest)


# All of it


async def play(given: argparse.Namespace, directory: Path, tally: Tally) -> Counted:
    """Run everything for as long as it was told to; give what is in the ledger then."""
    ledger = Ledger(str(directory / "ledger.db"))
    ledger.create()
    keygen = [str(Path(sys.executable).with_name("mrtr-server")), "keygen"]
    made = subprocess.run(keygen, check=True, capture_output=True, text=True)  # noqa: S603, ASYNC221  nothing runs yet
    environment = {name: value for name, value in os.environ.items() if name != "WEB_CONCURRENCY"} | {
        "MRTR_KEYS": made.stdout.strip(),
        "CHAOS_LEDGER": str(directory / "ledger.db"),
        "CHAOS_DATABASE": f"sqlite:///{directory / 'store.db'}",
    }
    target = "chaos_single_use:app" if given.single_use else "chaos_server:app"
    names = {"term": [signal.SIGTERM], "kill": [signal.SIGKILL], "both": [signal.SIGTERM, signal.SIGKILL]}
    entrance, *ports = free_ports(given.processes + 1)
    with (directory / "log").open("ab") as log:
        servers = [Server(port, target, environment, log) for port in ports]
        try:
            await servers[0].start()  # alone, since it may have tables to make
            await asyncio.gather(*(server.start() for server in servers[1:]))
            async with front(ports, entrance):
                until = time.monotonic() + given.seconds
                striking = asyncio.create_task(strike(servers, names[given.signal], tally))
                clients = [asyncio.create_task(Client(entrance, tally).run(until)) for _ in range(given.clients)]
                done, late = await asyncio.wait(clients, timeout=given.seconds)
                if not striking.done():
                    striking.cancel()
                await asyncio.wait([striking])
                if not striking.cancelled() and (error := striking.exception()):
                    tally.problems.append(f"restarting failed: {error}")
                if late:
                    further, late = await asyncio.wait(late, timeout=FINISH_PATIENCE)
                    done |= further
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
                tally.problems += [f"a client failed: {error!r}" for task in done if (error := task.exception())]
        finally:
            for server in servers:
                server.send(signal.SIGTERM)
            tally.stuck += (await asyncio.gather(*(server.ended() for server in servers))).count(False)
    return ledger.count()


def broken(given: argparse.Namespace, tally: Tally, counted: Counted) -> list[str]:
    """Give the promises that have not held."""
    expected = EFFECTS_OF_A_FLOW * tally.flows_finished
    wrong = list(tally.problems)
    if tally.flows_finished != tally.flows_started or tally.flows_started < given.clients:
        wrong.append(f"{tally.flows_finished} flows finished of {tally.flows_started} that were started")
    if tally.stuck:
        wrong.append(f"{tally.stuck} servers did not end when they were told to")
    if not tally.terminated + tally.killed:
        wrong.append("no server was stopped or killed; give it more --seconds")
    if counted.effects - counted.duplicated_effects < expected:
        wrong.append(f"an effect is missing: there are {counted.effects}, and {expected} were asked for")
    if given.signal == "term" and counted.duplicated_effects:
        wrong.append(f"{counted.duplicated_effects} effects were repeated")
    if given.single_use and counted.duplicated_keyed_effects:
        wrong.append(f"{counted.duplicated_keyed_effects} effects were repeated though they gave their key")
    return wrong


async def main(given: argparse.Namespace) -> int:
    """Run it; give the exit code."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  we are in it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    print(
        f"{given.clients} clients, {given.processes} servers, {given.seconds:g} s; signals: {given.signal}; "
        f"{'single use' if given.single_use else 'no store'}",
        flush=True,
    )
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="mrtr-chaos-") as scratch:
        directory = Path(scratch)
        try:
            async with asyncio.timeout(given.seconds + 4 * START_PATIENCE + FINISH_PATIENCE):
                counted = await play(given, directory, tally)
        except asyncio.CancelledError:
            print("Ended before its time; the servers have ended, too.", file=sys.stderr)
            return 130
        except (RuntimeError, TimeoutError) as error:
            print(f"{type(error).__name__}: {error}\n{tail(directory / 'log')}", file=sys.stderr)
            return 1
        wrong = broken(given, tally, counted)
        if wrong:
            print(f"The servers said last:\n{tail(directory / 'log')}", file=sys.stderr)
    for each in wrong[:10]:
        print(f"BROKEN: {each}", file=sys.stderr)
    report = {**asdict(tally), **asdict(counted), "problems": len(tally.problems), "promises_hold": not wrong}
    sys.stderr.flush()
    print(json.dumps(report), flush=True)
    return 1 if wrong else 0


def tail(log: Path) -> str:
    """Give the end of a log."""
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Stop, kill and restart servers while clients are at work.")
    parser.add_argument("--seconds", type=float, default=60, help="how long new flows are started (default: 60)")
    parser.add_argument("--clients", type=int, default=200, help="how many at once (default: 200)")
    parser.add_argument("--processes", type=int, default=4, help="how many servers; 3 or more (default: 4)")
    parser.add_argument("--signal", choices=["term", "kill", "both"], default="both", help="what ends them")
    parser.add_argument("--single-use", action="store_true", help="redeem each state once, in a shared database")
    options = parser.parse_args()
    if options.processes < 3:
        parser.error("--processes must be 3 or more: two are always left alone")
    sys.exit(asyncio.run(main(options)))
