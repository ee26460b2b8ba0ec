"""A store as an author writes one, what is wrong with stores that are not careful, and the test file of all of them.

What replicas share is in a dictionary, where it would be in a database. `tests/testing/test_store_contract.py` runs it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

from mrtr_server import InProcessStore, Redemption, Store, TaskRow
from mrtr_server.storage.quotas import ANY, Quota
from mrtr_server.storage.rows import EventPage, EventRow, Position, SubscriptionRow
from mrtr_server.testing import Clock
from mrtr_server.testing.store import EventStoreContract, StoreContract, TaskStoreContract


@dataclass
class Record:
    answers: str
    expires: float
    until: float = 0.0
    token: str = ""
    attempt: int = 0
    outcome: bytes | None = None


@dataclass
class Shared:
    """What replicas share."""

    clock: Callable[[], float]
    epoch: str = "first"
    records: dict[str, Record] = field(default_factory=dict)
    values: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    forgotten: dict[str, float] = field(default_factory=dict)


class OwnStore(Store):
    """Keeps its promises."""

    shared = True
    has_epochs = True

    def __init__(self, server: Shared) -> None:
        self.server = server

    async def epoch(self) -> str:
        return self.server.epoch

    async def forgotten(self) -> Mapping[str, float]:
        return self.server.forgotten

    def has_forgotten(self, quota: Quota = ANY) -> bool:
        return quota.begun <= self.server.forgotten.get(quota.caller, -math.inf)

    async def redeem(
        self, state: str, answers: str, *, lease: float, keep: float, lapsed: bool = True, epoch: str = "", **quota: Any
    ) -> Redemption:
        now, record = self.server.clock(), self.found(state)
        if record is not None and record.answers != answers:
            return Redemption("spent")
        if record is not None and record.outcome is not None:
            return Redemption("recorded", outcome=record.outcome)
        if record is not None and (record.until > now or not lapsed):
            return Redemption("running")
        if epoch and epoch != await self.epoch():
            return Redemption("other_epoch")
        if self.has_forgotten(**quota):
            return Redemption("forgotten")
        if record is None:
            record = self.server.records[state] = Record(answers, now + keep)
        record.token, record.until, record.attempt = token_hex(8), now + lease, record.attempt + 1
        return Redemption("granted", record.token, attempt=record.attempt)

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        record = self.held(state, token)
        if record is None or record.outcome is not None:
            return False
        record.until = self.server.clock() + lease
        return True

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        record = self.held(state, token)
        if record is None or record.outcome not in (None, outcome):
            return False
        record.outcome = outcome
        return True

    async def release(self, state: str, token: str) -> None:
        record = self.held(state, token)
        if record is not None and record.outcome is None:
            del self.server.records[state]

    async def put(self, key: str, value: bytes, *, keep: float, **quota: Any) -> bool:
        if await self.get(key) is not None or self.has_forgotten(**quota):
            return False
        await self.replace(key, value, keep=keep)
        return True

    async def get(self, key: str) -> bytes | None:
        value, expires = self.server.values.get(key, (None, 0.0))
        return value if expires > self.server.clock() else None

    async def replace(self, key: str, value: bytes, *, keep: float, **quota: Any) -> None:
        if not self.has_forgotten(**quota):
            self.server.values[key] = value, self.server.clock() + keep

    def found(self, state: str) -> Record | None:
        record = self.server.records.get(state)
        return record if record is not None and record.expires > self.server.clock() else None

    def held(self, state: str, token: str) -> Record | None:
        record = self.found(state)
        return record if record is not None and record.token == token else None


class TestOwnStore(StoreContract):
    enforces_quotas = False
    kind = OwnStore

    def setup_method(self) -> None:
        self.clock = Clock()
        self.server = Shared(self.clock)

    async def new_store(self) -> Store:
        return self.kind(self.server)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def begin_epoch(self) -> None:
        self.server.epoch = token_hex(8)

    async def forget(self, caller: str) -> None:
        self.server.forgotten[caller] = self.clock()


class TestWithTheTimeOfTheMachine(StoreContract):
    """Which no test can move: it sleeps."""

    def setup_method(self) -> None:
        self.server = Shared(time.time)

    async def new_store(self) -> Store:
        return OwnStore(self.server)


# Stores that break a promise each


class TestReadsAndThenWrites(TestOwnStore):
    class kind(OwnStore):
        async def redeem(self, state: str, answers: str, **given: Any) -> Redemption:
            is_new = self.found(state) is None
            await asyncio.sleep(0)  # another delivery may come before it writes
            if is_new:
                self.server.records.pop(state, None)
            return await super().redeem(state, answers, **given)


class TestForgetsTheOutcome(TestOwnStore):
    class kind(OwnStore):
        async def record(self, state: str, token: str, outcome: bytes) -> bool:
            return self.held(state, token) is not None


class TestKeepsWhatIsLate(TestOwnStore):
    class kind(OwnStore):
        async def put(self, key: str, value: bytes, *, keep: float, **quota: Any) -> bool:
            return await super().put(key, value, keep=keep)


class TestTakesTheLastOutcome(TestOwnStore):
    class kind(OwnStore):
        async def record(self, state: str, token: str, outcome: bytes) -> bool:
            if record := self.held(state, token):
                record.outcome = outcome
            return record is not None


class TestTakesNoHeedOfTokens(TestOwnStore):
    class kind(OwnStore):
        def held(self, state: str, token: str) -> Record | None:
            return self.found(state)


class TestKeepsAReplicaToItself(TestOwnStore):
    class kind(OwnStore):
        def __init__(self, server: Shared) -> None:
            super().__init__(replace(server, records={}))


class TestHasLeasesWithoutAnEnd(TestOwnStore):
    class kind(OwnStore):
        async def redeem(self, state: str, answers: str, **given: Any) -> Redemption:
            return await super().redeem(state, answers, **given | {"lapsed": False})


class TestTakesOverWhateverItIsTold(TestOwnStore):
    class kind(OwnStore):
        async def redeem(self, state: str, answers: str, **given: Any) -> Redemption:
            return await super().redeem(state, answers, **given | {"lapsed": True})


class TestKeepsWithoutAnEnd(TestOwnStore):
    class kind(OwnStore):
        def found(self, state: str) -> Record | None:
            return self.server.records.get(state)


class TestRemembersTheEpoch(TestOwnStore):
    class kind(OwnStore):
        def __init__(self, server: Shared) -> None:
            super().__init__(server)
            self.remembered = server.epoch

        async def epoch(self) -> str:
            return self.remembered


class TestPutsOverWhatIsThere(TestOwnStore):
    class kind(OwnStore):
        async def put(self, key: str, value: bytes, *, keep: float, **quota: Any) -> bool:
            await self.replace(key, value, keep=keep)
            return True


class TestSaysThatItEnforcesQuotas(TestOwnStore):
    enforces_quotas = True


class TestTasks(TaskStoreContract):
    kind = InProcessStore

    def setup_method(self) -> None:
        self.clock = Clock()
        self.only = self.kind(self.clock)

    async def new_store(self) -> Store:
        return self.only

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestClaimsWithoutALease(TestTasks):
    class kind(InProcessStore):
        async def claim_tasks(self, lease: str, *, seconds: float, **given: Any) -> list[TaskRow]:
            return await super().claim_tasks(lease, seconds=0.0, **given)


class TestChangesAnyVersion(TestTasks):
    class kind(InProcessStore):
        async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
            return await super().change_task(await self.find_task(row.id) or row, seconds=seconds, **changes)


class TestNeverWaits(TestTasks):
    class kind(InProcessStore):
        async def wait_for_tasks(self, seconds: float, **which: Any) -> None:
            pass


class TestEvents(EventStoreContract):
    kind = InProcessStore

    def setup_method(self) -> None:
        self.clock = Clock()
        self.only = self.kind(self.clock)

    async def new_store(self) -> Store:
        return self.only

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestStoresAnEventTwice(TestEvents):
    class kind(InProcessStore):
        async def add_event(self, row: EventRow) -> bool:
            return await super().add_event(row._replace(id=token_hex(16)))


class TestReadsFromTheBeginning(TestEvents):
    class kind(InProcessStore):
        async def read_events(self, names: Sequence[str], after: Position | None, **bounds: Any) -> EventPage:
            return await super().read_events(names, after and Position(), **bounds)


class TestSaysNothingOfWhatIsLost(TestEvents):
    class kind(InProcessStore):
        async def read_events(self, names: Sequence[str], after: Position | None, **bounds: Any) -> EventPage:
            return (await super().read_events(names, after, **bounds))._replace(lost=frozenset())


class TestPutsAnotherSubscriptionInItsPlace(TestEvents):
    class kind(InProcessStore):
        async def put_subscription(self, row: SubscriptionRow, **limits: Any) -> SubscriptionRow | None:
            before = await self.find_subscription(row.id)
            await self.remove_subscription(row.id)
            await super().put_subscription(row, **limits)
            return before


class TestLendsToEverybody(TestEvents):
    class kind(InProcessStore):
        async def take_lease(self, lease: str, holder: str, *, seconds: float) -> bool:
            return await super().take_lease(f"{lease} of {holder}", holder, seconds=seconds)
