"""What the tests of flows share."""

import pytest

from mrtr_server import KeyRing, MRTRServer


@pytest.fixture
def app() -> MRTRServer:
    """A server with a ring of its own, and no tools yet."""
    return MRTRServer("rules", keys=KeyRing.generate())
