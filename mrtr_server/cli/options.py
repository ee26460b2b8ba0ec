"""What several commands take: a server by its name, how they log, and variables of the environment."""

import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from ..deployment.environment import APPLICATION, PREFIX
from ..errors import SetupError
from ..logs.failures import format_import_failure, format_origin, is_raised_by_author
from ..logs.formats import Format
from ..server import MRTRServer

F = TypeVar("F", bound=Callable[..., Any])


takes_app_dir = click.option(
    "--app-dir",
    default="",
    metavar="PATH",
    help="The folder in which to look for MODULE; the working directory by default.",
)


def takes_app(function: F) -> F:
    return click.argument("app", metavar="MODULE:APP", envvar=APPLICATION)(takes_app_dir(function))


def load(app: str, app_dir: str) -> MRTRServer:
    found = find(app, app_dir)
    if not isinstance(found, MRTRServer):
        raise click.ClickException(
            f"{app} is a {type(found).__name__}, not an MRTRServer. If it is an application in which one is mounted, "
            "name the server itself"
        )
    return found


def find(app: str, app_dir: str) -> Any:
    """Import a server, or an application in which one is mounted. Raises `click.ClickException`."""
    try:
        return import_app(app, app_dir)
    except SetupError as error:  # it says itself what is wrong, maybe to the operator
        # Of the name of the application, or a variable of the environment, no line of the code is to blame.
        says = "\n".join([str(error), *getattr(error, "__notes__", ())])
        if not is_raised_by_author(error) or says.startswith(PREFIX):
            raise click.ClickException(says) from None
        raise click.ClickException(f"{app} can't be imported: {says}\n{format_origin(error)}".rstrip()) from None
    except Exception as error:
        raise click.ClickException(f"{app} can't be imported:\n{format_import_failure(error)}") from None


def import_app(app: str, app_dir: str) -> Any:
    """Import whatever a name stands for. Raises `SetupError`, and whatever the code of the module raises."""
    sys.path.insert(0, app_dir)
    name, attribute = _parts_of(app)
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is the module itself that imports what is not there
        raise SetupError(
            f"There is no module {name!r} in {os.path.abspath(sys.path[0])} or where Python looks. "
            "--app-dir names the folder that it is in"
        ) from None
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        servers = [repr(each) for each, value in vars(module).items() if isinstance(value, MRTRServer)]
        has = f". It has the server {' and '.join(servers)}" if servers else ""
        raise SetupError(f"The module {name!r} has no {attribute!r}{has}") from None


def _parts_of(app: str) -> tuple[str, str]:
    module, _, attribute = app.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise SetupError(f"{app!r} is a file. Name the module and not its file: {dotted}:{attribute or 'app'}")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise SetupError(f"{app!r} must be a module and the server in it, such as weather:app")
    return module, attribute


LEVELS = ("debug", "info", "warning", "error")


def takes_log_options(level: str) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        form = click.option(
            "--log-format",
            type=click.Choice(get_args(Format)),
            default="text",
            show_default=True,
            help="How the lines on standard error look.",
        )
        least = click.option(
            "--log-level", type=click.Choice(LEVELS), default=level, show_default=True, help="What is logged at least."
        )
        return form(least(function))

    return decorate


class CommandOfVariables(click.Command):
    """A command whose errors name the variable that a wrong value came from."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            option = error.param
            if option is not None and ctx.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
                message = f"{_variable_of(option, ctx)}: {error.message}"
                raise click.BadParameter(message, ctx, option) from None
            raise


def _variable_of(option: click.Parameter, ctx: click.Context) -> str:
    own = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return next((each for each in own if os.environ.get(each)), f"{ctx.auto_envvar_prefix}_{option.name}".upper())
