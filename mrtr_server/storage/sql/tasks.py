"""Tasks in a database's table: every method is one statement, and one round trip."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from secrets import token_hex
from typing import Any

from ...concurrency.batching import Together
from ...extras import lacking
from ..tasks import TaskRow, Wakes
from .database import Database
from .notify import Notices
from .schema import IS_OPEN, IS_WORKING, TASKS

try:
    from sqlalchemy import BindParameter, ColumnElement, Double, Executable, Text, any_, bindparam, func, select, update
    from sqlalchemy.dialects import postgresql, sqlite
except ImportError as error:  # pragma: no cover  `database` has said so before
    raise lacking("A database", "tasks", error) from error

POLL = 0.25
"""How often a process that waits looks whether another one has left something to claim, in seconds."""
QUIET = 5.0
"""How often it looks where the others say so; there may be leases that nobody holds any more."""
WORK = "work"
"""The notice that there may be something to claim."""

FREEING = frozenset({"status", "lease", "leased_until"})
"""The fields whose change may leave a task to be claimed."""


class SQLTasks:
    """Tasks in the table `mrtr_tasks`; see `TaskStore`.

    Parameters:
        database: where the table is.
        now: the time, as a parameter of statements or as the database gives it.
        clock: gives the former, in seconds since the epoch.
    """

    def __init__(self, database: Database, now: ColumnElement[float], clock: Callable[[], float]) -> None:
        self.database = database
        self._clock = clock
        self._task_statements = _Statements(now, is_sqlite=database.is_sqlite)
        self._finding = Together(self._find_tasks)
        self._wakes = Wakes()
        self.notices = Notices(database)
        self.notices.hear(self._heard, self._missed)
        self._has_missed = False

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0) -> bool:
        """Keep a new task; see `TaskStore`."""
        given = {f"p_{field}": value for field, value in asdict(row).items()}
        given |= {"p_message": _storable(row.message), "p_seconds": seconds, "p_writer": token_hex(8)}
        await self._sweep()
        added = await self._rows(self._task_statements.add_leased if row.lease else self._task_statements.add, **given)
        if not row.lease:
            self._wake()
        return bool(added)

    async def find_task(self, id: str) -> TaskRow | None:
        """Give a task; see `TaskStore`."""
        if not _may_be_id(id):
            return None
        if not self.database.is_sqlite:
            return await self._finding.get(id)
        found = await self.database.rows(self._task_statements.find, self._now(p_id=id), by_key=True)
        return TaskRow(*found[0]) if found else None

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        """Change fields of a task; see `TaskStore`."""
        if "message" in changes:
            changes["message"] = _storable(changes["message"])
        changed = replace(row, **changes, version=row.version + 1)
        given = {f"p_{field}": value for field, value in asdict(changed).items()}
        given |= {"p_before": row.version, "p_writer": token_hex(8), "p_seconds": seconds}
        statement = self._task_statements.change(frozenset(changes), leases=seconds is not None)
        found = await self._rows(statement, **given)
        if not found:
            return None
        changed = replace(changed, leased_until=found[0][0])  # the version stays while a lease is renewed
        if changed.status == "working" and seconds is None and not FREEING.isdisjoint(changes):
            self._wake()
        return changed

    async def claim_tasks(
        self, lease: str, *, seconds: float, most: int, tools: Sequence[str], without: Sequence[str] = ()
    ) -> list[TaskRow]:
        """Take tasks that nobody runs; see `TaskStore`."""
        self._wakes.clear()
        given = {"p_lease": lease, "p_seconds": seconds, "p_most": most, "p_writer": token_hex(8)}
        given |= {"p_tools": self._list(tools), "p_without": self._list(without)}
        found = await self._rows(self._task_statements.claim, **given)
        if found and len(found) == most:  # there may be more
            self._wakes.set()
        return sorted((TaskRow(*each) for each in found), key=lambda row: row.updated)

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        """Hold a lease on tasks for longer; see `TaskStore`."""
        given = {"p_lease": lease, "p_seconds": seconds, "p_ids": self._list(ids)}
        found = await self._rows(self._task_statements.renew, **given)
        return {id for (id,) in found}

    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        """Give tasks whose deadline is over; see `TaskStore`."""
        await self._sweep()
        return [TaskRow(*each) for each in await self._rows(self._task_statements.overdue, p_most=most)]

    async def wait_for_tasks(self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = ()) -> None:
        """Wait until there may be something to claim; see `TaskStore`."""
        given = {"p_tools": self._list(tools), "p_without": self._list(without)}
        is_told = not self.database.is_sqlite
        if is_told:
            self.notices.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            interval = QUIET if is_told and self.notices.connected else POLL
            if await self._wakes.wait(min(left, interval)) and not self._has_missed:
                return
            self._has_missed = False
            self._wakes.clear()
            if await self._rows(self._task_statements.any_free, **given):
                return

    async def _find_tasks(self, ids: list[str]) -> dict[str, TaskRow]:
        found = await self._rows(self._task_statements.find_all, p_ids=ids)
        return {each[0]: TaskRow(*each) for each in found}

    def _wake(self) -> None:
        self._wakes.set()
        if not self.database.is_sqlite:
            self.notices.tell(WORK)

    def _heard(self, notices: Sequence[str]) -> None:
        if WORK in notices:
            self._wakes.set()

    async def _rows(self, statement: Executable, **parameters: Any) -> Sequence[Any]:
        return await self.database.rows(statement, self._now(**parameters))

    def _list(self, ids: Sequence[str]) -> object:
        return json.dumps(list(ids)) if self.database.is_sqlite else list(ids)

    def _now(self, **parameters: Any) -> dict[str, Any]:
        return {**parameters, "p_now": self._clock()} if self.database.is_sqlite else parameters

    async def _sweep(self) -> None:
        """Remove some of what has expired, now and then; the store does, from all of its tables."""
        raise NotImplementedError

    def _missed(self) -> None:
        self._has_missed = True
        self._wakes.set()


class _Statements:
    """The statements, each built once. What has expired counts as absent in every one."""

    def __init__(self, now: ColumnElement[float], *, is_sqlite: bool) -> None:
        insert = sqlite.insert if is_sqlite else postgresql.insert
        task = TASKS.c
        fields = [column for column in TASKS.columns if column is not task.writer]
        leased_until = now + bindparam("p_seconds", type_=Double)
        self._present = task.expires > now
        self._leased_until = leased_until
        self._changes: dict[tuple[frozenset[str], bool], Executable] = {}

        # It is there already where the first reply was lost with its connection; ids are never used twice.
        values: dict[str, Any] = {column.name: bindparam(f"p_{column.name}") for column in TASKS.columns}
        self.add, self.add_leased = (
            insert(TASKS).values(each).on_conflict_do_nothing(index_elements=[task.id]).returning(task.id)
            for each in (values, {**values, "leased_until": leased_until})
        )

        def among(column: ColumnElement[str], parameter: str) -> ColumnElement[bool]:
            if is_sqlite:
                return column.in_(select(func.json_each(bindparam(parameter)).table_valued("value").c.value))
            return column == any_(bindparam(parameter, type_=postgresql.ARRAY(Text)))

        ids = among(task.id, "p_ids")
        self.find = select(*fields).where(task.id == bindparam("p_id"), self._present)
        self.find_all = select(*fields).where(ids, self._present)

        # Not by the column itself, or SQLite would look by its index: for all tasks but the expired ones.
        is_present = task.expires + 0 > now
        is_free = (task.leased_until <= now) & (task.deadline > now) & is_present & IS_WORKING
        is_free &= among(task.name, "p_tools") & ~among(task.id, "p_without")
        free = select(task.id).where(is_free).order_by(task.updated).limit(bindparam("p_most"))
        # Rows that somebody else is changing are left to them. SQLite, which locks no rows, leaves that out. A table
        # expression, since PostgreSQL might evaluate a plain subquery more than once, and so take more than the limit.
        taken = free.with_for_update(skip_locked=True).cte("taken")
        self.claim = (
            update(TASKS)
            .where(task.id.in_(select(taken.c.id)))
            .values(
                lease=bindparam("p_lease"),
                leased_until=leased_until,
                attempts=task.attempts + 1,
                version=task.version + 1,
                writer=bindparam("p_writer"),
            )
            .returning(*fields)
        )
        self.any_free = select(task.id).where(is_free).limit(1)

        self.renew = (
            update(TASKS)
            .where(ids, task.lease == bindparam("p_lease"), IS_WORKING, self._present)
            .values(leased_until=leased_until)
            .returning(task.id)
        )
        self.overdue = (
            select(*fields)
            .where(IS_OPEN, task.deadline <= now, is_present)
            .order_by(task.deadline)
            .limit(bindparam("p_most"))
        )

    def change(self, fields: frozenset[str], *, leases: bool) -> Executable:
        """Give the statement that changes these fields of a task, if it still has a version.

        Parameters:
            fields: by name.
            leases: whether a lease begins with it.
        """
        statement = self._changes.get((fields, leases))
        if statement is None:
            task = TASKS.c
            before: BindParameter[int] = bindparam("p_before")
            writer: BindParameter[str] = bindparam("p_writer")
            values: dict[str, Any] = {field: bindparam(f"p_{field}") for field in fields}
            if leases:
                values["leased_until"] = self._leased_until
            # The writer of the next version comes again where the first reply was lost with its connection.
            is_mine = (task.version == before) | ((task.version == before + 1) & (task.writer == writer))
            statement = self._changes[fields, leases] = (
                update(TASKS)
                .where(task.id == bindparam("p_id"), is_mine, self._present)
                .values({**values, "version": before + 1, "writer": writer})
                .returning(task.leased_until)
            )
        return statement


def _may_be_id(id: str) -> bool:
    """Tell what can't be a task's id, and what a database could not even compare with one."""
    return id.isascii() and id.isprintable()


def _storable(text: str) -> str:
    """Replace what PostgreSQL can't keep in a text."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
