"""What is the same of every database: its name, its tables and their version, and errors in an operator's words."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...errors import StoreUnavailable, WrongVersion
from .statements import read_migrations, read_statements

TIMEOUT = 10.0
"""How long one operation may take in all, in seconds."""
SHORTEST_TIMEOUTS: dict[str, float] = {"heartbeat": 0.5, "record": 5.0}
"""How long each may take at least, in seconds: an outcome may be large, and the lease is renewed meanwhile."""
CONNECT_TIMEOUT = 5.0
"""How long connecting, or waiting for another process's write to a SQLite file, may take, in seconds."""

Way = Literal["client", "record", "heartbeat"]
"""How a statement comes to the database. A heartbeat, by which the holder of a lease keeps it or learns whether it has,
never waits behind clients; the record of what it has done waits behind one other at most."""

WAYS: dict[str, Way] = {
    "renew_grant": "heartbeat",
    "renew_grants": "heartbeat",
    "renew_tasks": "heartbeat",
    "holds_task": "heartbeat",
    "find_leases": "heartbeat",
    "record_outcome": "record",
}
"""Those of statements that are no client's."""

DIRECT = "MRTR_DATABASE_DIRECT_URL"
"""Names the URL that leads past a pooler, where `MRTR_DATABASE_URL` leads to one."""

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
    "permission denied": "the user needs CREATE once, and then SELECT, INSERT, UPDATE and DELETE on the tables",
}
"""What to do about an error, by words of its text."""


class Database(ABC):
    """A database, reached from any number of event loops, one after the other or at once.

    It connects when it is first used, makes the tables if they are not there, and finds its own way back when it has
    been away. Every statement is a transaction of its own.

    Args:
        kind: `"sqlite"` or `"postgresql"`: which statements it takes.
        name: the database as an operator knows it, without password and options.
    """

    notifies = False
    """Whether processes that wait hear of changes at once; otherwise they look, several times a second."""

    advice = ""
    """What its operator should change, as far as its connections have shown; empty for nothing."""

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self._quarter_of_lease = TIMEOUT
        self.statements = read_statements(kind)
        self.ways = {self.statements[name]: way for name, way in WAYS.items() if name in self.statements}
        """How statements come to it that are no client's."""
        self.migrations = read_migrations(kind)

    @property
    def is_new(self) -> bool:
        """Whether it is known without a connection that nothing was ever stored: there is no SQLite file."""
        return False

    def grants(self, lease: float) -> None:
        """Note that leases of so many seconds are granted."""
        self._quarter_of_lease = min(self._quarter_of_lease, lease / 4)

    def timeout_of(self, way: Way) -> float:
        """Return how long what the holder of a lease asks may take, in seconds: it is asked again, in time."""
        return max(self._quarter_of_lease, SHORTEST_TIMEOUTS[way])

    @property
    def version(self) -> str:
        """The version of the tables that this release works with."""
        return next(reversed(self.migrations))

    @abstractmethod
    async def rows(self, statement: str, **given: Any) -> Sequence[Any]:
        """Run one statement, and return its rows.

        Args:
            statement: its name. When the connection turns out to be dead it is run again, once, on a new one: so it
                must come to the same if it has been run already.
            given: its parameters.

        Raises:
            StoreUnavailable: it could not be run, and has changed nothing; unless no answer came in time, when nobody
                knows. The message is for the operator.
        """

    async def find(self, statement: str, **given: Any) -> Sequence[Any]:
        """Run a query that finds what it reads by a key; as `rows`, and faster where that is possible."""
        return await self.rows(statement, **given)

    @abstractmethod
    async def execute(self, sql: str, given: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement as it is written, and return its rows.

        Args:
            sql: the statement, with named parameters such as `:state`; one of few, since each is kept. `:now` is the
                time.
            given: the parameters, by name. A list is looked through as the statements do it.

        Raises:
            StoreUnavailable: as for `rows`.
        """

    @abstractmethod
    async def check(self) -> None:
        """Connect, make the tables if they are not there, and check their version. Raises as `rows` does."""

    async def compare_clocks(self) -> None:  # noqa: B027  not every database has one
        """Compare its clock with this machine's, where it has one of its own. Raises as `rows` does."""

    async def check_clock(self) -> None:  # noqa: B027  likewise
        """Check that its clock is near enough to this machine's for single use.

        Raises:
            ClocksApart: it is not, and the log says so.
            StoreUnavailable: as for `rows`.
        """

    @abstractmethod
    def time(self) -> float:
        """Return the time by the clock that its statements use, in seconds since the epoch, as far as it is known."""

    @abstractmethod
    async def upgrade(self) -> str | None:
        """Upgrade older tables to the present version, in one transaction, or make them if there are none.

        Returns:
            The version that was found; None if there were no tables.

        Raises:
            StoreUnavailable: it could not be done, and nothing was.
        """

    @abstractmethod
    async def found_version(self) -> str | None:
        """Return the version of the tables that are there; None if there are none. Raises as `rows` does."""

    async def connect_alone(self) -> Any:
        """Return a connection beside the pool, one that can listen; None where `notifies` is false."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """End the connections of this event loop, when what is under way has ended."""

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Return what is wrong in an operator's words, with what to do about it where that is known.

        No values are repeated.
        """
        if isinstance(error, StoreUnavailable):
            return error
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"{self.name}: no answer in time")
        said = str(error).partition("\n")[0] or type(error).__name__  # further lines may hold values
        if isinstance(error, OSError):
            said = f"can't connect: {said}"
        detail = getattr(error, "sqlite_errorname", "")
        if detail.startswith("SQLITE_IOERR_"):  # the text is the same for all of them
            said = f"{said} ({detail})"
        hint = next((hint for words, hint in HINTS.items() if words in said), "")
        return StoreUnavailable(f"{self.name}: {said}; {hint}" if hint else f"{self.name}: {said}")

    def steps_from(self, found: str | None) -> list[str]:
        """Return the statements that upgrade a version to the present one; none where it is that already.

        Args:
            found: the version that the tables are of; None if there are none.

        Raises:
            WrongVersion: there are no migrations from that version.
        """
        if found is not None and found not in self.migrations:
            raise WrongVersion(self._why_refused(found))
        versions = list(self.migrations)
        missing = versions if found is None else versions[versions.index(found) + 1 :]
        if not missing:
            return []
        steps = [statement for version in missing for statement in self.migrations[version]]
        last = ["keep_version"] if found is not None else ["make_version_table", "make_version"]
        return [*steps, *(self.statements[name].format(version=missing[-1]) for name in last)]

    def check_version(self, found: str) -> None:
        """Check that this release works with tables of a version. Raises `WrongVersion`."""
        if found != self.version:
            raise WrongVersion(self._why_refused(found))

    def _why_refused(self, found: str) -> str:
        works = f"and this release of mrtr_server works with version {self.version} only"
        if found in self.migrations:
            way = "upgrade them with `mrtr-server db upgrade`, which servers that run meanwhile do not mind"
        else:
            way = "install the release that made them, or a later one"
        return f"{self.name}: its tables are of version {found}, {works}; {way}"
