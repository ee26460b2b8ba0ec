"""What the tests of flows share."""

from typing import Any

import pytest

from mrtr_server import InProcessStore, KeyRing, Limits, MRTRServer
from mrtr_server.addresses import BaseUrl
from mrtr_server.flow.admission import Admission
from mrtr_server.flow.url_asks import Callbacks

from ..support.virtual_time import VirtualTime


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease or a deadline."""
    return virtual_time.backend


@pytest.fixture
def app() -> MRTRServer:
    """A server with a ring of its own, and no tools yet."""
    return MRTRServer("rules", keys=KeyRing.generate())


@pytest.fixture
def callbacks() -> Callbacks:
    """What makes links to callbacks, of which there are none yet."""
    ring, store, base = KeyRing([bytes(32)]), InProcessStore(), BaseUrl("https://tools.example")
    return Callbacks(
        {},
        ring,
        store,
        audience="",
        base=base,
        identifies=False,
        fanout=store.fanout(),
        limits=Limits(),
        on_drain=Admission(Limits()).on_drain,
    )
