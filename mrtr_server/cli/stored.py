"""`mrtr-server keygen`, `db`, `open`, `tasks` and `forget`: keys, and what servers seal and store."""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar, get_args

import click
from pydantic_core import to_json

from ..crypto.keys import ENVIRONMENT as KEYS
from ..crypto.keys import KEY_BYTES, KeyRing
from ..errors import InvalidRequestState, MRTRError, SetupError, UnknownTarget
from ..flow.states import inspect_state, utc_time
from ..logs.formats import plain, plain_json
from ..protocol.messages import JSON, TaskStatus
from ..storage import ENVIRONMENT as DATABASE
from ..storage.rows import TaskRow

if TYPE_CHECKING:  # a server over stdio starts without them
    from ..storage.sql.store import SQLStore


@click.command()
def keygen() -> None:
    """Print a new key for MRTR_KEYS: 64 hex digits."""
    click.echo(secrets.token_hex(KEY_BYTES))


def ring_of_servers() -> KeyRing:
    ring = KeyRing.from_environment()
    if ring is None:
        raise SetupError(f"{KEYS} is not set; give it the keys of the servers, the new one first")
    return ring


takes_database = click.option(
    "--database", envvar=DATABASE, required=True, metavar="URL", show_envvar=True, help="The URL of the database."
)


@click.group()
def db() -> None:
    """Manage the database that replicas share."""


@db.command()
@takes_database
@click.option("--sql", is_flag=True, help="Print the statements, and change nothing.")
def upgrade(database: str, sql: bool) -> None:
    """Upgrade the tables to the version of this release; create them if there are none.

    It may be run again, and by several hosts at once. Running servers of the older release continue meanwhile. The
    tables change in one transaction, or not at all. Indexes are made after it, and block nobody; the next run makes one
    again that was interrupted.
    """
    from ..storage.sql import administration

    if sql:
        click.echo(asyncio.run(administration.script(database.strip())), nl=False)
    else:
        click.echo(asyncio.run(administration.upgrade(database.strip())))


@db.command("new-epoch")
@takes_database
def new_epoch(database: str) -> None:
    """Begin another epoch, after the database was restored from a backup, or a failover has lost writes.

    States that are redeemed once, and open calls, name the epoch in which they began. Those of before are refused from
    now on, and their clients begin again: what was redeemed in the lost writes would otherwise be redeemed twice. Tasks
    that had not ended fail, since they may have come further than is known; `mrtr-server tasks retry` continues one.

    Run it before servers and workers use the database again, and once for each copy that is to be used beside this one.
    """
    from ..storage.sql import administration

    click.echo(asyncio.run(administration.new_epoch(database.strip())))


@db.command()
@takes_database
def reseal(database: str) -> None:
    """Seal every row under the first key of MRTR_KEYS, so that the other keys can be removed.

    MRTR_KEYS must hold all keys that rows are sealed under, and every server must seal with the first one already.
    Servers continue meanwhile. It may be ended at any time, and run again.

    The exit code is 0 when every row is sealed under the first key.
    """
    try:
        from ..storage.sql.administration import reseal as reseal_rows

        tables = asyncio.run(reseal_rows(database.strip(), ring_of_servers()))
    except MRTRError as error:
        raise click.ClickException(f"{error}. The resealed rows stay resealed; run the command again") from error
    for table in tables:
        click.echo(f"{table.table}: {table.rows} rows, {table.sealed} resealed")
        if table.left:
            click.echo(f"  {table.left} of them change under another key: first make the new key the first everywhere")
        for reason, rows in table.unopened.items():
            click.echo(f"  {rows} of them do not open: {reason}")
    if not all(table.is_done for table in tables):
        raise click.ClickException("keep the other keys: not every row is sealed under the first one")


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
    click.echo(plain_json(to_json(held, indent=2).decode()))


@click.command()
@takes_database
@click.argument("principal")
@click.option("--issuer", default="", metavar="URL", help="Who identifies PRINCIPAL, as in `iss` of the tokens.")
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="ID",
    help="An application of PRINCIPAL: finds its tasks even if they are counted under a key that was removed.",
)
@click.option(
    "--days",
    default=7.0,
    type=click.FloatRange(0, min_open=True),
    show_default=True,
    help="How long earlier states are refused: at least as long as a flow may last, which is a day by default.",
)
def forget(database: str, principal: str, issuer: str, clients: tuple[str, ...], days: float) -> None:
    """Delete what is stored of a person, and end their calls.

    PRINCIPAL is the subject, as `ctx.principal.subject` has it; `-` reads it from standard input, which keeps it out of
    the shell's history. Tasks, outcomes, reports and open calls of all the person's applications are deleted. Calls and
    tasks that began before do not continue, at any replica. Logins at the server (`auth=Login(...)`) are not refreshed
    any more; to end them and delete nothing, run `mrtr-server logins end`. MRTR_KEYS must be those of the servers.

    Servers continue meanwhile, and hear of it at once. It may be ended at any time, and run again: run it once more
    after a minute, since a server may have stored something while it began.
    """
    from ..storage.sql.administration import forget as forget_rows

    subject = sys.stdin.read().strip() if principal == "-" else principal
    if not subject:
        raise click.UsageError("PRINCIPAL is empty")
    person, seconds = (issuer, subject), days * 24 * 3600
    found = asyncio.run(forget_rows(database.strip(), ring_of_servers(), person, clients, keep=seconds))
    for table, rows in found.items():
        click.echo(f"{table}: {rows} rows")
    if not any(found.values()):
        click.echo("There was nothing. Where callers have tokens of an issuer, name it with --issuer", err=True)


T = TypeVar("T")


_TIME = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])


def _place(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, str]:
    """Return a time, or the place where a page has ended: its moment to the last digit, and the id there."""
    moment, slash, id = value.partition("/")
    with suppress(ValueError):
        if slash:
            return float(moment), id
    time: datetime = _TIME.convert(value, param, ctx)
    return time.replace(tzinfo=time.tzinfo or UTC).timestamp(), ""


def takes_page(what: str) -> "Callable[[Callable[..., None]], Callable[..., None]]":
    """Add the options that choose a page of a list; `what` says what of a row is before a time."""
    before = click.option(
        "--before",
        callback=_place,
        default="inf/",
        metavar="TIME",
        help=f"Only {what} before that time (in UTC, or with its zone), or the place that the last page says.",
    )
    limit = click.option(
        "--limit", default=50, type=click.IntRange(1), show_default=True, help="How many to print at most."
    )
    return lambda command: before(limit(command))


_takes_task = click.argument("task", metavar="TASK")


@click.group()
def tasks() -> None:
    """Look at the tasks in the database, cancel them and retry them.

    TASK is the id of a task, or the first digits of it that the log has.
    """


@tasks.command("list")
@takes_database
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="Only tasks of this status.")
@click.option("--tool", default="", metavar="NAME", help="Only tasks of this tool.")
@takes_page("tasks that changed")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
def list_tasks(
    database: str, status: str | None, tool: str, before: tuple[float, str], limit: int, as_json: bool
) -> None:
    """List tasks, the last changed first. Their contents stay sealed."""
    rows = run_on(database, lambda store: store.list_tasks(status=status or "", tool=tool, before=before, most=limit))

    def line(row: TaskRow, described: JSON) -> str:
        return f"{row.id}  {row.status:14}  {described['updated']}  " + plain(f"{row.name}  {row.message}")

    echo_rows([(row, describe(row)) for row in rows], None if as_json else line)
    if len(rows) == limit:
        echo_next(limit, rows[-1].updated, rows[-1].id)


@tasks.command()
@takes_database
@_takes_task
@click.option("--values", is_flag=True, help="Also print its arguments; this needs MRTR_KEYS.")
def show(database: str, task: str, values: bool) -> None:
    """Print a task as JSON. Its arguments are secrets of its user: without --values they stay sealed."""

    async def find(store: "SQLStore") -> JSON:
        from ..tasks.administration import TaskAdministration, call_of

        row = await TaskAdministration(store).find(task)
        described = describe(row)
        if values:
            call = call_of(row, ring_of_servers())
            described["arguments"] = None if call is None else call.arguments
        return described

    click.echo(plain_json(to_json(run_on(database, find), indent=2).decode()))


@tasks.command()
@takes_database
@_takes_task
def cancel(database: str, task: str) -> None:
    """Cancel a task, as its client would. No further step of it begins; a step that runs is not interrupted."""
    from ..tasks.administration import TaskAdministration

    row = run_on(database, lambda store: TaskAdministration(store).cancel(task))
    if row.status != "cancelled":
        raise click.ClickException(f"Task {row.reference} has ended already: {row.status}")
    click.echo(f"Task {row.reference} is cancelled")


@tasks.command()
@takes_database
@_takes_task
def retry(database: str, task: str) -> None:
    """Start a failed task again from its last recorded step, as a new task; print the id of that.

    The failed task stays as it is, for its client has been told. Steps that have run do not run again. It needs
    MRTR_KEYS.
    """
    from ..tasks.administration import TaskAdministration

    row = run_on(database, lambda store: TaskAdministration(store).retry(task, ring_of_servers()))
    click.echo(row.id)


def echo_rows(rows: Iterable[tuple[T, JSON]], line: Callable[[T, JSON], str] | None) -> None:
    """Print a line for each row, of which there is a description; by default that itself, as JSON."""
    for row, described in rows:
        click.echo(plain_json(to_json(described).decode()) if line is None else line(row, described).rstrip())


def echo_next(limit: int, moment: float, id: str) -> None:
    """Print how to get what comes after a list of `limit` rows, the last of which is of that moment and id."""
    click.echo(f"There may be more than {limit}: raise --limit, or add --before {moment!r}/{id}", err=True)


def run_on(database: str, work: "Callable[[SQLStore], Awaitable[T]]") -> T:
    from ..storage.sql.store import SQLStore

    async def run() -> T:
        store = SQLStore(database.strip())
        if store.is_new:  # to look would make the file
            raise SetupError(f"{store.database.name}: there is no such file; check the URL of the database")
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnknownTarget:
        raise click.ClickException("There is no such task; it may have expired") from None
    except InvalidRequestState as error:
        raise click.ClickException(f"This task does not open: {error.reason}") from None


def describe(row: TaskRow) -> JSON:
    return {
        "id": row.id,
        "reference": row.reference,
        "tool": row.name,
        "status": row.status,
        "message": row.message,
        "caller": row.caller or None,
        "created": utc_time(row.created),
        "updated": utc_time(row.updated),
        "deadline": utc_time(row.deadline),
        "expires": utc_time(row.expires),
        "attempts": row.attempts,
        "leased until": utc_time(row.leased_until) if row.lease else None,
    }
