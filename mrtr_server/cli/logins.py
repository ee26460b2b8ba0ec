"""`mrtr-server logins`: what an operator does to logins."""

from typing import TYPE_CHECKING

import click

from ..limits import Limits
from ..protocol.callers import Principal
from ..storage.quotas import Quotas
from .stored import ring_of_servers, run_on, takes_database

if TYPE_CHECKING:
    from ..storage.sql.store import SQLStore

_DAY = 24 * 3600.0


@click.group()
def logins() -> None:
    """Manage the logins of people (`auth=Login(...)`)."""


@logins.command()
@takes_database
@click.option(
    "--days", default=366.0, show_default=True, help="How long that is known: not less than refresh_days of the server."
)
@click.argument("provider", metavar="PROVIDER")
@click.argument("subject", metavar="SUBJECT")
def end(database: str, provider: str, subject: str, days: float) -> None:
    """End all logins of a person.

    PROVIDER is its address, such as https://github.com, and SUBJECT the person's id there: `issuer` and `subject` of
    ctx.principal. Nothing is refreshed any more; access tokens that were given before count until they end, for ten
    minutes at most. The person may log in again: leave them out of allow= first.
    """
    from ..login.families import Families  # loads what verifies tokens

    ring, person = ring_of_servers(), Principal(subject, provider)

    async def work(store: "SQLStore") -> None:
        await Families(store, ring, Quotas(ring, Limits()), days * _DAY).end_all(person)

    run_on(database, work)
    click.echo(f"The logins of {subject} at {provider} have ended; their access tokens end within ten minutes.")
