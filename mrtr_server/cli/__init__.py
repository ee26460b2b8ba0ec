"""The command `mrtr-server`."""

import click

from .._version import __version__
from .calling import call, get_prompt, list_all, read
from .check import check
from .dev import dev, new
from .run import run, stdio, worker
from .stored import db, keygen, open_state, tasks


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for authors and operators of MCP servers built with mrtr_server."""


for command in (new, dev, run, stdio, worker, check, keygen, db, tasks, open_state, call, list_all, read, get_prompt):
    main.add_command(command)
