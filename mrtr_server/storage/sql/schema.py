"""The tables of the shared database, and the version that they are of."""

from typing import Any

from ...extras import lacking

try:
    from sqlalchemy import (
        Column,
        ColumnElement,
        Double,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        Table,
        Text,
        delete,
        select,
        text,
    )
    from sqlalchemy.sql.dml import ReturningDelete
except ImportError as error:  # pragma: no cover  tests run with every extra
    raise lacking("A database", "tasks", error) from error

VERSIONS = ("1", "2")
"""Of the tables below, the present one last. Whoever changes them adds a version, and a migration that leads to it."""

TABLES = MetaData()

# Times are seconds since the epoch.
REDEMPTIONS = Table(
    "mrtr_redemptions",
    TABLES,
    Column("state", Text, primary_key=True),
    Column("answers", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("expires", Double, nullable=False, index=True),
    Column("outcome", LargeBinary),
)
KEPT = Table(
    "mrtr_kept",
    TABLES,
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("writer", Text, nullable=False),
    Column("expires", Double, nullable=False, index=True),
)

# The databases use an index on a part only where a query says that part in the same words.
IS_WORKING = text("status = 'working'")
IS_OPEN = text("status IN ('working', 'input_required')")

TASKS = Table(
    "mrtr_tasks",
    TABLES,
    # The fields of a `TaskRow`, in their order.
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("updated", Double, nullable=False),
    Column("ttl", Double, nullable=False),
    Column("poll", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("expires", Double, nullable=False, index=True),
    Column("call", LargeBinary, nullable=False),
    Column("journal", LargeBinary, nullable=False),
    Column("questions", LargeBinary, nullable=False),
    Column("outcome", LargeBinary, nullable=False),
    Column("version", Integer, nullable=False),
    Column("lease", Text, nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    # And who made this version of it.
    Column("writer", Text, nullable=False),
    Index("ix_mrtr_tasks_working", "updated", "name", sqlite_where=IS_WORKING, postgresql_where=IS_WORKING),
    Index("ix_mrtr_tasks_open", "deadline", sqlite_where=IS_OPEN, postgresql_where=IS_OPEN),
)

CHANGES = Table(
    "mrtr_changes",
    TABLES,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("writer", Text, nullable=False),
    Column("said", Text, nullable=False),
    Column("written", Double, nullable=False),
    Column("expires", Double, nullable=False, index=True),
    sqlite_autoincrement=True,  # a number is never used again, not even that of the last one
)


def sweep(table: Table, now: ColumnElement[float], most: int) -> ReturningDelete[tuple[Any]]:
    """Give the statement that removes some of what has expired, and gives the keys."""
    (key,) = table.primary_key
    gone = select(key).where(table.c.expires <= now).order_by(table.c.expires).limit(most)
    # Rows that somebody else is changing are left to them. SQLite, which locks no rows, leaves that out. A table
    # expression, since PostgreSQL might evaluate a plain subquery more than once, and so remove more than the limit.
    removed = gone.with_for_update(skip_locked=True).cte("removed")
    return delete(table).where(key.in_(select(removed.c[key.name]))).returning(key)
