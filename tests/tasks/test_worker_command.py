"""The command `mrtr-server worker`: tasks are run in processes that serve no requests."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrtr_server import Context, MRTRServer, SetupError
from mrtr_server.testing import yes

from ..support.fleet import Fleet, fleet
from ..support.serving import ROOT, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


def test_it_runs_what_servers_have_started_that_only_start_tasks(processes: Fleet) -> None:
    _, client = processes.serve(run_tasks=False)
    task = client.start("work", parts=2)
    parked = client.start("approve")
    with pytest.raises(AssertionError):
        wait_until(lambda: processes.notes("part"), "somebody to run it", 1.5)
    assert client.status(task) == client.status(parked) == "working"
    worker = processes.worker()
    assert client.text(task) == f"{worker.process.pid} {worker.process.pid}"
    wait_until(lambda: client.status(parked) == "input_required", "the question")
    assert client.answer(parked, confirm=yes).complete
    assert client.text(parked) == "gone on"
    assert {pid for _, pid in processes.notes("part")} == {str(worker.process.pid)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_step_and_another_one_goes_on(processes: Fleet, number: signal.Signals) -> None:
    _, client = processes.serve(run_tasks=False)
    first = processes.worker()
    with processes.held():
        task = client.start("work", parts=3)
        processes.wait_for("part")
        second = processes.worker()
        first.process.send_signal(number)
        wait_until(lambda: "Handing back" in first.text, "the worker to hand back")
    assert first.wait() == 0
    assert first.text.splitlines()[-1] == "Ended"
    # At once: the lease would be half a minute.
    assert client.text(task, 5) == f"{first.process.pid} {second.process.pid} {second.process.pid}"
    assert [number for number, _ in processes.notes("part")] == ["0", "1", "2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_though_the_event_loop_has_not_turned(
    processes: Fleet, number: signal.Signals
) -> None:
    _, client = processes.serve(run_tasks=False)
    with processes.held():
        worker = processes.worker()
        client.start("signalled_twice", number=number)
        assert worker.wait() == -number
    assert processes.notes("part") == []


def test_it_enters_and_leaves_the_lifespan(processes: Fleet) -> None:
    worker = processes.worker()
    assert processes.notes("entered") == [[str(worker.process.pid)]]
    assert processes.notes("left") == []
    assert worker.stop() == 0
    assert processes.notes("left") == [[str(worker.process.pid)]]


def test_the_module_may_be_elsewhere(processes: Fleet, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text((ROOT / "tests" / "support/tasks_app.py").read_text())
    worker = processes.work("elsewhere:app", "--app-dir", str(tmp_path))
    wait_until(lambda: "Running the tasks of 'tasks'" in worker.text, "the worker to work")
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("target", "environment", "says"),
    [
        ("tests.support.tasks_app", {}, "must be a module and the server in it, such as weather:app"),
        ("tests.nowhere:app", {}, "There is no module 'tests.nowhere'"),
        ("tests.support.tasks_app:nothing", {}, "The module 'tests.support.tasks_app' has no 'nothing'"),
        ("tests.support.tasks_app:part", {}, "tests.support.tasks_app:part is a function, not an MRTRServer"),
        (
            "tests.support.tasks_app:without_tasks",
            {},
            "plain: no tool has tasks; a worker needs a tool with @app.tool(task=...)",
        ),
        (
            "tests.support.tasks_app:without_store",
            {},
            "alone: there is no store that the servers share with their workers",
        ),
        ("tests.support.tasks_app:app", {"MRTR_KEYS": ""}, "Set MRTR_KEYS to the same value for servers and workers"),
        ("tests.support.tasks_app:app", {"TASKS_DATABASE": "mysql://x"}, "must be sqlite:///… or postgresql://…"),
    ],
)
def test_what_it_can_not_do_is_said(processes: Fleet, target: str, environment: dict[str, str], says: str) -> None:
    worker = processes.work(target, **environment)
    assert worker.wait() == 1
    assert says in worker.text
    assert "Traceback" not in worker.text


@pytest.mark.anyio
class TestWorking:
    """`app.worker()`, which the command is made of."""

    async def test_nothing_of_it_is_left_after_its_block(self, tmp_path: Path) -> None:
        app = MRTRServer("a", keys=[bytes(32)], store=f"sqlite:///{tmp_path}/tasks.db", run_tasks=False)

        @app.tool(task="optional")
        async def act(ctx: Context) -> str:
            return "done"

        for _ in range(2):
            before = asyncio.all_tasks()
            async with app.worker():
                await asyncio.sleep(0.1)
                assert asyncio.all_tasks() - before
            assert not asyncio.all_tasks() - before

    async def test_nothing_to_work_on_is_refused_at_once(self) -> None:
        with pytest.raises(SetupError, match="no tool has tasks"):
            MRTRServer("a", keys=[bytes(32)]).worker()
