"""`mrtr-server events`: the events of a server, as a client follows them; and who gets them by webhook."""

import math
from typing import TYPE_CHECKING, Literal

import click
from pydantic_core import to_json

from ..crypto.keys import KeyRing
from ..flow.states import utc_time
from ..logs.formats import plain, plain_json
from ..protocol.messages import JSON
from .call_arguments import read_arguments
from .calling import calls_server, print_json, taken
from .stored import echo_rows, run_on, takes_database

if TYPE_CHECKING:  # a server over stdio starts without them
    from ..events.administration import Described, SubscriptionAdministration
    from ..storage.sql.store import SQLStore
    from .terminal_client import Calls

_takes_subscription = click.argument("subscription", metavar="SUBSCRIPTION")


@click.group()
def events() -> None:
    """Follow the events of a server, and look at its webhooks.

    SERVER is a URL, or a MODULE:APP that runs in this process, or with --stdio a command. SUBSCRIPTION is the id of a
    webhook's subscription as `events subscriptions list` has it, or its first characters.
    """


@events.command("list")
@calls_server
async def list_types(calls: "Calls") -> None:
    """List the types of events of a server.

    After each name is what may be wanted of its events, and how they are delivered.
    """
    offered = await calls.client.event_types()
    if calls.as_json:
        print_json([each.model_dump(mode="json", by_alias=True) for each in offered])
        return
    for each in offered:
        about = plain(each.description.partition("\n")[0])
        click.echo(f"{plain(each.name)}{taken(each)}  ({plain(', '.join(each.delivery))})  {about}".rstrip())


@events.command()
@calls_server
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--cursor", metavar="CURSOR", help="Begin after the event that --json printed with it; by default, now.")
@click.option("--delivery", type=click.Choice(("push", "poll")), help="By default a stream, if the server has it.")
async def tail(
    calls: "Calls", name: str, arguments: tuple[str, ...], cursor: str | None, delivery: Literal["push", "poll"] | None
) -> None:
    """Print the events NAME of a server as they come.

    It ends with Ctrl-C. After a lost connection it goes on with the events that have happened meanwhile.

    KEY=VALUE says which of them are wanted, and is read by the schema of the type: numbers, booleans, JSON for lists
    and objects. KEY:=JSON is JSON. With --json, each event is a line of JSON with its cursor.
    """
    schemas = {each.name: each.input_schema for each in await calls.client.event_types()} if arguments else {}
    wanted = read_arguments(arguments, schemas.get(name, {}))

    def note_gap() -> None:
        click.echo("Some events are missing here: the server does not keep them any more", err=True)

    async for event in calls.client.events(name, wanted, cursor=cursor, delivery=delivery, on_gap=note_gap):
        if calls.as_json:
            print_json(event.model_dump(mode="json", by_alias=True))
        else:
            click.echo(plain(f"{event.at}  {event.id}  ") + plain_json(to_json(event.data).decode()))


# In the database


@events.group()
def subscriptions() -> None:
    """Look at who gets events by webhook, and end it.

    It needs the database alone. With the MRTR_KEYS of the servers, the hosts are shown; never an address as a whole,
    nor its secret.
    """


@subscriptions.command("list")
@takes_database
@click.option("--name", default="", metavar="NAME", help="Only subscriptions to this type of event.")
@click.option("--after", default="", metavar="ID", help="Begin after this one.")
@click.option("--limit", default=50, type=click.IntRange(1), show_default=True, help="How many to print at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
def list_subscriptions(database: str, name: str, after: str, limit: int, as_json: bool) -> None:
    """List the subscriptions of webhooks, by their ids."""
    found = run_on(database, lambda store: _administration(store).list(name=name, after=after, most=limit))

    def line(each: "Described", described: JSON) -> str:
        host = described["host"] or "(sealed)"
        failed = f", {described['failed']} failed" if described["failed"] else ""
        state = described["state"] + (f" since {described['failing since']}" if described["failing since"] else "")
        until = described["expires"] or "its end"
        return plain(f"{each.row.id}  {each.row.name}  {host}  until {until}  {state}{failed}")

    echo_rows([(each, _describe(each)) for each in found], None if as_json else line)
    if len(found) == limit:
        click.echo(f"There may be more than {limit}: raise --limit, or add --after {found[-1].row.id}", err=True)


@subscriptions.command()
@takes_database
@_takes_subscription
def show(database: str, subscription: str) -> None:
    """Print a subscription as JSON."""
    found = run_on(database, lambda store: _administration(store).find(subscription))
    click.echo(plain_json(to_json(_describe(found), indent=2).decode()))


@subscriptions.command()
@takes_database
@_takes_subscription
def remove(database: str, subscription: str) -> None:
    """End a subscription. Its client is not told, and may subscribe again."""
    found = run_on(database, lambda store: _administration(store).remove(subscription))
    click.echo(f"The subscription {found.row.id} has ended")


@events.command()
@takes_database
@_takes_subscription
def redeliver(database: str, subscription: str) -> None:
    """Send a webhook what it did not take.

    A server that runs does it within some seconds, also where the delivery is suspended. What was given up is not sent
    again.
    """
    found = run_on(database, lambda store: _administration(store).redeliver(subscription))
    click.echo(f"{len(found.progress.failed)} events of {found.row.id} are sent again at once")


def _administration(store: "SQLStore") -> "SubscriptionAdministration":
    from ..events.administration import SubscriptionAdministration

    return SubscriptionAdministration(store, KeyRing.from_environment())


def _describe(each: "Described") -> JSON:
    row, progress = each.row, each.progress
    state = "suspended" if progress.suspended else "failing" if progress.failing else "active"
    return {
        "id": row.id,
        "name": row.name,
        "host": each.host,
        "owner": row.caller or None,
        "created": utc_time(row.created),
        "updated": utc_time(row.updated),
        "expires": None if row.expires == math.inf else utc_time(row.expires),
        "state": state,
        "failing since": utc_time(progress.failing) if progress.failing else None,
        "last error": progress.error or None,
        "last delivered": utc_time(progress.delivered) if progress.delivered else None,
        "failed": len(progress.failed),
        "gaps": progress.gaps,
    }
