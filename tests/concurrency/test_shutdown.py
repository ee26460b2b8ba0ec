"""One deadline for the whole shutdown, which real processes hold whatever runs in them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mrtr_server import MRTRServer, SetupError, Shutdown
from mrtr_server.concurrency.shutdown import DEFAULT, ShutdownDeadline
from mrtr_server.testing import Clock
from mrtr_server.transport.requests import InFlight

from ..support.databases import PostgreSQL
from ..support.fleet import Client
from ..support.serving import KEYS, LISTENS, ROOT, TIMEOUT, Process, in_process, lines_of, wait_until
from ..support.virtual_time import VirtualTime
from ..support.wire import JSON, Reply, Wire, modern

pytestmark = pytest.mark.processes

SECONDS = 6.0
"""How long the processes here may take to end. What they run takes a minute."""

APP = "tests.support.ending_app:app"


class Place:
    """Servers and workers, and what their tools noted.

    Args:
        directory: where they write to.
        stack: ends them.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.environment = {
            "MRTR_KEYS": KEYS,
            "MRTR_SHUTDOWN_SECONDS": str(SECONDS),
            "ENDING": str(directory),
        }
        self._stack = stack

    def serve(self, *arguments: str, **environment: str) -> Process:
        """Run uvicorn."""
        log = self.directory / "server"
        server = self._stack.enter_context(
            in_process(APP, *arguments, log=log, environment=self.environment | environment)
        )
        assert server.port, server.text
        return server

    def run(self, *command: str) -> Process:
        """Run a module of Python's."""
        log = self.directory / "process"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=os.environ | self.environment, stdout=output, stderr=output
            )
        self._stack.callback(_end, process)
        return Process(process, log)

    def work(self) -> Process:
        """Run the command `mrtr-server worker`."""
        worker = self.run(str(Path(sys.executable).with_name("mrtr-server")), "worker", APP)
        wait_until(
            lambda: "Running the tasks" in worker.text or worker.process.poll() is not None, "the worker to work"
        )
        return worker

    def wait_for(self, note: str) -> None:
        """Wait until a tool runs."""
        wait_until(lambda: note in lines_of(self.directory / "notes"), note)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(f"http://127.0.0.1:{port}/mcp")
    with closing(wire.client):
        yield wire


class Calling:
    """A call that is made beside the test."""

    def __init__(self, port: int, tool: str, *, draft: bool = False, state: str | None = None, **meta: Any) -> None:
        self._replies: list[Reply] = []

        def call() -> None:
            params: JSON = {"name": tool, "arguments": {}} | ({} if state is None else {"requestState": state})
            with wire_to(port) as wire:
                message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                reply = wire.draft(message) if draft else wire.post(modern("tools/call", params, **meta))
                self._replies.append(reply)

        self._thread = threading.Thread(target=call)
        self._thread.start()

    @property
    def reply(self) -> Reply:
        self._thread.join(TIMEOUT)
        assert self._replies, "the call was lost"
        return self._replies[0]


def ends_in_time(process: Process, *, within: float = 5 * SECONDS) -> int:
    """Signal a process to end, and check that it does in time; return the exit code.

    A busy machine takes longer for what comes after the deadline, and half a minute is long before the work would end.
    """
    began = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    code = process.wait(SECONDS + TIMEOUT)
    took = time.monotonic() - began
    assert took < within, (took, process.text)
    return code


def assert_cut_off(reply: Reply) -> None:
    """See that a reply says in the protocol's own words that its call did not end."""
    assert reply.status == 503
    assert reply.headers["content-type"] == "application/json"
    assert reply.error.code == -32603
    assert "shut down before this request was finished" in reply.error.message
    assert reply.message["id"] == 1


MODES = {"one process": (), "workers": ("--workers", "2")}


class TestUvicorn:
    @pytest.mark.parametrize(
        ("tool", "mode"),
        [
            ("plain", "one process"),
            ("waits", "one process"),
            ("steps", "one process"),
            ("holds", "one process"),
            ("plain", "workers"),
        ],
    )
    def test_it_ends_within_the_deadline_and_says_what_it_cut_off(self, place: Place, tool: str, mode: str) -> None:
        server = place.serve(*MODES[mode])
        calling = Calling(server.port, tool)
        place.wait_for(tool)
        ends_in_time(server)
        assert_cut_off(calling.reply)
        assert f"tools/call '{tool}' was cut off, since the server shuts down" in server.text
        assert "Traceback" not in server.text

    @pytest.mark.alone
    def test_it_holds_the_deadline_where_nothing_else_runs(self, place: Place) -> None:
        server = place.serve()
        calling = Calling(server.port, "plain")
        place.wait_for("plain")
        ends_in_time(server, within=2 * SECONDS)  # it is done a tenth before; a slow machine takes longer for its exit
        assert_cut_off(calling.reply)

    def test_in_the_words_of_the_drafts_too(self, place: Place) -> None:
        server = place.serve()
        calling = Calling(server.port, "waits", draft=True)
        place.wait_for("waits")
        ends_in_time(server)
        assert_cut_off(calling.reply)

    def test_a_stream_ends_with_the_error(self, place: Place) -> None:
        server = place.serve()
        calling = Calling(server.port, "streams", progressToken="t")
        place.wait_for("streams")
        ends_in_time(server)
        assert calling.reply.status == 200
        assert calling.reply.error.code == -32603

    def test_a_single_use_round_is_cut_off_too(self, place: Place) -> None:
        server = place.serve()
        with wire_to(server.port) as wire:
            state = wire.post(modern("tools/call", {"name": "once", "arguments": {}})).state
        calling = Calling(server.port, "once", state=state)
        place.wait_for("once")
        ends_in_time(server)
        assert_cut_off(calling.reply)
        assert "single-use rounds still run" in server.text

    def test_the_web_servers_own_and_shorter_patience_is_answered_alike(self, place: Place) -> None:
        server = place.serve("--timeout-graceful-shutdown", "1")
        calling = Calling(server.port, "waits")
        place.wait_for("waits")
        ends_in_time(server)
        assert_cut_off(calling.reply)
        assert "timeout graceful shutdown exceeded" in server.text
        assert "Traceback" not in server.text

    def test_a_client_that_never_ends_its_request_does_not_hold_it(self, place: Place) -> None:
        server = place.serve()
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)) as slow:
            slow.sendall(b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
            slow.sendall(b'content-length: 99\r\n\r\n{"jsonrpc"')
            with wire_to(server.port) as wire:  # by then it has been read
                wire.post(modern("tools/list"))
            ends_in_time(server)
            assert b"shut down before this request was finished" in slow.recv(65536)

    @pytest.mark.parametrize("tool", ["plain", "steps"])
    def test_a_task_is_handed_back(self, place: Place, tool: str) -> None:
        server = place.serve()
        Client(server.port).start(tool)
        place.wait_for(tool)
        ends_in_time(server)
        assert "Traceback" not in server.text

    def test_a_lifespan_that_does_not_end_is_cut_off(self, place: Place) -> None:
        server = place.serve(ENDING_SLOW_EXIT="1")
        ends_in_time(server)
        assert "ending: lifespan= did not end within the" in server.text

    def test_a_database_that_does_not_answer_does_not_hold_it(self, place: Place, postgresql: PostgreSQL) -> None:
        place.environment["ENDING_DATABASE"] = postgresql.url(anyio.run(postgresql.new_database))
        server = place.serve()
        Client(server.port).start("steps")
        place.wait_for("steps")
        with postgresql.frozen():
            ends_in_time(server)

    def test_as_pid_1_which_no_signal_ends(self, place: Place) -> None:
        server = place.run("-m", "tests.support.ending_app")
        wait_until(lambda: LISTENS.search(server.text) or server.process.poll() is not None, "it to run")
        found = LISTENS.search(server.text)
        assert found, server.text
        calling = Calling(int(found[1]), "plain")
        place.wait_for("plain")
        assert ends_in_time(server) == 0
        assert_cut_off(calling.reply)
        assert "uvicorn has ended" in server.text


class TestWorker:
    @pytest.mark.parametrize("tool", ["plain", "steps"])
    def test_it_ends_within_the_deadline_and_hands_back_what_runs(self, place: Place, tool: str) -> None:
        server = place.serve(ENDING_LEFT_TO_OTHERS="1")
        worker = place.work()
        Client(server.port).start(tool)
        place.wait_for(tool)
        assert ends_in_time(worker) == 0
        assert worker.text.splitlines()[-1] == "Ended"

    def test_it_ends_even_where_a_tool_blocks_the_loop(self, place: Place) -> None:
        server = place.serve(ENDING_LEFT_TO_OTHERS="1")
        worker = place.work()
        Client(server.port).start("blocks")
        place.wait_for("blocks")
        assert ends_in_time(worker) == 1
        assert "Some work did not end within 6 s (MRTR_SHUTDOWN_SECONDS), and is abandoned" in worker.text


class TestTheDeadline:
    def test_is_25_seconds_unless_the_author_or_the_operator_says_otherwise(
        self, no_settings: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert MRTRServer("a", keys=[bytes(32)]).shutdown_seconds == DEFAULT == 25
        monkeypatch.setenv("MRTR_SHUTDOWN_SECONDS", " 8 ")
        assert MRTRServer("a", keys=[bytes(32)]).shutdown_seconds == 8
        assert MRTRServer("a", keys=[bytes(32)], shutdown=Shutdown(seconds=3)).shutdown_seconds == 3

    @pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
    def test_must_be_a_positive_number(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_SHUTDOWN_SECONDS", text)
        with pytest.raises(SetupError, match=r"MRTR_SHUTDOWN_SECONDS.*number"):
            MRTRServer("a", keys=[bytes(32)])
        with pytest.raises(SetupError, match="seconds=0 must be"):
            Shutdown(seconds=0)

    def test_of_a_worker_among_several_lets_the_start_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where an error at import would make the web server start a new one for ever."""
        monkeypatch.setattr("mrtr_server.deployment.shared_resources.worker_count", lambda: 4)
        monkeypatch.setenv("MRTR_SHUTDOWN_SECONDS", "0")
        app = MRTRServer("a", keys=[bytes(32)])
        assert "seconds=0.0 must be" in app._parts.shared.refusal

    def test_must_be_after_the_lame_duck(self) -> None:
        with pytest.raises(SetupError, match="lame_duck=30 must be less than the 25 seconds"):
            MRTRServer("a", keys=[bytes(32)], shutdown=Shutdown(lame_duck=30))
        assert MRTRServer("a", keys=[bytes(32)], shutdown=Shutdown(lame_duck=30, seconds=40)).shutdown_seconds == 40

    def test_is_counted_from_its_beginning_and_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock(1000.0)
        monkeypatch.setattr("mrtr_server.concurrency.shutdown.time.monotonic", clock)
        shutdown, told = ShutdownDeadline(40), list[str]()
        shutdown.on_begin(lambda: told.append("begun"))
        assert (shutdown.until_cut_off(), shutdown.left()) == (35, 39)
        for _ in range(2):
            shutdown.begin()
            clock.advance(10)
        assert told == ["begun"]
        assert (shutdown.until_cut_off(), shutdown.left()) == (15, 19)
        clock.advance(30)
        assert (shutdown.until_cut_off(), shutdown.left()) == (0, 0)
        shutdown.reopen()
        assert (shutdown.until_cut_off(), shutdown.left()) == (35, 39)

    def test_of_a_short_one_leaves_a_part_for_the_end(self) -> None:
        assert (ShutdownDeadline(4).until_cut_off(), ShutdownDeadline(4).left()) == (3, 3.6)

    @pytest.mark.anyio
    async def test_what_ends_late_is_cancelled_and_named(self, caplog: pytest.LogCaptureFixture) -> None:
        shutdown = ShutdownDeadline(0.1)
        assert await shutdown.in_time(asyncio.sleep(0, "done"), "it") == "done"
        assert caplog.messages == []
        shutdown.begin()
        assert await shutdown.in_time(asyncio.sleep(60, "late"), "the store") is None
        assert caplog.messages[0].startswith("the store did not end within the 0.1 s")

    @pytest.mark.anyio
    async def test_a_timeout_of_its_own_is_passed_on(self) -> None:
        async def fails() -> None:
            raise TimeoutError("mine")

        with pytest.raises(TimeoutError, match="mine"):
            await ShutdownDeadline(1).in_time(fails(), "it")


class TestRequestsInFlight:
    def test_those_of_an_earlier_shutdown_cut_off_nothing_in_a_later_one(self, virtual_time: VirtualTime) -> None:
        virtual_time.run(self.two_shutdowns())

    async def two_shutdowns(self) -> None:
        shutdown = ShutdownDeadline(0.2)
        in_flight = InFlight(shutdown)
        gate = asyncio.Event()

        async def serve() -> bool:
            request = asyncio.current_task()
            assert request is not None
            in_flight.enter(request)
            try:
                await gate.wait()
            except asyncio.CancelledError:
                return in_flight.forgive(request)
            finally:
                in_flight.leave(request)
            return False

        shutdown.begin()
        early = asyncio.create_task(serve())
        await asyncio.sleep(0.05)
        shutdown.reopen()
        shutdown.begin()
        await asyncio.sleep(0.12)  # past the first cut-off, and before the second
        assert not early.done()
        assert await early, "the second shutdown cuts it off, though it began before"
        assert early.cancelling() == 0
        gate.set()
        assert not await asyncio.create_task(serve())
