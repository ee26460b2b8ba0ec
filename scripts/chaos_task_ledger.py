"""The ledger of the tasks of scripts/chaos: which step ran when, and when its record was known to be kept."""

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from chaos_ledger import TIMEOUT, dawdle
from chaos_outage import Outage

STEP_SECONDS = "CHAOS_STEP_SECONDS"
"""The variable that says how long a step takes at most, besides, in seconds."""

# One sequence of numbers for all that happens, so that one can tell what came after what.
_TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, intent TEXT NOT NULL, effect TEXT NOT NULL,
        key TEXT, began INTEGER, receipt INTEGER, pid INTEGER, at REAL
    );
    CREATE UNIQUE INDEX IF NOT EXISTS kept_once ON events (intent, effect, receipt) WHERE what = 'kept';
    CREATE VIEW IF NOT EXISTS ran AS SELECT * FROM events WHERE what = 'ran';
    CREATE VIEW IF NOT EXISTS kept AS SELECT * FROM events WHERE what = 'kept';
"""


class TaskLedger:
    """Writes down what steps do, and what of it is recorded.

    Args:
        path: the file, of SQLite.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self) -> None:
        """Make the file."""
        with closing(sqlite3.connect(self._path)) as database:
            database.executescript(_TABLES)

    async def run(self, intent: str, effect: str, key: str) -> int:
        """Have an effect, in a step; return its receipt."""
        # Read here, where nothing is waited for: by the time of the effect, another server may have taken over.
        began = self._last()
        return await asyncio.to_thread(self._have, intent, effect, key, began)

    def _have(self, intent: str, effect: str, key: str, began: int) -> int:
        dawdle()
        ran = "INSERT INTO events (what, intent, effect, key, began, pid, at) VALUES ('ran', ?, ?, ?, ?, ?, ?)"
        receipt = self._write(ran, intent, effect, key, began, os.getpid(), time.time())
        dawdle()  # a server that is killed now does not know what it has done
        time.sleep(random.uniform(0, float(os.environ.get(STEP_SECONDS, "0"))))  # noqa: S311
        finished = "INSERT INTO events (what, intent, effect, receipt, pid, at) VALUES ('finished', ?, ?, ?, ?, ?)"
        self._write(finished, intent, effect, receipt, os.getpid(), time.time())
        return receipt

    def _last(self) -> int:
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:
            return int(database.execute("SELECT ifnull(max(number), 0) FROM events").fetchone()[0])

    def keep(self, intent: str, effect: str, receipt: int) -> None:
        """Note that a step has given its receipt, so that it is recorded. Again and again, as the tool is re-run."""
        self._write(
            "INSERT OR IGNORE INTO events (what, intent, effect, receipt) VALUES ('kept', ?, ?, ?)",
            *(intent, effect, receipt),
        )

    def _write(self, statement: str, *values: object) -> int:
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:
            database.execute("PRAGMA synchronous = OFF")  # processes are killed here, not machines
            with database:
                return int(database.execute(statement, values).lastrowid or 0)

    def receipts(self) -> dict[str, str]:
        """Return the receipts that were kept for each intent, by the effects' names, as its task gives them."""
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:
            found = database.execute("SELECT intent, receipt FROM kept ORDER BY intent, effect, receipt").fetchall()
        texts: dict[str, list[str]] = {}
        for intent, receipt in found:
            texts.setdefault(intent, []).append(str(receipt))
        return {intent: ", ".join(receipts) for intent, receipts in texts.items()}

    def count_outages(self, outages: Sequence[Outage], struck: Mapping[int, float]) -> "CountedOutages":
        """Count the steps that were finished while the database was away.

        Args:
            outages: when it was.
            struck: when a process was stopped or killed, by its number.
        """
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:
            query = "SELECT number, intent, effect, pid, at FROM events WHERE what = ? ORDER BY number"
            finished = database.execute(query, ("finished",)).fetchall()
            ran = database.execute(query, ("ran",)).fetchall()
        steps, again = 0, 0
        for number, intent, effect, pid, at in finished:
            during = [each for each in outages if each.began <= at <= each.ended]
            if not all(struck.get(pid, each.struck_again) >= each.struck_again for each in during) or not during:
                continue
            steps += 1
            later = (each for each in ran if each[0] > number and each[1:3] == (intent, effect))
            again += any(struck.get(pid, each[4]) >= each[4] for each in later)
        return CountedOutages(len(outages), steps, again)

    def count(self) -> "Counted":
        """Count what was done."""
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:

            def number(query: str) -> int:
                return int(database.execute(query).fetchone()[0])

            ran = number("SELECT count(*) FROM ran")
            recorded = number("SELECT count(*) FROM (SELECT DISTINCT intent, effect FROM kept)")
            again = number(
                "SELECT count(*) FROM ran WHERE began >= (SELECT min(kept.number) FROM kept "
                "WHERE kept.intent = ran.intent AND kept.effect = ran.effect)"
            )
            replaced = number("SELECT count(*) FROM kept") - recorded
            keys = number("SELECT count(*) FROM (SELECT DISTINCT intent, effect, key FROM ran)")
            effects = number("SELECT count(*) FROM (SELECT DISTINCT intent, effect FROM ran)")
        return Counted(recorded, max(again, replaced), ran - recorded - again, keys - effects)


@dataclass(frozen=True)
class CountedOutages:
    """What the ledger says of outages.

    Args:
        outages: how often the database was away.
        finished_in_outages: steps that were finished meanwhile, by a worker that lived until all had come back.
        finished_in_outages_run_twice: those of them that ran again.
    """

    outages: int
    finished_in_outages: int
    finished_in_outages_run_twice: int


@dataclass(frozen=True)
class Counted:
    """What is in the ledger.

    Args:
        recorded_steps: steps whose result their task had.
        recorded_steps_run_twice: runs of such a step that began after that.
        interrupted_steps: runs that began before that, and whose server was killed, or taken for dead, in the middle.
        changed_keys: idempotency keys that a step had besides its first one.
    """

    recorded_steps: int
    recorded_steps_run_twice: int
    interrupted_steps: int
    changed_keys: int


def shared() -> TaskLedger:
    """Return the ledger that the environment names."""
    return TaskLedger(os.environ["CHAOS_LEDGER"])
