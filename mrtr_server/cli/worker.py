"""`mrtr-server worker`: run tasks, and serve no requests."""

import asyncio
import os
import signal
from types import FrameType

import click

from ..concurrency.shutdown import end_process_in_time
from ..errors import SetupError
from ..logs.formats import Format
from ..server import MRTRServer
from .loading import load, takes_app
from .log_options import configure, takes_log_options

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@takes_app
@takes_log_options("warning")
def worker(app: str, app_dir: str, log_format: Format, log_level: str) -> None:
    """Run the tasks of MODULE:APP, an MRTRServer.

    It serves no requests. It needs the database and the keys of its servers: in MRTR_DATABASE_URL and MRTR_KEYS, unless
    the code gives them.

    SIGTERM or Ctrl-C ends it: tasks are handed back at their next step, ask or checkpoint, and continue in other
    workers. Rounds that have not ended after MRTR_SHUTDOWN_SECONDS are abandoned. A second signal ends it at once.
    """
    configure(log_format, log_level)
    server = load(app, app_dir)
    try:
        asyncio.run(_work(server))
    except SetupError as error:
        raise click.ClickException(str(error)) from None
    click.echo("Ended", err=True)


async def _work(server: MRTRServer) -> None:
    ends = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(_number: int, _frame: FrameType | None) -> None:
        end_process_in_time(server.shutdown_seconds)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(ends.set)

    async with server.worker():
        for number in _SIGNALS:
            signal.signal(number, end)
        click.echo(f"Running the tasks of {server.name!r} [{os.getpid()}]", err=True)
        await ends.wait()
        click.echo("Handing back the tasks that still run", err=True)
