"""The command `mrtr-server`."""

import secrets

import click

from ._version import __version__
from .keys import KEY_BYTES


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Tools for operators of MCP servers built with mrtr_server."""


@main.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS."""
    click.echo(secrets.token_hex(KEY_BYTES))
