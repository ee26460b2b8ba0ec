"""Servers and workers of `tasks_app`, each a process of its own, and a client of their tasks."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mrtr_server import testing
from mrtr_server.storage.sql.sqlite import make_private
from mrtr_server.testing import Answer, Flow, Reply

from .forking import start
from .serving import KEYS, ROOT, TIMEOUT, Process, end, in_process, lines_of, wait_until

ATTEMPTS = 3
"""How often a task may end its worker."""
LEASE = 300.0
"""In seconds: far more than any machine takes, so that what a test waits for does not come of its end."""
ENDED = {"completed", "failed", "cancelled"}


class Client:
    """A client of one server that follows its tasks, each by its id.

    Args:
        port: the server's.
    """

    def __init__(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}/mcp"
        self._client = testing.Client(url, capabilities={"elicitation": {}}, tasks=True, log_level=None)

    def flow(self, tool: str, **arguments: Any) -> Flow:
        """Return the flow of a call, to send round by round."""
        return self._client.flow(tool, arguments)

    def start(self, tool: str, **arguments: Any) -> str:
        """Start a task; return its id."""
        return self.flow(tool, **arguments).start().task.id

    def get(self, task: str) -> Reply:
        """Return the reply to a look at a task."""
        return self._client.request("tasks/get", {"taskId": task})

    def status(self, task: str) -> str:
        """Return a task's status."""
        return self.get(task).task.status

    def answer(self, task: str, **answers: Answer) -> Reply:
        """Answer what a task asks."""
        raw = {key: answer.raw for key, answer in answers.items()}
        return self._client.request("tasks/update", {"taskId": task, "inputResponses": raw})

    def cancel(self, task: str) -> None:
        """Cancel a task."""
        assert self._client.request("tasks/cancel", {"taskId": task}).complete

    def ended(self, task: str, seconds: float = TIMEOUT) -> Reply:
        """Wait for a task's end; return it."""
        wait_until(lambda: self.status(task) in ENDED, "a task to end", seconds)
        return self.get(task)

    def text(self, task: str, seconds: float = TIMEOUT) -> str:
        """Wait for a task's result; return its text."""
        return self.ended(task, seconds).text


class Fleet:
    """Processes that share a database.

    Args:
        directory: for the ledger and the logs.
        database: its URL.
        stack: ends what is started.
        lease: in seconds.
    """

    def __init__(self, directory: Path, database: str, stack: ExitStack, lease: float) -> None:
        self.directory = directory
        self._stack = stack
        self._started = 0
        self.environment = {
            "MRTR_KEYS": KEYS,
            "MRTR_SHUTDOWN_SECONDS": "25",
            "TASKS_DIR": str(directory),
            "TASKS_DATABASE": database,
            "TASKS_LEASE": str(lease),
            "TASKS_ATTEMPTS": str(ATTEMPTS),
        }

    def serve(self, target: str = "tests.support.tasks_app:app", *, run_tasks: bool = True) -> tuple[Process, Client]:
        """Start a server; return it, and a client of it."""
        environment = self.environment | ({} if run_tasks else {"TASKS_LEFT_TO_OTHERS": "1"})
        server = self._stack.enter_context(in_process(target, log=self._log(), environment=environment))
        assert server.port, server.text
        return server, Client(server.port)

    def work(self, target: str = "tests.support.tasks_app:app", *arguments: str, **environment: str) -> Process:
        """Start the command `mrtr-server worker`; return its process at once."""
        variables = {name: value for name, value in os.environ.items() if name != "MRTR_KEYS"}
        log = self._log()
        with log.open("wb") as output:
            how: Any = {"folder": ROOT, "environment": variables | self.environment | environment, "output": output}
            process = start("mrtr_server", "worker", target, *arguments, python=sys.executable, **how)
        self._stack.callback(end, process)
        return Process(process, log)

    def worker(self) -> Process:
        """Start the command, and wait until it works."""
        worker = self.work()
        wait_until(
            lambda: "Running the tasks" in worker.text or worker.process.poll() is not None, "the worker to work"
        )
        assert worker.process.poll() is None, worker.text
        return worker

    def _log(self) -> Path:
        self._started += 1
        return self.directory / f"log-{self._started}"

    # What the processes noted

    def notes(self, first: str) -> list[list[str]]:
        """Return the words of all notes that begin with this one, without it."""
        lines = [line.split() for line in lines_of(self.directory / "ledger")]
        return [words for word, *words in lines if word == first]

    def wait_for(self, first: str, count: int = 1) -> None:
        """Wait until there are so many such notes."""
        wait_until(lambda: len(self.notes(first)) >= count, f"{count} notes: {first}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold every part that runs."""
        (self.directory / "hold").touch()
        try:
            yield
        finally:
            (self.directory / "hold").unlink()


@contextmanager
def fleet(directory: Path, database: str = "", *, lease: float = LEASE) -> Iterator[Fleet]:
    """Run processes with a database, of SQLite by default; end them all afterwards."""
    url = database or f"sqlite:///{directory}/tasks.db"
    if url.startswith("sqlite"):  # a worker that comes before the servers makes no file
        make_private(url.removeprefix("sqlite:///"))
    with ExitStack() as stack:
        yield Fleet(directory, url, stack, lease)
