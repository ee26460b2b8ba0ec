"""What an operator does to a database: upgrade its tables, check it, and begin another epoch after data was lost."""

from .database import Advice
from .urls import open_database


async def upgrade(url: str) -> str:
    """Upgrade a database, or make the tables if there are none, while no other process does either.

    Args:
        url: as for `SQLStore`.

    Returns:
        What was done, in words.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
        StoreUnavailable: it could not be done. The tables are as they were, or complete but for an index.
    """
    database = open_database(url)
    try:
        found = await database.upgrade()
    finally:
        await database.close()
    if found is None:
        return f"{database.name}: created the tables, at version {database.version}"
    if found.number == database.version:
        return f"{database.name}: nothing to do, the tables are at version {found.number}"
    if found.number not in database.migrations:
        return f"{database.name}: nothing to do, the tables are at the later version {found.number}, which works, too"
    return f"{database.name}: upgraded from version {found.number} to version {database.version}"


async def script(url: str) -> str:
    """Return what `upgrade` would run, for those who run it by hand; nothing where it is done.

    One transaction changes the tables. What follows it makes indexes while others write, each outside of a transaction.

    Args:
        url: as for `SQLStore`. The version of its tables is looked up, and nothing is changed.

    Raises:
        SetupError, StoreUnavailable: as for `upgrade`.
    """
    database = open_database(url)
    try:
        found = await database.found_version()
        steps = database.steps_from(found)
        # Of new tables, they are made with the tables; those of a later release are not ours to make.
        indexes = await database.missing_indexes() if found is not None and found.number in database.migrations else []
    finally:
        await database.close()
    whole = ["BEGIN", *steps, "COMMIT"] if steps else []
    return "".join(f"{step};\n" for step in (*whole, *indexes))


async def review(url: str, processes: int = 1) -> list[Advice]:
    """Return what an operator should know of a database before servers use it.

    Args:
        url: as for `SQLStore`.
        processes: how many are to use it.

    Raises:
        SetupError, StoreUnavailable: it can't be used.
    """
    database = open_database(url)
    try:
        await database.check()
        return await database.review(processes)
    finally:
        await database.close()


async def new_epoch(url: str) -> str:
    """Begin another epoch of a database: what states and tasks name of the one before does not count any more.

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
        epoch = await database.begin_epoch()
    finally:
        await database.close()
    return (
        f"{database.name}: the epoch {epoch} has begun. States of before that are redeemed once are refused, and the "
        "tasks that had not ended have failed: `mrtr-server tasks list --status failed` shows them"
    )
