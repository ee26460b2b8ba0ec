"""The command `mrtr-server`."""

import asyncio
import logging
import os
import secrets
import signal
import sys
from pkgutil import resolve_name
from types import FrameType
from typing import Any

import click

from ._version import __version__
from .concurrency.shutdown import end_process_in_time
from .crypto.keys import ENVIRONMENT as KEYS
from .crypto.keys import KEY_BYTES, KeyRing
from .errors import MRTRError, SetupError
from .server import MRTRServer
from .storage.factory import ENVIRONMENT as DATABASE
from .transport.standard_streams import take_standard_streams


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for operators of MCP servers built with mrtr_server."""


@main.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS: 64 hex digits."""
    click.echo(secrets.token_hex(KEY_BYTES))


_app = click.argument("app", metavar="MODULE:APP")
_app_dir = click.option(
    "--app-dir",
    default="",
    metavar="PATH",
    help="The folder in which to look for MODULE; the working directory by default.",
)


@main.command()
@_app
@_app_dir
def stdio(app: str, app_dir: str) -> None:
    """Serve MODULE:APP to one client over stdio.

    This is the command for the configuration of a desktop client, which starts it by itself and speaks to it over
    standard input and output. MODULE:APP is an MRTRServer. It needs no keys and no database.

    It ends when the client closes standard input, or at SIGTERM or Ctrl-C. Requests that still run have
    MRTR_SHUTDOWN_SECONDS to end, or until the next signal.
    """
    try:
        take_standard_streams()  # before the module prints anything
        logging.basicConfig(format="%(levelname)s:     %(message)s")
        sys.path.insert(0, app_dir)
        _load(app).run_stdio()
    except SetupError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@_app
@_app_dir
def worker(app: str, app_dir: str) -> None:
    """Run the tasks of MODULE:APP, an MRTRServer.

    It serves no requests. It needs the database and the keys of its servers: in MRTR_DATABASE_URL and MRTR_KEYS, unless
    the code gives them.

    SIGTERM or Ctrl-C ends it: tasks are handed back at their next step, ask or checkpoint, and continue in other
    workers. What has not ended after MRTR_SHUTDOWN_SECONDS is abandoned. A second signal ends it at once.
    """
    logging.basicConfig(format="%(levelname)s:     %(message)s")
    sys.path.insert(0, app_dir)
    server = _load(app)
    try:
        asyncio.run(_work(server))
    except SetupError as error:
        raise click.ClickException(str(error)) from None
    click.echo("Ended", err=True)


def _load(name: str) -> MRTRServer:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.ClickException(f"{name!r} must be a module and the server in it, such as weather:app")
    try:
        found = resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is the module itself that imports what is not there
        raise click.ClickException(
            f"There is no module {module!r} in {os.path.abspath(sys.path[0])} or where Python looks. "
            "--app-dir names the folder that it is in"
        ) from None
    except AttributeError:
        raise click.ClickException(f"The module {module!r} has no {attribute!r}") from None
    except (SetupError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if not isinstance(found, MRTRServer):
        raise click.ClickException(
            f"{name} is a {type(found).__name__}, not an MRTRServer. If it is an application in which one is mounted, "
            "name the server itself"
        )
    return found


async def _work(server: MRTRServer) -> None:
    ends = asyncio.Event()
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def end(_number: int, _frame: FrameType | None) -> None:
        end_process_in_time(server.shutdown_seconds)
        for number, handler in before.items():
            signal.signal(number, handler)
        loop.call_soon_threadsafe(ends.set)

    async with server.worker():
        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        click.echo(f"Running the tasks of {server.name!r} [{os.getpid()}]", err=True)
        await ends.wait()
        click.echo("Handing back the tasks that still run", err=True)


@main.group()
def db() -> None:
    """Manage the database that replicas share."""


_database = click.option(
    "--database", envvar=DATABASE, required=True, metavar="URL", show_envvar=True, help="The URL of the database."
)


@db.command()
@_database
@click.option("--sql", is_flag=True, help="Print the statements, and change nothing.")
def upgrade(database: str, sql: bool) -> None:
    """Upgrade the tables to the version of this release; create them if there are none.

    It does everything or nothing, and may be run again. Running servers of the older release continue meanwhile.
    """
    try:
        from .storage.sql import migrate

        if sql:
            click.echo(asyncio.run(migrate.script(database.strip())), nl=False)
        else:
            click.echo(asyncio.run(migrate.upgrade(database.strip())))
    except MRTRError as error:
        raise click.ClickException(str(error)) from error


@db.command()
@_database
def reseal(database: str) -> None:
    """Seal every row under the first key of MRTR_KEYS, so that the other keys can be removed.

    MRTR_KEYS must hold all keys that rows are sealed under, and every server must seal with the first one already.
    Servers continue meanwhile. It may be ended at any time, and run again.

    The exit code is 0 when every row is sealed under the first key.
    """
    try:
        from .storage.sql.reseal import reseal as reseal_rows

        ring = KeyRing.from_environment()
        if ring is None:
            raise SetupError(f"{KEYS} is not set; give it the keys of the servers, the new one first")
        tables = asyncio.run(reseal_rows(database.strip(), ring))
    except MRTRError as error:
        raise click.ClickException(f"{error}. What was sealed stays so; run the command again") from error
    for table in tables:
        click.echo(f"{table.table}: {table.rows} rows, {table.sealed} sealed anew")
        if table.left:
            click.echo(f"  {table.left} of them change under another key: first make the new key the first everywhere")
        for reason, rows in table.unopened.items():
            click.echo(f"  {rows} of them do not open: {reason}")
    if not all(table.is_done for table in tables):
        raise click.ClickException("keep the other keys: not every row is sealed under the first one")
