"""The store that a fleet shares: SQLite in a file on one machine, PostgreSQL on many."""

import asyncio
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from typing_extensions import override

from ...concurrency.batching import BatchLoader
from ...concurrency.threads import in_own_thread
from ...errors import StoreUnavailable
from ..quotas import ANY, ENDLESS, Quota
from ..rows import ENDED_SECONDS, Redemption
from . import open_database
from .events import SQLEvents
from .notify import SQLFanout
from .tasks import FULL_AND_THEN_NOT, LOOKS, SQLTasks, budget

SWEEP_INTERVAL = 30.0  # seconds between removals of expired rows
LOCKED_PAUSE = 0.05  # seconds until the next look at a row that something else has locked
FLEET_ROOM = 10  # a database server keeps so many times the defaults
SWEEP_LATE = 60.0  # seconds that a row may become visible after it has expired, or be locked
SWEEP_ALL = 600.0  # seconds until all that has expired is looked at again, for rows that were later than that
SWEEP_BATCH = 1_000  # rows that are removed at once; when there are more, the next call continues


class SQLStore(SQLTasks, SQLEvents):
    """A store in a database: what one replica keeps, all of them see.

    It connects when it is first used, makes its tables if they are not there, and works again by itself when the
    database has been away. A SQLite file serves the processes of one machine; PostgreSQL serves a fleet, and its own
    clock counts there. The records survive a crash of the processes, and of the machine as far as its disks do.

    Args:
        url: `sqlite:///file.db` (a path from the working directory, with four slashes an absolute one), or
            `postgresql://user:password@host/name` with libpq's options.
        clock: returns the time of this machine, in seconds since the epoch: that of a SQLite file, and what
            PostgreSQL's own clock is compared with.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
    """

    shared = True
    has_epochs = True

    def __init__(self, url: str = "sqlite:///mrtr_server.db", *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(open_database(url, clock))
        self.one_machine = not self.database.notifies
        self.default_room = 1 if self.one_machine else FLEET_ROOM
        self._renewals = BatchLoader(self._renew_grants)
        self._fanout = SQLFanout(self.notices)
        self._swept = -SWEEP_INTERVAL
        self._sweep_all = 0.0
        self._swept_until: dict[str, float] = {}  # by statement: until when nothing that has expired is left
        self._sweeps = [name for name in self.database.statements if name.startswith("sweep_")]

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever stored, as far as that is known without a connection: there is no SQLite file."""
        return self.database.is_new

    @override
    async def redeem(
        self,
        state: str,
        answers: str,
        *,
        lease: float,
        keep: float,
        lapsed: bool = True,
        quota: Quota = ANY,
        epoch: str = "",
    ) -> Redemption:
        token = token_hex(16)
        given = {"state": state, "answers": answers, "token": token, "lease": lease, "keep": keep, "lapsed": lapsed}
        given |= budget(quota, quota.states) | {"epoch": epoch}
        self.database.grants(lease)
        await self._sweep()
        await self.database.check_clock()
        for _ in range(LOOKS):
            granted = await self.database.rows("grant", **given)
            if granted:
                return Redemption("granted", token, attempt=granted[0][0])
            found = await self.database.find("find_redemption", state=state, caller=quota.caller, begun=quota.begun)
            if found:
                *record, present, is_forgotten = found[0]
                verdict = _verdict(*record, answers=answers, token=token)
                if verdict.verdict != "running":  # its outcome is known, whatever else is lost
                    return verdict
                is_lost = epoch not in ("", present)
                return Redemption("forgotten" if is_forgotten else "other_epoch" if is_lost else "running")
            if await self._is_forgotten(quota):
                return Redemption("forgotten")
            if epoch and epoch != await self.database.read_epoch():
                return Redemption("other_epoch")
            (await self._usage(quota)).check_state(quota, ENDLESS)
        return Redemption("running")  # by others, who take it and give it back faster than one can look

    @override
    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        if not self.database.notifies:
            return await self._changed("renew_grant", state=state, token=token, lease=lease)
        for _ in range(LOOKS):
            is_renewed = await self._renewals.get((state, token, lease))
            if is_renewed is not False:
                return is_renewed is not None
            await asyncio.sleep(LOCKED_PAUSE)
        raise StoreUnavailable(f"{self.database.name}: something else has locked the row of a lease")

    @override
    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        return await self._changed("record_outcome", state=state, token=token, outcome=outcome)

    @override
    async def release(self, state: str, token: str) -> None:
        await self._changed("release_grant", state=state, token=token)

    @override
    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        return await self._put("put_value", key, value, keep, quota)

    @override
    async def replace(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> None:
        await self._put("replace_value", key, value, keep, quota)

    async def _put(self, statement: str, key: str, value: bytes, keep: float, quota: Quota) -> bool:
        await self._sweep()
        given = {"key": key, "value": value, "writer": token_hex(16), "keep": keep, **budget(quota, quota.states)}
        for _ in range(LOOKS):
            if await self._changed(statement, **given):
                return True
            if (statement == "put_value" and await self.get(key) is not None) or await self._is_forgotten(quota):
                return False
            (await self._usage(quota)).check_state(quota, ENDLESS)  # or there is room by now
        raise StoreUnavailable(FULL_AND_THEN_NOT)

    @override
    async def get(self, key: str) -> bytes | None:
        found = await self.database.find("get_value", key=key)
        return found[0][0] if found else None

    @override
    async def epoch(self) -> str:
        return await self.database.epoch()

    async def check(self) -> None:
        """Connect, so that what is wrong is known early.

        Raises:
            WrongVersion: the tables are of another version.
            StoreUnavailable: the database can't be used, for now.
        """
        await self.database.check()

    def fanout(self) -> SQLFanout:
        """Return what carries changes to all replicas, through the same database; one for all servers of this store."""
        return self._fanout

    async def close(self) -> None:
        """End this event loop's connections. The store may be used again afterwards."""
        self.wakes.withdraw()
        await in_own_thread(self.notices.close)
        await self.database.close()

    async def _renew_grants(self, grants: list[tuple[str, str, float]]) -> dict[tuple[str, str, float], bool]:
        """Renew grants; return whether each was renewed, but for grants of others."""
        states, tokens, leases = zip(*grants, strict=True)
        given = {"states": list(states), "tokens": list(tokens), "leases": list(leases)}
        found = {(state, token): new for state, token, new in await self.database.rows("renew_grants", **given)}
        return {each: found[each[:2]] for each in grants if each[:2] in found}

    async def _changed(self, statement: str, **given: Any) -> bool:
        return len(await self.database.rows(statement, **given)) > 0

    async def _sweep(self) -> None:
        """Remove some of what has expired, now and then: first, so that a full disk has room for what comes next."""
        if time.monotonic() < self._swept + SWEEP_INTERVAL:
            return
        self._swept = time.monotonic()
        await self.database.compare_clocks()  # a connection may live for days
        if self._swept >= self._sweep_all:
            self._sweep_all = self._swept + SWEEP_ALL
            self._swept_until.clear()
        for statement in self._sweeps:
            since = self._swept_until.get(statement, 0.0)
            removed = await self.database.rows(statement, most=SWEEP_BATCH, since=since, ended=ENDED_SECONDS)
            if len(removed) == SWEEP_BATCH:
                self._swept_until[statement] = max(expired for (expired,) in removed)
                self._swept = -SWEEP_INTERVAL
            else:
                self._swept_until[statement] = self.database.time() - SWEEP_LATE


def _verdict(
    found_answers: str, found_token: str, attempt: int, outcome: bytes | None, *, answers: str, token: str
) -> Redemption:
    if found_token == token:  # it was, and the reply was lost with its connection
        return Redemption("granted", token, attempt=attempt)
    if found_answers != answers:
        return Redemption("spent" if found_answers else "forgotten")  # whose row has no digest of answers any more
    return Redemption("running") if outcome is None else Redemption("recorded", outcome=outcome)
