"""`mrtr-server stdio`: serve the client that started the process."""

import logging

import click

from ..errors import SetupError
from ..transport.standard_streams import take_standard_streams
from .loading import load, takes_app


@click.command()
@takes_app
def stdio(app: str, app_dir: str) -> None:
    """Serve MODULE:APP to one client over stdio.

    This is the command for the configuration of a desktop client, which starts it by itself and speaks to it over
    standard input and output. MODULE:APP is an MRTRServer. It needs no keys and no database.

    It ends when the client closes standard input, or at SIGTERM or Ctrl-C. Requests that still run have
    MRTR_SHUTDOWN_SECONDS to end, or until the next signal.
    """
    try:
        take_standard_streams()  # before the module prints anything
        logging.basicConfig(format="%(levelname)s:     %(message)s")
        load(app, app_dir).run_stdio()
    except SetupError as error:
        raise click.ClickException(str(error)) from None
