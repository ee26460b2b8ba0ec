"""Each fault has a line in the log that says what, where and what to do: once, and not once a request.

Every fault is a real one. How often a line came is counted after several requests that met the fault. Faults for which
`examples/deploy/rules.yaml` has an alert make it fire, by what the server shows to Prometheus.
"""

import re
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]
import httpx
import pytest

from mrtr_server.storage.sql.administration import new_epoch
from mrtr_server.testing import AsyncClient, Client, Reply, webhook_receiver

from ..support.alerts import assert_fires
from ..support.databases import PostgreSQL, freeze
from ..support.fleet import fleet
from ..support.pgbouncer import running_pgbouncer
from ..support.serving import KEYS, TIMEOUT, Process, in_process, started, wait_until
from ..support.wire import JSON

OTHER_KEY = "11" * 32
TARGET = "tests.support.faulty_app:app"
EMITTING = "tests.support.emitting_app:app"
SHOWN = {"MRTR_METRICS_PATH": "/metrics"}
TIMES = 4
"""How many requests meet a fault, at least."""

LEASE = 5.0
"""In seconds: a process that lives on a busy machine keeps it."""

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'mrtr_redemptions'::regclass"

Start = Callable[..., "Server"]


class Server:
    """A process that serves, and what it has logged.

    Args:
        process: the process.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{process.port}/mcp"

    def send(self, tool: str, arguments: JSON | None = None, **params: Any) -> Reply:
        """Call a tool."""
        given = {"name": tool, "arguments": arguments or {}, **params}
        return Client(self.url, log_level=None).request("tools/call", given)

    def answer(self, asked: Reply, tool: str, arguments: JSON | None = None) -> Reply:
        """Answer what was asked, here or elsewhere."""
        (key,) = asked.asks
        given = {key: {"action": "accept", "content": {"name": "al", "confirm": True}}}
        return self.send(tool, arguments, requestState=asked.state, inputResponses=given)

    def pay(self) -> Reply:
        """Ask for a confirmation and give it, for which the store is needed."""
        return self.answer(self.send("pay"), "pay")

    @property
    def metrics(self) -> str:
        """What it shows to Prometheus."""
        return httpx.get(f"http://127.0.0.1:{self.process.port}/metrics", timeout=TIMEOUT, trust_env=False).text

    def shown(self, part: str) -> str:
        """Wait until it shows this to Prometheus; return all that it shows."""
        wait_until(lambda: part in self.metrics, part)
        return self.metrics

    def line(self, part: str) -> str:
        """Wait for a line that has these words, and return it; fail if there are several, or none in time."""

        def lines() -> list[str]:
            return [line for line in self.process.text.splitlines(keepends=True) if part in line and line[-1] == "\n"]

        wait_until(lines, f"a line with {part!r}")
        (found,) = lines()
        return found


def starting(stack: ExitStack, folder: Path) -> Start:
    """Return what starts a server, which ends with the stack."""
    numbers = count()

    def start(target: str = TARGET, **environment: str) -> Server:
        log, given = folder / f"log-{next(numbers)}", {"MRTR_KEYS": KEYS, **SHOWN, **environment}
        server = stack.enter_context(in_process(target, "--no-access-log", log=log, environment=given))
        assert server.port, server.text
        return Server(server)

    return start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server, with variables of its environment."""
    with ExitStack() as stack:
        yield starting(stack, tmp_path)


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    """An empty database of PostgreSQL."""
    return postgresql.url(anyio.run(postgresql.new_database))


class TestTheDatabase:
    def test_is_away(self, start: Start, postgresql: PostgreSQL, url: str) -> None:
        server = start(MRTR_DATABASE_URL=url)
        assert server.pay().text == "paid"
        before = server.metrics
        postgresql.stop()
        try:
            replies = [server.pay() for _ in range(TIMES)]
            assert {reply.status for reply in replies} == {503}
            during = server.metrics
            assert server.send("add", {"a": 1}).text == "2", "what needs no store is served"
        finally:
            postgresql.start()
        line = server.line("the store can't be used")
        assert re.search(r"shop: the store can't be used \(reference (\w{8})\): postgresql://.+: can't connect", line)
        (reference,) = {re.search(r"reference (\w{8})", reply.error.message)[1] for reply in replies}  # type: ignore[index]
        assert reference in line, "clients have the reference of the line"
        assert "refused until it is back" in line
        wait_until(lambda: server.pay().status == 200, "the database")
        assert reference in server.line("the store is back")
        assert_fires("MRTRStoreAway", during, before)

    def test_does_not_answer(self, start: Start, postgresql: PostgreSQL, url: str) -> None:
        server = start(MRTR_DATABASE_URL=url)
        assert server.pay().text == "paid"
        with postgresql.frozen(), ThreadPoolExecutor(TIMES) as threads:
            assert {reply.status for reply in threads.map(lambda _: server.pay(), range(TIMES))} == {503}
        assert "no answer in time" in server.line("the store can't be used")

    def test_is_slow(self, start: Start, postgresql: PostgreSQL, url: str) -> None:
        server = start(MRTR_DATABASE_URL=url)
        assert server.pay().text == "paid"
        before = server.metrics

        is_locked = threading.Event()

        async def lock() -> None:
            connection = await asyncpg.connect(url)
            async with connection.transaction():
                await connection.execute("LOCK TABLE mrtr_redemptions IN ACCESS EXCLUSIVE MODE")
                is_locked.set()
                while not await connection.fetchval(WAITING):  # noqa: ASYNC110  it is another process
                    await anyio.sleep(0.01)
                await anyio.sleep(3)  # more than the two of what is slow, and less than the ten of what is away
            await connection.close()

        with ThreadPoolExecutor(TIMES + 1) as threads:
            locked = threads.submit(anyio.run, lock)
            assert is_locked.wait(TIMEOUT)
            replies = [reply.text for reply in threads.map(lambda _: server.pay(), range(TIMES))]
            locked.result()
        assert replies == ["paid"] * TIMES, "slow is not away"
        line = server.line("the store is slow")
        assert re.search(
            r"shop: the store is slow: it took \d\.\d s for 'redeem'\. .* Look at its load, its locks", line
        )
        assert "can't be used" not in server.process.text
        assert_fires("MRTRStoreSlow", server.metrics, before)

    def test_has_no_connection_left(self, start: Start, postgresql: PostgreSQL) -> None:
        name = anyio.run(postgresql.new_database)

        async def prepare() -> None:
            await postgresql.fetch(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 2")
            await postgresql.fetch(f"ALTER DATABASE {name} OWNER TO {name}")
            await postgresql.fetch(f"GRANT ALL ON SCHEMA public TO {name}", name)

        async def take_all() -> None:
            url = postgresql.url(name, name)
            connections = [await asyncpg.connect(url) for _ in range(2)]
            await anyio.to_thread.run_sync(meet)
            for connection in connections:
                await connection.close()

        def meet() -> None:
            servers.append(start(MRTR_DATABASE_URL=postgresql.url(name, name)))
            assert {servers[0].pay().status for _ in range(TIMES)} == {503}

        servers: list[Server] = []
        anyio.run(prepare)
        anyio.run(take_all)
        line = servers[0].line("the store can't be used")
        assert "too many connections for role" in line
        assert "count seven for each process" in line

    def test_takes_no_writes(self, start: Start, postgresql: PostgreSQL, url: str) -> None:
        server = start(MRTR_DATABASE_URL=url)
        assert server.pay().text == "paid"

        async def meet() -> None:
            async with postgresql.read_only():
                replies = await anyio.to_thread.run_sync(lambda: [server.pay().status for _ in range(TIMES)])
                assert set(replies) == {503}

        anyio.run(meet)
        line = server.line("the store can't be used")
        assert "the server can't be written; it is a standby, was a primary before, or is kept from writing" in line
        assert "Name all servers in the URL" in line
        wait_until(lambda: server.pay().status == 200, "the database")
        server.line("the store is back")

    def test_has_a_pooler(self, start: Start, url: str) -> None:
        with running_pgbouncer(url, "transaction") as pooler:
            server = start(MRTR_DATABASE_URL=pooler.url(url))
            assert {server.pay().text for _ in range(TIMES)} == {"paid"}
            line = server.line("a pooler answers in its place")
            assert "Set MRTR_DATABASE_DIRECT_URL to the address of the database itself" in line

    def test_is_full(self, start: Start, tmp_path: Path) -> None:
        server = start(MRTR_DATABASE_URL=f"sqlite:///{tmp_path}/shop.db")
        assert server.pay().text == "paid"
        size = (tmp_path / "shop.db-wal").stat().st_size
        no_more, unlimited = (size, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.process.pid, resource.RLIMIT_FSIZE, no_more)
        assert {server.pay().status for _ in range(TIMES)} == {503}
        line = server.line("the store can't be used")
        assert "shop.db" in line
        assert "free some space" in line or "because of a quota" in line
        resource.prlimit(server.process.process.pid, resource.RLIMIT_FSIZE, unlimited)
        wait_until(lambda: server.pay().status == 200, "room")
        server.line("the store is back")

    def test_is_nearly_full(self, start: Start, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/shop.db"
        first = start(MRTR_DATABASE_URL=url)
        for _ in range(9):
            assert first.pay().text == "paid"
        server = start(MRTR_DATABASE_URL=url, MRTR_LIMITS_STORED_STATES="10")
        server.pay()
        line = server.line("are used of")
        assert "of 10 are used of stored_states" in line
        assert "Raise Limits(stored_states=...)" in line
        assert_fires("MRTRLimitNearlyUsed", server.metrics)

    def test_has_another_clock(self, start: Start, url: str) -> None:
        server = start(MRTR_DATABASE_URL=url, CLOCK_AHEAD="60")
        assert {server.pay().status for _ in range(TIMES)} == {503}
        line = server.line("its clock is")
        found = re.search(r"postgresql://.+: its clock is (\d+\.\d) s behind this machine's", line)
        assert found is not None
        assert 30 < float(found[1]) <= 60
        assert "confirmations and single-use rounds are refused" in line
        assert "Set both clocks by NTP" in line
        assert_fires("MRTRClocksApart", server.metrics)

    def test_has_lost_writes(self, start: Start, postgresql: PostgreSQL) -> None:
        name = anyio.run(postgresql.new_database)
        before = start(MRTR_DATABASE_URL=postgresql.url(name))
        asked = before.send("pay")
        with postgresql.standby() as standby:
            anyio.run(standby.fetch, "SELECT pg_promote()")
            assert before.answer(asked, "pay").text == "paid", "which the other one will never know"
            url = standby.url(name)
            servers = [start(MRTR_DATABASE_URL=url) for _ in range(2)]
            logs = "\n".join(server.process.text for server in servers)
            (line,) = [each for each in logs.splitlines() if "timeline" in each]
            assert "its writes are on timeline 2 of cluster" in line
            assert "run `mrtr-server db new-epoch` now" in line
            anyio.run(new_epoch, url)
            for _ in range(TIMES):
                assert "requestState is not valid" in servers[0].answer(asked, "pay").error.message
            assert "'pay': refused a requestState: it names another epoch" in servers[0].line("epoch of the store")
            assert servers[0].pay().text == "paid"

    def test_has_tables_of_another_version(self, start: Start, tmp_path: Path) -> None:
        server = start(MRTR_DATABASE_URL=f"sqlite:///{tmp_path}/shop.db")
        assert server.pay().text == "paid"
        server.process.stop()
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
            database.execute("UPDATE mrtr_schema SET version_num = '99', compatible_from = '99'")
        given = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/shop.db"}
        with started(TARGET, log=tmp_path / "refused", environment=given) as refused:
            assert refused.wait() != 0
        assert "its tables are of version 99" in refused.text
        assert "install the release that made them" in refused.text


class TestEvents:
    def test_wait_for_a_transaction_that_stays_open(self, start: Start, url: str) -> None:
        server = start(EMITTING, MRTR_DATABASE_URL=url)
        client = Client(server.url, token="ann", log_level=None)
        cursor = client.request("events/poll", {"name": "incident.created"}).result["cursor"]
        before = server.metrics

        def found() -> list[JSON]:
            given = {"name": "incident.created", "cursor": cursor}
            return list(client.request("events/poll", given).result["events"])

        def meet() -> str:
            client.call("report", id="1")
            assert found() == []
            anyio.run(execute, "UPDATE mrtr_events SET created = created - 900")  # it has waited for so long
            return server.shown("mrtr_server_events_delay_seconds 9")

        async def execute(statement: str) -> None:
            connection = await asyncpg.connect(url)
            await connection.execute(statement)
            await connection.close()

        async def hold() -> str:
            settings = {"application_name": "a report"}
            connection = await asyncpg.connect(url, server_settings=settings)
            async with connection.transaction():
                await connection.execute("CREATE TABLE reports ()")
                during = await anyio.to_thread.run_sync(meet)
            await connection.close()
            return during

        during = anyio.run(hold)
        line = server.line("no event has been delivered for 9")
        assert re.search(r"that of session \d+, user \w+, database \w+, a report\. End it", line)
        wait_until(found, "the event")
        assert_fires("MRTREventsDelayed", during, before)

    def test_come_to_a_webhook_that_fails(self, start: Start) -> None:
        async def meet() -> tuple[Server, str, str]:
            async with webhook_receiver() as hook:
                allowed = {"MRTR_WEBHOOKS_ALLOW": hook.origin}
                server = await anyio.to_thread.run_sync(lambda: start(EMITTING, **allowed))
                delivery = {"mode": "webhook", "url": hook.url, "secret": hook.secret}
                async with AsyncClient(server.url, token="ann", log_level=None) as client:
                    await client.request("events/subscribe", {"name": "incident.created", "delivery": delivery})
                    await client.call("report", id="taken")
                    await hook.wait(1)
                    before = await anyio.to_thread.run_sync(lambda: server.metrics)
                    hook.fail(*[503] * TIMES)
                    for number in range(TIMES):
                        await client.call("report", id=str(number))
                    failed = f'{{mrtr_event_outcome="failed"}} {TIMES}.0'
                    during = await anyio.to_thread.run_sync(lambda: server.shown(failed))
            return server, before, during

        server, before, during = anyio.run(meet)
        line = server.line("do not arrive at the webhook")
        assert re.search(r"Events of 'incident\.created' .* 'sub_\S{8}': 'http_5xx'\. Each is", line)
        assert_fires("MRTRWebhooksFail", during, before)


class TestACaller:
    def test_has_as_many_webhooks_as_it_may(self, start: Start) -> None:
        async def meet() -> Server:
            async with webhook_receiver() as hook:
                given = {"MRTR_WEBHOOKS_ALLOW": hook.origin, "MRTR_LIMITS_SUBSCRIPTIONS": "10"}
                server = await anyio.to_thread.run_sync(lambda: start(EMITTING, **given))
                async with AsyncClient(server.url, token="ann", log_level=None) as client:
                    for url in (hook.url, hook.url + "?other"):
                        delivery = {"mode": "webhook", "url": url, "secret": hook.secret}
                        await client.request("events/subscribe", {"name": "incident.created", "delivery": delivery})
            return server

        assert_fires("MRTRLimitReached", anyio.run(meet).metrics)


class TestAWorker:
    def test_is_killed_or_comes_back_as_a_zombie(self, tmp_path: Path) -> None:
        with fleet(tmp_path, lease=LEASE) as processes:
            _, client = processes.serve(run_tasks=False)
            frozen = processes.worker()
            with processes.held():
                task = client.start("work", parts=2)
                processes.wait_for("part")
                freeze(frozen.process.pid, tmp_path / "tasks.db")
                killed = processes.worker()
                processes.wait_for("part", 2)  # it took the task over
                killed.process.kill()
                processes.environment |= SHOWN
                last, _ = processes.serve()
                processes.wait_for("part", 3)
            assert client.text(task).split() == [str(last.process.pid)] * 2
            frozen.process.send_signal(signal.SIGCONT)
            wait_until(lambda: "the result of a step is dropped" in frozen.text, "the zombie to see it")
            for heir in (killed, last):
                line = Server(heir).line("is taken over")
                assert f"A task of 'work' ({task[:8]}) is taken over: a worker that had it ended, or was silent" in line
            zombie = Server(frozen)
            assert "others may have taken its tasks" in zombie.line("This process did not run for")
            assert f"may have started its tasks again ({task[:8]})" in zombie.line("stood still")
            assert task not in frozen.text + killed.text + last.text, "the id may be all that protects the task"
            assert_fires("MRTRWorkTakenOver", Server(last).metrics)

    def test_lacks_a_key(self, tmp_path: Path) -> None:
        with fleet(tmp_path, lease=LEASE) as processes:
            _, client = processes.serve(run_tasks=False)
            wrong = processes.work(MRTR_KEYS=OTHER_KEY)
            tasks = [client.start("work", parts=1) for _ in range(TIMES)]
            wait_until(lambda: "Tasks can't be run here" in wrong.text, "the line")
            right = processes.worker()
            assert {client.text(task) for task in tasks} == {str(right.process.pid)}, "others run them"
            line = Server(wrong).line("Tasks can't be run here")
            assert "sealed under a key that is not in the ring. Give every replica all keys of the ring" in line

    def test_is_missing(self, tmp_path: Path) -> None:
        with fleet(tmp_path) as processes:
            _, client = processes.serve(run_tasks=False)
            client.start("work", parts=1)
            with closing(sqlite3.connect(tmp_path / "tasks.db")) as database, database:
                database.execute("UPDATE mrtr_tasks SET updated = updated - 90")  # it has waited for so long
            processes.environment |= SHOWN
            other, _ = processes.serve(run_tasks=False)
            assert_fires("MRTRTasksWait", Server(other).metrics)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, Server]]:
    """A replica, one of a new version, and one with another key."""
    with ExitStack() as stack:
        start = starting(stack, tmp_path_factory.mktemp("replicas"))
        yield start(), start(VERSION="2"), start(MRTR_KEYS=OTHER_KEY)


class TestAReplica:
    def test_lacks_a_key(self, replicas: tuple[Server, Server, Server]) -> None:
        first, _, second = replicas
        asked = first.send("order", {"item": "tea"})
        assert {second.answer(asked, "order", {"item": "tea"}).error.code for _ in range(TIMES)} == {-32602}
        line = second.line("refused a requestState")
        assert "'order'" in line
        assert "sealed under a key that is not in the ring. Give every replica all keys of the ring" in line
        assert asked.state not in second.process.text
        assert_fires("MRTRKeyMissing", second.metrics)

    def test_is_of_a_version_that_takes_other_arguments(self, replicas: tuple[Server, Server, Server]) -> None:
        old, new, _ = replicas
        asked = old.send("order", {"item": "secret tea"})
        assert all(new.answer(asked, "order", {"item": "secret tea"}).failed for _ in range(TIMES))
        line = new.line("do not fit it any more")
        assert "'order'" in line
        assert "let it take the former arguments, too" in line
        assert "secret tea" not in new.process.text
        assert_fires("MRTRToolFails", new.metrics)

    def test_is_of_a_version_without_the_tool(self, replicas: tuple[Server, Server, Server]) -> None:
        old, new, _ = replicas
        asked = old.send("reserve", {"item": "tea"})
        assert {new.answer(asked, "reserve", {"item": "tea"}).error.code for _ in range(TIMES)} == {-32602}
        assert "drop a tool only when its flows have ended" in new.line("of the tool 'reserve'")

    def test_has_a_loop_that_is_blocked(self, replicas: tuple[Server, Server, Server]) -> None:
        server, _, _ = replicas
        before = server.metrics
        with ThreadPoolExecutor(TIMES) as threads:
            blocked = [threads.submit(server.send, "block", {"seconds": 3.0}) for _ in range(2)]
            assert [each.result().text for each in blocked] == ["over", "over"]
        line = server.line("The event loop has stood still")
        assert re.search(r'for \d+ s, at File "\S+faulty_app\.py", line \d+, in block', line)
        assert "Write what blocks as a plain `def`" in line
        assert_fires("MRTREventLoopBlocked", server.metrics, before)

    def test_was_suspended(self, replicas: tuple[Server, Server, Server]) -> None:
        _, _, server = replicas
        server.process.process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        server.process.process.send_signal(signal.SIGCONT)
        assert "suspended or has too much to do" in server.line("This process did not run for")

    def test_has_too_much_to_do(self, start: Start) -> None:
        server = start(MRTR_LIMITS_MAX_CONCURRENCY="1", MRTR_LIMITS_MAX_QUEUE="1")
        with ThreadPoolExecutor(3 * TIMES) as threads:
            replies = list(threads.map(lambda _: server.send("wait", {"seconds": 5}), range(3 * TIMES)))
        turned_away = [reply for reply in replies if reply.status == 503 or "requestState" in reply.message["result"]]
        assert len(turned_away) >= TIMES
        assert "Limits(max_concurrency=...)" in server.line("Overloaded: ")
        assert_fires("MRTROverloaded", server.metrics)
