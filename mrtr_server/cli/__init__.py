"""The command `mrtr-server`."""

from typing import Any

import click

from .._version import __version__
from ..errors import MRTRError
from .calling import call, get_prompt, list_all, logout, read
from .check import check
from .dev import dev, new
from .events import events
from .inspecting import inspect, publish, skill
from .installing import install, uninstall
from .logins import logins
from .run import run, stdio, worker
from .stored import db, forget, keygen, open_state, tasks
from .waits import waits


class Commands(click.Group):
    """The commands, of which each ends with a message where a setting is wrong or a store is away."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MRTRError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Tools for authors and operators of MCP servers built with mrtr_server."""


_COMMANDS = (new, dev, run, stdio, install, uninstall, worker, check, inspect, skill, publish, logins)
_STORED = (keygen, db, tasks, waits, events, forget, open_state)
for command in (*_COMMANDS, *_STORED, call, list_all, read, get_prompt, logout):
    main.add_command(command)
