"""The ledger of scripts/chaos: what was done for whom, in a file of SQLite that all servers share."""

import os
import random
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass

TIMEOUT = 30.0
"""How long a writer waits for the others, in seconds."""

# The order is what a client meant to do; a flow that begins anew has the same one.
_TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS effects (intent TEXT NOT NULL, effect TEXT NOT NULL, key TEXT UNIQUE);
    CREATE TABLE IF NOT EXISTS refused (key TEXT NOT NULL);
"""


class Ledger:
    """Writes and counts effects.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self) -> None:
        """Make the file."""
        with closing(sqlite3.connect(self._path)) as database:
            database.executescript(_TABLES)

    def write(self, intent: str, effect: str, key: str | None = None) -> str:
        """Have an effect, as a service that knows repetitions by their key, where they have one."""
        dawdle()
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:
            database.execute("PRAGMA synchronous = OFF")  # processes are killed here, not machines
            with database:
                try:
                    database.execute("INSERT INTO effects VALUES (?, ?, ?)", (intent, effect, key))
                except sqlite3.IntegrityError:
                    database.execute("INSERT INTO refused VALUES (?)", (key,))
        dawdle()  # a server that is killed now does not know what it has done
        return f"{effect} for {intent}"

    def count(self) -> "Counted":
        """Count what was done."""
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT)) as database:

            def number(query: str) -> int:
                return int(database.execute(query).fetchone()[0])

            everything = number("SELECT count(*) FROM effects")
            keyed = number("SELECT count(*) FROM effects WHERE key IS NOT NULL")
            distinct = number("SELECT count(*) FROM (SELECT DISTINCT intent, effect FROM effects)")
            distinct_keyed = number(
                "SELECT count(*) FROM (SELECT DISTINCT intent, effect FROM effects WHERE key IS NOT NULL)"
            )
            refused = number("SELECT count(*) FROM refused")
        return Counted(everything, everything - distinct, keyed, keyed - distinct_keyed, refused)


@dataclass(frozen=True)
class Counted:
    """What is in the ledger.

    Args:
        effects: all of them.
        duplicated_effects: those that were there already, for the same intent.
        keyed_effects: those that gave a key.
        duplicated_keyed_effects: those of them that were there already, for the same intent.
        refused_repeats: what had its key there already, and so was not done again.
    """

    effects: int
    duplicated_effects: int
    keyed_effects: int
    duplicated_keyed_effects: int
    refused_repeats: int


def dawdle() -> None:
    """Take a moment, as what has an effect does."""
    time.sleep(random.uniform(0.002, 0.02))  # noqa: S311


def shared() -> Ledger:
    """Return the ledger that the environment names."""
    return Ledger(os.environ["CHAOS_LEDGER"])
