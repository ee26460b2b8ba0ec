"""`mrtr-server dev` serves a project while its files change, and the terminal says what happens."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mrtr_server import MRTRServer
from mrtr_server.addresses import root_url
from mrtr_server.cli import main
from mrtr_server.cli.dev_server import docs_page, servers_in
from mrtr_server.testing import Client, yes

from ..support.serving import TIMEOUT, end, wait_until, without_settings

pytestmark = pytest.mark.processes

COMMAND = [str(Path(sys.executable).with_name("mrtr-server")), "dev"]

SHOP = """
from mrtr_server import Context, MRTRServer
from prices import price

app = MRTRServer("shop")

def place(title: str) -> str:
    return f"{title} ordered"

@app.tool
async def order(title: str, ctx: Context) -> str:
    with open("orders.txt", "a") as file:
        file.write(title)
    await ctx.confirm(f"Order for {price(title)}?")
    return await ctx.step(place, title)

@app.tool(task="required")
async def deploy(ctx: Context) -> str:
    await ctx.confirm("Deploy?")
    return "live"
"""

PRICES = """
def price(title: str) -> int:
    return 1
"""

MOUNTED = """
from fastapi import FastAPI
from mrtr_server import MRTRServer

server = MRTRServer("mounted")

@server.tool
def divide(by: int) -> float:
    return 1 / by

app = FastAPI()
app.mount("/tools", server)
"""


class Terminal:
    """A running command.

    Args:
        process: the command.
        log: what it writes to.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def text(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    def wait(self, text: str, times: int = 1) -> str:
        """Wait until it has written a text so many times; return all that it has written."""

        def written() -> bool:
            assert self.process.poll() is None, self.text
            return self.text.count(text) >= times

        try:
            wait_until(written, f"{text!r} in the terminal")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.text}") from None
        return self.text

    @property
    def url(self) -> str:
        """The URL that it says to be the endpoint's."""
        found = re.search(r"endpoint +(http://\S+)", self.wait("endpoint"))
        assert found is not None
        return found[1]

    def looks_inside(self, token: str) -> bool:
        """Return whether the page would be told what is inside the server, with a token."""
        root = self.url.removesuffix("/mcp")
        headers = {"Origin": root, "Mrtr-Page-Token": token}
        sent = httpx.post(f"{root}/docs/task", json={"task": "x"}, headers=headers, trust_env=False, timeout=TIMEOUT)
        return sent.status_code == 200


@contextmanager
def developing(folder: Path, *options: str, **variables: str) -> Iterator[Terminal]:
    """Run the command in a folder, on a free port."""
    log = folder.parent / "terminal"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *options, "--port", "0"],
            cwd=folder,
            env=without_settings(TMPDIR=str(folder.parent), PYTHONDONTWRITEBYTECODE="1", **variables),
            stdout=output,
            stderr=output,
        )
    try:
        yield Terminal(process, log)
    finally:
        end(process)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a server in it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "prices.py").write_text(PRICES)
    (folder / "mounted.py").write_text(MOUNTED)
    return folder


def test_a_session_of_an_author(project: Path) -> None:
    """From the first start over a change in the middle of a flow, a syntax error and its repair, to Ctrl-C."""
    with developing(project, "shop:app") as terminal:
        url = terminal.url
        started = terminal.wait("watching")
        assert "serving   shop: 2 tools" in started
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        assert "MRTR_KEYS is not set, so this run has keys of its own" in started
        page = re.search(r"page +(\S+)/docs#token=(\S+)", started)
        assert page is not None
        assert page[1] == url.removesuffix("/mcp")
        assert (terminal.looks_inside(page[2]), terminal.looks_inside("another")) == (True, False)

        flow, task = Client(url).flow("order", title="Dune"), Client(url, tasks=True).flow("deploy")
        assert flow.start().questions == {"confirm": "Order for 1?"}
        task.start()
        assert task.wait().questions == {"confirm": "Deploy?"}
        told = terminal.wait('asked confirm "Deploy?"')
        assert "round 1  " in told
        assert 'asked confirm "Order for 1?"' in told
        assert "shop.py:12 opens orders.txt for writing outside of ctx.step: this runs again in every round" in told
        assert 'with open("orders.txt", "a") as file:' in told

        (project / "prices.py").write_text("def price(title: str) -> int\n    return 1\n")
        broken = terminal.wait("waiting   for a change")
        assert "changed   prices.py" in broken
        assert 'prices.py", line 1' in broken
        assert "SyntaxError: expected ':'" in broken
        assert "mrtr_server/" not in broken.partition("changed   prices.py")[2]
        assert "Traceback" not in broken

        (project / "prices.py").write_text("import shop\n\n@shop.MRTRServer('x').tool\ndef price(*titles): ...\n")
        mistaken = terminal.wait("waiting   for a change", 2)
        assert 'prices.py", line 3, in <module>' in mistaken
        assert "SetupError: " in mistaken

        (project / "prices.py").write_text("price = 1 / 0\n")
        raised = terminal.wait("waiting   for a change", 3)
        assert 'shop.py", line 3, in <module>' in raised
        assert re.search(r"\(\d+ calls in mrtr_server, .* left out\)\nZeroDivisionError", raised)

        (project / "prices.py").write_text(PRICES)
        assert re.search(r"reloaded  in \d+\.\d s", terminal.wait("reloaded"))
        assert flow.answer(confirm=yes).text == "Dune ordered"  # its keys and its database are those of the run
        answered = task.answer(confirm=yes)
        assert (task.wait() if answered.is_under_way else answered).text == "live"
        assert 'answered confirm: yes · ran place · result "Dune ordered"' in terminal.wait('result "live"')
        assert terminal.looks_inside(page[2]), "the page works on when the code has changed"
        assert terminal.text.count(page[2]) == 1
        assert terminal.text.count("serving") == 1

        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(TIMEOUT) == 0
        assert "KeyboardInterrupt" not in terminal.text
    assert not list(project.parent.glob("mrtr-dev-*"))


def test_a_mounted_server_in_one_process_with_whole_tracebacks_on_an_unsafe_address(project: Path) -> None:
    options = ("--no-reload", "--full-tracebacks", "--host", "0.0.0.0")
    with developing(project, "mounted:app", *options, NO_COLOR="1") as terminal:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/tools/mcp", terminal.url)
        assert re.search(r"unsafe +whoever reaches 0\.0\.0\.0:\d+ can call every tool", terminal.text)
        Client(terminal.url).call("divide", by=0)
        said = terminal.wait("failed ZeroDivisionError: division by zero")
        assert "watching" not in said
        assert "left out" not in said
        assert "mrtr_server/" in said
        assert 'mounted.py", line 9, in divide' in said
        httpx.post(terminal.url.replace("/mcp", "/mcq"), trust_env=False, timeout=TIMEOUT)
        assert "refused   POST /tools/mcq: 404 Not found: the MCP endpoint is /tools/mcp" in terminal.wait("refused")
        assert "\x1b" not in terminal.text
        terminal.process.terminate()
        assert terminal.process.wait(TIMEOUT) == 0
    assert not list(project.parent.glob("mrtr-dev-*"))


class TestWhatItRefuses:
    def refused(self, *arguments: str) -> str:
        result = CliRunner().invoke(main, ["dev", *arguments], prog_name="mrtr-server")
        assert result.exit_code != 0
        return result.output

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = self.refused("shop:app", "--port", str(port))
        assert f"127.0.0.1:{port} can't be listened on: Address already in use" in said
        assert "choose another --port" in said

    def test_a_folder_that_is_not_there(self) -> None:
        assert "--watch nowhere: there is no such folder" in self.refused("shop:app", "--watch", "nowhere")

    def test_what_is_no_application(self, project: Path) -> None:
        done = subprocess.run(
            [*COMMAND, "shop:__name__", "--no-reload", "--port", "0"],
            cwd=project,
            env=without_settings(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 3
        assert "shop:__name__ is a str, not an MRTRServer or an ASGI application" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_address_that_is_shown_can_be_opened() -> None:
    assert root_url("::1", 80) == "http://[::1]:80"
    assert root_url("::", 80) == "http://127.0.0.1:80"


def test_servers_are_found_where_they_are_mounted() -> None:
    server = MRTRServer("inner", keys=[bytes(32)])

    class Mount:
        path, app = "/tools", server

    class Site:
        routes = (Mount(), object())

    assert list(servers_in(Site())) == [("/tools", server)]
    assert list(servers_in(object())) == []
    assert docs_page(server) is None


def test_nothing_of_it_is_loaded_by_servers_and_other_commands() -> None:
    code = """
import sys
import mrtr_server.cli, mrtr_server.testing
print([name for name in sys.modules if name.startswith(("mrtr_server.dev", "mrtr_server.telemetry.seen"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
