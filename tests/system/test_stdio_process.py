"""Processes that serve the client which started them: with the official client, and how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from ..support.serving import ROOT, TIMEOUT, wait_until
from ..support.stdio import StdioProcess, started
from ..support.wire import text_of

pytestmark = pytest.mark.anyio

COMMAND = ("-m", "mrtr_server", "stdio", "tests.support.stdio_app:app")
SCRIPT = ("-m", "tests.support.stdio_app")

MODES = ("2026-07-28", "auto", "legacy")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StdioProcess]:
    """A server whose client begins with a handshake."""
    with started(*COMMAND, log=tmp_path / "log", MRTR_SHUTDOWN_SECONDS="60") as server:
        server.initialize()
        yield server


class Person:
    """Answers what the official client is asked, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        content = {"confirm": True} if "Sure" in params.message else {"name": "ada"}
        return types.ElicitResult(action="accept", content=content)

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append("sample")
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="Hello"), model="m"
        )

    async def roots(self, context: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///a")])

    async def log(self, params: Any) -> None:
        self.told.append(params.data)


@asynccontextmanager
async def connected(mode: str, person: Person, command: tuple[str, ...] = COMMAND) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=sys.executable, args=list(command), cwd=ROOT)
    async with Client(
        parameters,
        mode=mode,
        elicitation_callback=person.elicit,
        sampling_callback=person.sample,
        list_roots_callback=person.roots,
        logging_callback=person.log,
        log_level="info" if mode != "legacy" else None,
    ) as client:
        yield client


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_can_do_everything(mode: str) -> None:
    person, steps = Person(), list[float]()
    with anyio.fail_after(2 * TIMEOUT):
        async with connected(mode, person) as client:
            assert len((await client.list_tools()).tools) > 5
            assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"  # type: ignore[union-attr]
            done = await client.call_tool("everything", {})
            assert done.content[0].text == "Hello, ada in 1 places"  # type: ignore[union-attr]
            assert sorted(person.asked) == ["Sure?", "Who?", "roots", "sample"]

            async def show(progress: float, total: float | None, message: str | None) -> None:
                steps.append(progress)

            assert (await client.call_tool("notes", {}, progress_callback=show)).content
            assert steps == [1, 2, 3]
            assert person.told == ["half way"]
            assert (await client.get_prompt("review", {"file": "x"})).messages
            assert (await client.read_resource("notes://ada")).contents[0].text == "note ada"  # type: ignore[union-attr]
            found = await client.complete(
                types.ResourceTemplateReference(type="ref/resource", uri="notes://{name}"),
                {"name": "name", "value": "a"},
            )
            assert found.completion.values == ["ada"]
            with pytest.raises(MCPError):
                await client.call_tool("fly", {})
            with anyio.move_on_after(0.5):
                await client.call_tool("wait", {})
            noisy = await client.call_tool("noisy", {})
            assert noisy.content[0].text == "read '' and b''"  # type: ignore[union-attr]

            async def add(number: int) -> None:
                assert (await client.call_tool("add", {"a": number, "b": 1})).content

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(add, number)


async def test_a_script_serves_as_the_command_does() -> None:
    with anyio.fail_after(TIMEOUT):
        async with connected("auto", Person(), SCRIPT) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).content


class TestWhatIsPrinted:
    def test_goes_to_standard_error(self, server: StdioProcess) -> None:
        assert text_of(server.call("noisy")) == "read '' and b''"
        assert text_of(server.call("child")) == "0"
        server.close()
        assert server.rest() == []
        assert server.wait() == 0
        for line in (
            "printed while it is imported",
            "printed by a handler",
            "written by a handler",
            "written to the first stdout",
            "written to descriptor 1",
            "printed by a child",
            "child read ''",
        ):
            assert line in server.log

    def test_nothing_is_printed_where_all_is_well(self, server: StdioProcess) -> None:
        server.call("add", {"a": 1, "b": 2})
        server.close()
        server.wait()
        assert server.log == "printed while it is imported\n"

    def test_a_process_that_a_handler_leaves_keeps_no_stream_open(self, server: StdioProcess, tmp_path: Path) -> None:
        server.call("leave_child", {"file": str(tmp_path / "end")})
        server.close()
        assert server.rest() == [], "standard output is closed with the server"
        assert server.wait() == 0
        (tmp_path / "end").touch()


class TestTheEnd:
    def test_at_the_end_of_the_input(self, server: StdioProcess) -> None:
        server.close()
        assert server.wait() == 0
        assert server.rest() == []

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_call_that_runs_is_done_before_it(
        self, server: StdioProcess, number: signal.Signals, tmp_path: Path
    ) -> None:
        id = server.begin_call("wait", {"file": str(tmp_path / "go")})
        assert server.next()["params"]["data"] == "waits"
        server.process.send_signal(number)
        (tmp_path / "go").touch()
        (done,) = server.rest()
        assert (done["id"], text_of(done)) == (id, "waited")
        assert server.wait() == 0
        assert "Traceback" not in server.log

    def test_a_signal_after_the_end_of_the_input_cuts_off_what_runs(self, server: StdioProcess) -> None:
        """As a client does that has waited long enough."""
        server.begin_call("wait")
        server.next()
        server.begin("subscriptions/listen", {"notifications": {}}, modern=True)
        server.next()
        server.close()
        assert "result" in server.next(), "it has seen the end"
        server.process.send_signal(signal.SIGTERM)
        assert server.rest() == []
        assert server.wait() == 0

    def test_at_a_signal_who_still_listens_is_told(self, server: StdioProcess) -> None:
        asking = server.begin_call("everything")
        for _ in range(3):
            server.next()
        server.process.send_signal(signal.SIGTERM)
        (done,) = server.rest()
        assert done["id"] == asking
        assert "The server ends" in done["error"]["message"]

    def test_a_thread_that_never_ends_keeps_nobody(self, tmp_path: Path) -> None:
        with started(*COMMAND, log=tmp_path / "log", MRTR_SHUTDOWN_SECONDS="2") as server:
            server.initialize()
            server.begin_call("hang")
            server.call("add", {"a": 1, "b": 2})
            server.process.send_signal(signal.SIGTERM)
            (done,) = server.rest()
            assert "shut down" in done["error"]["message"]
            assert server.wait() == 0

    def test_a_blocked_event_loop_is_abandoned_in_time(self, tmp_path: Path) -> None:
        with started(*COMMAND, log=tmp_path / "log", MRTR_SHUTDOWN_SECONDS="2") as server:
            server.initialize()
            server.begin_call("block")
            wait_until(lambda: "hangs" in server.log, "the handler to run")
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 1
            assert "is abandoned" in server.log

    def test_a_client_that_reads_no_more_ends_it(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.close()
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.wait(TIMEOUT) == 0
        process.stdin.close()


def run(*arguments: str, input: bytes = b"", **more: Any) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "mrtr_server", *arguments],
        input=input,
        capture_output=True,
        timeout=TIMEOUT,
        cwd=ROOT,
        **more,
    )


class TestTheCommand:
    def test_it_takes_what_is_piped_into_it(self) -> None:
        done = run(*COMMAND[2:], input=b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
        assert done.stdout == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
        assert done.returncode == 0

    def test_a_folder_can_be_named(self, tmp_path: Path) -> None:
        (tmp_path / "own.py").write_text("from mrtr_server import MRTRServer\napp = MRTRServer('own')\n")
        done = run(
            "stdio", "--app-dir", str(tmp_path), "own:app", input=b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        )
        assert b'"result":{}' in done.stdout
        assert done.stderr == b""

    def test_what_it_can_not_serve_is_said_on_standard_error(self, tmp_path: Path) -> None:
        (tmp_path / "refused.py").write_text("from mrtr_server import MRTRServer\napp = MRTRServer('')\n")
        done = run("stdio", "--app-dir", str(tmp_path), "refused:app")
        assert done.returncode == 1
        assert done.stdout == b""
        assert b"MRTRServer needs a name" in done.stderr
        assert b"Traceback" not in done.stderr

    def test_a_closed_standard_input_is_said(self) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {sys.executable} -m mrtr_server stdio tests.support.stdio_app:app <&-"],
            capture_output=True,
            timeout=TIMEOUT,
            cwd=ROOT,
        )
        assert done.returncode == 1
        assert b"Standard input or output is closed" in done.stderr

    def test_it_works_without_standard_error(self) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {sys.executable} -m mrtr_server stdio tests.support.stdio_app:app 2>&-"],
            input=b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}',
            capture_output=True,
            timeout=TIMEOUT,
            cwd=ROOT,
        )
        assert done.stdout == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'

    def test_at_a_terminal_it_says_what_it_waits_for(self) -> None:
        import pty

        terminal, end = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *COMMAND], stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        os.close(end)
        assert process.stderr is not None
        assert process.stderr.readline() == b"printed while it is imported\n"
        assert b"Waiting for an MCP client" in process.stderr.readline()
        os.write(terminal, b"\x04")
        assert process.wait(TIMEOUT) == 0
        process.communicate()
        os.close(terminal)
