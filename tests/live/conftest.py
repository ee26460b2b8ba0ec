"""Servers with open calls: one process, or several with one key and one store."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import MRTRServer, SQLStore
from mrtr_server.live.open_questions import FirstRounds

from ..support.databases import PostgreSQL
from ..support.handshake import Handshake
from ..support.live_app import register as register_all
from ..support.serving import in_thread, wait_until

Connect = Callable[..., Handshake]
"""Starts servers, and returns a client of all of them that has begun a session."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.url(asyncio.run(server.new_database()))


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Serve the tools of `support/live_app.py` in so many processes' stead, each with its own connection to a store."""
    with ExitStack() as stack:

        def start(
            servers: int = 1,
            store: str = "",
            *,
            begin: bool = True,
            register: Callable[[MRTRServer], MRTRServer] = register_all,
            app: dict[str, Any] | None = None,
            **client: Any,
        ) -> Handshake:
            urls: list[str] = []
            stores: list[SQLStore] = []
            for _ in range(servers):
                options: dict[str, Any] = {"keys": [bytes(32)], **(app or {})}
                if store or servers > 1:
                    stores.append(SQLStore(store or f"sqlite:///{tmp_path}/live.db"))
                    options["store"] = stores[-1]
                served = register(MRTRServer("live", **options))
                urls.append(f"http://127.0.0.1:{stack.enter_context(in_thread(served, wait=False))}/mcp")
            connected = Handshake(urls, **client)
            stack.callback(connected.close)
            if begin:
                connected.begin()
            for each in stores:  # who connects while a stream listens tells it of whatever may have been missed
                each.notices.start()
                wait_until(lambda each=each: each.notices.connected, "the replicas to hear each other")
            return connected

        yield start


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a server has noticed that the client of a first round has left."""
    event, record = threading.Event(), FirstRounds._record

    async def recording(self: FirstRounds, *given: Any) -> None:
        event.set()
        await record(self, *given)

    monkeypatch.setattr(FirstRounds, "_record", recording)
    return event
