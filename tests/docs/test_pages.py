"""The documentation runs: every Python block, and the commands that the README tells people to type."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from mrtr_server.cli import main
from mrtr_server.testing import Answers, Client, yes

from ..support.serving import TIMEOUT, free_ports, listens, wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text()) if kind == language]


def programs(page: Path) -> Iterator[str]:
    """The Python blocks of a page. One that imports nothing goes on from the last one that does."""
    beginning = ""
    for code in blocks(page, "python"):
        if re.search(r"^(from|import) ", code, re.MULTILINE):
            beginning = code
            yield code
        else:
            yield f"{beginning}\n{code}"


PYTHON = [pytest.param(code, id=f"{page.name}-{n}") for page in PAGES for n, code in enumerate(programs(page))]

EACH_IN_A_CHILD = """
import os, runpy, sys
import mrtr_server  # once for all

for script in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        log = os.open(f"{script}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each block said that failed, by its text; each has run in a process of its own."""
    folder = tmp_path_factory.mktemp("blocks")
    codes = list({str(block.values[0]): None for block in PYTHON})
    scripts = [folder / f"block_{number}.py" for number in range(len(codes))]
    for script, code in zip(scripts, codes, strict=True):
        script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EACH_IN_A_CHILD, *scripts],
        capture_output=True,
        text=True,
        timeout=10 * TIMEOUT,
        env=clean_environment(),
        check=True,
    )
    ended = zip(codes, scripts, map(int, done.stdout.split()), strict=True)
    return {code: Path(f"{script}.log").read_text() for code, script, status in ended if status != 0}


@pytest.mark.parametrize("code", PYTHON)
def test_every_python_block_runs(code: str, ran: dict[str, str]) -> None:
    assert code not in ran, ran[code]


TESTS = [block for block in PYTHON if re.search(r"^(async )?def test_|^class Test", str(block.values[0]), re.MULTILINE)]


@pytest.mark.parametrize("code", TESTS)
def test_every_test_in_a_python_block_passes(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_block.py").write_text(code)
    # The SDK's own client brings it here; without it, Starlette's test client warns.
    (tmp_path / "conftest.py").write_text('import sys\n\nsys.modules["httpx2"] = None\n')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-W", "error", "test_block.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r" (\d+) passed", done.stdout)
    assert int(passed) >= len(re.findall(r"^(?:async )?def test_", code, re.MULTILINE))  # one may have several cases


TITLED = {"README", "tutorial", "tutorial-2", "coming-from-fastmcp", "coming-from-the-sdk"}
"""Pages with blocks that have a title; the tests of each page run them."""


def test_no_python_block_is_left_out() -> None:
    for page in PAGES:
        text = page.read_text()
        titled = len(re.findall(r'^```python title="[^"]+"$', text, re.MULTILINE))
        assert titled == 0 or page.stem in TITLED, page.name
        assert len(re.findall(r"^ *```\s*py", text, re.MULTILINE)) == len(blocks(page, "python")) + titled, page.name


COMMAND = re.compile(r"(?:^|[\s`(|])mrtr-server ([a-z][^]`|;&)>#\n]*)", re.MULTILINE)
COMMANDS = sorted({found.strip() for page in PAGES for found in COMMAND.findall(page.read_text())})


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_that_is_quoted_is_there_with_its_options(words: str) -> None:
    command: click.Command = main
    for word in words.split():
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
    assert not isinstance(command, click.Group), words
    known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]}
    assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", words)) <= known | {"--help"}


SCRIPT = re.compile(r"(?:^|[\s`(])((?:\.\./)?(?:scripts|benchmarks|examples)/\w+(?:\.py)?)(?=[\s`)])", re.MULTILINE)


def test_each_script_that_is_quoted_is_there() -> None:
    named = {(page.name, found) for page in PAGES for found in SCRIPT.findall(page.read_text())}
    assert len(named) > 40
    assert [each for each in sorted(named) if not (ROOT / each[1].removeprefix("../")).exists()] == []


EVERY_PAGE = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "benchmarks", ".github") for page in (ROOT / folder).glob("**/*.md")),
]
# Not those of the libraries that the benchmarks have installed.
EVERY_PAGE = [page for page in EVERY_PAGE if ".venvs" not in page.parts]


def test_every_link_into_the_tree_leads_somewhere() -> None:
    for page in EVERY_PAGE:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    prose = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_to_a_heading_leads_to_one() -> None:
    for page in EVERY_PAGE:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_a_table_of_contents_has_every_section_in_its_order() -> None:
    for page in PAGES:
        text = page.read_text()
        listed = re.findall(r"^- \[(.+)\]\(#", text, re.MULTILINE)
        if listed:
            assert listed == re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE), page.name


def test_the_styles_of_the_page_are_one_tool() -> None:
    inline, *_ = programs(ROOT / "README.md")
    styles = next(code for code in programs(ROOT / "docs" / "asking.md") if "def order_too(" in code)
    for code, tool in ((inline, "order"), (styles, "order"), (styles, "order_too")):
        module: dict[str, Any] = {"__name__": "styles"}
        exec(compile(code, "asking.md", "exec"), module)  # noqa: S102
        flow = Client(module["app"]).flow(tool, title="Emma")
        assert flow.start().questions["amount"].startswith("How many copies")
        assert flow.answer(amount={"copies": 2}).questions == {"confirm": "Order 2 × Emma?"}
        assert flow.answer(confirm=yes).text == "2 × Emma ordered"


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "MRTR_KEYS"}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


@contextmanager
def running(command: str, cwd: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server's command, as the README has it, on a free port, until the block is left."""
    process = subprocess.Popen(
        ["bash", "-c", f"{command} --port {port} --log-level warning"],
        cwd=cwd,
        env=clean_environment(),
        start_new_session=True,
    )
    try:
        wait_until(lambda: process.poll() is not None or listens(port), "the server to listen")
        assert process.poll() is None, "the server ended"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(TIMEOUT)


@pytest.fixture
def readme_app(tmp_path: Path) -> Path:
    """A folder with the README's tool and its tests, saved under the names that the README gives them."""
    (tmp_path / "shop.py").write_text(blocks(ROOT / "README.md", "python")[0])
    (tests,) = re.findall(r'^```python title="test_shop.py"\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_shop.py").write_text(tests)
    return tmp_path


def test_the_tests_of_the_readme_pass(readme_app: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(
        command, cwd=readme_app, capture_output=True, text=True, timeout=2 * TIMEOUT, env=clean_environment()
    )
    assert "2 passed" in done.stdout, done.stdout


def test_the_curl_lines_are_answered_as_printed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "messages.md"
    (tmp_path / "weather.py").write_text(blocks(page, "python")[0])
    commands = blocks(page, "sh")
    serve = next(block for block in commands if block.startswith("mrtr-server dev weather:app")).strip()
    calls = [block for block in commands if "curl" in block]
    printed = [json.loads(re.sub(r"\n\s*", "", block)) for block in blocks(page, "json")]
    assert len(calls) == len(printed) == 2
    assert "$state" in calls[1]
    (port,) = free_ports(1)

    def type_in(*lines: str) -> tuple[Any, Any]:
        """Type both commands into one shell; return what each of them printed."""
        shown = "\n".join(lines).replace("localhost:8000", f"127.0.0.1:{port}")
        done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, timeout=TIMEOUT, check=True)
        return json.loads(done.stderr), json.loads(done.stdout)

    with running(serve, tmp_path, port):
        asked, told = type_in(*calls)
        printed[0]["result"]["requestState"] = asked["result"]["requestState"]
        assert [asked, told] == printed
        # It is sent, and it counts: another one does not open.
        _, refused = type_in(calls[0], """state='"requestState":"AR"'""", calls[1])
        assert refused["error"]["code"] == -32602


def test_the_readmes_tool_answers_the_terminals_client_as_printed(readme_app: Path) -> None:
    commands = blocks(ROOT / "README.md", "sh")
    (serve,) = (block.strip() for block in commands if block.startswith("mrtr-server dev"))
    (call,) = (block for block in commands if block.startswith("mrtr-server call"))
    (port,) = free_ports(1)
    with running(serve, readme_app, port):
        shown = call.replace("localhost:8000", f"127.0.0.1:{port}")
        command = ["bash", "-c", shown]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=True, env=clean_environment()
        )
    assert [done.stdout] == blocks(ROOT / "README.md", "text")


ERAS = ("2026-07-28", "sep-draft", "2025-11-25", "2025-06-18")  # those before that have no forms
ANSWERS: Answers = {"amount": {"copies": 2}, "confirm": yes}
FLEETS = [
    pytest.param(block.strip(), id=page.name)
    for page in (ROOT / "README.md", ROOT / "docs" / "deploying.md")
    for block in blocks(page, "sh")
    if "shop:app" in block and "--workers" in block and "export" in block
]
"""The commands that start several workers for the README's tool."""


def test_there_are_commands_that_start_several_workers() -> None:
    assert [fleet.id for fleet in FLEETS] == ["README.md", "deploying.md"]


@pytest.mark.parametrize("command", FLEETS)
def test_several_workers_serve_clients_of_every_era_with_the_commands_as_printed(
    readme_app: Path, command: str
) -> None:
    (port,) = free_ports(1)
    with running(command, readme_app, port):
        for era in ERAS:
            client = Client(f"http://127.0.0.1:{port}/mcp", era=era)
            for _ in range(6):  # each request on a connection of its own, so to any of the workers
                assert client.call("order", title="Emma", answers=ANSWERS).text == "2 × Emma ordered", era


def test_a_fleet_of_replicas_serves_clients_of_every_era_with_the_commands_as_printed(readme_app: Path) -> None:
    """The two replicas of the page, each with its own command; the database is in the test's folder."""
    (shared,) = (block for block in blocks(ROOT / "docs" / "deploying.md", "sh") if "--port 8002" in block)
    ports = free_ports(2)
    shared = shared.replace("sqlite:////var/lib/tools/store.db", f"sqlite:///{readme_app}/store.db")
    made, *settings = [line for line in shared.splitlines() if "keygen" in line or "export" in line]
    starts = [line.strip(" &") for line in shared.splitlines() if "mrtr-server run" in line]
    assert len(starts) == 2
    subprocess.run(["bash", "-c", made], cwd=readme_app, env=clean_environment(), timeout=TIMEOUT, check=True)
    with ExitStack() as stack:
        for start, port in zip(starts, ports, strict=True):
            command = re.sub(r" --port \d+", "", start)
            stack.enter_context(running(f"{'; '.join(settings)}; {command}", readme_app, port))
        urls = [f"http://127.0.0.1:{port}/mcp" for port in ports]
        for era in ERAS:
            for _ in range(3):
                client = Client(*urls, era=era)
                assert client.call("order", title="Emma", answers=ANSWERS).text == "2 × Emma ordered", era


def test_the_commands_are_there() -> None:
    for command in ("scripts/demo", "scripts/chaos", "scripts/clients", "scripts/lock", "scripts/test", ".ci/run"):
        assert os.access(ROOT / command, os.X_OK), command


def in_figures(written: str) -> float | None:
    """Return the default that a table writes, such as "4 MiB" or "100,000"."""
    number, _, unit = written.partition(" ")
    factor = {"KiB": 1024, "MiB": 1024**2}.get(unit, 1)
    return None if number == "none" else float(number.replace(",", "")) * factor
