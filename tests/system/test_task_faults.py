"""Tasks in several processes that are stopped and killed, and whose database goes away: nothing is lost."""

import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]
import pytest

from mrtr_server import Context, MRTRServer, SQLStore, Task, TaskRow
from mrtr_server.flow import single_use as redemption
from mrtr_server.testing import short_lease, yes

from ..support.databases import PostgreSQL, freeze, write_lock
from ..support.fleet import ATTEMPTS, Client, Fleet, fleet
from ..support.serving import in_thread, is_ready, wait_until

LEASE = 5.0
"""How long those wait that wait for the lease, in seconds: a process that lives on a busy machine keeps it."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Fleet]:
    """Processes with a short lease."""
    with fleet(tmp_path, lease=LEASE) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    return postgresql.url(anyio.run(postgresql.new_database))


def parts(processes: Fleet) -> list[str]:
    return [number for number, _ in processes.notes("part")]


class TestTheEndOfAServer:
    def test_sigterm_hands_its_tasks_to_others_at_once(self, processes: Fleet) -> None:
        first, client = processes.serve()
        with processes.held():
            tasks = [client.start("work", parts=2) for _ in range(10)]
            processes.wait_for("part", 10)
            second, other = processes.serve()
            first.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not is_ready(first.port), "the server to drain")
        first.wait()
        for task in tasks:  # soon: the lease is longer than anybody waits here
            assert other.text(task) == f"{first.process.pid} {second.process.pid}"
        assert sorted(parts(processes)) == ["0"] * 10 + ["1"] * 10

    def test_that_was_mounted_without_a_lifespan_does_so_too_as_long_as_it_is_there(self, processes: Fleet) -> None:
        processes.environment["TASKS_LAME_DUCK"] = "2"
        first, client = processes.serve("tests.support.tasks_app:mounted")
        with processes.held():
            tasks = [client.start("work", parts=2) for _ in range(5)]
            processes.wait_for("part", 5)
            second, other = processes.serve()
            first.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not is_ready(first.port), "the server to drain")
        first.wait()
        for task in tasks:
            assert other.text(task) == f"{first.process.pid} {second.process.pid}"
        assert "Traceback" not in first.text

    def test_a_step_that_does_not_end_in_time_runs_again_elsewhere_at_once(self, processes: Fleet) -> None:
        processes.environment["MRTR_SHUTDOWN_SECONDS"] = "8"
        first, client = processes.serve()
        with processes.held():
            task = client.start("work", parts=1)
            processes.wait_for("part")
            second, other = processes.serve()
            first.stop()
            processes.wait_for("part", 2)
        assert other.text(task) == str(second.process.pid)
        assert parts(processes) == ["0", "0"]

    def test_sigkill_leaves_its_tasks_to_others_after_the_lease_from_the_last_recorded_step(self, short: Fleet) -> None:
        _, client = short.serve(run_tasks=False)
        first = short.worker()
        task = client.start("work", parts=40)
        short.wait_for("part", 3)
        first.process.kill()
        second = short.worker()
        pids = client.text(task).split()
        before = pids.count(str(first.process.pid))
        assert pids == [str(first.process.pid)] * before + [str(second.process.pid)] * (40 - before)
        assert 2 <= before < 40
        # The one that was running may have run twice, and no other.
        ran = parts(short)
        assert sorted(set(ran), key=int) == [str(number) for number in range(40)]
        assert [number for number in set(ran) if ran.count(number) > 1] in ([], [str(before)])

    @pytest.mark.parametrize("stop", [True, False], ids=["before it is heard", "after that"])
    def test_sigkill_loses_no_answer_that_came_beside_its_work(self, short: Fleet, stop: bool) -> None:
        _, client = short.serve(run_tasks=False)
        first = short.worker()
        with short.held():
            task = client.start("beside")
            short.wait_for("part")
            wait_until(lambda: client.status(task) == "input_required", "the question beside the part")
            if stop:
                freeze(first.process.pid, short.directory / "tasks.db")
            assert client.answer(task, confirm=yes).status == 200
            if not stop:
                short.wait_for("part", 2)
            first.process.kill()
            assert client.status(task) == "working"
        second = short.worker()
        assert client.text(task) == f"{second.process.pid} {second.process.pid}"
        assert sorted(parts(short)) == (["0", "0", "1"] if stop else ["0", "0", "1", "1"])

    def test_a_task_that_ends_each_worker_is_failed_after_a_few_and_those_beside_it_are_not(self, short: Fleet) -> None:
        _, client = short.serve(run_tasks=False)
        task = client.start("deadly")
        with short.held():
            beside = [client.start("work", parts=1) for _ in range(3)]
            for _ in range(ATTEMPTS):
                assert short.work().wait() == 1
            last = short.worker()
            found = client.ended(task)
        assert (found.task.status, found.error.code) == ("failed", -32603)
        assert len(short.notes("dies")) == ATTEMPTS
        assert f"was started {ATTEMPTS} times and reached no step, question or end" in last.text
        assert [client.text(each) for each in beside] == [str(last.process.pid)] * 3
        assert last.process.poll() is None


class TestAWorkerThatIsFrozen:
    def test_for_longer_than_its_lease_goes_no_further_with_what_others_have_taken(self, short: Fleet) -> None:
        _, client = short.serve(run_tasks=False)
        frozen = short.worker()
        with short.held():
            task = client.start("work", parts=3)
            short.wait_for("part")
            freeze(frozen.process.pid, short.directory / "tasks.db")
            other = short.worker()
            short.wait_for("part", 2)
        assert client.text(task).split() == [str(other.process.pid)] * 3
        frozen.process.send_signal(signal.SIGCONT)
        # Each of them says so, by what finds the task and does not grant it.
        dropped = f"A task of 'work' ({task[:8]}): the result of a step is dropped"
        stood_still = f"may have started its tasks again ({task[:8]})"
        wait_until(lambda: dropped in frozen.text and stood_still in frozen.text, "the frozen one to see it")
        assert [pid for _, pid in short.notes("part")] == [str(frozen.process.pid)] + [str(other.process.pid)] * 3
        assert str(frozen.process.pid) not in [pid for _, pid in short.notes("had")]  # its step's result does not count
        assert f"A task of 'work' ({task[:8]}) is taken over" in other.text
        assert task not in frozen.text + other.text
        assert other.stop() == 0
        assert client.text(client.start("work", parts=1)) == str(frozen.process.pid)


class Overtaken(SQLStore):
    """A store in which somebody else takes a task just before the first of its steps is kept."""

    overtaken = False

    async def change_task(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        if "journal" in changes and not self.overtaken:
            self.overtaken = True
            await super().change_task(row, lease="another", leased_until=time.time() + 0.5)
        return await super().change_task(row, **changes)


class TestAStepWhoseRecordComesTooLate:
    def test_gives_no_result_so_nothing_that_comes_after_it_happens_for_nothing(self, tmp_path: Path) -> None:
        done: list[str] = []
        app = MRTRServer("a", keys=[bytes(32)], store=Overtaken(f"sqlite:///{tmp_path}/tasks.db"))

        def charge() -> int:
            done.append("charged")
            return done.count("charged")

        @app.tool(task=Task("required", poll=0.1))
        async def pay(ctx: Context) -> str:
            receipt = await ctx.step(charge)
            done.append(f"told of {receipt}")
            await ctx.progress(message="almost")
            return f"receipt {receipt}"

        with in_thread(app) as port:
            client = Client(port)
            assert client.text(client.start("pay")) == "receipt 2"
        assert done == ["charged", "charged", "told of 2"]


class Forgetful(SQLStore):
    """A store of a server that ends, again and again, when a round is over and has yet to be recorded."""

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        return True  # and it is kept nowhere


class TestStartingAgain:
    """A client that got no reply sends its request again. For a single-use tool that is the same task."""

    @pytest.mark.parametrize("kind", [SQLStore, Forgetful])
    def test_gives_the_task_that_is_there(
        self, tmp_path: Path, kind: type[SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redemption, "GRACE_SECONDS", 0.0)  # nobody comes back
        store = kind(f"sqlite:///{tmp_path}/tasks.db")
        app = MRTRServer("a", keys=[bytes(32)], store=store, limits=short_lease(0.2))

        @app.tool(task=Task("required", rounds_first=True), single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            await ctx.background()
            await ctx.confirm("Really?")
            return "paid"

        @app.tool(task="required", confirm="Go on?")
        async def go(ctx: Context) -> str:
            return "gone"

        with in_thread(app) as port:
            client = Client(port)
            for tool in ("pay", "go"):
                flow = client.flow(tool)
                assert flow.start().needs_input
                found = [flow.send({"confirm": yes}, wait=False)]
                for _ in range(2):
                    time.sleep(0.3)  # longer than the lease
                    found.append(flow.replay())
                assert {each.message["result"]["resultType"] for each in found} == {"task"}
                assert len({each.task.id for each in found}) == 1
            with closing(sqlite3.connect(tmp_path / "tasks.db")) as database:
                assert database.execute("SELECT count(*) FROM mrtr_tasks").fetchone() == (2,)


AT_ONCE = 10.0
"""How long a cancellation may take, in seconds: one on a quiet machine, and this on one that is ten times slower.
Without word of it, a worker would hear at the next renewal of its lease, a hundred seconds later."""


class TestCancelling:
    @pytest.mark.alone
    def test_reaches_a_handler_on_another_replica_at_once(self, tmp_path: Path, url: str) -> None:
        with fleet(tmp_path, url) as processes:
            worker, _ = processes.serve()
            _, client = processes.serve(run_tasks=False)
            took: list[float] = []
            for number in range(1, 4):
                task = client.start("endless")
                processes.wait_for("begun", number)
                cancelled = time.monotonic()
                client.cancel(task)
                assert client.status(task) == "cancelled"
                processes.wait_for("ended", number)
                took.append(time.monotonic() - cancelled)
            assert min(took) < AT_ONCE
            assert processes.notes("begun") == processes.notes("ended") == [[str(worker.process.pid)]] * 3

    def test_lets_a_step_that_runs_end_and_begins_no_other(self, processes: Fleet) -> None:
        _, client = processes.serve()
        with processes.held():
            task = client.start("work", parts=3)
            processes.wait_for("part")
            client.cancel(task)
            time.sleep(1)
        time.sleep(0.5)
        assert parts(processes) == ["0"]
        assert client.status(task) == "cancelled"
        assert client.text(client.start("work", parts=1))  # there is room again


class TestADatabaseThatGoesAway:
    def test_that_is_not_there_at_the_start_needs_no_restart(self, tmp_path: Path, postgresql: PostgreSQL) -> None:
        url = postgresql.url(anyio.run(postgresql.new_database))
        postgresql.stop()
        try:
            with fleet(tmp_path, url) as processes:
                server, client = processes.serve(run_tasks=False)
                worker = processes.worker()
                assert client.flow("approve").start().error.code == -32603
                postgresql.start()
                assert client.text(client.start("work", parts=1)) == str(worker.process.pid)
                assert "can't connect" in server.text
                for process in (server, worker):
                    assert process.text.count("tasks: the store can't be used (reference ") == 1
        finally:
            postgresql.start()

    def test_for_ten_seconds_loses_nothing_and_needs_no_restart(self, tmp_path: Path, postgresql: PostgreSQL) -> None:
        url = postgresql.url(anyio.run(postgresql.new_database))
        with fleet(tmp_path, url, lease=LEASE) as processes:
            servers = [processes.serve(), processes.serve()]
            _, client = servers[0]
            with processes.held():
                running = [client.start("work", parts=3) for _ in range(5)]
                parked = [client.start("approve") for _ in range(5)]
                processes.wait_for("part", 5)
                for task in parked:
                    wait_until(lambda task=task: client.status(task) == "input_required", "the question")
                postgresql.stop()
            try:
                # The steps end meanwhile, and are not repeated when it is back.
                time.sleep(5)
                assert client.get(parked[0]).error.code == -32603
                time.sleep(5)
            finally:
                postgresql.start()
            for task in parked:
                assert client.answer(task, confirm=yes).complete
                assert client.text(task) == "gone on"
            pids = {str(server.process.pid) for server, _ in servers}
            for task in running:
                assert set(client.text(task).split()) <= pids
            assert client.text(client.start("work", parts=1))
            assert all(server.process.poll() is None for server, _ in servers)
            assert parts(processes).count("1") == parts(processes).count("2") == 5


class Outage:
    """Takes a database away, whichever it is, and brings it back."""

    def __init__(self, url: str, take: Callable[[], object], bring: Callable[[], object]) -> None:
        self.url = url
        self._take, self._bring = take, bring

    @contextmanager
    def lasts(self, seconds: float) -> Iterator[None]:
        """Take it away, and bring it back when so many seconds have passed, whatever is done meanwhile."""
        self._take()
        end = time.monotonic() + seconds
        try:
            yield
            time.sleep(max(end - time.monotonic(), 0.0))
        finally:
            self._bring()


@pytest.fixture(params=["sqlite", "sqlite, locked", "postgresql", "postgresql, frozen"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    """A database that can be away for every process at once."""
    with ExitStack() as stack:
        if request.param.startswith("postgresql"):
            postgresql: PostgreSQL = request.getfixturevalue("postgresql")
            url = postgresql.url(anyio.run(postgresql.new_database))
            if "frozen" in request.param:  # it closes nothing, and answers what was sent meanwhile
                frozen = ExitStack()
                stack.enter_context(frozen)
                yield Outage(url, lambda: frozen.enter_context(postgresql.frozen()), frozen.close)
            else:
                stack.callback(postgresql.start)
                yield Outage(url, postgresql.stop, postgresql.start)
        elif "locked" in request.param:
            locked = ExitStack()
            stack.enter_context(locked)
            file = tmp_path / "tasks.db"
            yield Outage(f"sqlite:///{file}", lambda: locked.enter_context(write_lock(file)), locked.close)
        else:
            files, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
            files.mkdir()
            yield Outage(
                f"sqlite:///{files}/tasks.db", lambda: files.rename(elsewhere), lambda: elsewhere.rename(files)
            )


AWAY = 13.0
"""Longer than a statement may take, in seconds, so that every process has seen the outage."""

TO_COME_BACK = 5.0
"""The lease, in seconds: after an outage, workers that live on a busy machine have as long to come back."""


class TestAnOutageThatIsLongerThanTheLease:
    def test_repeats_no_step_that_a_worker_finished_which_lives(self, tmp_path: Path, outage: Outage) -> None:
        with fleet(tmp_path, outage.url, lease=TO_COME_BACK) as processes:
            _, client = processes.serve(run_tasks=False)
            owner, victim = processes.worker(), processes.worker()
            tasks: list[str] = []
            with ExitStack() as hold:
                hold.enter_context(processes.held())
                while len({pid for _, pid in processes.notes("part")}) < 2:  # until each of them has some
                    tasks.append(client.start("work", parts=2))
                    processes.wait_for("part", len(tasks))
                idle = processes.worker()
                with outage.lasts(AWAY):
                    hold.close()  # the steps end while it is away
                    time.sleep(TO_COME_BACK)
                    victim.process.kill()
                    time.sleep(AWAY - TO_COME_BACK - 1)
                    fresh = processes.work()  # which knows nothing of the outage
            texts = [client.text(task) for task in tasks]
            ran = [(number, int(pid)) for number, pid in processes.notes("part")]
            finished, died = (ran.count(("0", each.process.pid)) for each in (owner, victim))
            assert finished + died >= len(tasks)
            assert min(finished, died) > 0
            # What the owner had finished did not run again; what the other one had in hand did, elsewhere.
            assert sorted(number for number, _ in ran) == ["0"] * (len(tasks) + died) + ["1"] * len(tasks)
            assert sum(text.startswith(f"{owner.process.pid} ") for text in texts) >= len(tasks) - died
            survivors = "".join(each.text for each in (owner, idle, fresh))
            assert survivors.count(" is taken over: ") == died
            assert "is dropped" not in survivors

    def test_leaves_a_worker_a_whole_lease_to_come_back_that_got_no_error(
        self, tmp_path: Path, postgresql: PostgreSQL
    ) -> None:
        """A database that was frozen refuses nothing, so nobody is told when to begin anew."""
        url = postgresql.url(anyio.run(postgresql.new_database))
        lease, frozen, late = 14.0, 8.0, 7.0
        with fleet(tmp_path, url, lease=lease) as processes:
            _, client = processes.serve(run_tasks=False)
            owner = processes.worker()
            with processes.held():
                task = client.start("work", parts=2)
                processes.wait_for("part")
                other = processes.worker()
                with postgresql.frozen():
                    owner.process.send_signal(signal.SIGSTOP)
                    time.sleep(frozen)
                time.sleep(late)  # while the other one is in touch with the database
                owner.process.send_signal(signal.SIGCONT)
            assert client.text(task).split()[0] == str(owner.process.pid)
            assert parts(processes) == ["0", "1"]
            assert "is taken over" not in owner.text + other.text


FULL = """
CREATE OR REPLACE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file "base/1/2": No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON mrtr_tasks EXECUTE FUNCTION is_full();
"""


@contextmanager
def full_disk(processes: Fleet, pids: list[int], url: str) -> Iterator[None]:
    """Let processes write no more to their database."""
    if not url.startswith("sqlite"):
        anyio.run(execute, url, FULL)
        yield
        anyio.run(execute, url, "DROP TRIGGER full_disk ON mrtr_tasks")
        return
    if not hasattr(resource, "prlimit"):
        pytest.skip("needs Linux, where a process can be kept from writing")
    size = (processes.directory / "tasks.db-wal").stat().st_size
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    yield
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


async def execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statements)
    await connection.close()


class TestADatabaseThatIsFull:
    def test_is_said_loses_nothing_and_needs_no_restart(self, tmp_path: Path, url: str) -> None:
        with fleet(tmp_path, url) as processes, ExitStack() as hold:
            server, client = processes.serve(run_tasks=False)
            worker = processes.worker()
            hold.enter_context(processes.held())
            running = [client.start("work", parts=3) for _ in range(5)]
            parked = [client.start("approve") for _ in range(5)]
            processes.wait_for("part", 5)
            for task in parked:
                wait_until(lambda task=task: client.status(task) == "input_required", "the question")
            with full_disk(processes, [server.process.pid, worker.process.pid], url):
                hold.close()
                wait_until(lambda: "the store can't be used" in worker.text, "the record of a step to fail")
                refused = client.flow("work", parts=1).start()
                answered = client.answer(parked[0], confirm=yes)
                for reply in (refused, answered):
                    assert (reply.error.code, list(reply.error.data)) == (-32603, ["reference"])
                    (line,) = (each for each in server.text.splitlines() if reply.error.data["reference"] in each)
                    assert "the disk can't be written" in line or "No space left on device; free some space" in line
                assert [client.status(task) for task in running + parked] == ["working"] * 5 + ["input_required"] * 5
            for task in running:
                assert client.text(task).split() == [str(worker.process.pid)] * 3
            for task in parked:
                assert client.answer(task, confirm=yes).complete
                assert client.text(task) == "gone on"
            assert client.text(client.start("work", parts=1))
            # The steps that ended meanwhile were not repeated.
            assert sorted(parts(processes)) == ["0"] * 6 + ["1"] * 5 + ["2"] * 5


class TestParkedTasks:
    def test_hold_no_memory_and_no_worker(self, processes: Fleet, tmp_path: Path) -> None:
        server, client = processes.serve()

        def park(count: int) -> None:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: client.start("approve"), range(count)))

        def parked() -> int:
            with closing(sqlite3.connect(tmp_path / "tasks.db")) as database:
                query = "SELECT count(*) FROM mrtr_tasks WHERE status = 'input_required'"
                return int(database.execute(query).fetchone()[0])

        park(200)  # what is made once is there
        wait_until(lambda: parked() == 200, "the tasks to park")
        before = resident(server.process.pid)
        park(1_000)
        wait_until(lambda: parked() == 1_200, "the tasks to park")
        assert resident(server.process.pid) - before < 4 * 2**20  # or each would have cost four kilobytes
        assert client.text(client.start("work", parts=1))


def resident(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
