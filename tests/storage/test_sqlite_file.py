"""A SQLite file by two threads: groups of writes, each statement for itself, and nothing left behind."""

import asyncio
import os
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mrtr_server.storage.sql import sqlite_file as module
from mrtr_server.storage.sql.sqlite_file import SQLiteFile

from ..support.serving import TIMEOUT

pytestmark = pytest.mark.anyio

ADD = "INSERT INTO numbers (number) VALUES (:number) RETURNING number"
FIND = "SELECT number FROM numbers WHERE number = :number AND number < 1000"
HOLD = "WITH held(number) AS (VALUES (hold())) SELECT number FROM held"
"""Holds the writer until a test lets it go on. No statement that begins with SELECT, so the writer runs it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "numbers.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY CHECK (number <> 13))")
    connection.close()
    return tmp_path / "numbers.db"


class Gate:
    """A function of SQL's that holds the thread that calls it, so that others certainly come meanwhile."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)
        self._opened = threading.Semaphore(0)

    def __call__(self) -> int:
        self._came.release()
        return int(self._opened.acquire(timeout=TIMEOUT))

    async def is_held(self) -> None:
        """Wait until a thread is held."""
        assert await asyncio.to_thread(self._came.acquire, timeout=TIMEOUT)

    def open(self) -> None:
        """Let a thread go on."""
        self._opened.release()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """What HOLD is held by, on every connection that is opened from now on."""
    gate, connect = Gate(), module._Worker._open

    def opened(worker: module._Worker) -> sqlite3.Connection:
        connection = connect(worker)
        connection.create_function("hold", 0, gate)
        return connection

    monkeypatch.setattr(module._Worker, "_open", opened)
    return gate


@pytest.fixture
def file(path: Path) -> Iterator[SQLiteFile]:
    made = SQLiteFile(str(path), TIMEOUT)
    yield made
    made.close()


@pytest.fixture
def impatient(path: Path) -> Iterator[SQLiteFile]:
    """One that waits for no other process for long."""
    made = SQLiteFile(str(path), 0.3)
    yield made
    made.close()


def threads(file: SQLiteFile) -> int:
    """Return how many threads a file has; other files of the process may have some, too."""
    workers = (file._reader, file._writer)
    running = [getattr(thread, "_target", None) for thread in threading.enumerate()]  # what each runs
    return sum(getattr(target, "__self__", None) in workers for target in running)


async def held(file: SQLiteFile, gate: Gate, *numbers: int) -> "asyncio.Future[list[int | BaseException]]":
    """Add numbers while the writer is held; what comes of it is there when the gate is opened."""
    slow = asyncio.create_task(file.run(HOLD, {}))
    await gate.is_held()
    adding = [asyncio.create_task(add(file, number)) for number in numbers]
    await asyncio.sleep(0)  # so that each of them has come to the writer

    async def outcomes() -> list[int | BaseException]:
        assert await slow == [(1,)]
        return await asyncio.gather(*adding, return_exceptions=True)

    return asyncio.ensure_future(outcomes())


async def add(file: SQLiteFile, number: int) -> int:
    ((added,),) = await file.run(ADD, {"number": number})
    return int(added)


async def test_a_statement_gives_its_rows(file: SQLiteFile) -> None:
    assert await add(file, 7) == 7
    assert await file.run(FIND, {"number": 7}) == [(7,)]
    assert await file.run(FIND, {"number": 8}) == []


async def test_a_statement_alone_waits_for_no_others(file: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 2 * TIMEOUT)
    async with asyncio.timeout(TIMEOUT):
        assert await add(file, 1) == 1
        assert await file.run(FIND, {"number": 1}) == [(1,)]


async def test_what_is_written_at_once_shares_a_transaction(file: SQLiteFile, path: Path, gate: Gate) -> None:
    """As the log of the file tells, which grows by each page of each transaction."""

    async def grown_by(*numbers: int, at_once: bool) -> int:
        before = path.with_name("numbers.db-wal").stat().st_size
        if at_once:
            adding = await held(file, gate, *numbers)
            gate.open()
            assert await adding == list(numbers)
        else:
            for number in numbers:
                await add(file, number)
        return path.with_name("numbers.db-wal").stat().st_size - before

    await add(file, 0)
    assert await grown_by(*range(100, 150), at_once=False) > 40 * 4096
    assert await grown_by(*range(200, 250), at_once=True) < 5 * 4200


async def test_a_statement_that_fails_fails_alone(file: SQLiteFile, gate: Gate) -> None:
    adding = await held(file, gate, 11, 12, 13, 14, 11)
    gate.open()
    outcomes = await adding
    assert [isinstance(each, sqlite3.IntegrityError) for each in outcomes] == [False, False, True, False, True]
    assert [bool(await file.run(FIND, {"number": number})) for number in (11, 12, 13, 14)] == [
        True,
        True,
        False,
        True,
    ]


async def test_one_that_takes_the_transaction_with_it_costs_the_others_nothing(file: SQLiteFile, gate: Gate) -> None:
    """As a disk that is full does."""
    await add(file, 1)
    slow = asyncio.create_task(file.run(HOLD, {}))
    await gate.is_held()
    ruinous = "INSERT OR ROLLBACK INTO numbers (number) VALUES (:number)"
    adding = [asyncio.create_task(add(file, 20)), asyncio.create_task(file.run(ruinous, {"number": 1}))]
    adding += [asyncio.create_task(add(file, number)) for number in (21, 22)]
    await asyncio.sleep(0)
    gate.open()
    await slow
    first, ruined, *rest = await asyncio.gather(*adding, return_exceptions=True)
    assert (first, rest) == (20, [21, 22])
    assert isinstance(ruined, sqlite3.IntegrityError)
    for number in (20, 21, 22):
        assert await file.run(FIND, {"number": number}) == [(number,)]


async def test_a_transaction_that_can_not_be_committed_costs_none_of_its_statements(
    file: SQLiteFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(sqlite3.Connection):
        refused = 0

        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" and not self.refused:
                self.refused += 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *given)

    gate = Gate()

    def opened(worker: module._Worker) -> sqlite3.Connection:
        connection = sqlite3.connect(worker._path, isolation_level=None, factory=Refusing)
        connection.create_function("hold", 0, gate)
        return connection

    monkeypatch.setattr(module._Worker, "_open", opened)
    adding = await held(file, gate, 1, 2, 13, 3)
    gate.open()
    first, second, wrong, third = await adding
    assert (first, second, third) == (1, 2, 3)
    assert isinstance(wrong, sqlite3.IntegrityError)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT number FROM numbers").fetchall() == [(1,), (2,), (3,)], "it is on the disk"


async def test_no_more_than_some_share_a_transaction(
    file: SQLiteFile, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    run = module._Worker._outcomes

    def noted(worker: module._Worker, connection: sqlite3.Connection, group: Any) -> Any:
        groups.append(len(group))
        return run(worker, connection, group)

    monkeypatch.setattr(module, "STATEMENTS_IN_TRANSACTION", 3)
    monkeypatch.setattr(module._Worker, "_outcomes", noted)
    adding = await held(file, gate, *range(100, 107))
    gate.open()
    assert await adding == list(range(100, 107))
    assert groups == [1, 3, 3, 1]


async def test_what_is_urgent_goes_before_all_that_waits(file: SQLiteFile, gate: Gate) -> None:
    done: list[int] = []

    async def note(number: int, *, is_urgent: bool) -> None:
        await file.run(ADD, {"number": number}, is_urgent=is_urgent)
        done.append(number)

    slow = asyncio.create_task(file.run(HOLD, {}))
    await gate.is_held()
    others = [asyncio.create_task(note(number, is_urgent=False)) for number in range(1000, 1300)]
    await asyncio.sleep(0)
    urgent = [asyncio.create_task(note(number, is_urgent=True)) for number in (1, 2)]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(slow, *others, *urgent)
    assert done == [1, 2, *range(1000, 1300)]


async def test_what_nobody_waits_for_any_more_is_left_out(file: SQLiteFile, gate: Gate) -> None:
    slow = asyncio.create_task(file.run(HOLD, {}))
    await gate.is_held()
    tasks = [asyncio.create_task(add(file, 100 + number)) for number in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.sleep(0)
    gate.open()
    outcomes = await asyncio.gather(slow, *tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in outcomes[1:]] == [True, False] * 15
    assert [bool(await file.run(FIND, {"number": 100 + number})) for number in range(30)] == [False, True] * 15


async def test_what_has_begun_is_done_whole_though_nobody_waits_for_it(file: SQLiteFile, gate: Gate) -> None:
    writing = asyncio.create_task(file.run("INSERT INTO numbers VALUES (20 + hold()) RETURNING number", {}))
    await gate.is_held()
    writing.cancel()
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await add(file, 1) == 1  # the writer is through with it
    assert await file.run(FIND, {"number": 21}) == [(21,)]


async def test_a_busy_event_loop_holds_nobody_up(file: SQLiteFile, path: Path) -> None:
    tasks = [asyncio.create_task(add(file, number)) for number in range(100, 130)]
    await asyncio.sleep(0)
    deadline = time.monotonic() + TIMEOUT
    with closing(sqlite3.connect(path, timeout=TIMEOUT)) as other:  # this loop stands still while it waits
        while other.execute("SELECT count(*) FROM numbers").fetchone() != (30,):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # noqa: ASYNC251  so no thread can tell this loop anything
        assert not any(task.done() for task in tasks)
        other.execute("BEGIN IMMEDIATE")  # so no writer holds the file until the loop goes on
        other.rollback()
    await asyncio.gather(*tasks)


async def test_reading_waits_for_no_writer(file: SQLiteFile, path: Path) -> None:
    await add(file, 1)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(add(file, 2))
    await asyncio.sleep(0)
    # However many read at once.
    reading = (file.run(FIND, {"number": 1}) for _ in range(100))
    assert await asyncio.gather(*reading) == [[(1,)]] * 100
    assert not writing.done()
    other.rollback()
    other.close()
    assert await writing == 2


async def test_a_lock_that_lasts_fails_all_who_wait_for_it(impatient: SQLiteFile, path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    outcomes = await asyncio.gather(*(add(impatient, number) for number in range(100, 300)), return_exceptions=True)
    assert {str(each) for each in outcomes} == {"database is locked"}
    assert time.monotonic() - start < 200 * 0.3, "they wait together"
    other.rollback()
    other.close()
    assert await add(impatient, 100) == 100


async def test_threads_end_when_there_is_nothing_to_do(file: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads(file) == 0
    for _ in range(3):
        monkeypatch.setattr(module, "IDLE", 2 * TIMEOUT)
        assert await add(file, 1) == 1
        assert await file.run(FIND, {"number": 1}) == [(1,)]
        assert threads(file) == 2
        monkeypatch.setattr(module, "IDLE", 0.01)  # for each of them from its next statement on
        await file.run("DELETE FROM numbers RETURNING number", {})
        assert await file.run(FIND, {"number": 1}) == []
        async with asyncio.timeout(TIMEOUT):
            while threads(file):  # noqa: ASYNC110  a thread that ends tells nobody
                await asyncio.sleep(0.01)


async def test_a_thread_that_is_about_to_end_takes_nothing_more(
    file: SQLiteFile, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(sqlite3.Connection):
        def close(self) -> None:
            gate()
            super().close()

    monkeypatch.setattr(module._Worker, "_open", lambda worker: sqlite3.connect(worker._path, factory=Slow))
    monkeypatch.setattr(module, "IDLE", 0.01)
    assert await file.run(FIND, {"number": 1}) == []
    await gate.is_held()  # it has nothing to do, and closes its connection
    try:
        async with asyncio.timeout(TIMEOUT):
            assert await file.run(FIND, {"number": 1}) == []
    finally:
        for _ in range(2):
            gate.open()


async def test_a_thread_keeps_no_process_from_ending(file: SQLiteFile) -> None:
    await add(file, 1)
    assert file._writer._thread is not None
    assert file._writer._thread.daemon


async def test_closing_waits_for_what_is_under_way_and_it_may_be_used_again(
    file: SQLiteFile, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", 2 * TIMEOUT)  # closing does not wait for that
    adding = await held(file, gate, *range(100, 150))
    closing_it = asyncio.create_task(asyncio.to_thread(file.close))
    assert await asyncio.wait([closing_it], timeout=0.05) == (set(), {closing_it})
    gate.open()
    async with asyncio.timeout(TIMEOUT):
        await closing_it
    assert threads(file) == 0
    assert await adding == list(range(100, 150))
    assert await add(file, 1) == 1


async def test_closing_does_not_wait_for_what_others_go_on_with(file: SQLiteFile) -> None:
    ending = False

    async def read() -> None:
        while not ending:
            await file.run(FIND, {"number": 1})

    async def busy() -> None:
        await asyncio.gather(*(read() for _ in range(200)))

    other = threading.Thread(target=lambda: asyncio.run(busy()))
    other.start()
    try:
        async with asyncio.timeout(TIMEOUT):
            for _ in range(20):
                await asyncio.to_thread(file.close)
    finally:
        ending = True
        other.join()


def test_a_file_that_was_removed_or_replaced_is_not_written_to_in_its_place(file: SQLiteFile, path: Path) -> None:
    """What one process writes to a file that others can't find is lost to them."""
    assert asyncio.run(add(file, 1)) == 1
    path.rename(path.with_name("away.db"))
    for statement in (ADD, FIND):
        with pytest.raises(sqlite3.OperationalError, match="removed or replaced"):
            asyncio.run(file.run(statement, {"number": 2}))
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(sqlite3.OperationalError, match="removed or replaced"):
        asyncio.run(add(file, 2))
    assert path.read_bytes() == b""
    path.with_name("away.db").rename(path)
    assert asyncio.run(add(file, 2)) == 2
    assert asyncio.run(file.run(FIND, {"number": 1})) == [(1,)]


async def test_a_process_that_is_forked_leaves_to_its_parent_what_is_under_way_there(
    file: SQLiteFile, path: Path, gate: Gate
) -> None:
    next_one = "INSERT INTO numbers SELECT count(*) + 100 FROM numbers RETURNING number"
    slow = asyncio.create_task(file.run(HOLD, {}))
    await gate.is_held()
    work = [slow, *(asyncio.create_task(file.run(next_one, {})) for _ in range(10))]
    await asyncio.sleep(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are what this is about
        child = os.fork()
    if not child:  # without the rest of the tests
        try:
            signal.alarm(10)  # a lock of SQLite's own may have been held at that moment
            asyncio.events._set_running_loop(None)
            asyncio.run(add(file, 7))
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    gate.open()
    await asyncio.gather(*work)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM numbers WHERE number >= 100").fetchone() == (10,)


def test_loops_may_end_before_their_answers_come(file: SQLiteFile, gate: Gate) -> None:
    async def leave() -> None:
        asyncio.ensure_future(file.run(HOLD, {}))  # noqa: RUF006
        await gate.is_held()

    for number in range(3):
        asyncio.run(leave())
        gate.open()
        assert asyncio.run(add(file, number)) == number


def test_loops_in_several_threads_share_it(file: SQLiteFile) -> None:
    together = threading.Barrier(3)

    async def work(first: int) -> None:
        await asyncio.to_thread(together.wait, TIMEOUT)
        assert await asyncio.gather(*(add(file, first + n) for n in range(50))) == [first + n for n in range(50)]

    running = [threading.Thread(target=lambda first=first: asyncio.run(work(first))) for first in (100, 200, 300)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(asyncio.run(file.run("SELECT number FROM numbers", {}))) == 150


class TestWhatIsFoundOnTheSpot:
    async def test_is_what_was_written_before(self, file: SQLiteFile) -> None:
        for number in range(20, 40):
            assert file.find(FIND, {"number": number}) == []
            await add(file, number)
            assert file.find(FIND, {"number": number}) == [(number,)]

    async def test_waits_for_no_writer(self, file: SQLiteFile, path: Path) -> None:
        await add(file, 1)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert file.find(FIND, {"number": 1}) == [(1,)]
            other.rollback()

    async def test_is_found_again_after_it_was_closed(self, file: SQLiteFile) -> None:
        await add(file, 1)
        for _ in range(2):
            assert file.find(FIND, {"number": 1}) == [(1,)]
            connection = file._inline._connection
            assert connection is not None
            file.close()
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                connection.execute("SELECT 1")

    @pytest.mark.alone
    async def test_is_left_to_run_where_the_file_is_locked(self, file: SQLiteFile, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode=EXCLUSIVE")
            other.execute("INSERT INTO numbers VALUES (1)")
            start = time.monotonic()
            assert file.find(FIND, {"number": 1}) is None
            assert time.monotonic() - start < TIMEOUT / 2, "it has not waited for as long as it would for a statement"
        assert await file.run(FIND, {"number": 1}) == [(1,)]
        assert file.find(FIND, {"number": 1}) == [(1,)]

    async def test_is_left_to_run_where_it_is_another_file(self, file: SQLiteFile, path: Path) -> None:
        await add(file, 1)
        assert file.find(FIND, {"number": 1}) == [(1,)]
        await asyncio.to_thread(path.rename, path.with_name("other.db"))
        assert file.find(FIND, {"number": 1}) is None
        with pytest.raises(sqlite3.OperationalError, match="removed or replaced"):
            await file.run(FIND, {"number": 1})

    async def test_is_left_to_run_in_a_process_that_was_forked(self, file: SQLiteFile) -> None:
        await add(file, 1)
        assert file.find(FIND, {"number": 1}) == [(1,)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            child = os.fork()
        if child == 0:
            os._exit(0 if file.find(FIND, {"number": 1}) is None else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    async def test_may_be_looked_for_in_many_threads_at_once(self, file: SQLiteFile) -> None:
        await add(file, 1)
        together = threading.Barrier(4)

        def find() -> set[str]:
            together.wait(TIMEOUT)
            return {str(file.find(FIND, {"number": 1})) for _ in range(500)}

        found = await asyncio.gather(*(asyncio.to_thread(find) for _ in range(4)))
        assert set.union(*found) - {"None"} == {"[(1,)]"}, (
            "whoever comes first finds it, and who comes meanwhile is told"
        )

    async def test_is_left_to_run_while_another_thread_looks(self, file: SQLiteFile) -> None:
        await add(file, 1)
        with file._inline._guard:
            assert file.find(FIND, {"number": 1}) is None
        assert file.find(FIND, {"number": 1}) == [(1,)]
