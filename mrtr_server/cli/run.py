"""`mrtr-server run`, `stdio` and `worker`: serve an application, or run its tasks, until a signal ends it."""

import asyncio
import logging
import logging.config
import math
import os
import signal
from dataclasses import replace
from ipaddress import ip_network
from types import FrameType
from typing import Any

import click

from ..concurrency.shutdown import end_process_in_time
from ..deployment.environment import COMMAND_PREFIX, variables
from ..deployment.shared_resources import DECLARED, WEB_CONCURRENCY
from ..logs.formats import Format, log_config
from ..server import MRTRServer
from ..transport.standard_streams import take_standard_streams
from .options import CommandOfVariables, find, load, takes_app, takes_log_options
from .web_servers import SERVERS, Serving, inherited_socket, raise_file_limit


class Seconds(click.FloatRange):
    """A number of seconds. NaN is in every range, as far as comparisons can tell."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def check_proxies(given: str) -> str:
    for each in given.split(",") if given.strip() != "*" else ():
        try:
            ip_network(each.strip())
        except ValueError as error:
            raise click.BadParameter(f"{error}. Give addresses and networks, separated by commas, or * alone") from None
    return given


OPTIONS = COMMAND_PREFIX.removesuffix("_")

logger = logging.getLogger("mrtr_server")


@click.command(cls=CommandOfVariables, context_settings={"auto_envvar_prefix": OPTIONS})
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for any that is free.")
@click.option("--uds", metavar="PATH", help="Listen on a socket of the file system instead.")
@click.option(
    "--workers",
    default=1,
    envvar=[f"{OPTIONS}_WORKERS", WEB_CONCURRENCY],
    type=click.IntRange(1),
    help="How many processes serve; WEB_CONCURRENCY or 1 by default.",
)
@click.option("--reload", is_flag=True, help="Restart when a file changes; for development.")
@click.option("--server", type=click.Choice(tuple(SERVERS)), default="uvicorn", show_default=True)
@click.option(
    "--max-connections",
    default=None,
    type=click.IntRange(1),
    help="How many connections a process takes; others get a 503. By default what its limit of open files allows.",
)
@click.option("--backlog", default=2048, show_default=True, type=click.IntRange(1), help="Connections that may wait.")
@click.option(
    "--keep-alive",
    default=75.0,
    show_default=True,
    type=Seconds(0, 24 * 3600),
    help="Seconds after which an idle connection is closed: more than a proxy in front keeps it.",
)
@click.option(
    "--forwarded-allow-ips",
    default="127.0.0.1,::1",
    show_default=True,
    callback=lambda _context, _option, given: check_proxies(given),
    help="The proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks, or * for all.",
)
@click.option("--root-path", default="", help="The path at which a proxy serves the application.")
@click.option("--access-log", is_flag=True, help="Log each request of the web server, too.")
@takes_log_options("info")
def run(
    app: str,
    app_dir: str,
    log_format: Format,
    log_level: str,
    access_log: bool,
    max_connections: int | None,
    **options: Any,
) -> None:
    """Serve MODULE:APP over HTTP.

    It is an MRTRServer, or an ASGI application in which one is mounted.

    Each option has a variable, such as MRTR_RUN_PORT for --port, and MODULE:APP has MRTR_APP. It takes over the socket
    that systemd passes (LISTEN_FDS).

    At SIGTERM it hands calls to other replicas, serves what waits in its socket, and ends before MRTR_SHUTDOWN_SECONDS.
    """
    _refuse_unknown_variables()
    config = log_config(log_format, log_level.upper(), access_log=access_log)
    logging.config.dictConfig(config)
    serving = Serving(app=app, log_config=config, max_connections=raise_file_limit(max_connections), **options)
    if not serving.reload:  # or it would end for a mistake that its author is about to mend
        os.environ[DECLARED] = str(serving.workers)  # for this process and all that it starts
        found = find(app, app_dir)
        if isinstance(found, MRTRServer):
            _check(found, serving)
            serving = replace(serving, shutdown_seconds=found.shutdown_seconds)
    SERVERS[serving.server](serving, inherited_socket())


def _check(server: MRTRServer, serving: Serving) -> None:
    """Refuse what can't work with several workers, before there are any."""
    if serving.workers == 1:
        return
    for finding in server.check(host=serving.host, workers=serving.workers):
        if finding.about == "questions":  # other clients are served
            logger.warning("%d workers and %s: %s", serving.workers, serving.app, finding.message)
        elif finding.level == "error":
            raise click.ClickException(f"{serving.workers} workers can't serve {serving.app}: {finding.message}")


def _refuse_unknown_variables() -> None:
    known = {f"{COMMAND_PREFIX}{option.name}".upper() for option in run.params if option.name}
    known |= {each.name for each in variables()}  # MRTR_RUN_TASKS is one of the server's
    unknown = sorted(name for name in os.environ if name.startswith(COMMAND_PREFIX) and name not in known)
    if unknown:
        raise click.ClickException(f"{', '.join(unknown)}: there is no such option; see mrtr-server run --help")


@click.command()
@takes_app
def stdio(app: str, app_dir: str) -> None:
    """Serve MODULE:APP to one client over stdio.

    This is the command for the configuration of a desktop client, which starts it by itself and speaks to it over
    standard input and output. MODULE:APP is an MRTRServer. It needs no keys and no database.

    It ends when the client closes standard input, or at SIGTERM or Ctrl-C. Requests that still run have
    MRTR_SHUTDOWN_SECONDS to end, or until the next signal.
    """
    take_standard_streams()  # before the module prints anything
    logging.basicConfig(format="%(levelname)s:     %(message)s")
    load(app, app_dir).run_stdio()


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
    logging.config.dictConfig(log_config(log_format, log_level.upper()))
    server = load(app, app_dir)
    asyncio.run(_work(server))
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
