"""A store that the processes of a test share, in a file."""

import asyncio
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from mrtr_server import Store
from mrtr_server.store import Redemption


def shared_store(path: Path) -> Store:
    """Give the store in a file, for one of the processes that share it."""
    return _FileStore(path)


class _FileStore:
    """The smallest store that several processes can share."""

    shared = True

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.execute(
                "create table if not exists redeemed "
                "(state primary key, answers, token, leased, expires, attempt, outcome)"
            )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10, isolation_level=None)

    async def _do(self, *statements: tuple[str, tuple[Any, ...]]) -> list[tuple[list[Any], int]]:
        def work() -> list[tuple[list[Any], int]]:
            with closing(self._connect()) as connection:
                connection.execute("begin immediate")
                cursors = [connection.execute(*statement) for statement in statements]
                found = [(cursor.fetchall(), cursor.rowcount) for cursor in cursors]
                connection.execute("commit")
                return found

        return await asyncio.to_thread(work)

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float) -> Redemption:
        now, token = time.time(), secrets.token_hex(8)
        taken = "update redeemed set token = ?, leased = ?, attempt = attempt + 1 where state = ? and answers = ?"
        _, (_, new), (_, again), ((row,), _) = await self._do(
            ("delete from redeemed where expires <= ?", (now,)),
            (
                "insert or ignore into redeemed values (?, ?, ?, ?, ?, 1, null)",
                (state, answers, token, now + lease, now + keep),
            ),
            (f"{taken} and outcome is null and leased <= ?", (token, now + lease, state, answers, now)),
            ("select answers, outcome, attempt from redeemed where state = ?", (state,)),
        )
        if new == 1 or again == 1:
            return Redemption("granted", token, attempt=row[2])
        if row[0] != answers:
            return Redemption("spent")
        return Redemption("running") if row[1] is None else Redemption("recorded", outcome=row[1])

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        statement = "update redeemed set leased = ? where state = ? and token = ?"
        return (await self._do((statement, (time.time() + lease, state, token))))[0][1] == 1

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        statement = "update redeemed set outcome = ? where state = ? and token = ?"
        return (await self._do((statement, (outcome, state, token))))[0][1] == 1

    async def release(self, state: str, token: str) -> None:
        await self._do(("delete from redeemed where state = ? and token = ?", (state, token)))

    async def put(self, key: str, value: bytes, *, keep: float) -> bool:
        raise NotImplementedError

    async def get(self, key: str) -> bytes | None:
        raise NotImplementedError

    async def close(self) -> None:
        pass
