"""`mrtr-server tasks`: what an operator does to tasks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, get_args

import click
from pydantic_core import to_json

from ..errors import InvalidRequestState, MRTRError, SetupError, UnknownTarget
from ..flow.inspection import utc_time
from ..logs.formats import plain, plain_json
from ..protocol.messages import JSON, TaskStatus
from ..storage.base import TaskRow
from .database import takes_database
from .keys import ring_of_servers

if TYPE_CHECKING:  # a server over stdio starts without them
    from ..storage.sql.store import SQLStore

T = TypeVar("T")

takes_task = click.argument("task", metavar="TASK")


@click.group()
def tasks() -> None:
    """Look at the tasks in the database, cancel them and retry them.

    TASK is the id of a task, or the first digits of it that the log has.
    """


@tasks.command("list")
@takes_database
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="Only tasks of this status.")
@click.option("--tool", default="", metavar="NAME", help="Only tasks of this tool.")
@click.option("--limit", default=50, type=click.IntRange(1), show_default=True, help="How many to print at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
def list_tasks(database: str, status: str | None, tool: str, limit: int, as_json: bool) -> None:
    """List tasks, the last changed first. Their contents stay sealed."""
    rows = _run(database, lambda store: store.list_tasks(status=status or "", tool=tool, most=limit))
    for row in rows:
        described = _describe(row)
        if as_json:
            click.echo(plain_json(to_json(described).decode()))
        else:
            about = plain(f"{row.name}  {row.message}")
            click.echo(f"{row.id}  {row.status:14}  {described['updated']}  {about}".rstrip())
    if len(rows) == limit:
        click.echo(f"There may be more than {limit}: raise --limit", err=True)


@tasks.command()
@takes_database
@takes_task
@click.option("--values", is_flag=True, help="Also print its arguments; this needs MRTR_KEYS.")
def show(database: str, task: str, values: bool) -> None:
    """Print a task as JSON. Its arguments are secrets of its user: without --values they stay sealed."""

    async def find(store: "SQLStore") -> JSON:
        from ..tasks.administration import TaskAdministration, call_of

        row = await TaskAdministration(store).find(task)
        described = _describe(row)
        if values:
            call = call_of(row, ring_of_servers())
            described["arguments"] = None if call is None else call.arguments
        return described

    click.echo(plain_json(to_json(_run(database, find), indent=2).decode()))


@tasks.command()
@takes_database
@takes_task
def cancel(database: str, task: str) -> None:
    """Cancel a task, as its client would. No further step of it begins; a step that runs is not interrupted."""
    from ..tasks.administration import TaskAdministration

    row = _run(database, lambda store: TaskAdministration(store).cancel(task))
    if row.status != "cancelled":
        raise click.ClickException(f"Task {row.reference} has ended already: {row.status}")
    click.echo(f"Task {row.reference} is cancelled")


@tasks.command()
@takes_database
@takes_task
def retry(database: str, task: str) -> None:
    """Start a failed task again from its last recorded step, as a new task; print the id of that.

    The failed task stays as it is, for its client has been told. Steps that have run do not run again. It needs
    MRTR_KEYS.
    """
    from ..tasks.administration import TaskAdministration

    row = _run(database, lambda store: TaskAdministration(store).retry(task, ring_of_servers()))
    click.echo(row.id)


def _run(database: str, work: "Callable[[SQLStore], Awaitable[T]]") -> T:
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
    except MRTRError as error:
        raise click.ClickException(str(error)) from None


def _describe(row: TaskRow) -> JSON:
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
