"""Which store a server shares with its replicas, and what carries changes to them."""

import os
from collections.abc import Mapping

from ..errors import SetupError
from .base import Store
from .pubsub import Fanout, InProcessFanout

ENVIRONMENT = "MRTR_DATABASE_URL"


def store_of(database: str | None = None, environment: Mapping[str, str] = os.environ) -> Store | None:
    """Make the store of a database's URL. What it needs is loaded only where there is one.

    Args:
        database: the URL; None takes `MRTR_DATABASE_URL`.
        environment: where that is looked up.

    Returns:
        The store; None where no database is named.

    Raises:
        SetupError: the URL can't be used, or the database's driver is not installed.
    """
    named_by = "database" if database is not None else ENVIRONMENT
    url = environment.get(ENVIRONMENT, "").strip() if database is None else database
    if database is None and not url:
        return None
    try:
        from .sql.store import SQLStore

        return SQLStore(url)
    except SetupError as error:
        raise SetupError(f"{named_by}: {error}") from None


def fanout_of(store: Store) -> Fanout:
    """Make what carries changes: through the store where it can do that, within this process otherwise."""
    carries = getattr(store, "fanout", None)
    return carries() if carries is not None else InProcessFanout()
