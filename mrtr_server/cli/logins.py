"""`mrtr-server logins`: what an operator sees of logins, and ends."""

import sys
from typing import TYPE_CHECKING

import click

from ..flow.states import utc_time
from ..limits import Limits
from ..logs.formats import plain
from ..protocol.callers import Principal
from ..protocol.messages import JSON
from ..storage.quotas import Quotas
from .stored import echo_next, echo_rows, ring_of_servers, run_on, takes_database, takes_page

if TYPE_CHECKING:
    from ..login.records import About
    from ..storage.sql.store import SQLStore

_DAY = 24 * 3600.0


@click.group()
def logins() -> None:
    """Manage the logins of people (`auth=Login(...)`). It needs the MRTR_KEYS of the servers."""


@logins.command("list")
@takes_database
@takes_page("logins that end")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
def list_logins(database: str, before: tuple[float, str], limit: int, as_json: bool) -> None:
    """List logins that have not ended, the last used first.

    Each line has the provider and the person's id there, as `end` takes them; the name that the provider calls the
    person; the client, by the address of its document or by what it calls itself; when the login began, and when its
    tokens were last refreshed.
    """
    from ..login.upstream_tokens import logins_in  # loads what verifies tokens

    ring = ring_of_servers()
    found, place = run_on(database, lambda store: logins_in(store, ring, before=before, most=limit))

    def line(about: "About", described: JSON) -> str:
        text = plain(f"{about.issuer}  {about.subject}  {about.person}  {about.client}")
        return f"{text}  began {described['began']}  used {described['used']}"

    echo_rows([(about, _describe(about)) for about in found], None if as_json else line)
    if len(found) == limit:
        echo_next(limit, *place)


def _describe(about: "About") -> JSON:
    return {
        "issuer": about.issuer,
        "principal": about.subject,
        "person": about.person,
        "client": about.client,
        "began": utc_time(about.began),
        "used": utc_time(about.used),
    }


@logins.command()
@takes_database
@click.option(
    "--days", default=366.0, show_default=True, help="How long this is remembered: at least refresh_days of the server."
)
@click.option("--issuer", required=True, metavar="URL", help="The provider, such as https://github.com.")
@click.argument("principal")
def end(database: str, principal: str, issuer: str, days: float) -> None:
    """End all logins of a person.

    PRINCIPAL is the person's id at the provider, as `ctx.principal.subject` and the list have it; `-` reads it from
    standard input, which keeps it out of the shell's history. Nothing is refreshed any more, and the person's own token
    at the provider is used no more; access tokens that were given before count until they end, for ten minutes at most.
    The person may log in again: leave them out of allow= first. To delete what is stored of them, too, run
    `mrtr-server forget`.
    """
    from ..login.families import Families  # loads what verifies tokens

    subject = sys.stdin.read().strip() if principal == "-" else principal
    if not subject:
        raise click.UsageError("PRINCIPAL is empty")
    ring, person = ring_of_servers(), Principal(subject, issuer)

    async def work(store: "SQLStore") -> None:
        await Families(store, ring, Quotas(ring, Limits()), days * _DAY).end_all(person)

    run_on(database, work)
    click.echo(f"The logins of {subject} at {issuer} have ended; their access tokens end within ten minutes.")
