"""The command `mrtr-server`."""

import asyncio
import secrets

import click

from ._version import __version__
from .errors import MRTRError
from .keys import KEY_BYTES
from .stores import ENVIRONMENT as DATABASE


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for operators of MCP servers built with mrtr_server."""


@main.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS."""
    click.echo(secrets.token_hex(KEY_BYTES))


@main.group()
def db() -> None:
    """Look after the database that replicas share."""


@db.command()
@click.option("--database", envvar=DATABASE, required=True, metavar="URL", help=f"The database; {DATABASE} by default.")
def upgrade(database: str) -> None:
    """Bring the tables to the version that this release works with; make them if there are none.

    It is all or nothing, and may be run again. Servers of the older release go on working meanwhile.
    """
    try:
        from .upgrade import upgrade

        click.echo(asyncio.run(upgrade(database.strip())))
    except MRTRError as error:
        raise click.ClickException(str(error)) from error
