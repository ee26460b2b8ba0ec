"""Options of commands that may come from the environment."""

import os

import click
from click.core import ParameterSource


class CommandOfVariables(click.Command):
    """A command whose errors name the variable that a wrong value came from."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options. Raises `click.BadParameter`."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            option = error.param
            if option is not None and ctx.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
                message = f"{_variable_of(option, ctx)}: {error.message}"
                raise click.BadParameter(message, ctx, option) from None
            raise


def _variable_of(option: click.Parameter, ctx: click.Context) -> str:
    """Return the name of the variable that an option was read from."""
    own = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return next((each for each in own if os.environ.get(each)), f"{ctx.auto_envvar_prefix}_{option.name}".upper())
