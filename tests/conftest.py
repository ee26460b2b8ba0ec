"""Fixtures that all tests share. What they hand out is in the package `support`."""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from playwright.sync_api import Browser
from starlette.types import ASGIApp

from mrtr_server.concurrency import running
from mrtr_server.logs.refusals import SERVERS
from mrtr_server.storage import health
from mrtr_server.storage.sql import postgresql as postgresql_module
from mrtr_server.storage.sql import sqlite as sqlite_module

from .support.app_host import AppHosts
from .support.authorization_server import AuthorizationServer, Tenant
from .support.browser import chromium
from .support.databases import PostgreSQL, running_postgresql
from .support.effects import EFFECTS
from .support.serving import TIMEOUT, all_ended, ended, in_process, in_thread
from .support.virtual_time import VirtualTime
from .support.wire import Inspected, Wire

Serve = Callable[..., Wire]

# A busy machine is no failure: what takes long is bounded by the number of examples.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


# Folders of tests that start processes, and what marks a test that needs a database server.
PROCESSES = ("docs", "examples", "system")

# Files beside the folders that take a minute or more.
LONG = ("test_environments.py", "test_mutants.py", "test_wheel.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes or database servers: `scripts/test` runs them on one Python alone.

    Whole folders of them, and long files, go first: a long file that is the last to begin would be waited for alone.
    """
    for item in items:
        if folder_of(item) in PROCESSES or needs_server(item):
            item.add_marker(pytest.mark.processes)
        if "browser_of_hosts" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.drawn)
    items.sort(key=lambda item: folder_of(item) not in (*PROCESSES, *LONG))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `scripts/test` gives, so that no process reads files that have nothing for it."""
    parser.addoption(
        "--files-by-mark", metavar="DIRECTORY", type=Path, help="write which files have tests of each mark"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write which files have tests of each mark: a file for each."""
    gc.freeze()  # or the garbage collector walks through thousands of tests each time
    directory: Path | None = session.config.getoption("--files-by-mark")
    if directory is not None:
        for mark in "processes", "drawn", "alone":
            files = {item.path: None for item in session.items if item.get_closest_marker(mark)}
            (directory / mark).write_text("".join(f"{path.relative_to(session.config.rootpath)}\n" for path in files))


def folder_of(item: pytest.Item) -> str:
    """Return the folder of a test within this one; its file, where it is in none."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def needs_server(item: pytest.Item) -> bool:
    """Return whether a test needs a server, or a browser, in a process of its own."""
    parameters = getattr(item, "callspec", None)
    processes = {"postgresql", "authorization_server", "browser_of_hosts"} & set(getattr(item, "fixturenames", ()))
    return bool(processes) or (parameters is not None and "postgresql" in map(str, parameters.params.values()))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the package does."""
    return "asyncio"


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Any:
    """What `anyio_backend` returns where time is simulated: for tests that wait for no other process."""
    return "asyncio" if needs_server(request.node) else request.getfixturevalue("virtual_time").backend


@pytest.fixture
def virtual_time() -> Iterator[VirtualTime]:
    """Time that does not pass by itself. Where `anyio_backend` is its loop, the asynchronous tests run in it."""
    with pytest.MonkeyPatch.context() as patch:
        yield VirtualTime(patch)


@pytest.fixture(autouse=True)
def nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine neither fill the log nor make a database count as away; tests of that say how long it may."""
    monkeypatch.setattr(health, "SLOW_SECONDS", TIMEOUT)
    monkeypatch.setattr(running, "TOLD_SECONDS", TIMEOUT)
    monkeypatch.setattr(health, "PATIENCE", TIMEOUT)
    for module in (postgresql_module, sqlite_module):
        monkeypatch.setattr(module, "TIMEOUT", TIMEOUT)
        monkeypatch.setattr(module, "CONNECT_TIMEOUT", TIMEOUT / 2)


def unbound() -> None:
    """Take what web servers log from under the bound of its lines, also where a server runs for several tests."""
    for name in SERVERS:
        logging.getLogger(name).filters.clear()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo how a test, or a command that it runs, configures the log."""
    loggers = [logging.getLogger(name) for name in (None, "mrtr_server", "uvicorn", "uvicorn.access", "_granian")]
    before = [(each.level, list(each.handlers), each.propagate) for each in loggers]
    unbound()
    yield
    unbound()
    for each, (level, handlers, propagate) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:] = handlers
        each.propagate = propagate


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """Undo what a test, or a command that it runs, sets for the processes that it starts, such as `MRTR_WORKERS`."""
    before = dict(os.environ)
    yield
    if os.environ != before:  # pytest itself sets and removes what names the running test
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(autouse=True)
def no_effects() -> None:
    """Begin each test with nothing done; see `support/effects.py`."""
    EFFECTS.clear()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without settings of the machine, also in the processes that the test starts."""
    for name in list(os.environ):
        if name.startswith("MRTR_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def servers_end() -> Iterator[None]:
    """See that every server in a thread has ended when the tests have."""
    yield
    all_ended()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A real PostgreSQL server, for all tests that want one."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def authorization_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizationServer]:
    """A real authorization server."""
    log = tmp_path_factory.mktemp("authorization") / "log"
    with in_process("tests.support.authorization_server:app", "--no-access-log", log=log) as server:
        assert server.port, server.text
        with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
            yield AuthorizationServer(f"http://127.0.0.1:{server.port}", client)


@pytest.fixture
def issuer(authorization_server: AuthorizationServer) -> Tenant:
    """An issuer of its own for each test."""
    return authorization_server.tenant()


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.url(await server.new_database())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve an application over real HTTP until the test is over: `wire = serve(app)`.

    Every reply to a modern request is checked against the official schema and the official models as it passes; what
    is wrong fails the test when it ends. Keywords are options of uvicorn's, besides `path`.
    """
    inspected: list[Inspected] = []
    with ExitStack() as stack:

        def start(app: ASGIApp, *, path: str = "/mcp", **options: Any) -> Wire:
            ended(app)
            inspected.append(Inspected(app))
            port = stack.enter_context(in_thread(inspected[-1], wait=False, of=app, **options))
            wire = Wire(f"http://127.0.0.1:{port}{path}")
            stack.callback(wire.close)
            return wire

        yield start
    assert not (problems := [problem for each in inspected for problem in each.problems]), problems


@pytest.fixture(scope="module")
def browser_of_hosts() -> Iterator[Browser]:
    """One browser for each file: while Playwright runs in a thread, no other event loop can."""
    with chromium() as running:
        yield running


@pytest.fixture
def hosts(request: pytest.FixtureRequest, serve: Serve, browser_of_hosts: Browser) -> Iterator[AppHosts]:
    """Hosts that draw apps; they go before the servers of `serve` do."""
    opened: AppHosts = getattr(request, "param", AppHosts)(browser_of_hosts)
    yield opened
    opened.close()
