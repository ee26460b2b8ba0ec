"""What the tests of methods share."""

from typing import Any

import pytest

from mrtr_server import KeyRing, MRTRServer

from ..support.virtual_time import VirtualTime


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens."""
    return virtual_time.backend


@pytest.fixture
def app() -> MRTRServer:
    """A server with a ring of its own, and no tools yet."""
    return MRTRServer("methods", keys=KeyRing.generate())
