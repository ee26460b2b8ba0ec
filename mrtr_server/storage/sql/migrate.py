"""Lead the tables of an older release to those of this one."""

from pathlib import Path

from ...extras import lacking
from .database import SCHEMA, Database
from .schema import TABLES, VERSIONS

try:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory
    from sqlalchemy import Connection
except ImportError as error:
    raise lacking("Upgrading a database", "tasks", error) from error

MIGRATIONS = Path(__file__).parent / "migrations"


async def upgrade(url: str) -> str:
    """Upgrade a database, or make the tables if there are none, while no other process does either.

    Parameters:
        url: as for `SQLStore`.

    Returns:
        What was done, in words.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
        StoreUnavailable: it could not be done, and nothing was.
    """
    database = Database(url, TABLES, VERSIONS)
    try:
        found = await database.upgrade(lead)
    finally:
        await database.close()
    if found == VERSIONS[-1]:
        return f"{database.name}: nothing to do, it is at version {found}"
    done = f"from version {found} to" if found else "made, at"
    return f"{database.name}: {done} version {VERSIONS[-1]}"


def lead(connection: Connection, to: str = "head") -> None:
    """Lead the tables from the version that they are of to another, within the transaction of a connection."""
    context = MigrationContext.configure(connection, opts={"version_table": SCHEMA.name})
    steps = ScriptDirectory(str(MIGRATIONS)).iterate_revisions(to, context.get_current_revision() or "base")
    with Operations.context(context):
        for step in reversed(list(steps)):
            step.module.upgrade()
            connection.execute(SCHEMA.update().values(version_num=step.revision))
