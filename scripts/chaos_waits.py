"""Waits for scripts/chaos: what clients order waits for a manager. Two are at work, and only one may decide on each."""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from chaos_tasks import Tasks
from chaos_wire import Story, Wire, text_of

BUYER, MANAGERS = "bea", ("eve", "max")
LOOK_EVERY = 0.5
"""Seconds between two looks of a manager at what waits."""

REFUSED = ("answered this already", "can't be answered any more")
"""What a manager is told who comes second."""


class Waits(Tasks):
    """Clients who order one thing after the other, and managers who decide on all that waits, at the same time.

    A manager who gets no response sends the same round again, and is told what came of it.
    """

    target = "chaos_wait_server:app"
    steps = 2

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients and the managers do."""
        buying = self._buying(port, BUYER)
        self._managing = [Wire(port, token=each) for each in MANAGERS]
        self._decided: dict[str, str] = {}
        self._told: dict[str, list[str]] = defaultdict(list)
        return [*buying, *map(self._manage, self._managing)]

    async def _follow(self, wire: Wire, task: str) -> str:
        receipts, _, by = (await super()._follow(wire, task)).partition(" by ")
        self._decided[task] = by
        return receipts

    async def _manage(self, wire: Wire) -> None:
        known = set[str]()
        while self._left > 0 or self._ended < self._started:
            found = await wire.call("approvals", {})
            if found["isError"]:
                raise ValueError(f"a manager was told: {text_of(found)}")
            new = [each for each in found["structuredContent"] if each["intent"] not in known]
            known |= {each["intent"] for each in new}
            await asyncio.gather(*(self._decide(wire, **each) for each in new))
            await asyncio.sleep(LOOK_EVERY)

    async def _decide(self, shared: Wire, intent: str, ticket: str) -> None:
        wire = Wire(shared.port, token=shared.token)
        story = wire.story = Story()
        try:
            with story.until_told(self.problems, f"the approval of {intent}"):
                text = text_of(await wire.call("approve", {"ticket": ticket}))
            if text == "approved":
                self._told[intent].append(wire.token)
            elif not any(each in text for each in REFUSED):
                self.problems.append(story.tell(f"a manager was told: {text}"))
        except (LookupError, ValueError) as error:
            self.problems.append(story.tell(f"{type(error).__name__}: {error}"))
        shared.retries += wire.retries

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        report = super().report()
        decided = {intent: self._decided[task] for intent, task in self._tasks.items() if task in self._decided}
        twice = sum(len(told) > 1 for told in self._told.values())
        others = sum(told != [decided.get(intent)] for intent, told in self._told.items())
        promises = {
            f"{twice} waits were answered twice": not twice,
            f"{others} waits have another answer than the manager was told": not others,
        }
        self.problems += [what for what, held in promises.items() if not held]
        return report | {
            "waits_answered": len(decided),
            "waits_answered_twice": twice,
            "managers_not_told": len(decided) - len(self._told),
            "retries_of_managers": sum(wire.retries for wire in self._managing),
        }
