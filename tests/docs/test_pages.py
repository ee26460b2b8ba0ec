"""The documentation runs: every Python block, and the commands that the README tells people to type."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import pytest

from mrtr_server import Limits
from mrtr_server.cli import main
from mrtr_server.testing import Client, yes

from ..support.serving import TIMEOUT, free_ports, listens, wait_until

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text()) if kind == language]


def blocks_within(page: Path, begin: str, end: str) -> list[str]:
    """Return the commands of a part of a page, also those in lists."""
    part = page.read_text().partition(f"\n{begin}\n")[2].partition(f"\n{end}\n")[0]
    return [dedent(code) for code in re.findall(r"^ *```sh\n(.*?)^ *```$", part, re.MULTILINE | re.DOTALL)]


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


@pytest.mark.parametrize("code", PYTHON)
def test_every_python_block_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr


TESTS = [
    block for block in PYTHON if "\ndef test_" in str(block.values[0]) or "\nasync def test_" in str(block.values[0])
]


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


TITLED = {"tutorial", "coming-from-fastmcp", "coming-from-the-sdk"}
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


WITHOUT_CONTENTS = {"guides", "performance"}
"""Long pages whose first table leads to their parts, or whose parts are read one after the other."""


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_a_table_of_contents_has_every_section_in_its_order(page: Path) -> None:
    text = page.read_text()
    listed = re.findall(r"^- \[(.+)\]\(#", text, re.MULTILINE)
    if listed or (len(text.split()) > 1400 and page.stem not in WITHOUT_CONTENTS):
        assert listed == re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE)


def test_the_three_styles_of_the_readme_are_one_tool() -> None:
    styles = [code for code in programs(ROOT / "README.md") if "def order(" in code]
    assert len(styles) == 3
    for code in styles:
        module: dict[str, Any] = {"__name__": "styles"}
        exec(compile(code, "README.md", "exec"), module)  # noqa: S102
        flow = Client(module["app"]).flow("order", title="Emma")
        assert flow.start().questions == {"amount": "How many copies of Emma?"}
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
    """A folder with the README's first tool, saved under the name that the README gives it."""
    (tmp_path / "weather.py").write_text(blocks(ROOT / "README.md", "python")[0])
    return tmp_path


def test_the_first_tool_answers_its_curl_lines_as_printed(readme_app: Path) -> None:
    commands = blocks(ROOT / "README.md", "sh")
    serve = next(block for block in commands if block.startswith("mrtr-server dev weather:app")).strip()
    calls = [block for block in commands if "curl" in block]
    printed = [json.loads(re.sub(r"\n\s*", "", block)) for block in blocks(ROOT / "README.md", "json")]
    assert len(calls) == len(printed) == 2
    assert "$state" in calls[1]
    (port,) = free_ports(1)

    def type_in(*lines: str) -> tuple[Any, Any]:
        """Type both commands into one shell; return what each of them printed."""
        shown = "\n".join(lines).replace("localhost:8000", f"127.0.0.1:{port}")
        done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, timeout=TIMEOUT, check=True)
        return json.loads(done.stderr), json.loads(done.stdout)

    with running(serve, readme_app, port):
        asked, told = type_in(*calls)
        printed[0]["result"]["requestState"] = asked["result"]["requestState"]
        assert [asked, told] == printed
        # It is sent, and it counts: another one does not open.
        _, refused = type_in(calls[0], """state='"requestState":"AR"'""", calls[1])
        assert refused["error"]["code"] == -32602


def test_the_first_tool_answers_the_terminals_client_as_printed(readme_app: Path) -> None:
    (call,) = (block for block in blocks(ROOT / "README.md", "sh") if block.startswith("mrtr-server call"))
    (port,) = free_ports(1)
    with running("uvicorn weather:app", readme_app, port):
        shown = call.replace("localhost:8000", f"127.0.0.1:{port}")
        command = ["bash", "-c", shown]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=True, env=clean_environment()
        )
    assert [done.stdout] == blocks(ROOT / "README.md", "text")


FLEETS = [
    pytest.param(block.strip(), id=page.name)
    for page in (ROOT / "README.md", ROOT / "docs" / "deploying.md")
    for block in blocks(page, "sh")
    if "weather:app" in block and "--workers" in block and "export" in block
]
"""The commands that start several workers for the first tool."""


def test_there_are_commands_that_start_several_workers() -> None:
    assert [fleet.id for fleet in FLEETS] == ["README.md", "deploying.md"]


@pytest.mark.parametrize("command", FLEETS)
def test_several_workers_serve_clients_of_every_era_with_the_commands_as_printed(
    readme_app: Path, command: str
) -> None:
    (port,) = free_ports(1)
    with running(command, readme_app, port):
        for era in ("2026-07-28", "sep-draft", "2025-11-25", "2025-06-18"):  # those before that have no forms
            client = Client(f"http://127.0.0.1:{port}/mcp", era=era)
            for _ in range(6):  # each request on a connection of its own, so to any of the workers
                done = client.call("get_weather", location="Oslo", answers={"github_login": {"name": "octocat"}})
                assert "octocat" in done.text, era


def test_a_fleet_of_replicas_serves_clients_of_every_era_with_the_commands_as_printed(readme_app: Path) -> None:
    """The two replicas of the page for operators, each with its own command; the database is in the test's folder."""
    made, replicas = blocks_within(ROOT / "docs" / "operating.md", "## Deploying", "## Checking a server")
    ports = free_ports(2)
    shared = replicas.replace("sqlite:////var/lib/tools/store.db", f"sqlite:///{readme_app}/store.db")
    settings = "; ".join(line.strip() for line in shared.splitlines() if "export" in line)
    starts = [line.strip(" &") for line in shared.splitlines() if "mrtr-server run" in line]
    assert len(starts) == 2
    subprocess.run(["bash", "-c", made], cwd=readme_app, env=clean_environment(), timeout=TIMEOUT, check=True)
    with ExitStack() as stack:
        for start, port in zip(starts, ports, strict=True):
            command = re.sub(r" --port \d+", "", start)
            stack.enter_context(running(f"{settings}; {command}", readme_app, port))
        urls = [f"http://127.0.0.1:{port}/mcp" for port in ports]
        for era in ("2026-07-28", "sep-draft", "2025-11-25", "2025-06-18"):
            for _ in range(3):
                client = Client(*urls, era=era)
                done = client.call("get_weather", location="Oslo", answers={"github_login": {"name": "octocat"}})
                assert "octocat" in done.text, era


def test_the_commands_are_there() -> None:
    for command in ("scripts/demo", "scripts/chaos", "scripts/clients", "scripts/lock", "scripts/test", ".ci/run"):
        assert os.access(ROOT / command, os.X_OK), command


def in_figures(written: str) -> float | None:
    """Return the default that a table writes, such as "4 MiB" or "100,000"."""
    number, _, unit = written.partition(" ")
    factor = {"KiB": 1024, "MiB": 1024**2}.get(unit, 1)
    return None if number == "none" else float(number.replace(",", "")) * factor


def test_the_page_for_operators_has_every_limit_with_its_default() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    table = page[page.index("\n## Limits\n") : page.index("\n### Slow clients\n")]
    written: dict[str, float | None] = {}
    for names, defaults in re.findall(r"^\| (`.+?`) \| (.+?) \|", table, re.MULTILINE):
        each = [defaults] if "`, `" not in names else defaults.split(", ")
        written |= zip(re.findall(r"\w+", names), map(in_figures, each), strict=True)
    assert written == {field.name: field.default for field in fields(Limits)}
