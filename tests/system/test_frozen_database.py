"""No request waits longer than the documented ten seconds for a database that answers nothing, whatever it is about."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mrtr_server.testing import Client, Flow, yes

from ..support.databases import PostgreSQL, table_locks, write_lock
from ..support.handshake import Handshake
from ..support.pgbouncer import running_pgbouncer
from ..support.serving import KEYS, TIMEOUT, in_process, wait_until

DOCUMENTED = 10.0
"""How long a request waits for its store, in seconds (docs/database.md)."""
SLACK = 3.0
"""What else a request may take on a busy machine, in seconds."""
TABLES = ("mrtr_kept", "mrtr_redemptions", "mrtr_tasks")


class Frozen:
    """A database, and what lets it answer nothing for a while.

    Args:
        url: its URL.
        freeze: lets it answer nothing for as long as the block lasts.
    """

    def __init__(self, url: str, freeze: Callable[[], AbstractContextManager[None]]) -> None:
        self.url = url
        self.freeze = freeze


@pytest.fixture(params=["postgresql", "postgresql, locked", "pgbouncer", "sqlite, locked"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Frozen]:
    """A database that can be frozen."""
    if request.param == "sqlite, locked":
        file = tmp_path / "store.db"
        yield Frozen(f"sqlite:///{file}", lambda: write_lock(file))
        return
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    direct = postgresql.url(anyio.run(postgresql.new_database))
    if request.param.startswith("postgresql"):
        yield Frozen(direct, (lambda: table_locks(direct, *TABLES)) if "locked" in request.param else postgresql.frozen)
        return
    with running_pgbouncer(direct, "transaction") as pooler:
        yield Frozen(pooler.url(direct), pooler.frozen)


class Requests:
    """Requests of every kind, each of which is ready to be sent.

    Args:
        port: the server's.
        stack: closes what is opened.
    """

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.port = port
        self._stack = stack
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.tasks = Client(self.url, capabilities={"elicitation": {"form": {}, "url": {}}}, tasks=True, log_level=None)
        self.plain = Client(self.url, capabilities={"elicitation": {"form": {}, "url": {}}}, log_level=None)

    def asked(self, tool: str) -> Flow:
        """Begin a flow; its question is open."""
        flow = (self.tasks if tool == "ship" else self.plain).flow(tool)
        assert flow.start().needs_input
        return flow

    def handshake(self) -> Handshake:
        client = Handshake([self.url])
        client.begin()
        self._stack.callback(client.close)
        return client

    def all(self) -> dict[str, Callable[[], Any]]:
        """Return the requests, by what they are about."""
        payment, shipment = self.asked("pay"), self.asked("ship")
        task = self.tasks.flow("approve").start().task.id
        wait_until(lambda: self._get(task).task.status == "input_required", "the question of a task")
        consent = self.plain.flow("consent").start()
        (page,) = (each["params"]["url"] for each in consent.message["result"]["inputRequests"].values())
        hands = [self.handshake() for _ in range(7)]
        calling = self._stack.enter_context(hands[0].calling("pay"))
        question = calling.ask()
        resumed = self._stack.enter_context(hands[1].calling("pay"))
        resumed.ask()
        about = {"taskId": task}
        answers = {"inputResponses": {"confirm": yes.raw}}
        given = hands[4].given(Content_Type=None)
        return {
            "a state that counts once": lambda: payment.send({"confirm": yes}),
            "a flow that becomes a task": lambda: shipment.send({"confirm": yes}, wait=False),
            "a new task": lambda: self.tasks.flow("approve").start(),
            "tasks/get": lambda: self._get(task),
            "another tasks/get": lambda: self._get(task),
            "one more tasks/get": lambda: self._get(task),
            "tasks/update": lambda: self.tasks.request("tasks/update", about | answers),
            "tasks/cancel": lambda: self.tasks.request("tasks/cancel", about),
            "a page that reports": lambda: httpx.get(page, timeout=TIMEOUT, trust_env=False, follow_redirects=True),
            "a call of a session": lambda: hands[2].call("nothing"),
            "an answer to an open call": lambda: hands[0].answer(question, {"action": "accept", "content": {}}),
            "a stream that is continued": lambda: self._read(hands[1], resumed.last_id),
            "resources/subscribe": lambda: hands[2].send("resources/subscribe", {"uri": "plain://text"}),
            "logging/setLevel": lambda: hands[3].send("logging/setLevel", {"level": "info"}),
            "the end of a session": lambda: hands[4].http.delete(self.url, headers=given),
            "a task of a session": lambda: hands[5].send(
                "tools/call", {"name": "approve", "arguments": {}, "task": {}}
            ),
            "the tasks of a session": lambda: hands[6].send("tasks/list", {}),
            "readiness": lambda: httpx.get(f"http://127.0.0.1:{self.port}/ready", timeout=TIMEOUT, trust_env=False),
            "metrics": lambda: httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=TIMEOUT, trust_env=False),
        }

    def _get(self, task: str) -> Any:
        return self.tasks.request("tasks/get", {"taskId": task})

    def _read(self, client: Handshake, last_id: str) -> bytes:
        headers = client.given(Last_Event_ID=last_id, Content_Type=None)
        with client.http.stream("GET", self.url, headers=headers) as response:
            return next(response.iter_bytes(), b"")


def timed(send: Callable[[], Any]) -> float:
    """Send a request; return how long its reply took, in seconds."""
    began = time.monotonic()
    send()
    return time.monotonic() - began


@pytest.fixture
def requests(database: Frozen, tmp_path: Path) -> Iterator[Requests]:
    """Requests to a server with that database."""
    environment = {"MRTR_KEYS": KEYS, "ASKING_DIR": str(tmp_path), "ASKING_DATABASE": database.url}
    environment |= {"MRTR_SHUTDOWN_SECONDS": "8"}
    log = tmp_path / "log"
    with in_process("tests.support.asking_app:app", log=log, environment=environment) as server, ExitStack() as stack:
        assert server.port, server.text
        yield Requests(server.port, stack)


class TestWhileADatabaseAnswersNothing:
    def test_no_request_waits_longer_than_documented(self, requests: Requests, database: Frozen) -> None:
        to_send = requests.all()
        with ThreadPoolExecutor(len(to_send)) as pool, database.freeze():
            sent = {name: pool.submit(timed, send) for name, send in to_send.items()}
            took = {name: each.result() for name, each in sent.items()}
        assert {name: each for name, each in took.items() if each > DOCUMENTED + SLACK} == {}

    def test_what_has_run_meanwhile_is_told_soon_and_begins_no_second_wait(
        self, requests: Requests, database: Frozen, tmp_path: Path
    ) -> None:
        """The handlers run when the database freezes: a payment is only to be recorded, and a shipment to be stored."""
        payment, shipment = requests.asked("pay"), requests.asked("ship")
        (tmp_path / "hold").touch()
        with ThreadPoolExecutor(2) as pool:
            paying = pool.submit(timed, lambda: payment.send({"confirm": yes}))
            shipping = pool.submit(timed, lambda: shipment.send({"confirm": yes}, wait=False))
            wait_until(lambda: (tmp_path / "paying").exists() and (tmp_path / "shipping").exists(), "both to run")
            with database.freeze():
                began = time.monotonic()
                (tmp_path / "hold").unlink()
                paying.result()
                paid = time.monotonic() - began
                shipping.result()
                shipped = time.monotonic() - began
        assert paid < 2.5 + SLACK
        assert shipped < DOCUMENTED + SLACK
        assert payment.last.text == "paid"
