"""Which process is woken for a task that comes: one that has room for it, not all of them."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...concurrency.waiting import Wakes
from .notify import Notices

WORK = "work"  # the notice that there may be something to claim: for all, or `work PROCESS TOOL` for one
ROOM = "room"  # `room PROCESS`: it has room, and hears what is for it alone
FULL = "full"  # `full PROCESS`: it has none

COUNTS = 30.0  # seconds that a process counts as one with room: it may have died
SAY_AGAIN = 10.0  # seconds until it says so again, about
BETWEEN = 0.05  # seconds from a claim that left room until its process waits again, at most


class TaskWakes:
    """Wakes workers for tasks: those here, and one process elsewhere.

    Processes say by notices that they have room. Who stores a task for others draws one of them by lot, and names it. A
    process that is named and has no room passes that on, and says so. If none is known to have room, all are woken.
    A notice that is lost, or names a process that has died, costs only time: every worker also looks by itself.
    """

    def __init__(self, notices: Notices) -> None:
        self.here = Wakes()
        self._notices = notices
        self._carries = notices.database.notifies
        self._roomy: dict[str, float] = {}
        """Other processes with room, until when that counts, by the monotonic clock."""
        self._waits: list[Sequence[str]] = []  # the tools that each wait here is for
        self._claims = 0
        self._waits_soon = 0.0  # until then a claim that left room counts as a wait
        self._say_again = 0.0
        self._was_named = False  # since the last claim
        self._has_missed = False
        notices.subscribe(self._on_notice, self._on_gap)

    def wake(self, tool: str) -> None:
        """Wake workers here, and one process elsewhere, for a task of a tool."""
        self.here.set()
        if self._carries:
            self._notices.publish(self._address(tool))

    @contextmanager
    def waiting(self, tools: Sequence[str]) -> Iterator[None]:
        """Note that a worker waits for tasks of these tools, and let others know."""
        self._waits.append(tools)
        if self._carries and time.monotonic() >= self._say_again:
            self._say_again = time.monotonic() + SAY_AGAIN * random.uniform(0.5, 1.0)  # noqa: S311  for no secret
            self._notices.publish(f"{ROOM} {self._notices.writer}")
        try:
            yield
        finally:
            self._waits.remove(tools)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Note that a worker claims: it sees what comes meanwhile, or does not wait after that."""
        self.here.clear()
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1

    def claimed(self, last: str, *, all_: bool) -> None:
        """Note the tool of the last task of a claim, and whether it took all there were."""
        was_named, self._was_named = self._was_named, False
        if all_:
            self._waits_soon = time.monotonic() + BETWEEN
            return
        self.here.set()
        if was_named:  # there may be more than this process has room for
            self._notices.publish(self._address(last))

    def withdraw(self) -> None:
        """Let others know that this process has no room any more."""
        if self._say_again:
            self._say_again = 0.0
            self._notices.publish(f"{FULL} {self._notices.writer}")

    def take_missed(self) -> bool:
        """Return whether notices may have been missed since the last call."""
        missed, self._has_missed = self._has_missed, False
        return missed

    def _address(self, tool: str) -> str:
        now = time.monotonic()
        # Notices come in a thread of their own: `list` is one step, which no other thread interrupts.
        roomy = [process for process, until in list(self._roomy.items()) if until > now]
        return f"{WORK} {random.choice(roomy)} {tool}" if roomy else WORK  # noqa: S311  for no secret

    def _on_notice(self, notices: Sequence[str]) -> None:
        for notice in notices:
            word, _, rest = notice.partition(" ")
            process, _, tool = rest.partition(" ")
            if notice == WORK:
                self.here.set()
            elif word == WORK and process == self._notices.writer:
                self._on_named(tool)
            elif word == ROOM:
                now = time.monotonic()
                self._roomy = {each: until for each, until in self._roomy.items() if until > now}
                self._roomy[process] = now + COUNTS
            elif word == FULL:
                self._roomy.pop(process, None)

    def _on_named(self, tool: str) -> None:
        is_soon = self._claims or time.monotonic() < self._waits_soon
        if is_soon or any(tool in tools for tools in list(self._waits)):
            self._was_named = True
            self.here.set()
        else:
            self.withdraw()
            self._notices.publish(self._address(tool))

    def _on_gap(self) -> None:
        self._has_missed = True
        self.here.set()
