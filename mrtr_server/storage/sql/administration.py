"""What an operator does to a database: upgrade its tables, check it, seal its rows anew, and forget what is in it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ...crypto import keys
from ...crypto.codec import pack, unpack
from ...crypto.place_codec import PlaceCodec
from ...errors import InvalidRequestState, SetupError
from ...protocol.callers import Principal
from ...protocol.messages import Change
from ...protocol.sessions import owner_of
from ..quotas import Callers
from . import open_database
from .database import MOST_SECONDS, Advice, Database
from .store import SQLStore


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Database]:
    database = open_database(url)
    try:
        yield database
    finally:
        await database.close()


async def upgrade(url: str) -> str:
    """Upgrade a database, or make its tables, while no other process does; return in words what was done."""
    # Where this raises `StoreUnavailable`, the tables are as they were, or complete but for an index.
    async with _opened(url) as database:
        found = await database.upgrade()
    if found is None:
        return f"{database.name}: created the tables, at version {database.version}"
    if found.number == database.version:
        return f"{database.name}: nothing to do, the tables are at version {found.number}"
    if found.number not in database.migrations:
        return f"{database.name}: nothing to do, the tables are at the later version {found.number}, which works, too"
    return f"{database.name}: upgraded from version {found.number} to version {database.version}"


async def script(url: str) -> str:
    """Return the statements of `upgrade`, for those who run them by hand; nothing where it is done."""
    # One transaction changes the tables. The statements after it make indexes while others write, outside of
    # transactions.
    async with _opened(url) as database:
        found = await database.found_version()
        steps = database.steps_from(found)
        # New tables are made with their indexes, and the indexes of a later release are not ours to make.
        indexes = await database.missing_indexes() if found is not None and found.number in database.migrations else []
    whole = [*database.opening, *steps, "COMMIT"] if steps else []
    session = database.session if whole or indexes else ()
    return "".join(f"{step};\n" for step in (*session, *whole, *indexes))


async def review(url: str, processes: int = 1) -> list[Advice]:
    """Return what an operator should know of a database before so many processes use it."""
    async with _opened(url) as database:
        await database.check()
        return await database.review(processes)


async def new_epoch(url: str) -> str:
    """Begin another epoch, so that states and tasks of the one before do not count; return in words what was done."""
    async with _opened(url) as database:
        epoch = await database.begin_epoch()
    return (
        f"{database.name}: the epoch {epoch} has begun. States of before that are redeemed once are refused, and the "
        "tasks that had not ended have failed: `mrtr-server tasks list --status failed` shows them"
    )


# Seal what a database holds under the first key of the ring, so that the others can be dropped


BATCH = 50  # rows that are read at once
PASSES = 5  # looks at all rows, at most: servers write rows meanwhile


class _Table(NamedTuple):
    """A table with sealed columns, each row for one of the purposes.

    `find` reads rows after a key: each the key and these columns. `change` changes a row whose columns are as found.
    """

    name: str
    purposes: tuple[str, ...]
    columns: tuple[str, ...]
    find: str
    change: str


TABLES = (
    _Table(
        "mrtr_redemptions",
        (keys.OUTCOME, keys.LIVE_OUTCOME, keys.LOGIN),
        ("outcome",),
        "sealed_redemptions",
        "reseal_redemption",
    ),
    _Table(
        "mrtr_kept",
        (
            keys.REPORT,
            keys.LIVE_ANSWER,
            keys.LIVE_EVENT,
            keys.LIVE_SESSION,
            keys.LIVE_PAGES,
            keys.TASK_PIECES,
            keys.LOGIN,
            keys.LOGIN_TOKENS,
        ),
        ("value",),
        "sealed_values",
        "reseal_value",
    ),
    _Table("mrtr_tasks", (keys.TASK,), ("call", "journal", "questions", "outcome"), "sealed_tasks", "reseal_task"),
    _Table("mrtr_events", (keys.EVENT,), ("body",), "sealed_events", "reseal_event"),
    _Table("mrtr_subscriptions", (keys.SUBSCRIPTION,), ("body",), "sealed_subscriptions", "reseal_subscription"),
)


@dataclass(slots=True)
class Resealed:
    """What was done to a table, of the rows that have not expired.

    `left` are under another key, since servers still seal under it; `unopened` do not open under the ring, by the
    reason.
    """

    table: str
    rows: int = 0
    sealed: int = 0
    left: int = 0
    unopened: Counter[str] = field(default_factory=Counter)

    @property
    def is_done(self) -> bool:
        """Whether every row is sealed under the first key."""
        return not self.left and not self.unopened


async def reseal(url: str, ring: keys.KeyRing) -> list[Resealed]:
    """Seal every row of a database under the first key of a ring, while servers work with it.

    A row that is changed meanwhile is not overwritten, but looked at again. The command may be ended and run again:
    rows under the first key stay as they are. Raises `SetupError` where there are no tables.
    """
    async with _opened(url) as database:
        if await database.found_version() is None:
            raise SetupError(f"{database.name}: there are no tables, so nothing to seal; check the URL of the database")
        return [
            await _reseal_table(database, table, [PlaceCodec(ring, each) for each in table.purposes])
            for table in TABLES
        ]


async def _reseal_table(database: Database, table: _Table, codecs: Sequence[PlaceCodec]) -> Resealed:
    sealed = 0
    for _ in range(PASSES):
        found = await _pass(database, table, codecs)
        sealed += found.sealed
        if not found.sealed and not found.left:
            break
    else:
        found.left += found.sealed  # under the first key by now, but the next ones will not be
    found.sealed = sealed
    return found


async def _pass(database: Database, table: _Table, codecs: Sequence[PlaceCodec]) -> Resealed:
    done, after = Resealed(table.name), ""
    while rows := await database.rows(table.find, after=after, most=BATCH):
        after = rows[-1][0]
        done.rows += len(rows)
        await asyncio.gather(*(_reseal_row(database, table, codecs, row, done) for row in rows))
    return done


async def _reseal_row(
    database: Database, table: _Table, codecs: Sequence[PlaceCodec], row: Sequence[object], done: Resealed
) -> None:
    key, *values = row
    before = dict(zip(table.columns, map(_bytes, values), strict=True))
    try:
        anew = {column: _reseal_value(codecs, unpack(value)) for column, value in before.items() if value}
    except InvalidRequestState as refused:
        done.unopened[refused.reason] += 1
        return
    sealed = {column: token.encode() for column, token in anew.items() if token is not None}
    changes = {name: token if unpack(before[name]) == before[name] else pack(token) for name, token in sealed.items()}
    if not changes:
        return
    given = {**before, **changes, **{f"{column}_before": value for column, value in before.items()}}
    if await database.rows(table.change, key=key, **given):
        done.sealed += 1
    else:  # it was changed meanwhile
        done.left += 1


def _reseal_value(codecs: Sequence[PlaceCodec], value: bytes) -> str | None:
    """Seal a value for the purpose that it has now; see `PlaceCodec.reseal`."""
    refusals = []
    for codec in codecs:
        try:
            return codec.reseal(value)
        except InvalidRequestState as refused:
            refusals.append(refused)
    raise refusals[0]


# Forget a person: end what began before, and remove the person's rows


LOOKED_AT = 1_000  # rows that are looked at with one statement


class _Owned(NamedTuple):
    """A table whose rows have an owner: `find` reads keys after a key, each with its owners; `forget` takes a row."""

    name: str
    find: str
    forget: str


OWNED = (
    _Owned("mrtr_tasks", "callers_of_tasks", "forget_task"),
    _Owned("mrtr_kept", "callers_of_values", "forget_value"),
    _Owned("mrtr_redemptions", "callers_of_redemptions", "forget_redemption"),
    _Owned("mrtr_waits", "callers_of_waits", "forget_wait"),
    _Owned("mrtr_events", "callers_of_events", "forget_event"),
    _Owned("mrtr_subscriptions", "callers_of_subscriptions", "forget_subscription"),
)


async def forget(
    url: str, ring: keys.KeyRing, person: tuple[str, str], clients: Iterable[str] = (), *, keep: float
) -> Mapping[str, int]:
    """Remove what is stored of a person, an issuer and a subject, and end their flows of before.

    Return how many rows of each table there were. The command may be ended and run again. `clients`: the applications
    whose tasks are found without a key. `keep`: for how many seconds states of before are refused. Raises `SetupError`
    where there are no tables.
    """
    database = (store := SQLStore(url)).database
    try:
        if await database.found_version() is None:
            raise SetupError(
                f"{database.name}: there are no tables, so nobody to forget; check the URL of the database"
            )
        callers = Callers(ring).all_of(person)
        issuer, subject = person
        owners = {*callers, *(owner_of(Principal(subject, issuer, client)) for client in ("", *clients))}
        # At first, so that none of the rows can come again. The clocks of replicas may be that much ahead.
        margin = 0.0 if database.clocks is None else MOST_SECONDS
        for caller in callers:
            await database.rows("note_forgotten", caller=caller, margin=margin, keep=keep + margin)
        store.fanout().publish(Change("forgotten"))  # so that servers that run ask at once
        forgotten = {table.name: await _forget_in(database, table, owners) for table in OWNED}
        for caller in callers:
            await database.rows("forget_usage", caller=caller)
        return forgotten
    finally:
        await store.close()


async def _forget_in(database: Database, table: _Owned, owners: set[str]) -> int:
    forgotten, after = 0, ""
    while rows := await database.rows(table.find, after=after, most=LOOKED_AT):
        after = rows[-1][0]
        theirs = [key for key, *named in rows if not owners.isdisjoint(named)]
        for begin in range(0, len(theirs), BATCH):
            batch = theirs[begin : begin + BATCH]
            gone = await asyncio.gather(*(database.rows(table.forget, key=key) for key in batch))
            forgotten += sum(map(len, gone))
    return forgotten


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""
