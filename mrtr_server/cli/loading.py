"""From the name of a server, as an operator gives it, to the server."""

import os
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, TypeVar

import click

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
    found = find(app, app_dir)
    if not isinstance(found, MRTRServer):
        raise click.ClickException(
            f"{app} is a {type(found).__name__}, not an MRTRServer. If it is an application in which one is mounted, "
            "name the server itself"
        )
    return found


def find(app: str, app_dir: str) -> Any:
    """Import whatever a name stands for: a server, or an application in which one is mounted; as `load`."""
    sys.path.insert(0, app_dir)
    module, _, attribute = app.partition(":")
    if not module or not attribute:
        raise click.ClickException(f"{app!r} must be a module and the server in it, such as weather:app")
    try:
        return resolve_name(app)
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
