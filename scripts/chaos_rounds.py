"""Flows of rounds for scripts/chaos: clients that order things, and what is promised to them."""

import secrets
import time
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos_ledger import Ledger
from chaos_outage import Outages
from chaos_wire import Story, Wire, text_of, think

EFFECTS_OF_A_FLOW = 2


class Rounds:
    """Clients who order one thing after the other, each in three rounds.

    Args:
        directory: for the ledger and the store.
        clients: how many at once.
        seconds: how long new flows are started.
        single_use: whether each state is redeemed once, in a shared store.
        stops_only: whether no server is killed, so that nothing may be repeated.
    """

    def __init__(self, directory: Path, clients: int, seconds: float, *, single_use: bool, stops_only: bool) -> None:
        self.problems: list[str] = []
        self.outages: Outages | None = None
        self.timeout = seconds
        self.target = "chaos_single_use:app" if single_use else "chaos_server:app"
        self.environment = {
            "CHAOS_LEDGER": str(directory / "ledger.db"),
            "CHAOS_DATABASE": f"sqlite:///{directory / 'store.db'}",
        }
        self._ledger = Ledger(str(directory / "ledger.db"))
        self._ledger.create()
        self._clients = clients
        self._seconds = seconds
        self._single_use = single_use
        self._stops_only = stops_only
        self._started = 0
        self._finished = 0
        self._wires: list[Wire] = []

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients do."""
        self._wires = [Wire(port) for _ in range(self._clients)]
        until = time.monotonic() + self._seconds
        return [self._run(wire, until) for wire in self._wires]

    async def _run(self, wire: Wire, until: float) -> None:
        while time.monotonic() < until:
            await think()
            intent = secrets.token_hex(8)
            self._started += 1
            story = wire.story = Story()
            try:
                with story.until_told(self.problems, f"the flow {intent}"):
                    text = text_of(await wire.call("order", {"intent": intent}))
            except (LookupError, ValueError) as error:
                self.problems.append(story.tell(f"{type(error).__name__}: {error}"))
            else:
                if text == f"reservation for {intent}, charge for {intent}":
                    self._finished += 1
                else:
                    self.problems.append(story.tell(text))

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        counted = self._ledger.count()
        self._check(counted.effects - counted.duplicated_effects, EFFECTS_OF_A_FLOW * self._finished)
        if self._stops_only and counted.duplicated_effects:
            self.problems.append(f"{counted.duplicated_effects} effects were repeated")
        if self._single_use and counted.duplicated_keyed_effects:
            self.problems.append(f"{counted.duplicated_keyed_effects} effects were repeated though they gave their key")
        return {
            "flows_started": self._started,
            "flows_finished": self._finished,
            "retries": sum(wire.retries for wire in self._wires),
            "handed_over": sum(wire.handed_over for wire in self._wires),
            **asdict(counted),
        }

    def _check(self, found: int, expected: int) -> None:
        if self._finished != self._started or self._started < self._clients:
            self.problems.append(f"{self._finished} flows finished of {self._started} that were started")
        if found < expected:
            self.problems.append(f"an effect is missing: there are {found}, and {expected} were asked for")
