"""The options of commands that log while they serve or work."""

import logging.config
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from ..logs.formats import Format, log_config

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")


def takes_log_options(level: str) -> Callable[[F], F]:
    """Return a decorator that adds to a command the options --log-format and --log-level.

    Args:
        level: the default level.
    """

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


def configure(form: Format, level: str) -> None:
    """Send what is logged to standard error."""
    logging.config.dictConfig(log_config(form, level.upper()))
