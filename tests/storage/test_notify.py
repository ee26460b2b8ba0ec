"""Notices between processes, without a database: when they are sent, looked for and removed, and what a loss means."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from mrtr_server.protocol.messages import Change
from mrtr_server.storage.sql import notify as module
from mrtr_server.storage.sql.database import Database, Version
from mrtr_server.storage.sql.notify import Notices, SQLFanout

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

MOST = 10_000
"""Statements that no test here needs: where there are more, it never rests."""


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


class Restless(BaseException):
    """What is to rest now and then asks again and again."""


class Unused(Database):
    """What no notice needs of a database."""

    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        raise NotImplementedError

    async def check(self) -> None:
        raise NotImplementedError

    def time(self) -> float:
        raise NotImplementedError

    async def _change(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        raise NotImplementedError

    async def found_version(self) -> Version | None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Table(Unused):
    """A table of notices that is polled."""

    def __init__(self) -> None:
        super().__init__("sqlite", "the database")
        self.said: list[tuple[int, str, str]] = []
        """What others have written."""
        self.earlier: list[tuple[int, str]] = []
        """The last of what they had written before."""
        self.given: dict[str, dict[str, Any]] = {}
        """What each statement was given last."""
        self.asked: list[tuple[float, str]] = []
        self.written: list[tuple[float, list[str]]] = []
        self.swept: list[int] = []
        """How many notices the next sweeps remove."""
        self.error: Exception | None = None
        self.failing: set[str] = set()
        """The statements that fail; all of them where it is empty and there is an error."""
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1

    def time(self) -> float:
        return time.time()

    async def rows(self, statement: str, **given: Any) -> Sequence[Any]:
        self.asked.append((time.monotonic(), statement))
        if len(self.asked) > MOST:
            raise Restless
        if self.error is not None and statement in (self.failing or {statement}):
            raise self.error
        self.given[statement] = given
        match statement:
            case "sweep_notices":
                return [()] * (self.swept.pop(0) if self.swept else 0)
            case "write_notices":
                self.written.append((time.monotonic(), given["notices"]))
            case "last_notice_before":
                return self.earlier
            case "read_notices":
                return [each for each in self.said if each[0] > given["seen"]][: given["most"]]
        return []

    def times(self, statement: str) -> list[float]:
        """Return when a statement was run."""
        return [at for at, each in self.asked if each == statement]


class Connection:
    """A connection of asyncpg's that listens.

    Args:
        answers: whether it closes when it is told to.
        listeners: how many processes listen.
    """

    def __init__(self, *, answers: bool = True, listeners: int = 1) -> None:
        self.executed: list[tuple[float, list[str]]] = []
        """The notices that were sent, and when."""
        self.counted: list[float] = []
        """When it was asked who listens."""
        self.count_error: Exception | None = None
        self.others: list[Connection] = []
        self._listeners = listeners
        self.is_over = self.is_terminated = False
        self.error: Exception | None = None
        self._answers = answers
        self._tell: Callable[[object], None] = lambda _: None
        self._on_notify: Callable[[object, int, str, str], None] | None = None

    def add_termination_listener(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    async def add_listener(self, channel: str, on_notify: Callable[[object, int, str, str], None]) -> None:
        assert channel == module.CHANNEL
        self._on_notify = on_notify

    def say(self, said: str) -> None:
        """Bring a notice."""
        assert self._on_notify is not None
        self._on_notify(self, 1, module.CHANNEL, said)

    def is_closed(self) -> bool:
        return self.is_over

    def lose(self) -> None:
        """Be cut off."""
        self.is_over = True
        self._tell(self)

    async def execute(self, sql: str, *given: Any) -> None:
        if self.error is not None:
            raise self.error
        if notices := next((each for each in given if isinstance(each, list)), []):
            self.executed.append((time.monotonic(), notices))
            for other in self.others:
                for notice in notices:
                    other.say(notice)

    async def fetchval(self, sql: str) -> int:
        self.counted.append(time.monotonic())
        if self.count_error is not None:
            raise self.count_error
        return self._listeners

    async def close(self, timeout: float = 3600.0) -> None:  # noqa: ASYNC109  as asyncpg has it
        if not self._answers:
            await asyncio.sleep(timeout)
            raise TimeoutError

    def terminate(self) -> None:
        self.is_terminated = True


class Server(Unused):
    """A server that notifies who listens."""

    notifies = True

    def __init__(self, *connections: Connection) -> None:
        super().__init__("postgresql", "the database")
        self.connections = list(connections)
        self.connected: list[float] = []

    async def connect_alone(self) -> Connection:
        self.connected.append(time.monotonic())
        return self.connections.pop(0)


class Driven(Notices):
    """Notices that are carried on the event loop of the test, and not in a thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.carrier = self._carrier = module._Carrier(self)
        self.heard: list[tuple[float, list[str]]] = []
        self.gaps: list[float] = []
        self.subscribe(
            lambda notices: self.heard.append((time.monotonic(), list(notices))),
            lambda: self.gaps.append(time.monotonic()),
        )

    def start(self, *, wakes: bool = False) -> None:
        if wakes:
            self.carrier.wake()

    @asynccontextmanager
    async def carried(self) -> AsyncIterator[None]:
        """Carry them for as long as the block lasts."""
        carrying = asyncio.create_task(self.carrier._live())
        await asyncio.sleep(0)
        yield
        self.carrier.end()
        await carrying


def pauses(times: Sequence[float]) -> list[float]:
    return [round(later - earlier, 6) for earlier, later in pairwise(times)]


class TestWhatWaitsToBeSent:
    @pytest.fixture
    def notices(self) -> Notices:
        return Driven(Table())

    def test_is_sent_once_however_often_it_was_published(self, notices: Notices) -> None:
        for notice in ("a", "b", "a", "a"):
            notices.publish(notice)
        assert notices.drain() == ["b", "a"]
        assert notices.drain() == []

    def test_is_dropped_from_the_oldest_on_and_what_waits_already_takes_no_more_room(
        self, notices: Notices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_WAITING_NOTICES", 3)
        for notice in ("a", "b", "c", "b"):
            notices.publish(notice)
        assert notices._outbox == dict.fromkeys(["a", "c", "b"])
        notices.publish("d")
        assert notices.drain() == ["c", "b", "d"]

    def test_is_urgent_until_it_is_taken_whatever_comes_after_it(self, notices: Notices) -> None:
        notices.publish("a")
        assert not notices.urgent
        notices.publish("b", urgent=True)
        notices.publish("c")
        assert notices.urgent
        notices.drain()
        assert not notices.urgent

    def test_is_sent_before_what_came_after_it_if_it_could_not_be_sent(self, notices: Notices) -> None:
        for notice in ("a", "b"):
            notices.publish(notice)
        taken = notices.drain()
        for notice in ("c", "b"):
            notices.publish(notice)
        notices.requeue(taken)
        assert notices.drain() == ["a", "b", "c"]


class Thread:
    """Stands in for the thread that carries notices."""

    made: list["Thread"]

    def __init__(self, notices: Notices) -> None:
        self.made.append(self)
        self.connected = False
        self.lives = True
        self.done: list[str] = []

    def is_alive(self) -> bool:
        return self.lives

    def start(self) -> None:
        self.done.append("start")

    def wake(self) -> None:
        self.done.append("wake")

    def end(self) -> None:
        self.done.append("end")


class TestTheThread:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[Thread]:
        """The threads that are made."""
        made: list[Thread] = []
        monkeypatch.setattr(Thread, "made", made, raising=False)
        monkeypatch.setattr(module, "_Carrier", Thread)
        return made

    def test_starts_with_the_first_notice_and_is_woken_once_for_all_that_it_has_not_taken(
        self, made: list[Thread]
    ) -> None:
        notices = Notices(Table())
        assert not notices.connected
        notices.publish("notice")
        notices.drain()
        for number in range(3):
            notices.publish(f"notice {number}")
        notices.start()
        assert [each.done for each in made] == [["start", "wake"]]
        assert not notices.connected
        made[0].connected = True
        assert notices.connected

    async def test_is_not_woken_by_listeners_but_for_the_first_who_waits_for_a_person(self, made: list[Thread]) -> None:
        fanout = SQLFanout(Notices(Table()))
        for kind in ("resource", "answer", "answer", "resource"):
            fanout.subscribe(frozenset({Change(kind, "a")}))
        assert [each.done for each in made] == [["start", "wake"]]

    def test_starts_anew_where_it_does_not_live_as_in_a_process_that_was_forked(self, made: list[Thread]) -> None:
        notices = Notices(Table())
        notices.publish("a")
        made[0].lives = False
        notices.publish("b")
        notices.drain()
        notices.publish("c")
        assert [each.done for each in made] == [["start"], ["start", "wake"]]

    def test_is_ended_once_and_starts_anew_when_it_is_needed(self, made: list[Thread]) -> None:
        notices = Notices(Table())
        notices.close()
        notices.publish("a")
        notices.close()
        notices.close()
        notices.publish("b")
        assert [each.done for each in made] == [["start", "end"], ["start"]]

    def test_keeps_no_process_from_ending(self) -> None:
        carrier = module._Carrier(Notices(Table()))
        assert carrier.daemon
        assert (carrier.name, carrier.connected) == ("mrtr-notices", False)

    @pytest.mark.parametrize("lives", [True, False])
    def test_is_waited_for_for_five_seconds_when_it_is_to_end(
        self, monkeypatch: pytest.MonkeyPatch, lives: bool
    ) -> None:
        carrier, waited = module._Carrier(Notices(Table())), list[float]()
        monkeypatch.setattr(carrier, "is_alive", lambda: lives)
        monkeypatch.setattr(carrier, "join", waited.append)
        carrier.end()
        assert waited == ([5] if lives else [])


class TestATable:
    @pytest.fixture
    def table(self) -> Table:
        return Table()

    @pytest.fixture
    def notices(self, table: Table) -> Driven:
        return Driven(table)

    async def test_is_looked_at_four_times_a_second(self, table: Table, notices: Driven) -> None:
        async with notices.carried():
            await asyncio.sleep(1.1)
        assert pauses(table.times("read_notices"))[:4] == [0.25] * 4

    async def test_is_looked_at_far_more_often_while_a_person_is_waited_for(
        self, table: Table, notices: Driven
    ) -> None:
        notices.hurry(1)
        async with notices.carried():
            await asyncio.sleep(0.1)
        assert pauses(table.times("read_notices"))[:4] == [0.022] * 4

    @pytest.mark.parametrize(("urgent", "after"), [(True, module.HURRIED_GATHER), (False, module.GATHER)])
    async def test_gets_together_what_is_published_at_once_and_sooner_if_somebody_waits_for_any_of_it(
        self, table: Table, notices: Driven, urgent: bool, after: float
    ) -> None:
        async with notices.carried():
            await asyncio.sleep(0.06)
            began = time.monotonic()
            notices.publish("a", urgent=urgent)
            notices.publish("b")
            await asyncio.sleep(1)
        ((at, written),) = table.written
        assert written == ["a", "b"]
        assert at - began == pytest.approx(after)

    async def test_is_read_to_its_end_without_a_rest(self, table: Table, notices: Driven) -> None:
        began = time.monotonic()
        said = [f"notice {number}" for number in range(2 * module.BATCH + 1)]
        table.said = [(number + 1, "another", each) for number, each in enumerate(said)]
        async with notices.carried():
            await asyncio.sleep(0.1)
        assert {at for at, _ in notices.heard} == {began}
        assert [each for _, heard in notices.heard for each in heard] == said

    async def test_is_read_from_the_notice_on_that_was_the_last_when_the_process_began(
        self, table: Table, notices: Driven
    ) -> None:
        began = time.time()
        table.earlier = [(7, "its text")]
        table.said = [(7, "another", "old"), (8, "another", "new"), (9, notices.writer, "its own")]
        async with notices.carried():
            await asyncio.sleep(1)
            assert table.closed == 0
        assert [heard for _, heard in notices.heard] == [["new"]]
        assert table.given["last_notice_before"] == {"before": began}
        assert table.given["read_notices"] == {"seen": 9, "most": module.BATCH}
        assert table.closed == 1

    async def test_gets_what_could_not_be_written_when_it_can_be(
        self, table: Table, notices: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        table.error, table.failing = ConnectionError("the disk is full"), {"write_notices"}
        async with notices.carried():
            notices.publish("a")
            await asyncio.sleep(1)
            assert not notices.connected
            notices.publish("b")
            table.error = None
            await asyncio.sleep(3)
            assert notices.connected
        assert [written for _, written in table.written] == [["a", "b"]]
        written = {"channel": module.CHANNEL, "writer": notices.writer, "notices": ["a", "b"], "keep": module.KEEP}
        assert table.given["write_notices"] == written
        assert table.given["sweep_notices"] == {"most": module.SWEEP_BATCH}
        assert len(caplog.messages) == 2

    async def test_is_swept_twice_a_minute_and_without_a_rest_while_there_is_more(
        self, table: Table, notices: Driven
    ) -> None:
        table.swept = [module.SWEEP_BATCH, module.SWEEP_BATCH, module.SWEEP_BATCH - 1]
        began = time.monotonic()
        async with notices.carried():
            await asyncio.sleep(65)
        assert [at - began for at in table.times("sweep_notices")] == pytest.approx([0, 0, 0, 30, 60], abs=0.3)
        assert [at - began for at in table.times("read_notices")][:3] == [0, 0, 0]

    async def test_may_have_lost_notices_when_the_machine_has_slept_for_long(
        self, notices: Driven, virtual_time: VirtualTime
    ) -> None:
        async with notices.carried():
            for seconds, gaps in ((module.KEEP / 2 - 1, 0), (module.KEEP / 2 + 1, 1)):
                virtual_time.compute(seconds)
                await asyncio.sleep(0.5)
                assert len(notices.gaps) == gaps

    async def test_that_is_away_is_tried_again_after_about_a_second_and_the_log_says_so_once(
        self, table: Table, notices: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        random.seed(1)
        table.error = ConnectionError("no route")
        async with notices.carried():
            await asyncio.sleep(30)
            assert not notices.connected
            waited = pauses([at for at, _ in table.asked])
            table.error = None
            await asyncio.sleep(2)
            assert notices.connected
        assert min(waited) >= 0.5
        assert max(waited) <= 1.5
        assert min(waited) < 1 < max(waited), "not all processes come back at once"
        assert caplog.messages == [
            "Changes do not reach other replicas for now: the database: can't connect: no route",
            "Changes reach other replicas again",
        ]


class TestAConnection:
    async def test_is_tested_every_15_seconds_by_a_count_of_who_listens(self) -> None:
        connection, began = Connection(), time.monotonic()
        async with Driven(Server(connection)).carried():
            await asyncio.sleep(40)
        assert [round(at - began, 1) for at in connection.counted] == [0.0, 15.0, 30.0]

    @pytest.mark.parametrize(("state", "connects"), [({"sqlstate": "42501"}, 1), ({}, 2)], ids=["answers", "dead"])
    async def test_that_may_not_count_who_listens_carries_on_unless_it_is_dead(
        self, state: dict[str, str], connects: int
    ) -> None:
        connection = Connection()
        connection.count_error = type("Refused", (Exception,), state)()
        server = Server(connection, Connection())
        async with Driven(server).carried():
            await asyncio.sleep(2 * module.RETRY)
        assert len(server.connected) == connects

    async def test_gets_together_what_is_published_within_some_milliseconds(self) -> None:
        connection = Connection()
        notices = Driven(Server(connection))
        async with notices.carried():
            await asyncio.sleep(1)
            notices.publish("a")
            await asyncio.sleep(module.GATHER_NOTIFY / 2)
            notices.publish("b")
            await asyncio.sleep(1)
        ((_, sent),) = connection.executed
        assert sent == [f"{notices.writer}a", f"{notices.writer}b"]

    @pytest.mark.parametrize(
        ("listeners", "pair"), [(1, 2 * module.GATHER_NOTIFY), (40, 0.06), (200, module.LONGEST_SPACE)]
    )
    async def test_is_used_the_less_often_the_more_processes_listen(self, listeners: int, pair: float) -> None:
        connection = Connection(listeners=listeners)
        notices = Driven(Server(connection))
        async with notices.carried():
            for number in range(200):
                notices.publish(f"{number}")
                await asyncio.sleep(0.002)
            await asyncio.sleep(1)
            busy = [at for at, _ in connection.executed]
            began = time.monotonic()
            notices.publish("first")
            await asyncio.sleep(2 * module.GATHER_NOTIFY)
        assert sum(len(sent) for _, sent in connection.executed) == 201
        assert [later - at for at, later in zip(busy, busy[2:], strict=False)] == pytest.approx(
            [pair] * (len(busy) - 2), abs=0.0041
        )
        assert connection.executed[-1][0] - began == pytest.approx(module.GATHER_NOTIFY), "at once, after a pause"

    async def test_is_used_at_the_moments_at_which_other_processes_use_theirs(self) -> None:
        connections = [Connection(listeners=100) for _ in range(5)]
        fleet = [Driven(Server(each)) for each in connections]
        for each in connections:
            each.others = [other for other in connections if other is not each]
        async with AsyncExitStack() as stack:
            for notices in fleet:
                await stack.enter_async_context(notices.carried())
            for number in range(400):
                fleet[number % 5].publish(f"{number}")
                await asyncio.sleep(0.0025)
            await asyncio.sleep(1)
        moments = sorted(at for each in connections for at, _ in each.executed)
        woken = [at for before, at in pairwise([-1.0, *moments]) if at > before + module.GATHER_NOTIFY / 2]
        assert len(woken) < 3 / module.LONGEST_SPACE, "hardly more often than one process alone would wake them"
        assert sum(len(sent) for each in connections for _, sent in each.executed) == 400

    async def test_brings_the_notices_of_others_and_its_own_are_known_already(self) -> None:
        connection = Connection()
        notices = Driven(Server(connection))
        async with notices.carried():
            connection.say(f"{'0' * len(notices.writer)}a")
            connection.say(f"{notices.writer}b")
        assert [heard for _, heard in notices.heard] == [["a"]]

    async def test_that_fails_takes_nothing_with_it_that_was_to_be_sent(self) -> None:
        first, second = Connection(), Connection()
        first.error = ConnectionError("reset")
        notices = Driven(Server(first, second))
        async with notices.carried():
            for notice in ("a", "b"):
                notices.publish(notice)
            await asyncio.sleep(2 * module.RETRY)
        assert [sent for _, sent in second.executed] == [[f"{notices.writer}a", f"{notices.writer}b"]]

    @pytest.mark.parametrize("answers", [True, False])
    async def test_is_closed_at_once_or_given_up_after_a_second(self, answers: bool) -> None:
        connection = Connection(answers=answers)
        notices = Driven(Server(connection))
        async with notices.carried():
            await asyncio.sleep(1)
            began = time.monotonic()
        assert time.monotonic() - began == (0 if answers else 1)
        assert connection.is_terminated is not answers

    async def test_that_is_lost_is_made_anew_and_what_was_said_meanwhile_may_be_missing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = Connection(), Connection()
        server = Server(first, second)
        notices = Driven(server)
        async with notices.carried():
            await asyncio.sleep(1)
            assert notices.connected
            first.lose()
            await asyncio.sleep(module.RETRY / 4)
            assert not notices.connected
            notices.publish("a")
            await asyncio.sleep(2 * module.RETRY)
            assert notices.connected
        assert notices.gaps == server.connected
        assert len(server.connected) == 2
        assert [sent for _, sent in second.executed] == [[f"{notices.writer}a"]]
        assert caplog.messages == [
            "Changes do not reach other replicas for now: the database: can't connect: the connection was lost",
            "Changes reach other replicas again",
        ]
