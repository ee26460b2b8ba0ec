"""Rule 10 of a flow: real processes are told to end, and no call is lost and no effect repeated."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from examples.round_robin import Replica, RoundRobin

from ..support.serving import KEYS, TIMEOUT, Process, in_process, lines_of, wait_until
from ..support.wire import ACCEPT, JSON, Listener, Reply, Wire, mirrored, modern

MODES = {"one process": ("--loop", "asyncio", "--http", "h11"), "workers": ("--workers", "2")}
LONG = 600.0
"""A lame duck that no test waits for, in seconds: a second signal ends it."""

Start = Callable[..., Process]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all servers write to."""
    return tmp_path_factory.mktemp("moving")


@contextmanager
def starting(directory: Path) -> Iterator[Start]:
    """Start servers of `tests.support.moving`."""
    with ExitStack() as stack:

        def start(*arguments: str, target: str = "tests.support.moving:app", lame_duck: float = 0.5) -> Process:
            environment = {"MRTR_KEYS": KEYS, "MOVING": str(directory), "LAME_DUCK": str(lame_duck)}
            log = directory / f"log{len(list(directory.iterdir()))}"
            server = stack.enter_context(in_process(target, *arguments, log=log, environment=environment))
            assert server.port, server.text
            return server

        yield start


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    with starting(directory) as start:
        yield start


@pytest.fixture(scope="module")
def other(directory: Path) -> Iterator[Process]:
    """A replica that stays."""
    with starting(directory) as start:
        yield start()


class Files:
    """The files that the servers share with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def effects(self) -> list[str]:
        return lines_of(self._directory / "effects")

    @property
    def server(self) -> int:
        """The process that runs the call between two steps."""
        return int((self._directory / "server").read_text())

    def wait_for(self, effect: str) -> None:
        wait_until(lambda: effect in self.effects, effect)

    def open_the_gate(self) -> None:
        (self._directory / "gate").touch()


@pytest.fixture
def files(directory: Path) -> Files:
    for name in ("effects", "gate"):
        (directory / name).unlink(missing_ok=True)
    return Files(directory)


@contextmanager
def wire_to(server: Process, path: str = "/mcp") -> Iterator[Wire]:
    wire = Wire(f"http://127.0.0.1:{server.port}{path}")
    with closing(wire.client):
        yield wire


def call(server: Process, tool: str, state: str | None = None, path: str = "/mcp", **arguments: Any) -> Reply:
    """Call a tool over a connection of its own."""
    params: JSON = {"name": tool, "arguments": arguments}
    if state is not None:
        params["requestState"] = state
    with wire_to(server, path) as wire:
        return wire.post(modern("tools/call", params))


class Calling:
    """A call that is made beside the test."""

    def __init__(self, server: Process, tool: str, **arguments: Any) -> None:
        self._replies: list[Reply] = []
        self._thread = threading.Thread(target=lambda: self._replies.append(call(server, tool, **arguments)))
        self._thread.start()

    @property
    def reply(self) -> Reply:
        self._thread.join(TIMEOUT)
        assert self._replies, "the call was lost"
        return self._replies[0]


def get(server: Process, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=TIMEOUT)


def accepts(server: Process) -> bool:
    """Return whether a server still accepts connections."""
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", server.port)) == 0


def drain(server: Process, ready: str = "/ready") -> None:
    """Signal a server to end, and wait until all of it has begun to."""
    server.process.send_signal(signal.SIGTERM)
    wait_until_drained(server, ready)


def wait_until_drained(server: Process, ready: str = "/ready") -> None:
    """Wait until all of a server has begun to end."""
    workers = max(1, server.text.count("Started server process"))
    unready = 0

    def all_drain() -> bool:
        nonlocal unready
        try:
            unready = unready + 1 if get(server, ready).status_code == 503 else 0
        except httpx.TransportError:  # on a slow machine the lame duck is over by now, and nobody accepts any more
            return True
        return unready >= 4 * workers  # each on a connection of its own, so with any of the workers

    wait_until(all_drain, "the server to drain")


def assert_handed_over(reply: Reply) -> str:
    """See that a reply is a state alone, on a connection that closes; return the state."""
    assert reply.status == 200
    assert reply.result["resultType"] == "input_required"
    assert "inputRequests" not in reply.result
    assert reply.headers["connection"] == "close"
    return reply.state


def end_lame_duck(server: Process) -> None:
    """Send a second signal to all processes that serve: their lame ducks are over."""
    wait_until_drained(server)  # or two signals that wait for the same process would be one
    for pid in re.findall(r"Started server process \[(\d+)\]", server.text):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)


def assert_left(server: Process, mode: str) -> None:
    """See that a server ends, and as uvicorn does after the signal."""
    assert server.wait() == (0 if mode == "workers" else -signal.SIGTERM), server.text
    assert "Traceback" not in server.text
    assert "timeout graceful shutdown exceeded" not in server.text


class TestSigterm:
    def test_a_call_between_two_steps_finishes_elsewhere(
        self, mode: str, start: Start, other: Process, files: Files
    ) -> None:
        leaving = start(*MODES[mode], lame_duck=LONG)
        calling = Calling(leaving, "between_steps", label="a")
        files.wait_for("a first")
        drain(leaving)
        files.open_the_gate()
        state = assert_handed_over(calling.reply)
        end_lame_duck(leaving)
        assert_left(leaving, mode)
        assert call(other, "between_steps", state, label="a").text == f"a first, and the rest by {other.process.pid}"
        assert files.effects == ["a first", "a second"]

    def test_a_call_inside_a_step_ends_the_step_first(
        self, mode: str, start: Start, other: Process, files: Files
    ) -> None:
        leaving = start(*MODES[mode], lame_duck=LONG)
        calling = Calling(leaving, "inside_a_step", label="a")
        files.wait_for("a begins")
        drain(leaving)
        end_lame_duck(leaving)
        time.sleep(0.7)  # the listener closes, and the step goes on
        assert leaving.process.poll() is None
        files.open_the_gate()
        state = assert_handed_over(calling.reply)
        assert_left(leaving, mode)
        assert call(other, "inside_a_step", state, label="a").text == f"by {other.process.pid}"
        assert files.effects == ["a begins", "a ends", "a is over"]

    def test_a_checkpoint_is_a_boundary_too(self, start: Start, other: Process, files: Files) -> None:
        leaving = start()
        calling = Calling(leaving, "checkpoints")
        files.wait_for("checkpoint waits")
        drain(leaving)
        files.open_the_gate()
        state = assert_handed_over(calling.reply)
        assert call(other, "checkpoints", state).text == f"by {other.process.pid}"

    @pytest.mark.parametrize("tool", ["who", "pure", "checkpoints"])
    def test_new_calls_are_handed_back_at_once(
        self, mode: str, start: Start, other: Process, files: Files, tool: str
    ) -> None:
        leaving = start(*MODES[mode], lame_duck=LONG)
        drain(leaving)
        state = assert_handed_over(call(leaving, tool))
        files.open_the_gate()
        assert call(other, tool, state).text == f"by {other.process.pid}"
        end_lame_duck(leaving)
        assert_left(leaving, mode)

    def test_a_call_that_comes_back_with_nothing_done_in_between_runs_here(self, start: Start) -> None:
        """Where every replica is draining, say, or there is only one."""
        leaving = start(lame_duck=LONG)
        drain(leaving)
        reply = call(leaving, "who", assert_handed_over(call(leaving, "who")))
        assert reply.text == f"by {leaving.process.pid}"
        assert reply.headers["connection"] == "close"

    def test_what_can_not_ask_is_answered(self, start: Start) -> None:
        leaving = start(lame_duck=LONG)
        drain(leaving)
        with wire_to(leaving) as wire:
            for method in ("tools/list", "server/discover"):
                reply = wire.post(modern(method))
                assert reply.result["resultType"] == "complete"
                assert reply.headers["connection"] == "close"
            assert wire.draft({"jsonrpc": "2.0", "id": 1, "method": "nonsense"}).headers["connection"] == "close"

    def test_readiness_turns_false_and_health_stays(self, mode: str, start: Start) -> None:
        leaving = start(*MODES[mode], lame_duck=LONG)
        assert get(leaving, "/ready").status_code == 200
        drain(leaving)
        response = get(leaving, "/ready")
        assert (response.status_code, response.json()) == (503, {"status": "draining"})
        assert response.headers["retry-after"] == "1"
        assert response.headers["connection"] == "close"
        assert get(leaving, "/health").status_code == 200
        end_lame_duck(leaving)
        assert_left(leaving, mode)

    def test_listeners_are_told_at_once(self, mode: str, start: Start) -> None:
        leaving = start(*MODES[mode], lame_duck=LONG)
        message = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        with wire_to(leaving) as wire, ExitStack() as stack:
            request = wire.client.stream("POST", wire.url, content=json.dumps(message), headers=headers_of(message))
            listener = Listener(stack.enter_context(request).iter_lines())
            assert listener.next()["method"] == "notifications/subscriptions/acknowledged"
            leaving.process.send_signal(signal.SIGTERM)
            assert listener.next()["result"]["resultType"] == "complete"
            assert leaving.process.poll() is None, "it is still a lame duck"
        end_lame_duck(leaving)
        assert_left(leaving, mode)

    def test_an_idle_connection_does_not_hold_it(self, mode: str, start: Start) -> None:
        leaving = start(*MODES[mode])
        with closing(socket.create_connection(("127.0.0.1", leaving.port), timeout=TIMEOUT)) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            received = b""
            while b"ok" not in received:
                received += idle.recv(65536)
            leaving.process.send_signal(signal.SIGTERM)
            assert idle.recv(65536) == b""
            assert_left(leaving, mode)

    def test_a_single_worker_that_is_told_to_end_leaves_its_calls_to_the_others(
        self, start: Start, files: Files
    ) -> None:
        fleet = start("--workers", "2", lame_duck=LONG)
        calling = Calling(fleet, "between_steps", label="a")
        files.wait_for("a first")
        first = files.server
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: get(fleet, "/ready").status_code == 503, "the worker to drain")
        files.open_the_gate()
        state = assert_handed_over(calling.reply)
        os.kill(first, signal.SIGTERM)  # its lame duck is over
        wait_until(lambda: f"Child process [{first}] died" in fleet.text, "the worker to leave")
        assert call(fleet, "between_steps", state, label="a").text.startswith("a first, and the rest by")
        assert files.effects == ["a first", "a second"]
        assert files.server != first
        fleet.process.send_signal(signal.SIGTERM)
        end_lame_duck(fleet)

    def test_the_official_client_goes_on_elsewhere_by_itself(self, start: Start, other: Process, files: Files) -> None:
        replicas = [start(), other]

        async def scene() -> str:
            front = await RoundRobin([Replica(each.port, str(each.process.pid)) for each in replicas]).listen()
            url = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}/mcp"
            async with front, Client(url) as client:
                calls = [
                    asyncio.create_task(client.call_tool("between_steps", {"label": label})) for label in ("a", "b")
                ]
                for label in ("a", "b"):
                    await asyncio.to_thread(files.wait_for, f"{label} first")
                replicas[0].process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(wait_until, lambda: not accepts(replicas[0]), "the listener to close")
                files.open_the_gate()
                async with asyncio.timeout(TIMEOUT):
                    results = await asyncio.gather(*calls)
                front.close()
                return "; ".join(str(getattr(result.content[0], "text", "")) for result in results)

        survivor = replicas[1].process.pid
        rest = f"first, and the rest by {survivor}"
        assert asyncio.run(scene()) == f"a {rest}; b {rest}"
        assert sorted(files.effects) == ["a first", "a second", "b first", "b second"]
        assert_left(replicas[0], "one process")


class TestSignals:
    def test_a_second_sigterm_ends_the_wait(self, start: Start) -> None:
        leaving = start(lame_duck=LONG)
        drain(leaving)
        leaving.process.send_signal(signal.SIGTERM)
        assert_left(leaving, "one process")

    def test_ctrl_c_stays_as_it_is(self, start: Start) -> None:
        leaving = start(lame_duck=LONG)
        leaving.process.send_signal(signal.SIGINT)
        leaving.wait()  # far less than it would drain for

    def test_mounted_it_hears_the_signal_from_the_first_request_on(
        self, start: Start, other: Process, files: Files
    ) -> None:
        leaving = start(target="tests.support.moving:site")
        assert get(leaving, "/tools/ready").status_code == 200
        calling = Calling(leaving, "between_steps", label="a", path="/tools/mcp")
        files.wait_for("a first")
        drain(leaving, "/tools/ready")
        files.open_the_gate()
        state = assert_handed_over(calling.reply)
        assert_left(leaving, "one process")
        assert call(other, "between_steps", state, label="a").text.startswith("a first")

    def test_under_reload_nobody_waits_for_it(self, start: Start) -> None:
        leaving = start("--reload", "--reload-dir", "tests/protocol", lame_duck=LONG)
        assert get(leaving, "/ready").status_code == 200
        leaving.process.send_signal(signal.SIGTERM)
        leaving.wait()


def headers_of(message: JSON) -> dict[str, str]:
    return {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
