"""Open calls for scripts/chaos: clients that begin with a handshake and order things, and what is promised to them."""

import secrets
import time
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos_ledger import Ledger
from chaos_open_wire import OpenWire
from chaos_outage import Outages
from chaos_rounds import EFFECTS_OF_A_FLOW
from chaos_wire import Story, think


class OpenCalls:
    """Clients who order one thing after the other, in calls that ask twice while they are open.

    An answer whose server is killed while it is posted may be lost, since no client sends one again. Its question then
    expires. Such flows are counted apart.

    Args:
        directory: for the ledger, and for a database of SQLite.
        clients: how many at once.
        seconds: how long new flows are started.
        era: the version that the clients speak.
        database: the URL of another database.
        stops_only: whether no server is killed, so that nothing may be lost or repeated.
    """

    target = "chaos_open_server:app"

    def __init__(
        self, directory: Path, clients: int, seconds: float, era: str, database: str = "", *, stops_only: bool
    ) -> None:
        self.problems: list[str] = []
        self.outages: Outages | None = None
        self.timeout = seconds
        self.environment = {
            "CHAOS_LEDGER": str(directory / "ledger.db"),
            "CHAOS_DATABASE": database or f"sqlite:///{directory / 'store.db'}",
        }
        self._ledger = Ledger(str(directory / "ledger.db"))
        self._ledger.create()
        self._clients = clients
        self._seconds = seconds
        self._era = era
        self._stops_only = stops_only
        self._started = 0
        self._finished = 0
        self._answers_lost = 0
        self._wires: list[OpenWire] = []

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients do."""
        self._wires = [OpenWire(port, self._era) for _ in range(self._clients)]
        until = time.monotonic() + self._seconds
        return [self._run(wire, until) for wire in self._wires]

    async def _run(self, wire: OpenWire, until: float) -> None:
        while time.monotonic() < until:
            await think()
            intent = secrets.token_hex(8)
            self._started += 1
            story = wire.story = Story()
            try:
                with story.until_told(self.problems, f"the call {intent}"):
                    result = await wire.call("order", {"intent": intent})
            except (LookupError, ValueError) as error:
                if isinstance(error, LookupError) and not wire.is_acknowledged:
                    self._answers_lost += 1  # it came back when the question had expired
                    continue
                self.problems.append(story.tell(f"{type(error).__name__}: {error}"))
                continue
            text = result["content"][0]["text"]
            if text == f"reservation for {intent}, charge for {intent}":
                self._finished += 1
            elif result["isError"] and not wire.is_acknowledged:
                self._answers_lost += 1
            else:
                self.problems.append(story.tell(text))

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        counted = self._ledger.count()
        lost = self._started - self._finished - self._answers_lost
        found, expected = counted.effects - counted.duplicated_effects, EFFECTS_OF_A_FLOW * self._finished
        again = counted.duplicated_keyed_effects
        promises = {
            f"{lost} flows were lost of {self._started} that were started": not lost,
            f"only {self._started} flows were started": self._started >= self._clients,
            f"an effect is missing: there are {found}, and {expected} were asked for": found >= expected,
            f"{again} effects were repeated though they gave their key": not again,
        }
        if self._stops_only:
            repeated = counted.duplicated_effects
            promises |= {
                f"{repeated} effects were repeated": not repeated,
                f"{self._answers_lost} answers were lost": not self._answers_lost,
            }
        self.problems += [what for what, held in promises.items() if not held]
        return {
            "flows_started": self._started,
            "flows_finished": self._finished,
            "flows_lost": lost,
            "flows_whose_answer_was_lost": self._answers_lost,
            "answers_not_acknowledged": sum(wire.not_acknowledged for wire in self._wires),
            "streams_resumed": sum(wire.resumed for wire in self._wires),
            "calls_repeated": sum(wire.repeated for wire in self._wires),
            **asdict(counted),
        }
