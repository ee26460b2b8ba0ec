"""The stores that tasks are tested with."""

from pathlib import Path

import pytest

from ..support.databases import PostgreSQL


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The URL of an empty database of each kind; None for the memory of the process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        return server.url(await server.new_database())
    return None
