"""A session of the official client 1.x goes on after whatever its server refuses: at an HTTP error it would end."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import from_json
from starlette.authentication import AuthCredentials, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection

from mrtr_server import Context, InProcessStore, Limits, MRTRServer, RateLimits, StoreUnavailable
from mrtr_server.errors import IssuerUnavailable
from mrtr_server.testing import Client

from ..support.models import Login
from ..support.serving import ROOT, TIMEOUT, in_thread, wait_until
from ..support.users import Bearer

sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import environment, read_clients

CLIENT = replace(next(each for each in read_clients() if each.name == "mcp 1"), run=("python/mcp_on_demand.py",))


class Store(InProcessStore):
    """A shared store that is away for a while."""

    shared = True
    is_away = False

    async def put(self, *args: Any, **more: Any) -> bool:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailable("gone")
        return await super().put(*args, **more)


class Issuer(Bearer):
    """Tokens whose issuer can't be asked once in a while."""

    is_away = False

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        if self.is_away and conn.scope["method"] == "POST":
            self.is_away = False
            raise AuthenticationError("it can't be asked") from IssuerUnavailable("gone")
        return await super().authenticate(conn)


class Session:
    """A session of the client, in a process of its own.

    Args:
        url: the server's endpoint.
        token: of the user.
    """

    def __init__(self, url: str, token: str) -> None:
        pipe = subprocess.PIPE
        command = [*CLIENT.command(url), token]
        self.process = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._read() == "begun"

    def call(self, tool: str, **arguments: Any) -> str:
        """Return what comes of a call: its text, or the code and the message of its error."""
        self.begin(tool, **arguments)
        return self._read()

    def begin(self, tool: str, **arguments: Any) -> None:
        """Make it send a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([tool, arguments]) + "\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            pytest.fail(f"the session has ended: {self.process.communicate()[1][-2000:]}")
        return str(json.loads(line))

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


class Server:
    """A server that refuses whatever the test wants it to."""

    def __init__(self) -> None:
        self.store, self.issuer = Store(), Issuer()
        self.gate = threading.Event()
        self.holding = threading.Semaphore(0)
        limits = Limits(
            body_bytes=64 * 1024,
            values=2_000,
            json_depth=12,
            held_streams=6,
            caller_share=0.5,
            max_concurrency=2,
            max_queue=1,
        )
        rates = RateLimits(per_tool={"limited": "1/hour"})
        self.app = app = MRTRServer(
            "refusing", keys=[bytes(32)], auth=self.issuer, store=self.store, limits=limits, rate_limits=rates
        )

        @app.tool
        async def plain(value: Any = None) -> str:
            return "plain"

        @app.tool
        async def limited() -> str:
            return "limited"

        @app.tool
        async def greet(ctx: Context) -> str:
            return f"Hello, {(await ctx.elicit('Who?', Login)).name}!"

        @app.tool
        def hold() -> str:
            self.holding.release()
            assert self.gate.wait(TIMEOUT)
            return "held"


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with in_thread(server.app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(scope="module")
def session(url: str) -> Iterator[Session]:
    CLIENT.install()
    session = Session(url, "ann")
    try:
        yield session
    finally:
        session.end()


@pytest.fixture(autouse=True)
def goes_on(session: Session) -> Iterator[None]:
    """See after each test that the session has not ended, and that it can be asked."""
    yield
    assert session.call("plain") == "plain"
    assert session.call("greet") == "Hello, octocat!"


@contextmanager
def streams_of(url: str, *users: str) -> Iterator[None]:
    """Hold open a call of each user."""
    flows = [Client(url, era="2025-11-25", token=user).flow("greet") for user in users]
    for flow in flows:
        assert flow.start().asks
    yield
    for flow in flows:
        flow.finish({"login": {"name": "ada"}})


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ("x" * 100_000, "-32600 The request body is larger than 65536 bytes"),
        ([0] * 3_000, "-32602 The message holds more than 2000 JSON values"),
        (from_json("[" * 20 + "]" * 20), "-32602 JSON nests deeper than 12"),
    ],
    ids=["too large", "too many values", "too deep"],
)
def test_when_a_request_is_too_large_to_be_read(session: Session, value: Any, refusal: str) -> None:
    assert session.call("plain", value=value) == refusal


def test_when_a_rate_is_used_up(session: Session) -> None:
    assert session.call("limited") == "limited"
    assert session.call("limited").startswith("-31002 The rate limit for calls of this tool")


def test_when_the_share_of_its_caller_is_used_up(session: Session, url: str) -> None:
    with streams_of(url, "ann", "ann"):  # besides that of its notifications
        assert session.call("greet").startswith("-31002 You have used up your share")


def test_when_the_server_is_full(session: Session, url: str) -> None:
    with streams_of(url, *["bob"] * 3, *["cid"] * 2):
        assert session.call("greet").startswith("-31002 The server is full")


def test_when_the_server_has_too_much_to_do(session: Session, url: str, server: Server) -> None:
    with ThreadPoolExecutor(3) as others:
        held = [others.submit(Client(url, token="bob").call, "hold") for _ in range(3)]
        for _ in range(2):
            assert server.holding.acquire(timeout=TIMEOUT)
        wait_until(lambda: len(server.app._parts.admission._line), "one to wait")
        assert session.call("plain").startswith("-31002 The server has too much to do")
        server.gate.set()
        assert [each.result().text for each in held] == ["held"] * 3


def test_when_the_store_is_away_as_an_answer_comes(session: Session, server: Server) -> None:
    server.store.is_away = True
    assert session.call("greet") == "Hello, octocat!", "no client sends an answer again"
    assert not server.store.is_away


def test_when_the_issuer_can_not_be_asked(session: Session, server: Server) -> None:
    server.issuer.is_away = True
    assert session.call("plain") == "-31002 The token can't be verified now; try again"
