"""What an operator sees of logins: those in a database, by the rows that hold the tokens of people."""

from typing import TYPE_CHECKING

from ..crypto.keys import KeyRing
from ..errors import StoreUnavailable
from ..limits import Limits
from ..protocol.callers import Principal
from ..storage.quotas import Quotas
from .families import Families
from .records import About
from .upstream_rows import reader_of

if TYPE_CHECKING:
    from ..storage.sql.store import SQLStore

LOOKED_AT = 500  # rows that are read at once


async def logins_in(store: "SQLStore", ring: KeyRing) -> list[About]:
    """Return the logins that have not ended, the last used first. Raises `StoreUnavailable`."""
    families, read = Families(store, ring, Quotas(ring, Limits()), 0.0), reader_of(ring)
    found: list[About] = []
    after = ""
    # Values of all kinds are in one table, and what they are is sealed: those that open are the ones.
    while rows := await store.database.rows("sealed_values", after=after, most=LOOKED_AT):
        after = rows[-1][0]
        for key, value in rows:
            try:
                about = read(key, value).about
            except StoreUnavailable:
                continue
            if not await families.is_ended(about.family, about.began, Principal(about.subject, about.issuer)):
                found.append(about)
    return sorted(found, key=lambda about: about.used, reverse=True)
