"""What is the same of every database: its statements, its tables and their version, its clock, its errors in words."""

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import ClocksApart, StoreUnavailable, WrongVersion
from ...logs import logger
from ...logs.failures import report_failure
from ..health import ReadBeside

TIMEOUT = 10.0  # seconds of one operation in all

SHORTEST_TIMEOUTS: dict[str, float] = {"heartbeat": 0.5, "record": 5.0}
"""In seconds, at least: an outcome may be large, and the lease is renewed meanwhile."""

CONNECT_TIMEOUT = 5.0  # seconds, also of waiting for another process's write to a SQLite file
EPOCH_AGE = 30.0  # an epoch is looked up again after so many seconds

Way = Literal["client", "record", "heartbeat"]
"""How a statement comes to the database. A heartbeat, by which a holder keeps its lease, never waits behind clients;
the record of its work waits behind one other at most."""

WAYS: dict[str, Way] = {
    "renew_grant": "heartbeat",
    "renew_grants": "heartbeat",
    "renew_tasks": "heartbeat",
    "holds_task": "heartbeat",
    "find_leases": "heartbeat",
    "record_outcome": "record",
}
"""The ways of statements that are not a client's."""

DIRECT = "MRTR_DATABASE_DIRECT_URL"  # names the URL that leads past a pooler, where `MRTR_DATABASE_URL` leads to one

READ_ONLY_HINT = (
    "it is a standby, was a primary before, or is kept from writing. Name all servers in the URL "
    "(postgresql://user@one,two/name), so that each connection finds the one that can be written"
)

HINTS = {
    "unable to open database file": "its folder must exist, and this process must be allowed to write there",
    "readonly database": "this process must be allowed to write to the file and to its folder",
    "database is locked": "another process has been writing to it for too long",
    "was removed or replaced": "restore the file, or restart all processes that use it",
    "disk I/O error": "the disk can't be written, because of a quota or a fault; the system's log may say why",
    "disk is full": "free some space; the server removes what has expired",
    "No space left": "free some space; the server removes what has expired",
    "too many connections": "count seven for each process; raise the limit, or put a pooler in front",
    "too many clients": "count seven for each process; raise max_connections, or put a pooler in front",
    "remaining connection slots": "count seven for each process; raise max_connections, or put a pooler in front",
    "read-only transaction": READ_ONLY_HINT,
    "during recovery": READ_ONLY_HINT,
    "transaction blocks not allowed": "let the pooler pool transactions, or make the tables past it: set " + DIRECT,
    "lock timeout": "another session, in a transaction, holds a table; end it, or run the command again",
    "permission denied": "the user needs CREATE once, and then SELECT, INSERT, UPDATE and DELETE on the tables",
}
"""What to do about an error, by words of its text."""

ENDED = "the server has ended the connection; its own log says why"

MEANT = {
    "cannot switch to state": ENDED,
    "cannot process message": ENDED,
    "cannot perform operation: connection is closed": ENDED,
}
"""The meaning of a driver's words, where it met the last word of a server."""

_INDEX = re.compile(r"^CREATE INDEX CONCURRENTLY (\w+)")

_DROPPED = re.compile(r"^DROP INDEX (?:IF EXISTS )?(\w+)")

PACKED_FROM = 6
"""The first version of the tables whose releases read packed rows of tasks. Those before know text alone."""

Advice = tuple[Literal["warning", "advice"], str]


class Version(NamedTuple):
    """The version of the tables, and the oldest one whose releases work with them; empty where they do not say."""

    number: str
    compatible_from: str = ""


class Database(ABC):
    """A database, reached from any number of event loops, one after the other or at once.

    It connects when it is first used, makes the tables if they are not there, and finds its own way back when it has
    been away. Every statement is a transaction of its own. Its name for operators has no password and no options.
    """

    clocks: "ClockComparison | None" = None  # where it has a clock of its own
    longest_wait = 0.0

    session: tuple[str, ...] = ()  # what a connection runs before it changes the tables, or makes indexes

    packs = False  # whether no server of a release runs that could not read packed rows of tasks

    notifies = False  # whether waiting processes hear of changes at once; otherwise they look, several times a second

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self._quarter_of_lease = TIMEOUT
        self._epoch, self._epoch_read = "", -math.inf
        self._epoch_reader = ReadBeside(self.read_epoch)
        self.statements = read_statements(kind)
        self.ways = {self.statements[name]: way for name, way in WAYS.items() if name in self.statements}
        self.migrations = read_migrations(kind)

    @property
    def is_new(self) -> bool:
        """Whether it is known without a connection that nothing was ever stored: there is no SQLite file."""
        return False

    def grants(self, lease: float) -> None:
        """Note that leases of so many seconds are granted."""
        self._quarter_of_lease = min(self._quarter_of_lease, lease / 4)

    def timeout_of(self, way: Way) -> float:
        """Return the seconds that a holder's request may take: it is asked again, in time."""
        return max(self._quarter_of_lease, SHORTEST_TIMEOUTS[way])

    @property
    def version(self) -> str:
        """The version of the tables that this release works with."""
        return next(reversed(self.migrations))

    async def rows(self, statement: str, **given: Any) -> Sequence[Any]:
        """Run one statement by its name, and return its rows. Raises `StoreUnavailable`.

        On a dead connection it is run again, once, on a new one: so it must come to the same if it has been run
        already. Where this raises, nothing has changed; unless no answer came in time, when nobody knows.
        """
        return await self.execute(self.statements[statement], given)

    async def find(self, statement: str, **given: Any) -> Sequence[Any]:
        """Run a query that finds what it reads by a key; as `rows`, and faster where that is possible."""
        return await self.rows(statement, **given)

    @abstractmethod
    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement with named parameters such as `:state`, and `:now` for the time. Raises as `rows`."""
        # It is one of few, since each is kept. A list is looked through as the statements do it.

    @abstractmethod
    async def check(self) -> None:
        """Connect, make the tables if they are not there, and check their version. Raises as `rows` does."""

    async def compare_clocks(self) -> None:  # noqa: B027  not every database has one
        """Compare its clock with this machine's, where it has one of its own. Raises as `rows` does."""

    def take_longest_wait(self) -> float:
        """Return the longest wait for a free connection since the last call, in seconds."""
        longest, self.longest_wait = self.longest_wait, 0.0
        return longest

    async def check_clock(self) -> None:  # noqa: B027  not every database has one
        """Check its clock for single use. Raises `ClocksApart`, which is in the log already; otherwise as `rows`."""

    @abstractmethod
    def time(self) -> float:
        """Return the time by the clock that its statements use, in seconds since the epoch, as far as it is known."""

    async def upgrade(self) -> Version | None:
        """Upgrade older tables to the present version, or make them; return the version that was found, if any."""
        # The tables change in one transaction; `missing_indexes` are made after it, while others write. Where this
        # raises `StoreUnavailable`, the tables are as they were, or complete but for an index.
        return await self._change(self.steps_from)

    @abstractmethod
    async def _change(self, steps: Callable[[Version | None], Sequence[str]]) -> Version | None:
        """Run the steps for the version that is found (None: no tables), in one transaction; return that version."""
        # No other process does so meanwhile.

    @abstractmethod
    async def found_version(self) -> Version | None:
        """Return the version of the tables that are there; None if there are none. Raises as `rows` does."""

    @property
    def opening(self) -> tuple[str, ...]:
        """The statements that begin the transaction which changes the tables."""
        return ("BEGIN IMMEDIATE",)

    async def missing_indexes(self) -> list[str]:
        """Return the statements that make the indexes which are not there, or were left unfinished."""
        return []

    async def review(self, processes: int = 1) -> list[Advice]:
        """Return what an operator should know of the database before processes use it. Raises as `rows` does."""
        return []

    # The epoch

    async def epoch(self) -> str:
        """Return the name of this life of the database, as it was a moment ago, or when it could last be read."""
        # Raises `StoreUnavailable` where it has never been read here, and can't be.
        if not self._epoch:
            return await self.read_epoch()
        if time.monotonic() >= self._epoch_read + EPOCH_AGE:
            self._epoch_read = time.monotonic()  # whatever comes of it: an outage is not to hold each request
            await self._epoch_reader.again()
        return self._epoch

    async def read_epoch(self) -> str:
        """Return the name of this life of the database now. Raises as `rows` does."""
        ((epoch,),) = await self.find("find_epoch")
        return self._note_epoch(epoch)

    def _note_epoch(self, epoch: str) -> str:
        self._epoch, self._epoch_read = epoch, time.monotonic()
        return epoch

    async def begin_epoch(self) -> str:
        """Begin another life of the database, and return its name: names of the one before do not count any more."""
        # Where this raises `StoreUnavailable`, nothing was done; there may be no tables.

        def steps(found: Version | None) -> list[str]:
            if found is None:
                raise StoreUnavailable(f"{self.name}: there are no tables; check the URL of the database")
            self.check_version(found)
            begin = ("new_epoch", "interrupt_tasks", "restart_events", "restart_floors")
            return [self.statements[each] for each in begin if each in self.statements]

        await self._change(steps)
        return await self.read_epoch()

    async def connect_alone(self) -> Any:
        """Return a connection beside the pool, one that can listen; None where `notifies` is false."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """End the connections of this event loop, when what is under way has ended."""

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Return what is wrong in an operator's words, with a remedy where one is known, and without values."""
        if isinstance(error, StoreUnavailable):
            return error
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"{self.name}: no answer in time")
        said = str(error).partition("\n")[0] or type(error).__name__  # further lines may hold values
        said = next((meant for words, meant in MEANT.items() if words in said), said)
        if isinstance(error, OSError):
            said = f"can't connect: {said}"
        detail = getattr(error, "sqlite_errorname", "")
        if detail.startswith("SQLITE_IOERR_"):  # the text is the same for all of them
            said = f"{said} ({detail})"
        hint = next((hint for words, hint in HINTS.items() if words in said), "")
        return StoreUnavailable(f"{self.name}: {said}; {hint}" if hint else f"{self.name}: {said}")

    def steps_from(self, found: Version | None) -> list[str]:
        """Return the statements that upgrade tables of a version; none where this release works with them."""
        # Raises `WrongVersion` where there are no migrations from that version.
        if found is None:
            first = (self.statements["make_version_table"], self.statements["make_version"])
            made = (each for version in self.migrations.values() for each in version)
            # Nobody writes to new tables yet, so their indexes are made with them.
            return [
                *(each.format(version=self.version) for each in first),
                *(each.replace(" CONCURRENTLY", "", 1) if _INDEX.match(each) else each for each in made),
            ]
        if self.works_with(found):
            return []
        if found.number not in self.migrations:
            raise WrongVersion(self._why_refused(found))
        versions = list(self.migrations)
        missing = versions[versions.index(found.number) + 1 :]
        steps = [each for version in missing for each in self.migrations[version] if not _INDEX.match(each)]
        return [*steps, self.statements["keep_version"].format(version=self.version)]

    @property
    def later_indexes(self) -> dict[str, str]:
        """The statements that make indexes while others write, by the names of the indexes."""
        made: dict[str, str] = {}
        for statement in (each for version in self.migrations.values() for each in version):
            if index := _INDEX.match(statement):
                made[index[1]] = statement
            elif index := _DROPPED.match(statement):
                made.pop(index[1], None)
        return made

    def works_with(self, found: Version) -> bool:
        """Return whether this release works with tables of a version: its own, or a later one that says so."""
        if found.number == self.version:
            return True
        oldest = found.compatible_from
        return found.number not in self.migrations and oldest.isdecimal() and int(oldest) <= int(self.version)

    def check_version(self, found: Version | None) -> None:
        """Check that this release works with tables of a version, or None if it made them. Raises `WrongVersion`."""
        if found is not None and not self.works_with(found):
            raise WrongVersion(self._why_refused(found))
        oldest = self.version if found is None else found.compatible_from
        self.packs = oldest.isdecimal() and int(oldest) >= PACKED_FROM

    def _why_refused(self, found: Version) -> str:
        works = f"and this release of mrtr_server works with version {self.version}"
        if found.number in self.migrations:
            way = "upgrade them with `mrtr-server db upgrade`, which servers that run meanwhile do not mind"
        else:
            works += ", and with later ones that say so"
            way = "install the release that made them, or a later one"
        return f"{self.name}: its tables are of version {found.number}, {works}; {way}"


# How far the clock of a database is from that of this machine


TOLD_SECONDS = 5.0  # if clocks are further apart, the log says so
MOST_SECONDS = 30.0  # if clocks are further apart, single use is refused
# A record outlasts its state by a minute. So two replicas may be half of that apart from their database, each in its
# own direction.

COMPARE_AGAIN = 5.0  # so many seconds, a comparison counts that refuses something

_Verdict = Literal["agree", "apart", "too far"]


class ClockComparison:
    """Compares a database's clock with that of this machine, and logs when they are apart."""

    _error: ClocksApart  # raised while they are too far apart
    _compared: float  # by the monotonic clock

    def __init__(self, name: str, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._name = name
        self._ahead_of_monotonic: float | None = None
        self._verdict: _Verdict = "agree"
        self.apart = 0.0  # how far they are apart at least, in seconds

    def note(self, theirs: float, before: float, took: float) -> None:
        """Note a reading of the database's clock, the time of this machine before it, and how long it took."""
        self._compared = time.monotonic()
        self._ahead_of_monotonic = theirs - (self._compared - took / 2)
        ahead = theirs - (before + took / 2)
        self.apart = apart = max(abs(ahead) - took / 2, 0.0)  # at least, whenever in between it was read
        verdict: _Verdict = "too far" if apart > MOST_SECONDS else "apart" if apart > TOLD_SECONDS else "agree"
        if verdict == self._verdict:
            return
        self._verdict = verdict
        what = f"{self._name}: its clock is {apart:.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        if verdict == "too far":
            why = (
                f"confirmations and single-use rounds are refused while they differ by over {MOST_SECONDS:g} s, since "
                "a state that was used could count again. Set both clocks by NTP; this process looks again by itself"
            )
            self._error = ClocksApart(f"{what}; {why}")
            self._error.reference = report_failure("%s", what, why=why)
        elif verdict == "apart":
            logger.warning(
                "%s, so leases, deadlines and expiry are that much off. Set both clocks by NTP; over %g s apart, "
                "confirmations and single-use rounds are refused",
                what,
                MOST_SECONDS,
            )
        else:
            logger.warning("%s: its clock and this machine's agree again", self._name)

    @property
    def is_in_doubt(self) -> bool:
        """Whether they were too far apart, and that was a while ago."""
        return self._verdict == "too far" and time.monotonic() >= self._compared + COMPARE_AGAIN

    def check(self) -> None:
        """Check that they are near enough for single use. Raises `ClocksApart`."""
        if self._verdict == "too far":
            raise self._error

    def time(self) -> float:
        """Return the time of the database, as far as it is known here, in seconds since the epoch."""
        if self._ahead_of_monotonic is None:
            return self.clock()
        return time.monotonic() + self._ahead_of_monotonic


# Statements, read from the file that holds them


CLOCK = "CAST(extract(epoch FROM now()) AS double precision)"
"""What stands for `:now` in PostgreSQL: its own clock, in seconds since the epoch."""

_HERE = Path(__file__).parent

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

_END = re.compile(r";(?:\n(?! )|\s*$)")

_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


def read_statements(database: str) -> dict[str, str]:
    """Return the statements of `sqlite` or `postgresql` by their names, with parameters such as `:state`."""
    _, *parts = _NAME.split((_HERE / f"{database}.sql").read_text())
    return {
        name: _COMMENT.sub("", text).strip().rstrip(";") for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def read_migrations(database: str) -> dict[str, list[str]]:
    """Return the statements that lead to each version of the tables, in the order of the versions."""
    files = sorted((_HERE / "migrations").glob(f"*.{database}.sql"), key=lambda file: int(file.name.partition(".")[0]))
    return {file.name.partition(".")[0]: _statements_in(file.read_text()) for file in files}


def number_parameters(statement: str, clock: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with numbered parameters, and their names in that order; `clock` stands for `:now`."""
    names: list[str] = []

    def number(name: str) -> str:
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return write_parameters(statement, clock, number), tuple(names)


def write_parameters(statement: str, clock: str, write: Callable[[str], str]) -> str:
    """Return a statement whose parameters are written as a driver has them; `clock` stands for `:now`."""
    return _PARAMETER.sub(lambda found: clock if found[1] == "now" else write(found[1]), statement)


def _statements_in(script: str) -> list[str]:
    # The inner lines of a statement, such as the body of a trigger, are indented.
    return [statement.strip() for statement in _END.split(_COMMENT.sub("", script)) if statement.strip()]
