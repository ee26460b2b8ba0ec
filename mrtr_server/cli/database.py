"""`mrtr-server db`: manage the database that replicas share."""

import asyncio

import click

from ..errors import MRTRError
from ..storage import ENVIRONMENT as DATABASE
from .keys import ring_of_servers

takes_database = click.option(
    "--database", envvar=DATABASE, required=True, metavar="URL", show_envvar=True, help="The URL of the database."
)
"""Adds the option --database to a command."""


@click.group()
def db() -> None:
    """Manage the database that replicas share."""


@db.command()
@takes_database
@click.option("--sql", is_flag=True, help="Print the statements, and change nothing.")
def upgrade(database: str, sql: bool) -> None:
    """Upgrade the tables to the version of this release; create them if there are none.

    It may be run again, and by several hosts at once. Running servers of the older release continue meanwhile. The
    tables change in one transaction, or not at all. Indexes are made after it, and block nobody; the next run makes one
    again that was interrupted.
    """
    try:
        from ..storage.sql import administration

        if sql:
            click.echo(asyncio.run(administration.script(database.strip())), nl=False)
        else:
            click.echo(asyncio.run(administration.upgrade(database.strip())))
    except MRTRError as error:
        raise click.ClickException(str(error)) from error


@db.command("new-epoch")
@takes_database
def new_epoch(database: str) -> None:
    """Begin another epoch, after the database was restored from a backup, or a failover has lost writes.

    States that are redeemed once, and open calls, name the epoch in which they began. Those of before are refused from
    now on, and their clients begin again: what was redeemed in the lost writes would otherwise be redeemed twice. Tasks
    that had not ended fail, since they may have come further than is known; `mrtr-server tasks retry` continues one.

    Run it before servers and workers use the database again, and once for each copy that is to be used beside this one.
    """
    try:
        from ..storage.sql import administration

        click.echo(asyncio.run(administration.new_epoch(database.strip())))
    except MRTRError as error:
        raise click.ClickException(str(error)) from error


@db.command()
@takes_database
def reseal(database: str) -> None:
    """Seal every row under the first key of MRTR_KEYS, so that the other keys can be removed.

    MRTR_KEYS must hold all keys that rows are sealed under, and every server must seal with the first one already.
    Servers continue meanwhile. It may be ended at any time, and run again.

    The exit code is 0 when every row is sealed under the first key.
    """
    try:
        from ..storage.sql.administration import reseal as reseal_rows

        tables = asyncio.run(reseal_rows(database.strip(), ring_of_servers()))
    except MRTRError as error:
        raise click.ClickException(f"{error}. The resealed rows stay resealed; run the command again") from error
    for table in tables:
        click.echo(f"{table.table}: {table.rows} rows, {table.sealed} resealed")
        if table.left:
            click.echo(f"  {table.left} of them change under another key: first make the new key the first everywhere")
        for reason, rows in table.unopened.items():
            click.echo(f"  {rows} of them do not open: {reason}")
    if not all(table.is_done for table in tables):
        raise click.ClickException("keep the other keys: not every row is sealed under the first one")
