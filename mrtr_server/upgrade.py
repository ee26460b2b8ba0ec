"""Lead the tables of an older release to those of this one."""

from pathlib import Path

from .database import Database
from .errors import SetupError
from .tables import TABLES, VERSIONS

try:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import Connection
except ImportError as error:
    raise SetupError("Upgrading a database needs Alembic: pip install 'mrtr_server[tasks]'") from error

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
        found = await database.upgrade(_migrate)
    finally:
        await database.close()
    if found == VERSIONS[-1]:
        return f"{database.name}: nothing to do, it is at version {found}"
    done = f"from version {found} to" if found else "made, at"
    return f"{database.name}: {done} version {VERSIONS[-1]}"


def _migrate(connection: Connection) -> None:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")
