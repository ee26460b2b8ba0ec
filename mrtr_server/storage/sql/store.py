"""The store that a fleet shares: SQLite in a file on one machine, PostgreSQL on many."""

import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from ...concurrency.threads import in_own_thread
from ...extras import lacking
from ..base import Redemption
from .database import Database
from .pubsub import SQLFanout
from .schema import CHANGES, KEPT, REDEMPTIONS, TABLES, TASKS, VERSIONS, sweep
from .tasks import SQLTasks

try:
    from sqlalchemy import (
        ColumnElement,
        Double,
        Executable,
        LargeBinary,
        bindparam,
        case,
        cast,
        delete,
        extract,
        func,
        null,
        or_,
        select,
        update,
    )
    from sqlalchemy.dialects import postgresql, sqlite
except ImportError as error:  # pragma: no cover  `database` has said so before
    raise lacking("A database", "tasks", error) from error

SWEEP_EVERY = 30.0
"""How often a process looks for what has expired, in seconds."""
SWEEP_BATCH = 1_000
"""How much of it is removed at once; when there is more, the next call goes on."""
LOOKS = 3
"""How often a delivery looks at a record that was gone again when it looked."""


class SQLStore(SQLTasks):
    """A store in a database: what one replica keeps, all of them see.

    It connects when it is first used, makes its tables if they are not there, and works again by itself when the
    database has been away. A SQLite file serves the processes of one machine; PostgreSQL serves a fleet, and its own
    clock counts there. What is kept survives a crash of the processes, and of the machine as far as its disks do.

    Parameters:
        url: `sqlite:///file.db` (a path from the working directory, with four slashes an absolute one), or
            `postgresql://user:password@host/name` with libpq's options.
        clock: gives the time in seconds since the epoch; for SQLite only.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
    """

    shared = True

    def __init__(self, url: str = "sqlite:///mrtr_server.db", *, clock: Callable[[], float] = time.time) -> None:
        database = Database(url, TABLES, VERSIONS)
        # One clock for all who share the database: the machine's, or the database's own.
        now: ColumnElement[float] = (
            bindparam("p_now", type_=Double) if database.is_sqlite else cast(extract("epoch", func.now()), Double)
        )
        super().__init__(database, now, clock)
        self._statements = _Statements(now, is_sqlite=database.is_sqlite)
        self._swept = -SWEEP_EVERY

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        """Take a delivery of a sealed state, atomically. See `Store.redeem`."""
        token = token_hex(16)
        given = self._now(p_state=state, p_answers=answers, p_token=token, p_lease=lease, p_keep=keep)

        await self._sweep()
        for _ in range(LOOKS):
            granted = await self.database.rows(self._statements.grant, given)
            if granted:
                return Redemption("granted", token, attempt=granted[0][0])
            found = await self.database.rows(self._statements.look, given, by_key=True)
            if found:
                return _verdict(*found[0], answers=answers, token=token)
        return Redemption("running")  # by others, who take it and give it back faster than one can look

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Hold a grant for longer. See `Store.renew`."""
        return await self._changed(self._statements.renew, p_state=state, p_token=token, p_lease=lease)

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep what came of a granted delivery. See `Store.record`."""
        return await self._changed(self._statements.record, p_state=state, p_token=token, p_outcome=outcome)

    async def release(self, state: str, token: str) -> None:
        """Give a grant back. See `Store.release`."""
        await self._changed(self._statements.release, p_state=state, p_token=token)

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        """Keep a value, if there is none for the key. See `Store.put`."""
        await self._sweep()
        return await self._changed(self._statements.put, p_key=key, p_value=value, p_writer=token_hex(16), p_keep=keep)

    async def get(self, key: str) -> bytes | None:
        """Give the value of a key. See `Store.get`."""
        found = await self.database.rows(self._statements.get, self._now(p_key=key), by_key=True)
        return found[0][0] if found else None

    async def check(self) -> None:
        """Connect, so that what is wrong is known early.

        Raises:
            WrongVersion: the tables are of another version.
            StoreUnavailable: the database can't be used, for now.
        """
        await self.database.check()

    def fanout(self) -> SQLFanout:
        """Make what carries changes to all replicas through the same database."""
        return SQLFanout(self.notices)

    async def close(self) -> None:
        """Let go of this event loop's connections. The store may be used again afterwards."""
        await in_own_thread(self.notices.close)
        await self.database.close()

    async def _changed(self, statement: Executable, **parameters: Any) -> bool:
        return len(await self._rows(statement, **parameters)) > 0

    async def _sweep(self) -> None:
        """Remove some of what has expired, now and then: first, so that a full disk has room for what comes next."""
        if time.monotonic() < self._swept + SWEEP_EVERY:
            return
        self._swept = time.monotonic()
        for statement in self._statements.sweeps:
            if len(await self._rows(statement)) == SWEEP_BATCH:
                self._swept = -SWEEP_EVERY


class _Statements:
    """The statements, each built once. What has expired counts as absent in every one."""

    def __init__(self, now: ColumnElement[float], *, is_sqlite: bool) -> None:
        insert = sqlite.insert if is_sqlite else postgresql.insert
        leased_until = now + bindparam("p_lease", type_=Double)
        expires = now + bindparam("p_keep", type_=Double)
        record, kept = REDEMPTIONS.c, KEPT.c
        is_gone = record.expires <= now

        granted = insert(REDEMPTIONS).values(
            state=bindparam("p_state"),
            answers=bindparam("p_answers"),
            token=bindparam("p_token"),
            attempt=1,
            leased_until=leased_until,
            expires=expires,
        )
        is_lapsed = record.outcome.is_(None) & (record.leased_until <= now)
        self.grant = granted.on_conflict_do_update(
            index_elements=[record.state],
            set_={
                "answers": granted.excluded.answers,
                "token": granted.excluded.token,
                "attempt": case((is_gone, 1), else_=record.attempt + 1),
                "leased_until": granted.excluded.leased_until,
                "expires": case((is_gone, granted.excluded.expires), else_=record.expires),
                "outcome": null(),
            },
            where=or_(is_gone, is_lapsed & (record.answers == granted.excluded.answers)),
        ).returning(record.attempt)
        self.look = select(record.answers, record.token, record.attempt, record.outcome).where(
            record.state == bindparam("p_state"), record.expires > now
        )

        mine = (record.state == bindparam("p_state")) & (record.token == bindparam("p_token")) & (record.expires > now)
        self.renew = (
            update(REDEMPTIONS)
            .where(mine, record.outcome.is_(None))
            .values(leased_until=leased_until)
            .returning(record.state)
        )
        outcome = bindparam("p_outcome", type_=LargeBinary)
        self.record = (
            update(REDEMPTIONS)
            .where(mine, or_(record.outcome.is_(None), record.outcome == outcome))
            .values(outcome=outcome)
            .returning(record.state)
        )
        self.release = delete(REDEMPTIONS).where(mine, record.outcome.is_(None)).returning(record.state)

        written = insert(KEPT).values(
            key=bindparam("p_key"), value=bindparam("p_value"), writer=bindparam("p_writer"), expires=expires
        )
        self.put = written.on_conflict_do_update(
            index_elements=[kept.key],
            set_={each: written.excluded[each] for each in ("value", "writer", "expires")},
            # The same writer comes twice where the first reply was lost with its connection.
            where=or_(kept.expires <= now, kept.writer == written.excluded.writer),
        ).returning(kept.key)
        self.get = select(kept.value).where(kept.key == bindparam("p_key"), kept.expires > now)

        # Changes lie in a table with SQLite only, and stay there where nobody tells or hears of any more.
        tables = (REDEMPTIONS, KEPT, TASKS, *((CHANGES,) if is_sqlite else ()))
        self.sweeps = [sweep(table, now, SWEEP_BATCH) for table in tables]


def _verdict(
    found_answers: str, found_token: str, attempt: int, outcome: bytes | None, *, answers: str, token: str
) -> Redemption:
    """Say what a record means for a delivery that was not granted."""
    if found_token == token:  # it was, and the reply was lost with its connection
        return Redemption("granted", token, attempt=attempt)
    if found_answers != answers:
        return Redemption("spent")
    return Redemption("running") if outcome is None else Redemption("recorded", outcome=outcome)
