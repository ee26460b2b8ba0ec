"""The command `mrtr-server`."""

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import click
from uvicorn.importer import ImportFromStringError, import_from_string

from ._version import __version__
from .crypto.keys import ENVIRONMENT as KEYS
from .crypto.keys import KEY_BYTES, KeyRing
from .errors import MRTRError, SetupError
from .server import MRTRServer
from .storage.factory import ENVIRONMENT as DATABASE


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for operators of MCP servers built with mrtr_server."""


@main.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS: 64 hex digits."""
    click.echo(secrets.token_hex(KEY_BYTES))


@main.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--app-dir",
    default="",
    metavar="PATH",
    help="The folder in which to look for MODULE; the working directory by default.",
)
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
    try:
        found = import_from_string(name)
    except (ImportFromStringError, SetupError) as error:
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
        threading.Thread(target=_end_in_time, args=(server.shutdown_seconds,), daemon=True).start()
        for number, handler in before.items():
            signal.signal(number, handler)
        loop.call_soon_threadsafe(ends.set)

    async with server.worker():
        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        click.echo(f"Running the tasks of {server.name!r} [{os.getpid()}]", err=True)
        await ends.wait()
        click.echo("Handing back the tasks that still run", err=True)


def _end_in_time(seconds: float) -> None:
    """End the process, which is ours, where something keeps it: a blocked event loop, or a thread of the tools'."""
    time.sleep(seconds * 0.97)  # Python itself takes a moment
    click.echo(f"Some work did not end within {seconds:g} s (MRTR_SHUTDOWN_SECONDS), and is abandoned", err=True)
    os._exit(1)


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
