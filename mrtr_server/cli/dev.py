"""`mrtr-server new` and `dev`: make a project, and serve it for the one who writes it."""

import os
import secrets
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from ..addresses import is_loopback_address
from ..concurrency.shutdown import ENVIRONMENT as SHUTDOWN_SECONDS
from ..crypto.keys import ENVIRONMENT as KEYS
from ..crypto.keys import KEY_BYTES
from ..deployment.environment import variables
from ..storage import ENVIRONMENT as DATABASE
from .options import LEVELS, import_app, takes_app


@click.command()
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Make a project in the folder NAME.

    It has a server with a tool, its tests, a Dockerfile, a CI workflow, and an AGENTS.md for agents that write code.
    The folder must be empty, or not there. Its name is that of the project: lower-case letters, digits, - and _.
    """
    from .new_project import WHEEL, installed_from, make_project

    origin = installed_from()
    try:
        package = make_project(folder, origin)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder} can't be written: {error.strerror}") from None
    click.echo(f"Made {folder}. Next:\n")
    if folder.resolve() != Path.cwd():
        click.echo(f"  cd {folder}")
    wheel = ""
    if origin:
        click.echo(f"  pip wheel --no-deps --wheel-dir wheels {shlex.quote(origin)}")
        wheel = f"{WHEEL} "
    click.echo(
        f"  pip install {wheel}-e '.[dev]'\n  pytest\n  mrtr-server dev {package}.server:app\n\n"
        "Then open the address of the page that it prints, call the tool, and answer its questions."
    )
    if origin:
        click.echo(
            "\nThis mrtr_server did not come from an index, which may not have it. So its wheel is made part of the "
            "project: CI and the image install it from the folder wheels."
        )


SHUTDOWN = "3"  # seconds to make way for the next process, unless the environment says so


@click.command()
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for any that is free.")
@click.option("--reload/--no-reload", default=True, show_default=True, help="Restart when a file changes.")
@click.option(
    "--watch",
    multiple=True,
    metavar="PATH",
    help="A folder to watch; give it again for more. The folder of the application by default.",
)
@click.option("--include", multiple=True, metavar="GLOB", help="Further files to watch, besides *.py.")
@click.option("--full-tracebacks", is_flag=True, help="Show all calls of a traceback, not only those of your own code.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="What is shown at least of your own loggers.",
)
def dev(
    app: str,
    app_dir: str,
    host: str,
    port: int,
    reload: bool,
    watch: tuple[str, ...],
    include: tuple[str, ...],
    full_tracebacks: bool,
    log_level: str,
) -> None:
    """Serve MODULE:APP while you write it.

    It is an MRTRServer, or an ASGI application in which one is mounted. It restarts when a file changes, and shows a
    line for each round: what was answered, which steps ran or were replayed, what is asked, the result, and how long it
    took. Effects of a handler outside of ctx.step, which each round repeats, are reported with file and line.

    Where MRTR_KEYS and MRTR_DATABASE_URL are not set, it makes keys and a database for this run, so flows and tasks
    continue after a change.

    It is for your own machine. Serve others with mrtr-server run.
    """
    from ..dev.rounds import Terminal
    from .dev_server import DevProcess, listen, watch_and_serve

    folders = watch or (app_dir or ".",)
    for folder in folders:
        if not os.path.isdir(folder):
            raise click.ClickException(f"--watch {folder}: there is no such folder")
    try:
        listening = listen(host, port)
    except OSError as error:
        raise click.ClickException(
            f"{host}:{port} can't be listened on: {error.strerror or error}. End what uses it, or choose another --port"
        ) from None
    terminal = Terminal()
    if not is_loopback_address(host):
        terminal.write(
            f"{terminal.head('unsafe', 'red')} whoever reaches {host}:{listening.getsockname()[1]} can call every tool "
            "that asks for no token, and what people are asked is shown here. Use mrtr-server run to serve others"
        )
    with listening, _environment(is_local=is_loopback_address(host)) as keys:
        process = DevProcess(
            find=import_app,
            app=app,
            app_dir=app_dir,
            host=host,
            level=log_level,
            full_tracebacks=full_tracebacks,
            keys=keys,
            watched=", ".join(["*.py", *include]) + f" below {', '.join(folders)}" if reload else "",
        )
        if reload:
            watch_and_serve(process, folders, include, listening)
        else:
            signal.signal(signal.SIGTERM, _end)  # which the web server calls when it has ended
            with suppress(KeyboardInterrupt):
                process([listening])


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


@contextmanager
def _environment(*, is_local: bool) -> Iterator[str]:
    """Set what a server needs and the environment does not say; yield what is to be said of the keys.

    All processes of this run share that, so flows and tasks continue after a change of the code. With `is_local`, only
    programs of this machine reach the server, so they may see what went wrong inside.
    """
    keys = ""
    has_database = bool(os.environ.get(DATABASE, "").strip())
    if not os.environ.get(KEYS, "").strip():
        os.environ[KEYS] = secrets.token_hex(KEY_BYTES)
        keys = f"{KEYS} is not set, so this run has keys of its own"
        keys += f". What other runs have put into {DATABASE} does not open" if has_database else ""
    os.environ.setdefault(SHUTDOWN_SECONDS, SHUTDOWN)
    known = {each.name for each in variables()}
    for name in known.intersection(["MRTR_DOCS", *(["MRTR_DEBUG"] if is_local else [])]):
        os.environ.setdefault(name, "true")
    with tempfile.TemporaryDirectory(prefix="mrtr-dev-") as folder:
        if not has_database:
            os.environ[DATABASE] = f"sqlite:///{folder}/dev.db"
        yield keys
