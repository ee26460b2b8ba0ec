"""From the name of a server, as an operator gives it, to the server."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from uvicorn.importer import ImportFromStringError, import_from_string

from ..errors import SetupError
from ..server import MRTRServer

F = TypeVar("F", bound=Callable[..., Any])


def takes_app(function: F) -> F:
    """Add to a command the argument MODULE:APP and the option --app-dir, which `load` takes."""
    directory = click.option(
        "--app-dir",
        default="",
        metavar="PATH",
        help="The folder in which to look for MODULE; the working directory by default.",
    )
    return click.argument("app", metavar="MODULE:APP")(directory(function))


def load(app: str, app_dir: str) -> MRTRServer:
    """Import a server.

    Args:
        app: `module:attribute`.
        app_dir: the folder in which to look for the module; empty for the working directory.

    Raises:
        click.ClickException: there is none, or it can't be made; the message says why.
    """
    sys.path.insert(0, app_dir)
    try:
        found = import_from_string(app)
    except (ImportFromStringError, SetupError) as error:
        raise click.ClickException(str(error)) from None
    if not isinstance(found, MRTRServer):
        raise click.ClickException(
            f"{app} is a {type(found).__name__}, not an MRTRServer. If it is an application in which one is mounted, "
            "name the server itself"
        )
    return found
