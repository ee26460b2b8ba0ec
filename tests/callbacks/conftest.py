"""What the tests of callbacks share."""

from typing import Any

import pytest

from ..support.virtual_time import VirtualTime


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens: no busy machine ends the time that a client is held."""
    return virtual_time.backend
