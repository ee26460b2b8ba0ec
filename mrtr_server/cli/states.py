"""`mrtr-server open`: what a sealed state holds."""

import sys

import click
from pydantic_core import to_json

from ..errors import InvalidRequestState, SetupError
from ..flow.inspection import inspect_state
from ..logs.formats import plain_json
from .keys import ring_of_servers


@click.command("open")
@click.argument("token")
@click.option("--values", is_flag=True, help="Also print what people answered, what steps returned, and kept state.")
def open_state(token: str, values: bool) -> None:
    """Print what TOKEN holds, a requestState.

    It is opened with the keys in MRTR_KEYS, and printed as JSON. It opens whoever it belongs to, and also after it has
    expired. `-` reads it from standard input, which keeps it out of the shell's history. Answers, results and kept
    state are secrets of people: without --values they stay out.
    """
    given = sys.stdin.read() if token == "-" else token  # noqa: S105  a dash is no secret
    try:
        held = inspect_state(given.strip(), ring_of_servers(), values=values)
    except InvalidRequestState as error:
        raise click.ClickException(f"This state does not open: {error.reason}") from None
    except SetupError as error:
        raise click.ClickException(str(error)) from None
    click.echo(plain_json(to_json(held, indent=2).decode()))
