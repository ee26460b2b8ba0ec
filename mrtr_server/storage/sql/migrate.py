"""Upgrade the tables of an older release to those of this one."""

from .urls import open_database


async def upgrade(url: str) -> str:
    """Upgrade a database, or make the tables if there are none, while no other process does either.

    Args:
        url: as for `SQLStore`.

    Returns:
        What was done, in words.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
        StoreUnavailable: it could not be done, and nothing was.
    """
    database = open_database(url)
    try:
        found = await database.upgrade()
    finally:
        await database.close()
    if found == database.version:
        return f"{database.name}: nothing to do, the tables are at version {found}"
    done = f"upgraded from version {found} to" if found else "created the tables, at"
    return f"{database.name}: {done} version {database.version}"


async def script(url: str) -> str:
    """Return what `upgrade` would run, for those who run it by hand: one transaction, and nothing where it is done.

    Args:
        url: as for `SQLStore`. The version of its tables is looked up, and nothing is changed.

    Raises:
        SetupError, StoreUnavailable: as for `upgrade`.
    """
    database = open_database(url)
    try:
        steps = database.steps_from(await database.found_version())
    finally:
        await database.close()
    return "".join(f"{step};\n" for step in ("BEGIN", *steps, "COMMIT")) if steps else ""
