"""`mrtr-server waits`: what flows wait for that somebody else answers."""

from typing import TYPE_CHECKING

import click
from pydantic_core import to_json

from ..errors import SetupError
from ..flow.states import utc_time
from ..logs.formats import plain, plain_json
from ..protocol.messages import JSON
from ..storage.rows import TaskRow, WaitRow
from .stored import describe, echo_next, echo_rows, ring_of_servers, run_on, takes_database, takes_page

if TYPE_CHECKING:
    from ..storage.sql.store import SQLStore

_HEX = frozenset("0123456789abcdef")

_takes_wait = click.argument("wait", metavar="WAIT")


@click.group()
def waits() -> None:
    """Look at what flows wait for from others, and withdraw it.

    WAIT is the id of a wait as the list has it, or its first digits.
    """


@waits.command("list")
@takes_database
@click.option("--name", default="", metavar="NAME", help="Only waits that app.wait has called so.")
@takes_page("waits that began")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
def list_waits(database: str, name: str, before: tuple[float, str], limit: int, as_json: bool) -> None:
    """List waits, the newest first. What they are about stays sealed.

    For a minute after its task has ended or gone on, a wait may still be listed; `show` says how the task is.
    """
    rows = run_on(database, lambda store: store.find_waits(name=name, before=before, most=limit))

    def line(row: WaitRow, described: JSON) -> str:
        return f"{row.id}  {described['began']}  until {described['until']}  " + plain(f"{row.name}  task {row.task}")

    echo_rows([(row, _describe(row)) for row in rows], None if as_json else line)
    if len(rows) == limit:
        echo_next(limit, rows[-1].created, rows[-1].id)


@waits.command()
@takes_database
@_takes_wait
@click.option("--values", is_flag=True, help="Also print what it is about; this needs MRTR_KEYS.")
def show(database: str, wait: str, values: bool) -> None:
    """Print a wait and its task as JSON. Without --values, what it is about stays sealed."""

    async def find(store: "SQLStore") -> JSON:
        row, task = await _find(store, wait)
        described: JSON = {**_describe(row), "task": None if task is None else describe(task)}
        if values:
            from ..tasks.administration import about_of

            described["about"] = None if task is None else about_of(task, row.id, ring_of_servers())
        return described

    click.echo(plain_json(to_json(run_on(database, find), indent=2).decode()))


@waits.command()
@takes_database
@_takes_wait
def withdraw(database: str, wait: str) -> None:
    """Withdraw a wait: cancel the task that waits, as `mrtr-server tasks cancel` does. Its tickets count no more."""

    async def cancel(store: "SQLStore") -> str:
        from ..tasks.administration import TaskAdministration

        row, task = await _find(store, wait)
        if task is not None:
            task = await TaskAdministration(store).cancel(task.id)
        await store.remove_wait(row.id)
        return "is gone" if task is None else f"is {task.status}"

    click.echo(f"The wait is withdrawn; its task {run_on(database, cancel)}")


async def _find(store: "SQLStore", named: str) -> tuple[WaitRow, TaskRow | None]:
    ids = await store.waits_of_reference(named) if named and _HEX.issuperset(named) else []
    if len(ids) > 1:
        raise SetupError(f"Several waits begin with {named}; give more digits")
    found = await store.find_wait(ids[0]) if ids else None
    if found is None:
        raise SetupError("There is no such wait; it may have been answered")
    return found, await store.find_task(found.task)


def _describe(row: WaitRow) -> JSON:
    return {
        "id": row.id,
        "name": row.name,
        "asker": row.caller or None,
        "who": row.who or None,
        "began": utc_time(row.created),
        "until": utc_time(row.expires),
        "task": row.task,
    }
