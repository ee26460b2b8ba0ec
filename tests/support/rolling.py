"""Replicas of `rolling_app` that are replaced while clients walk flows through them."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrtr_server.testing import Client, Reply, yes

from .forking import Started, start
from .models import Login
from .serving import ROOT, TIMEOUT, is_ready, wait_until, without_settings

APP = "tests.support.rolling_app:app"
FLOW_TEXT = "ann pays 30"
LAME_DUCK = "2"

PASS_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
"""
"""Passes a socket on as systemd does: as the descriptor 3, with the process that it is for."""


@dataclass
class Replica:
    """A server that is started with the command `mrtr-server run`.

    Args:
        port: where it listens.
        log: the file that it writes to.
        listening: a socket that it inherits, as from systemd; None to open its own.
    """

    port: int
    log: Path
    listening: socket.socket | None = None
    process: Started | None = None

    def start(self, *options: str, **environment: str) -> None:
        """Start it, and wait for nothing."""
        arguments = ["run", APP, "--port", str(self.port), *options]
        given = without_settings(MRTR_SHUTDOWN_SECONDS="60", MRTR_SHUTDOWN_LAME_DUCK=LAME_DUCK) | environment
        with self.log.open("ab") as output:
            if self.listening is None:
                how: Any = {"folder": ROOT, "environment": given, "output": output, "python": sys.executable}
                self.process = start("mrtr_server", *arguments, **how)
            else:
                number = self.listening.fileno()
                command = [
                    sys.executable,
                    "-c",
                    PASS_ON,
                    str(number),
                    str(Path(sys.executable).with_name("mrtr-server")),
                ]
                passing: Any = {"stdout": output, "stderr": output, "pass_fds": (number,)}
                self.process = subprocess.Popen([*command, *arguments], cwd=ROOT, env=given, **passing)

    def wait_ready(self) -> None:
        """Wait until it takes calls: this process, and not the one before it at the same socket."""
        process = self.process
        assert process is not None
        line = f"Started server process [{process.pid}]"

        def ready() -> bool:
            assert process.poll() is None, self.text
            _, started, after = self.text.partition(line)
            return bool(started) and "Application startup complete" in after and is_ready(self.port)

        wait_until(ready, f"the replica at {self.port}")

    def stop(self) -> int:
        """Signal it to end, and wait; return its exit code."""
        return self.end(self.process)

    def end(self, process: Started | None) -> int:
        """Signal a process of this replica to end, and wait."""
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    @property
    def text(self) -> str:
        """All that it has logged."""
        return self.log.read_text()


def listening_socket() -> socket.socket:
    """Return a socket that listens, as systemd opens it for a service."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(512)
    return listening


@contextmanager
def running_replicas(
    directory: Path, ports: Sequence[int], sockets: Sequence[socket.socket], environment: dict[str, str]
) -> Iterator[list[Replica]]:
    """Run replicas, each with a port of its own, and end them afterwards.

    Args:
        directory: for their logs.
        ports: where they listen.
        sockets: those that they inherit, if they do.
        environment: variables.
    """
    inherited: Sequence[socket.socket | None] = sockets or [None] * len(ports)
    replicas = [
        Replica(port, directory / f"replica-{port}.log", listening)
        for port, listening in zip(ports, inherited, strict=True)
    ]
    try:
        for replica in replicas:
            replica.start(**environment)
        for replica in replicas:
            replica.wait_ready()
        yield replicas
    finally:
        for replica in replicas:
            if replica.process is not None and replica.process.poll() is None:
                replica.stop()


@dataclass
class Load:
    """Clients that walk flows without a pause.

    Args:
        url: where.
        done: what each flow ended with.
        lost: how a flow failed.
    """

    url: str
    done: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    looks: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def answers_to(self, reply: Reply) -> dict[str, Any]:
        """Return answers to the questions of a reply."""
        answers = {"who": Login(name="ann"), "sure": yes, "age": yes}
        return {key: answers[key] for key in reply.questions}

    def walk(self) -> None:
        """Walk flows until the end."""
        client = Client(self.url)
        while not self._ended.is_set():
            try:
                flow = client.flow("buy", {"item": "tea"})
                reply = flow.start()
                while not reply.complete:
                    reply = flow.answer(self.answers_to(reply))
                self.done.append(reply.text)
            except Exception as error:  # whatever it is, the flow is lost
                self.lost.append(f"{type(error).__name__}: {error}")

    def look(self) -> None:
        """Make plain calls until the end."""
        client = Client(self.url)
        while not self._ended.is_set():
            try:
                client.call("look", {"item": "tea"})
                self.looks += 1
            except Exception as error:
                self.lost.append(f"{type(error).__name__}: {error}")

    def flows_after(self, count: int) -> None:
        """Wait until so many more flows are done."""
        until = len(self.done) + count
        wait_until(lambda: len(self.done) >= until or self.lost, f"{count} flows")

    @contextmanager
    def running(self, walkers: int = 3, lookers: int = 2) -> Iterator["Load"]:
        """Run the clients for as long as the block lasts."""
        work = [self.walk] * walkers + [self.look] * lookers
        threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(TIMEOUT)


def keys_of(*keys: str) -> dict[str, str]:
    """Return the variable of a key ring."""
    return {"MRTR_KEYS": ",".join(keys)}
