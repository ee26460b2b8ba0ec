"""A SQLite file by two threads: writes share a transaction, and no reader waits for them.

A lookup by key runs on the spot: that takes less time than to wake a thread, which then has to wait for the
interpreter. Most of the time of a write is waiting for the disk, for one at a time: so all that have come meanwhile
share one. A transaction begins and ends within the thread, so that a busy event loop never holds up other processes.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

STATEMENTS_IN_TRANSACTION = 64  # statements that share a transaction, at most
IDLE = 5.0
"""Seconds without work until a thread closes its connection, and ends. The next call starts a new one."""

Rows = list[tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class _Job:
    sql: str
    given: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Rows]"


@dataclass(slots=True, eq=False)
class _Jobs:
    """The jobs of a thread: urgent ones first, and the others in their order."""

    urgent: deque[_Job] = field(default_factory=deque)
    others: deque[_Job] = field(default_factory=deque)
    tokens: "queue.SimpleQueue[bool]" = field(default_factory=queue.SimpleQueue)
    """A true one for each job. Nothing comes after a false one."""

    def put(self, job: _Job, *, is_urgent: bool) -> None:
        (self.urgent if is_urgent else self.others).append(job)
        self.tokens.put(True)

    def next(self) -> _Job:
        return self.urgent.popleft() if self.urgent else self.others.popleft()


class SQLiteFile:
    """Runs single statements on a file whose tables are there, and on no other that comes in its place.

    Any number of event loops may use it. It opens and closes the file with its use. A statement waits for another
    process's write for `busy_timeout` seconds.
    """

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._reader = _Worker(path, busy_timeout, self._close_all, writes=False)
        self._writer = _Worker(path, busy_timeout, self._close_all, writes=True)
        self._inline = _InlineReader(path)

    async def run(self, sql: str, given: Mapping[str, Any], *, is_urgent: bool = False) -> Rows:
        """Run a statement, with SELECT one that only reads, and return its rows; its changes are on the disk then."""
        # Where this raises, nothing has changed. An urgent statement goes before all others that wait.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Rows] = loop.create_future()
        worker = self._reader if sql.startswith("SELECT") else self._writer
        worker.put(_Job(sql, given, loop, future), is_urgent=is_urgent)
        return await future

    def find(self, sql: str, given: Mapping[str, Any]) -> Rows | None:
        """Run a lookup by key without waiting; None if it would have to wait: then use `run`."""
        return self._inline.read(sql, given)

    def close(self) -> None:
        """Close the file, when what is under way has ended. It is opened again when it is needed."""
        self._reader.close()
        self._writer.close()
        self._inline.close()

    def _close_all(self) -> None:
        """Open the file anew for what comes next, by all connections: they share what the first one found."""
        self._reader.end()
        self._writer.end()
        self._inline.close()


class _Worker:
    def __init__(self, path: str, busy_timeout: float, close_all: Callable[[], object], *, writes: bool) -> None:
        self._path = path
        self._file = _identity(path)
        self._busy_timeout = busy_timeout
        self._close_all = close_all
        self._writes = writes
        self._jobs = _Jobs()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: _Job, *, is_urgent: bool) -> None:
        with self._guard:
            if self._thread is None or not self._thread.is_alive():  # a process that was forked has no threads
                self._jobs = _Jobs()  # and what waits is its parent's
                self._thread = threading.Thread(target=self._run, args=(self._jobs,), name="mrtr-sqlite", daemon=True)
                self._thread.start()
            self._jobs.put(job, is_urgent=is_urgent)

    def close(self) -> None:
        thread = self.end()
        if thread is not None:
            thread.join()

    def end(self) -> threading.Thread | None:
        """Send the thread its end, which comes after its earlier jobs and closes its connection; return the thread."""
        with self._guard:
            thread, self._thread = self._thread, None  # what comes from now on is for the next one
            self._jobs.tokens.put(False)
        return thread

    def _run(self, jobs: _Jobs) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while group := self._next(jobs):
                try:
                    if _identity(self._path) != self._file:  # what is written to another one is nowhere
                        raise sqlite3.OperationalError("the file was removed or replaced")
                    connection = connection or self._open()
                    outcomes = self._outcomes(connection, group)
                except Exception as error:
                    outcomes = [error] * len(group)
                if any(map(_is_read_only, outcomes)):  # and so would it be for this connection for ever
                    self._close_all()
                    if connection is not None:
                        connection.close()
                        connection = None
                _resolve_all(group, outcomes)
                group, outcomes = [], []  # which are not held while the next ones are waited for
        finally:
            if connection is not None:
                connection.close()

    def _next(self, jobs: _Jobs) -> list[_Job]:
        """Wait for jobs. Return an empty list when it is time to end; a later call begins a new thread."""
        group: list[_Job] = []
        while len(group) < STATEMENTS_IN_TRANSACTION:
            try:
                has_job = jobs.tokens.get(timeout=0 if group else IDLE)
            except queue.Empty:
                if group:
                    break
                with self._guard:
                    if jobs.tokens.empty():
                        self._thread = None
                        break
            else:
                if not has_job:
                    if group:
                        jobs.tokens.put(False)
                    break
                group.append(jobs.next())
        return group

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._busy_timeout, isolation_level=None)
        # A record that was lost with the power would let an effect happen twice.
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _outcomes(self, connection: sqlite3.Connection, group: list[_Job]) -> list[Rows | Exception]:
        if not self._writes or len(group) == 1:
            return [_outcome(connection, job) for job in group]
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return [error] * len(group)
        outcomes: list[Rows | Exception] = []
        for job in group:
            outcomes.append(_outcome(connection, job))
            if not connection.in_transaction:  # a full disk, for one, takes the whole of it with it
                break
        else:
            try:
                connection.execute("COMMIT")
                return outcomes
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return [_outcome(connection, job) for job in group]  # there may be room for some of it


class _InlineReader:
    """A connection that is used on the spot, and never waits: neither for another thread nor for the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _identity(path)
        self._connection: sqlite3.Connection | None = None
        self._guard = threading.Lock()
        self._process = os.getpid()

    def read(self, sql: str, given: Mapping[str, Any]) -> Rows | None:
        """Return the rows of a query; None where it can't be run at once, and somebody has to wait or to say why."""
        if not self._guard.acquire(blocking=False):
            return None
        try:
            # A process that was forked must not touch its parent's.
            if _identity(self._path) != self._file or self._process != os.getpid():
                return None
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            with closing(self._connection.execute(sql, given)) as cursor:
                return cursor.fetchall()
        except sqlite3.Error:
            return None
        finally:
            self._guard.release()

    def __del__(self) -> None:
        self.close()  # where nobody closed the store; Python 3.13 would warn of that

    def close(self) -> None:
        with self._guard:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
                self._connection = None


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _outcome(connection: sqlite3.Connection, job: _Job) -> Rows | Exception:
    if job.future.done():  # nobody waits any more
        return []
    try:
        with closing(connection.execute(job.sql, job.given)) as cursor:
            return cursor.fetchall()
    except Exception as error:
        return error


def _is_read_only(outcome: Rows | Exception) -> bool:
    code = getattr(outcome, "sqlite_errorcode", 0)  # an extended one, whose first byte is the error
    return isinstance(outcome, sqlite3.Error) and code & 0xFF == sqlite3.SQLITE_READONLY


def _resolve_all(group: list[_Job], outcomes: Sequence[Rows | Exception]) -> None:
    resolved: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Rows | Exception]]] = {}
    for job, outcome in zip(group, outcomes, strict=True):
        resolved.setdefault(job.loop, []).append((job, outcome))
    for loop, jobs in resolved.items():
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(_resolve, jobs)


def _resolve(jobs: list[tuple[_Job, Rows | Exception]]) -> None:
    for job, outcome in jobs:
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
