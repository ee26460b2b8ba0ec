"""What is counted, whoever reads it: a server has one tally, and telemetry shows what is in it."""

from dataclasses import dataclass

REFUSALS = "mrtr.server.refusals"
"""By the reason, and by the name of the limit where it is one."""

ANSWERS = "mrtr.server.answers"
"""By the kind of the question and by the outcome."""

TAKEOVERS = "mrtr.server.takeovers"
"""Work that another process had begun, by its kind."""

DROPPED = "mrtr.server.results.dropped"
"""Results that are not recorded, by the kind of work."""

TASKS = "mrtr.server.tasks"
"""By the tool and the status that they came to."""

ABANDONED_TASKS = "mrtr.server.tasks.abandoned"
"""Tasks whose answers did not come in time, by the tool."""

DELIVERIES = "mrtr.server.events.deliveries"
"""Messages to webhooks, by what came of them."""


@dataclass(slots=True)
class Count:
    value: int = 0

    def add(self) -> None:
        self.value += 1


class Tally:
    """Counts by name and few labels. Any thread may add: at worst, one of two at the same moment is lost."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, ...], Count]] = {}

    def add(self, name: str, *labels: str) -> None:
        self.count_of(name, *labels).add()

    def count_of(self, name: str, *labels: str) -> Count:
        """Return what counts under a name and labels, for those who count there often."""
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts.setdefault(name, {})
        found = counts.get(labels)
        return counts.setdefault(labels, Count()) if found is None else found

    def of(self, name: str) -> list[tuple[tuple[str, ...], int]]:
        return [(labels, count.value) for labels, count in list(self._counts.get(name, {}).items())]
