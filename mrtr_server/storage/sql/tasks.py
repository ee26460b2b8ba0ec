"""Tasks in a database's table: every method is one statement, and one round trip."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import product, repeat
from secrets import token_hex
from typing import Any, get_args

from typing_extensions import override

from ...concurrency.batching import BatchLoader
from ...concurrency.running import running_loop
from ...concurrency.waiting import wait_until
from ...crypto.codec import pack, unpack
from ...errors import FORGOTTEN, InvalidRequestState, StateFault, StoreUnavailable
from ...protocol.messages import TaskStatus
from ...well_formed import well_formed
from ..base import TaskStore
from ..health import begin_request, has_waited
from ..quotas import ANY, ENDLESS, Quota, Usage, UsageByCaller
from ..rows import FREE, MOST_COUNTED, Places, TaskRow, Vitals, Waiting, WaitRow
from .database import Database
from .notify import Notices
from .waking import TaskWakes

POLL = 0.25  # seconds between looks of a process that waits for tasks of other processes
QUIET = 5.0  # the same where notifications arrive: a lease that ends notifies nobody
QUEUES = 256  # tasks of a tool that one claim looks at; where more wait, callers that have any
MANY_FOR = 1.0  # seconds for which a claim takes it that still more tasks wait than so many
LOOK_AT_ALL = 60.0  # seconds until tasks are looked for from the beginning again, whatever was seen
LATE = 5.0  # seconds by which a task may be stored after its deadline, and be found at the next look
BLOCK = 4096  # bytes that are counted as one
ALL = "*"  # the caller that stands for all of them
LOOKS = 3  # attempts at what was refused for a reason that was gone at the next look
FULL_AND_THEN_NOT = f"The store was full in {LOOKS} attempts, but had room when it was checked in between"

SHORT_DELAY = 1.0  # nobody asks whose transaction delays events for so many seconds

Place = tuple[float, str]
"""Where a page of a list begins: behind the row of that moment, and that id."""

NEWEST: Place = (math.inf, "")

SEALED = ("call", "journal", "questions", "outcome")
"""What is sealed of a task. A token is kept as the bytes that it stands for, where each server can read them."""

FREEING = frozenset({"status", "lease", "leased_until"})  # fields whose change may leave a task to be claimed


class SQLTasks(TaskStore):
    """The half of the store that keeps tasks, in the tables `mrtr_tasks` and `mrtr_waits`."""

    keeps_waits = True

    def __init__(self, database: Database) -> None:
        self.database = database
        self._changes: dict[tuple[frozenset[str], bool], str] = {}
        self._finding = BatchLoader(self._find_tasks, begin_request)
        self._leases = BatchLoader(self._find_leases)
        self.notices = Notices(database)
        self.wakes = TaskWakes(self.notices)
        self._seen: dict[str, tuple[int, int]] = {}
        self._look_at_all = 0.0
        self._overdue_since = 0.0  # before then, no task was left that is overdue
        self._look_at_all_overdue = 0.0
        self._many: dict[str, float] = {}
        """Tools of which many tasks wait, until when that counts, by the monotonic clock."""

    @override
    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool:
        given = {**row._asdict(), "message": _storable(row.message), "seconds": seconds, "writer": token_hex(8)}
        given |= budget(quota, quota.tasks) | {"caller": row.caller, "epoch": row.epoch} | self._stored(given)
        await self._sweep()
        for _ in range(LOOKS):
            if await self.database.rows("add_task", **given):
                if not row.lease:
                    self.wakes.wake(row.name)
                return True
            if await self.find_task(row.id) is not None:
                return False
            if row.epoch and row.epoch != await self.database.read_epoch():
                raise StoreUnavailable(f"{self.database.name}: another epoch has begun while a task was begun")
            if await self._is_forgotten(quota):
                raise InvalidRequestState(FORGOTTEN, StateFault.FORGOTTEN)
            (await self._usage(quota)).check_task(quota, ENDLESS)  # or there is room by now
        raise StoreUnavailable(FULL_AND_THEN_NOT)

    @override
    async def forgotten(self) -> Mapping[str, float]:
        return dict(await self.database.rows("find_forgotten"))

    async def _is_forgotten(self, quota: Quota) -> bool:
        known = quota.begun < math.inf
        return known and quota.begun <= (await self.forgotten()).get(quota.caller, -math.inf)

    async def _usage(self, quota: Quota) -> UsageByCaller:
        usage = UsageByCaller()
        asked = {"caller": quota.caller, "tenant": quota.tenant}
        for whose, tasks, states, blocks in await self.database.rows("find_usage", **asked):
            found = Usage(int(tasks), int(states), int(blocks) * BLOCK)
            if whose == ALL:
                usage.all = found
            else:
                usage.set(whose, found)
        return usage

    @override
    async def measure(self, tools: Sequence[str]) -> Vitals:
        begins = self._begins(tools)
        (_, *stored, delay), *waiting = await self.database.rows(
            "measure", tools=list(tools), most=MOST_COUNTED, **begins
        )
        tasks, states, blocks = map(int, stored)
        return Vitals(
            Usage(tasks, states, blocks * BLOCK),
            waiting={tool: Waiting(int(count), max(0.0, seconds)) for tool, count, seconds, *_ in waiting},
            connection_wait=self.database.take_longest_wait(),
            notices_away=self.notices.are_away,
            clock_difference=0.0 if self.database.clocks is None else self.database.clocks.apart,
            event_delay=delay,
            event_blocker=await self._blocker() if delay >= SHORT_DELAY else "",
        )

    async def _blocker(self) -> str:
        """Return whose transaction delays events."""
        found = await self.database.rows("find_oldest_writer")
        return str(found[0][0]) if found else ""

    @override
    async def find_task(self, id: str) -> TaskRow | None:
        if not _may_be_id(id):
            return None
        if self.database.notifies and not has_waited():
            return await self._finding.get(id)
        found = await self.database.find("find_task", id=id)
        return _row(found[0]) if found else None

    @override
    async def find_tasks(self, ids: Sequence[str], *, most_bytes: int) -> list[TaskRow]:
        asked = [id for id in ids if _may_be_id(id)]
        found = await self.database.rows("look_at_tasks", ids=asked, most_bytes=most_bytes)
        return [_row(each) for each in found]

    async def list_tasks(self, *, status: str = "", tool: str = "", before: Place = NEWEST, most: int) -> list[TaskRow]:
        """Return tasks for an operator, without what is sealed, those first that changed last.

        Args:
            status: of this status alone, as the row has it; empty for all.
            tool: of this tool alone; empty for all.
            before: when the task last changed after which to begin, in seconds since the epoch, and its id.
            most: how many to return.

        Returns:
            The tasks, with empty request, journal, questions and outcome.

        Raises:
            StoreUnavailable: they can't be read.
        """
        tools = [tool] if tool else [name for (name,) in await self.database.rows("task_names")]
        found: list[TaskRow] = []
        moment, id = before
        for name, each in product(tools, [status] if status else get_args(TaskStatus)):
            rows = await self.database.rows("list_tasks", tool=name, status=each, before=moment, id=id, most=most)
            found += [_row(row) for row in rows]
        return sorted(found, key=lambda row: (row.updated, row.id), reverse=True)[:most]

    async def tenant_of(self, id: str) -> str:
        """Return which tenant a task counts for.

        Args:
            id: of the task.

        Returns:
            The digest of the tenant; empty for none, and where there is no such task.

        Raises:
            StoreUnavailable: it can't be read.
        """
        found = await self.database.rows("tenant_of_task", id=id)
        return found[0][0] if found else ""

    async def ids_of_reference(self, reference: str) -> list[str]:
        """Return the ids of tasks that the log calls by a reference.

        Args:
            reference: the first digits of an id, in hexadecimal.

        Returns:
            The ids; two at most, since one is meant.

        Raises:
            StoreUnavailable: they can't be read.
        """
        return [id for (id,) in await self.database.rows("find_referenced_tasks", reference=reference)]

    @override
    async def list_owned_tasks(
        self, owner: str, *, before: tuple[float, str], most: int, most_bytes: int
    ) -> list[TaskRow]:
        created, id = before
        found = await self.database.rows(
            "list_owned_tasks", owner=owner, created=created, id=id, most=most, most_bytes=most_bytes
        )
        return [_row(each) for each in found]

    @override
    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        if "message" in changes:
            changes["message"] = _storable(changes["message"])
        changed = row._replace(**changes, version=row.version + 1)
        given = {**changed._asdict(), "before": row.version, "writer": token_hex(8), "seconds": seconds}
        given |= self._stored(changes)
        statement = self._change_statement(frozenset(changes), leases=seconds is not None)
        found = await self.database.execute(statement, given)
        if not found:
            return None
        changed = changed._replace(leased_until=found[0][0])  # the version stays while a lease is renewed
        if changed.status == "working" and seconds is None and not FREEING.isdisjoint(changes):
            self.wakes.wake(row.name)
        return changed

    @override
    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        places: Places = FREE,
    ) -> list[TaskRow]:
        self.database.grants(seconds)
        given = {
            "lease": lease,
            "seconds": seconds,
            "most": most,
            "tools": list(tools),
            "without": list(without),
            "lapsed_by": self._lapsed_by(lapsed),
            "callers": list(places.held),
            "held": list(places.held.values()),
            "share": places.share,
            "spare": places.spare,
            "start": token_hex(16),
            "queues": QUEUES,
            "writer": token_hex(8),
            **self._begins(tools),
        }
        with self.wakes.claiming():
            found = await (self._claim(given) if self.database.notifies else self.database.rows("claim_tasks", **given))
        rows = sorted((_row(each) for each in found), key=lambda row: row.updated)
        self.wakes.claimed(rows[-1].name if rows else "", all_=not rows or len(rows) < most)
        return rows

    async def _claim(self, given: dict[str, Any]) -> Sequence[Any]:
        """Claim from those that wait, where they are seen to begin; from many in the way that does not look at all."""
        tools = given["tools"]
        if any(time.monotonic() < self._many.get(tool, 0.0) for tool in tools):
            found = await self.database.rows("claim_from_many", **given)
            if len(found) < given["most"]:
                for tool in tools:
                    self._many.pop(tool, None)
            return found
        found = await self.database.rows("claim_tasks", **given)
        *_, are_many, waiting, running = found[0]
        self._seen |= zip(tools, zip(waiting or (), running or (), strict=True), strict=True)
        if are_many:
            self._many |= dict.fromkeys(tools, time.monotonic() + MANY_FOR)
            return await self.database.rows("claim_from_many", **given)
        return [each[:-3] for each in found if each[0] is not None]

    @override
    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        found = await self.database.rows("renew_tasks", lease=lease, ids=ids, seconds=seconds)
        return {id for id, status in found if status == "working"}

    @override
    async def holds_task(self, lease: str, id: str) -> bool:
        if self.database.notifies:
            return await self._leases.get(id) == lease
        return bool(await self.database.find("holds_task", lease=lease, id=id))

    @override
    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        await self._sweep()
        now, since = self.database.time(), self._overdue_since
        if time.monotonic() >= self._look_at_all_overdue:
            self._look_at_all_overdue = time.monotonic() + LOOK_AT_ALL
            since = 0.0
        rows = [_row(each) for each in await self.database.rows("overdue_tasks", most=most, since=since)]
        self._overdue_since = rows[0].deadline if rows else now - LATE
        return rows

    @override
    async def wait_for_tasks(
        self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = (), lapsed: bool = True
    ) -> None:
        is_told = self.database.notifies
        if is_told:
            self.notices.start()

        async def look(heard: Sequence[bool] | None) -> bool | None:
            has_missed = self.wakes.take_missed()
            if heard and not has_missed:
                return True
            self.wakes.here.clear()
            given = {"tools": list(tools), "without": list(without), "lapsed_by": self._lapsed_by(lapsed)}
            return bool(await self.database.rows("any_free_task", **given, **self._begins(tools))) or None

        pauses = (QUIET if is_told and self.notices.connected else POLL for _ in repeat(0))
        ends = running_loop().time() + seconds
        with self.wakes.waiting(tools):
            await wait_until(look, self.wakes.here, deadline=ends, pauses=pauses, at_once=False)

    @override
    async def put_wait(self, row: WaitRow) -> None:
        await self._sweep()
        await self.database.rows("put_wait", **row._asdict())

    @override
    async def list_waits(self, name: str, who: str, *, before: tuple[float, str], most: int) -> list[WaitRow]:
        created, id = before
        found = await self.database.rows("list_waits", name=name, who=who, created=created, id=id, most=most)
        return [WaitRow(*each) for each in found]

    async def find_waits(self, *, name: str = "", before: Place = NEWEST, most: int) -> list[WaitRow]:
        """Return waits for an operator, the newest first.

        Args:
            name: what `app.wait` called them; empty for all.
            before: where the page begins: the moment and the id of the last wait of the page before.
            most: how many to return.

        Returns:
            The waits.

        Raises:
            StoreUnavailable: they can't be read.
        """
        names = [name] if name else [each for (each,) in await self.database.rows("wait_names")]
        found: list[WaitRow] = []
        created, id = before
        for each in names:
            rows = await self.database.rows("find_waits", name=each, created=created, id=id, most=most)
            found += [WaitRow(*row) for row in rows]
        return sorted(found, key=lambda row: (row.created, row.id), reverse=True)[:most]

    async def find_wait(self, id: str) -> WaitRow | None:
        """Return a wait.

        Args:
            id: names it.

        Returns:
            The wait; None if there is none, or it has expired.

        Raises:
            StoreUnavailable: it can't be read.
        """
        found = await self.database.find("find_wait", id=id)
        return WaitRow(*found[0]) if found else None

    async def waits_of_reference(self, reference: str) -> list[str]:
        """Return the ids of waits that begin so.

        Args:
            reference: the first digits of an id, in hexadecimal.

        Returns:
            The ids; two at most, since one is meant.

        Raises:
            StoreUnavailable: they can't be read.
        """
        return [id for (id,) in await self.database.rows("find_referenced_waits", reference=reference)]

    @override
    async def remove_wait(self, id: str) -> None:
        await self.database.rows("remove_wait", id=id)

    def _stored(self, fields: Mapping[str, Any]) -> dict[str, bytes]:
        """Return those of these fields that are sealed, as they are stored."""
        return {name: pack(fields[name], tokens=self.database.packs) for name in SEALED if name in fields}

    def _begins(self, tools: Sequence[str]) -> dict[str, list[int]]:
        """Return where tasks of these tools that wait, and that run, were seen to begin; now and then 0, for all."""
        if time.monotonic() >= self._look_at_all:
            self._look_at_all = time.monotonic() + LOOK_AT_ALL
            self._seen.clear()
        waiting, running = zip(*(self._seen.get(tool, (0, 0)) for tool in tools), strict=True) if tools else ((), ())
        return {"waiting": list(waiting), "running": list(running)}

    def _lapsed_by(self, lapsed: bool) -> float:
        """Return until when leases have ended that are taken over now; no lease ends at 0."""
        return self.database.time() if lapsed else 0.0

    async def _find_tasks(self, ids: list[str]) -> dict[str, TaskRow]:
        found = await self.database.rows("find_tasks", ids=ids)
        return {each[0]: _row(each) for each in found}

    async def _find_leases(self, ids: list[str]) -> dict[str, str]:
        return dict(await self.database.rows("find_leases", ids=ids))

    def _change_statement(self, fields: frozenset[str], *, leases: bool) -> str:
        """Return the statement that changes these fields of a task, if it still has a version."""
        statement = self._changes.get((fields, leases))
        if statement is None:
            changes = [f"{field} = :{field}" for field in sorted(fields) if not (leases and field == "leased_until")]
            changes += ["leased_until = :now + :seconds"] if leases else []
            changes += ["version = :before + 1", "writer = :writer"]
            statement = self.database.statements["change_task"].format(changes=", ".join(changes))
            self._changes[fields, leases] = statement
        return statement

    @abstractmethod
    async def _sweep(self) -> None:
        """Remove some of what has expired, from all tables of the store, now and then."""


def budget(quota: Quota, most: int) -> dict[str, Any]:
    """Return the parameters of a statement that stores something new while there is room for `most` of its kind."""
    return {
        "caller": quota.caller,
        "begun": quota.begun,
        "most": most,
        "share": quota.share_of(most),
        "most_blocks": quota.bytes // BLOCK + 1,
        "share_blocks": quota.share_of(quota.bytes) // BLOCK + 1,
        "tenant": quota.tenant,
        "tenant_share": quota.tenant_share_of(most),
        "tenant_blocks": quota.tenant_share_of(quota.bytes) // BLOCK + 1,
    }


def _row(found: Sequence[Any]) -> TaskRow:
    row = TaskRow(*found)
    call, journal, questions, outcome = map(unpack, (row.call, row.journal, row.questions, row.outcome))
    return row._replace(call=call, journal=journal, questions=questions, outcome=outcome)


def _may_be_id(id: str) -> bool:
    """Return whether a text may be a task's id; a database could not even compare some others with one."""
    return id.isascii() and id.isprintable()


def _storable(text: str) -> str:
    """Replace what PostgreSQL can't keep in a text."""
    return well_formed(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
