"""Events in a transaction of the author's own: one is stored, and told to all processes, if that commits."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from inspect import isawaitable
from typing import Any

from ...errors import SetupError
from ...protocol.messages import Change
from ..rows import EventRow
from .database import CLOCK, number_parameters, read_statements, write_parameters
from .events import values_of
from .notify import CHANNEL, KEEP, OF_NOBODY, written

TAKEN = (
    "a connection to the database of the server's store: that of asyncpg, psycopg, sqlite3 or aiosqlite, or a "
    "Connection, AsyncConnection, Session or AsyncSession of SQLAlchemy"
)

_Run = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Any]]]
"""Runs a statement as the files of statements have it, and returns its rows."""


async def add_event_on(connection: Any, row: EventRow) -> bool:
    """Keep an event in the transaction of a connection that is somebody else's; return whether it is new.

    Processes hear of it when that commits; those that reach PostgreSQL through a pooler alone find it at their next
    look. Raises `SetupError` for what is no connection; else what its driver raises.
    """
    run, is_sqlite = await _runs_on(connection)
    given, notice = values_of(row), written(Change("event", row.name))
    if not is_sqlite:
        told = {"channel": CHANNEL, "notice": f"{OF_NOBODY}{notice}"}
        return len(await run(_add_and_tell(), {**given, **told})) > 0
    if not await run(_of_sqlite()["add_event"], given):
        return False
    told_all = {"writer": OF_NOBODY, "notices": json.dumps([notice]), "keep": KEEP, "now": row.created}
    await run(_of_sqlite()["write_notices"], told_all)
    return True


async def _runs_on(connection: Any) -> tuple[_Run, bool]:
    """Return what runs statements on a connection, and whether its database is SQLite."""
    # No library is imported that is not there. The class may be an application's, derived from that of a library.
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if hasattr(connection, "execute"):
        if "sqlalchemy" in libraries:
            dialect = await _dialect_of(connection)
            if dialect in {"sqlite", "postgresql"}:
                is_sqlite = dialect == "sqlite"
                return partial(_run_on_sqlalchemy, connection, is_sqlite), is_sqlite
        elif not libraries.isdisjoint({"sqlite3", "aiosqlite"}):
            return partial(_run_on_cursor, connection, ":{}"), True
        elif "psycopg" in libraries:
            return partial(_run_on_cursor, connection, "%({})s"), False
        elif "asyncpg" in libraries:
            return partial(_run_on_asyncpg, connection), False
    found = type(connection)
    raise SetupError(f"{found.__module__}.{found.__qualname__} can't store an event. Give {TAKEN}")


@cache
def _add_and_tell() -> str:
    statements = read_statements("postgresql")
    return statements["add_event_and_tell"].format(add_event=statements["add_event"])


@cache
def _of_sqlite() -> Mapping[str, str]:
    return read_statements("sqlite")


async def _run_on_asyncpg(connection: Any, statement: str, given: Mapping[str, Any]) -> Sequence[Any]:
    numbered, names = number_parameters(statement, CLOCK)
    rows: Sequence[Any] = await connection.fetch(numbered, *(given[name] for name in names))
    return rows


async def _run_on_cursor(connection: Any, form: str, statement: str, given: Mapping[str, Any]) -> Sequence[Any]:
    """Run a statement where `execute` returns a cursor, at once or later; `form` is that of a parameter."""
    text = statement if form == ":{}" else write_parameters(statement, CLOCK, form.format)
    cursor = await _done(connection.execute(text, given))
    rows: Sequence[Any] = await _done(cursor.fetchall())
    await _done(cursor.close())
    return rows


async def _run_on_sqlalchemy(
    connection: Any, is_sqlite: bool, statement: str, given: Mapping[str, Any]
) -> Sequence[Any]:
    from sqlalchemy import text

    sql = statement if is_sqlite else write_parameters(statement, CLOCK, ":{}".format)
    result = await _done(connection.execute(text(sql), given))
    rows: Sequence[Any] = result.all() if result.returns_rows else ()
    return rows


async def _dialect_of(connection: Any) -> str:
    """Return the name of the dialect of SQLAlchemy that a connection, or a session, uses."""
    used = connection if hasattr(connection, "dialect") else await _done(connection.connection())
    name: str = used.dialect.name
    return name


async def _done(result: Any) -> Any:
    return await result if isawaitable(result) else result
