"""The command `mrtr-server`."""

import click

from .._version import __version__
from .calling import call, get_prompt, list_all, read
from .check import check
from .database import db
from .dev import dev
from .keys import keygen
from .new import new
from .run import run
from .states import open_state
from .stdio import stdio
from .tasks import tasks
from .worker import worker


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for authors and operators of MCP servers built with mrtr_server."""


for command in (new, dev, run, stdio, worker, check, keygen, db, tasks, open_state, call, list_all, read, get_prompt):
    main.add_command(command)
