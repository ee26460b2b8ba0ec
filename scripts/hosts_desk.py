"""A person at a terminal with a host: they tell the model what to call, and answer what the host asks."""

import asyncio
import re
import time
from asyncio import Future
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from demo_fleet import end_session
from hosts_hands import HANDS, Hand
from hosts_model import Model, Order
from hosts_programs import Home
from hosts_scenarios import Scenario
from hosts_terminal import LOOK, NotSeen, Terminal, terminal

CONSIDERS = 1.0
"""How long a person considers a prompt before they send it, in seconds: hosts take faster ones for something pasted."""
CONNECTS = 2.0
"""How long to wait before a host that is still connecting to its servers gets an order again, in seconds."""
QUESTIONS = 12
"""How often a host may draw a question without its fields; a flow has ten rounds."""


class NotStarted(Exception):
    """A host did not start, or did not connect; the message says why."""


class NotAsExpected(Exception):
    """A scenario did not end as it has to; the message says how it ended."""


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario.

    Args:
        ok: True if it came to its end, None if it ended in words for the model, False if it failed.
        said: what the model heard; of a failure, what went wrong.
        cell: what its column says.
        seconds: how long it took.
        drawn: the screen with the question.
    """

    ok: bool | None
    said: str
    cell: str = "FAILS"
    seconds: float = 0
    drawn: str = ""


@dataclass(frozen=True)
class Desk:
    """A person at a terminal, with a host.

    Args:
        home: the host.
        model: its model.
        terminal: where it runs.
        hand: how the person answers; None for a host that draws no questions.
        limit: how long the host may take for anything, in seconds.
        numbers: the numbers of the orders.
    """

    home: Home
    model: Model
    terminal: Terminal
    hand: Hand | None
    limit: float
    numbers: "count[int]"

    async def connect(self) -> None:
        """Wait until the host takes prompts, and offers its model our tools.

        Raises:
            NotSeen: it does not.
        """
        await self.terminal.wait_for(self.home.host.ready, self.limit)
        until = time.monotonic() + self.limit
        while await self._hear(await self._send("shop", "add", {"a": 1, "b": 1})) is None:
            if time.monotonic() > until:
                raise NotSeen(f"The host offers its model no tools. It shows:\n{self.terminal.text}")
            await asyncio.sleep(CONNECTS)

    async def _send(self, server: str, tool: str, arguments: Mapping[str, str | int]) -> Order:
        """Send the model an order."""
        order = Order(next(self.numbers), server, tool, arguments)
        await self.terminal.type(str(order))
        await self.terminal.wait_for(re.escape(str(order)), self.limit)
        await asyncio.sleep(CONSIDERS)
        await self.terminal.press("enter")
        return order

    async def _hear(self, order: Order, more: float = 0) -> str | None:
        """Wait until the model knows what its call returned, and the host shows that it knows.

        Args:
            order: the order.
            more: how long it may take besides the usual, in seconds.

        Returns:
            What the call returned; None if the host offers no such tool.

        Raises:
            NotSeen: the host does not tell the model.
        """
        returned = self.model.returned(order)
        await asyncio.wait([returned], timeout=self.limit + more)
        if not returned.done():
            raise NotSeen(f"The model heard nothing in {self.limit + more:g} s. The host shows:\n{self.terminal.text}")
        if returned.result() is not None:
            await self.terminal.wait_for(order.done, self.limit)
        return returned.result()

    async def play(self, scenario: Scenario, patience: float = 0) -> Outcome:
        """Have the model call a tool, answer what the host asks, and see what the model hears.

        Args:
            scenario: the scenario.
            patience: how long the person takes to answer, in seconds.

        Raises:
            NotSeen: the host does not draw what it should.
            NotAsExpected: the call ends in another way than it should.
        """
        can = scenario.name in self.home.host.can | self.home.host.fails
        self.terminal.seen.clear()
        order = await self._send(scenario.server, scenario.tool, scenario.arguments)
        began = time.monotonic()
        drawn = await self._answer(scenario, self.model.returned(order), patience, can=can)
        said = await self._hear(order, patience)
        seconds = time.monotonic() - began
        outcome = replace(judge(scenario, said, can=can), seconds=seconds, drawn=drawn)
        if not can and scenario.again:
            again = await self._send(
                scenario.server, scenario.then or scenario.tool, scenario.arguments_after(said or "")
            )
            judge(scenario, await self._hear(again), can=True)
            return replace(outcome, cell=scenario.found)
        if can:
            self._check(scenario, drawn)
        return outcome

    def _check(self, scenario: Scenario, drawn: str) -> None:
        """See whether the person was asked as they should."""
        if scenario.message and not drawn:
            raise NotAsExpected(f"The person was not asked: {scenario.message}")
        not_drawn = [text for text in scenario.draws if not any(text in line for line in self.terminal.seen)]
        if not_drawn:
            raise NotAsExpected(f"It does not draw {', '.join(not_drawn)}, but:\n{drawn}")
        if scenario.opens and scenario.opens not in self.home.opened:
            raise NotAsExpected(f"It does not open {scenario.opens}, but {self.home.opened or 'nothing'}")

    async def _answer(self, scenario: Scenario, returned: "Future[str | None]", patience: float, *, can: bool) -> str:
        """Answer the question of a scenario, if it comes; return the screen with it."""
        drawn = ""
        for _ in range(QUESTIONS if scenario.message else 0):
            if not await self._is_asked(scenario.message, returned):
                break
            drawn = self.terminal.text
            await asyncio.wait([returned], timeout=patience)  # the host may give up before the person answers
            if self.hand is None or scenario.act is None or returned.done():
                break
            if can:
                await scenario.act(self.hand)
                break
            await self.hand.wave_through()
            await asyncio.sleep(LOOK)
        return drawn

    async def _is_asked(self, message: str, returned: "Future[str | None]") -> bool:
        """Return whether the host draws a question before the call returns."""
        watch = asyncio.create_task(self.terminal.wait_for(re.escape(message), self.limit))
        either: list[Future[Any]] = [watch, returned]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if returned.done():
            watch.cancel()
            with suppress(asyncio.CancelledError, NotSeen):
                await watch
            return False
        return bool(watch.result())


@asynccontextmanager
async def desk(home: Home, model: Model, limit: float, numbers: "count[int]") -> AsyncIterator[Desk]:
    """Run a host in a terminal until the context ends.

    Args:
        home: the host.
        model: its model.
        limit: how long it may take for anything, in seconds.
        numbers: the numbers of the orders.

    Raises:
        NotStarted: it does not start, or does not connect.
    """
    async with terminal(home.command(), home.work, home.environment) as shown:
        hand = HANDS[home.host.drawn](shown) if home.host.drawn else None
        made = Desk(home, model, shown, hand, limit, numbers)
        try:
            await made.connect()
        except NotSeen as error:
            raise NotStarted(str(error)) from None
        yield made


async def play_alone(home: Home, model: Model, scenario: Scenario, limit: float, order: Order) -> Outcome:
    """Run a host with one prompt, and nobody to ask.

    Args:
        home: the host.
        model: its model.
        scenario: the scenario.
        limit: how long it may take, in seconds.
        order: what the prompt says.

    Raises:
        NotAsExpected: it does not end, or in another way than it should.
    """
    process = await asyncio.create_subprocess_exec(
        *home.command(str(order)),
        cwd=home.work,
        env=home.environment,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate()
    except TimeoutError:
        raise NotAsExpected(f"It did not end within {limit:g} s") from None
    finally:
        await end_session(process)
    returned = model.returned(order)
    if not returned.done():
        raise NotAsExpected(f"The model heard nothing. The host says:\n{output.decode(errors='replace')}")
    return judge(scenario, returned.result(), can=scenario.name in home.host.can)


def judge(scenario: Scenario, said: str | None, *, can: bool) -> Outcome:
    """Return the outcome of a scenario, by what the model heard.

    Args:
        scenario: the scenario.
        said: what the model heard; None if the host offers no such tool.
        can: whether the call comes to its end, or ends in words.

    Raises:
        NotAsExpected: it ended in another way.
    """
    expected = scenario.finishes if can else scenario.words
    if said is None:
        raise NotAsExpected("The host offers its model no such tool")
    if not (heard := re.search(expected, said)):
        raise NotAsExpected(f"The model should hear {expected}, and heard {said}")
    if not can:
        return Outcome(None, said, "no")
    return Outcome(True, said, heard[0] if scenario.quoted else "yes")
