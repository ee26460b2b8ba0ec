"""What scripts/clients --hosts found, as rows: for the terminal, and for docs/clients-in-detail.md."""

from dataclasses import dataclass, field
from typing import Any

from clients_table import NOT_MEASURED, Table, how_long
from hosts_desk import Outcome
from hosts_programs import Host
from hosts_scenarios import SCENARIOS

MARK = "<!-- hosts -->"
HOSTS_TABLE = Table(MARK, MARK, ("host", "version", "speaks", *(each.column for each in SCENARIOS), "waits"))
UNTRIED = Outcome(False, "The host ended before this was tried")


@dataclass
class Found:
    """What became of one host.

    Args:
        host: the host.
        tried: the scenarios that were to be played.
        era: the versions of the protocol in which it called tools.
        outcomes: what became of each scenario, by its name.
        missing: why it could not be installed.
        error: why it did not start.
        patience: how long the person took to answer, in seconds; 0 if that was not tried.
        waited: what became of that.
    """

    host: Host
    tried: list[str]
    era: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: str = ""
    error: str = ""
    patience: float = 0
    waited: Outcome = UNTRIED

    @property
    def problems(self) -> dict[str, str]:
        """What is not as `clients/hosts.toml` says, each with what went wrong."""
        if self.missing or self.error:
            return {"run": self.error} if self.error else {}
        outcomes = {name: self.outcomes.get(name, UNTRIED) for name in self.tried}
        failed = {name: outcome.said for name, outcome in outcomes.items() if outcome.ok is False}
        problems = {name: said for name, said in failed.items() if name not in self.host.fails}
        mended = self.host.fails.intersection(self.tried) - set(failed)
        return problems | dict.fromkeys(mended, "It works, but is listed in `fails`")

    @property
    def waits(self) -> str:
        """How long it waits for the person."""
        return how_long(self.waited.ok, self.waited.seconds, self.patience) if self.patience else NOT_MEASURED

    @property
    def row(self) -> tuple[str, ...]:
        """Its row in the table."""
        named = (self.host.name, self.host.client.version)
        if self.missing:
            return (*named, "not installed", *["" for _ in SCENARIOS], "")
        tried = {name: self.outcomes.get(name, UNTRIED).cell for name in self.tried}
        cells = [tried.get(each.name, "") for each in SCENARIOS]
        return (*named, self.era, *cells, self.waits)

    def as_json(self) -> dict[str, Any]:
        """Return everything that is known."""
        return {
            "host": self.host.name,
            "version": self.host.client.version,
            "era": self.era,
            "missing": self.missing,
            "problems": self.problems,
            "outcomes": {name: vars(outcome) for name, outcome in self.outcomes.items()},
            "waits": self.waits,
            "waited": vars(self.waited),
        }
