"""Tasks for scripts/chaos: clients that order things which take their time, and what is promised to them."""

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos_fleet import Strikes
from chaos_outage import Outages
from chaos_task_ledger import STEP_SECONDS, TaskLedger
from chaos_wire import ANSWERS, Story, Wire, text_of, think

TIMEOUT, TASK_TIMEOUT = 240.0, 2.0
"""How long all tasks may take in all, and what is added for each, in seconds. They need far less."""

LONGEST_POLL = 1.0
"""Seconds: a task that waits for somebody else asks its client to look less and less often."""

STATUSES = "SELECT status, count(*) FROM mrtr_tasks GROUP BY status"


class Tasks:
    """Clients who order one thing after the other: a first round asks, a task goes on from there and asks again.

    The tool is single-use, so a call that got no response can be sent again, and is the same task: tasks are counted by
    what their clients meant to start.

    Args:
        directory: for the ledger, and for a database of SQLite.
        clients: how many at once.
        tasks: how many they start in all.
        database: the URL of another database.
        outages: takes it away now and then; None if it stays.
        strikes: knows which servers were struck.
    """

    target = "chaos_task_server:app"
    steps = 4
    """Of a task."""

    def __init__(
        self,
        directory: Path,
        clients: int,
        tasks: int,
        database: str = "",
        outages: Outages | None = None,
        strikes: Strikes | None = None,
    ) -> None:
        self.outages = outages
        self._strikes = strikes or Strikes()
        self.problems: list[str] = []
        self._file = directory / "store.db"
        self._database = database
        self.environment = {
            "CHAOS_LEDGER": str(directory / "ledger.db"),
            "CHAOS_DATABASE": database or f"sqlite:///{self._file}",
        }
        if outages is not None:  # so that many are running when it begins
            self.environment[STEP_SECONDS] = "2"
        self._ledger = TaskLedger(str(directory / "ledger.db"))
        self._ledger.create()
        self.timeout = TIMEOUT + TASK_TIMEOUT * tasks
        self._clients = clients
        self._left = tasks
        self._started = self._ended = 0
        self._ids: set[str] = set()
        self._tasks: dict[str, str] = {}
        self._receipts: dict[str, str] = {}
        self._wires: list[Wire] = []

    def clients(self, port: int) -> list[Coroutine[Any, Any, None]]:
        """Return what the clients do."""
        return self._buying(port)

    def _buying(self, port: int, token: str = "") -> list[Coroutine[Any, Any, None]]:
        tasks: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
        self._wires = [Wire(port, tasks, token) for _ in range(self._clients)]
        return [self._run(wire) for wire in self._wires]

    async def _run(self, wire: Wire) -> None:
        while self._left > 0:
            self._left -= 1
            self._started += 1  # before it thinks, or managers go home while one more is to come
            await think()
            intent = secrets.token_hex(8)
            story = wire.story = Story()
            try:
                with story.until_told(self.problems, f"the task of {intent}"):
                    task = str((await wire.call("order", {"intent": intent}))["taskId"])
                    self._ids.add(task)
                    self._tasks[intent] = task
                    self._receipts[intent] = await self._follow(wire, task)
            except (LookupError, ValueError) as error:
                self.problems.append(story.tell(f"{type(error).__name__}: {error}"))
            finally:
                self._ended += 1

    async def _follow(self, wire: Wire, task: str) -> str:
        answered: set[str] = set()
        while True:
            found = await wire.request("tasks/get", task, {"taskId": task})
            status = found["status"]
            if status == "completed":
                return text_of(found["result"])
            if status == "input_required":
                asked = set(found["inputRequests"])
                if asked & answered:
                    raise ValueError("what has been answered is asked again")
                await think()
                answers = {key: ANSWERS[key] for key in asked}
                await wire.request("tasks/update", task, {"taskId": task, "inputResponses": answers})
                answered |= asked
            elif status == "working":
                await asyncio.sleep(min(found["pollIntervalMs"] / 1000, LONGEST_POLL))
            else:
                raise ValueError(f"a task is {status}: {found.get('error', found.get('statusMessage'))}")

    def report(self) -> dict[str, Any]:
        """Return what has happened, and note what should not have."""
        kept = self._ledger.receipts()
        ended = sum(kept.get(intent) == text for intent, text in self._receipts.items())
        counted = self._ledger.count()
        statuses = self._statuses()
        promises = {
            f"{self._started - ended} tasks did not come to their result": ended == self._started > 0,
            f"{len(self._ids)} tasks were started for {self._started} orders": len(self._ids) == self._started,
            f"the database has {statuses}": statuses == {"completed": self._started},
            f"{counted.recorded_steps} steps were recorded": counted.recorded_steps == self.steps * ended,
            f"{counted.recorded_steps_run_twice} recorded steps ran again": not counted.recorded_steps_run_twice,
            f"{counted.changed_keys} steps changed their idempotency key": not counted.changed_keys,
        }
        outages: dict[str, Any] = {}
        if self.outages is not None:
            away = self._ledger.count_outages(self.outages.were, self._strikes.pids)
            outages = asdict(away)
            again = away.finished_in_outages_run_twice
            promises |= {
                "no step was finished in an outage; let it take longer": away.finished_in_outages > 0,
                f"{again} steps ran again that a worker had finished which saw the outage and lived": not again,
            }
        self.problems += [what for what, held in promises.items() if not held]
        return {
            **outages,
            "tasks_started": self._started,
            "tasks_ended": ended,
            "tasks_lost": self._started - ended,
            **asdict(counted),
            "retries": sum(wire.retries for wire in self._wires),
        }

    def _statuses(self) -> dict[str, int]:
        """Count the tasks of the database, past its store."""
        if self._database:
            return asyncio.run(_fetch(self._database))
        with closing(sqlite3.connect(self._file)) as database:
            return dict(database.execute(STATUSES))


async def _fetch(url: str) -> dict[str, int]:
    import asyncpg  # type: ignore[import-untyped]

    connection = await asyncpg.connect(url)
    try:
        return dict(Counter({row[0]: row[1] for row in await connection.fetch(STATUSES)}))
    finally:
        await connection.close()
