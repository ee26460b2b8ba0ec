"""What is counted, whoever reads it: a server has one tally, and telemetry shows what is in it."""

REFUSALS = "mrtr.server.refusals"
"""Requests that were refused, by the reason, and by the name of the limit where it is one."""

ANSWERS = "mrtr.server.answers"
"""The outcomes of questions, by the kind of the question and by the outcome."""

TAKEOVERS = "mrtr.server.takeovers"
"""Work that another process had begun, by its kind."""

DROPPED = "mrtr.server.results.dropped"
"""Results that are not recorded, by the kind of work."""

TASKS = "mrtr.server.tasks"
"""Tasks that came to a status, by the tool and the status."""

ABANDONED_TASKS = "mrtr.server.tasks.abandoned"
"""Tasks whose answers did not come in time, by the tool."""


class Count:
    """How often something was counted under the same labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> None:
        """Count one."""
        self.value += 1


class Tally:
    """Counts by name and labels. Each name has few labels, and none that a client can choose freely.

    Safe to add to on any thread: at worst, one of two that are added at the same moment is lost.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, ...], Count]] = {}

    def add(self, name: str, *labels: str) -> None:
        """Count one."""
        self.count_of(name, *labels).add()

    def count_of(self, name: str, *labels: str) -> Count:
        """Return what counts under a name and labels, for those who count there often."""
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts.setdefault(name, {})
        found = counts.get(labels)
        return counts.setdefault(labels, Count()) if found is None else found

    def of(self, name: str) -> list[tuple[tuple[str, ...], int]]:
        """Return the counts of a name, with their labels."""
        return [(labels, count.value) for labels, count in list(self._counts.get(name, {}).items())]
