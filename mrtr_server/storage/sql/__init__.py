"""Stores in databases: SQLite in a file on one machine, PostgreSQL for a fleet."""

import os
import time
from collections.abc import Callable, Mapping

from ...errors import SetupError
from .database import DIRECT, Database
from .sqlite import SQLiteDatabase
from .urls import kind_of, name_of, path_of


def open_database(
    url: str, clock: Callable[[], float] = time.time, environment: Mapping[str, str] = os.environ
) -> Database:
    """Return the database of a URL, which connects when it is first used. Raises `SetupError` without the URL."""
    kind, rest = kind_of(url.strip())
    if kind == "sqlite":
        return SQLiteDatabase(path_of(rest), clock)
    url = f"postgresql:{rest}"
    name = name_of(url)
    direct = environment.get(DIRECT, "").strip()
    if direct:
        direct_kind, rest_of_direct = kind_of(direct)
        if direct_kind != kind:
            raise SetupError(f"{DIRECT} must be a postgresql:// URL of the same database")
        direct = f"postgresql:{rest_of_direct}"
        name_of(direct)  # or it can't be read
    from .postgresql import PostgreSQLDatabase

    return PostgreSQLDatabase(url, name, direct or None, clock)
