"""From the URL of a database, or the environment, to the store that replicas share."""

import os
from collections.abc import Mapping

from ..errors import SetupError
from .base import Store

ENVIRONMENT = "MRTR_DATABASE_URL"


def store_of(url: str | None = None, environment: Mapping[str, str] = os.environ) -> Store | None:
    """Return the store of a database's URL, or of `MRTR_DATABASE_URL`; None where no database is named."""
    # `SetupError` says which of both can't be used, or which driver is missing.
    named_by = ENVIRONMENT if url is None else "store"
    url = environment.get(ENVIRONMENT, "").strip() or None if url is None else url
    if url is None:
        return None
    try:
        from .sql.store import SQLStore

        return SQLStore(url)
    except SetupError as error:
        raise SetupError(f"{named_by}: {error}") from None
