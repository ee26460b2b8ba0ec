"""What every store promises about events: one contract, held by the one in the process and by those in databases."""

import asyncio
from pathlib import Path

import pytest

from mrtr_server import SQLStore, Store
from mrtr_server.testing import Clock
from mrtr_server.testing.store import EventStoreContract

from ..support.databases import PostgreSQL, note_forgotten
from ..support.stores import InOneProcess

pytestmark = pytest.mark.anyio


class OwnContract(EventStoreContract):
    """The contract, and what ours promise besides."""

    second = 10.0  # no test waits for one, and no busy machine is late


class TestInProcessEvents(InOneProcess, OwnContract):
    pass


class SQLContract(OwnContract):
    database: str

    async def forget(self, caller: str) -> None:
        await note_forgotten(self.database, caller)


class TestSQLiteEvents(SQLContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.database, self.clock = f"sqlite:///{tmp_path}/events.db", Clock()

    async def new_store(self) -> Store:
        return SQLStore(self.database, clock=self.clock)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestPostgreSQLEvents(SQLContract):
    @pytest.fixture(autouse=True)
    def server(self, postgresql: PostgreSQL) -> None:
        self.postgresql, self.name = postgresql, asyncio.run(postgresql.new_database())
        self.database = postgresql.url(self.name)

    async def new_store(self) -> Store:
        return SQLStore(self.database)

    async def pass_time(self, seconds: float) -> None:
        # It is the database's own clock that counts: what is in it grows older instead.
        for change in (
            f"UPDATE mrtr_events SET expires = expires - {seconds}",  # noqa: S608
            f"UPDATE mrtr_leases SET until = until - {seconds}",  # noqa: S608
        ):
            await self.postgresql.fetch(change, self.name)
