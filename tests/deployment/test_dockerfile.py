"""The Dockerfile, as far as it can be held without Docker: its steps, run by hand, and what the examples need."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import packages_distributions
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement

from mrtr_server import MRTRServer
from mrtr_server.cli.run import run

from ..conftest import Serve
from ..support.serving import TIMEOUT

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the file, each with its arguments, on one line."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def environment() -> dict[str, str]:
    return dict(each.split("=", 1) for rest in of("ENV") for each in shlex.split(rest))


def installed() -> set[str]:
    """The distributions that the image has: what its lock file pins for this system."""
    locks = [each for rest in of("RUN") for each in re.findall(r"/venv/bin/pip install .*?--requirement (\S+)", rest)]
    pinned = [
        Requirement(line.removesuffix("\\"))
        for lock in locks
        for line in (ROOT / lock).read_text().splitlines()
        if re.match(r"\w", line)
    ]
    return {each.name for each in pinned if each.marker is None or each.marker.evaluate()}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def test_every_example_that_is_a_server_runs_in_the_image() -> None:
    in_image, distributions = installed(), packages_distributions()
    for path in (ROOT / "examples").glob("*.py"):
        if "\napp = " not in path.read_text():
            continue
        for module in set(imported(path)) - sys.stdlib_module_names - {"mrtr_server", "examples"}:
            named = {each.lower().replace("_", "-") for each in distributions[module]}
            assert named & in_image, f"{path.name} needs {module}"


def test_the_application_that_it_runs_by_default_is_there() -> None:
    module, _, name = environment()["MRTR_APP"].partition(":")
    code = f"import {module}; print(type({module}.{name}).__name__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "MRTRServer\n", done.stderr


def test_its_command_serves_that_application() -> None:
    (command,) = of("CMD")
    program, *arguments = json.loads(command)
    assert (program, arguments[0]) == ("mrtr-server", "run")
    context = run.make_context("run", [*arguments[1:], environment()["MRTR_APP"]])
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 8000)


def test_what_it_copies_is_there_and_reaches_the_build() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for arguments in of("COPY"):
        if arguments.startswith("--from"):
            continue
        for source in shlex.split(arguments)[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch(source.removeprefix("./"), each) for each in kept), source


class TestTheHealthCheck:
    def check(self, port: int, path: str | None = None) -> int:
        (rest,) = of("HEALTHCHECK")
        python, *arguments = json.loads(rest[rest.index("CMD ") + 4 :])
        assert python == "python"
        given = {**os.environ, **environment(), "PATH": os.environ["PATH"]}
        # A proxy is not for this machine.
        given |= {"http_proxy": "http://127.0.0.1:9", **({"HEALTH_PATH": path} if path else {})}
        command = [sys.executable, *(each.replace("8000", str(port)) for each in arguments)]
        return subprocess.run(command, env=given, capture_output=True, timeout=TIMEOUT).returncode

    def test_passes_while_the_server_answers(self, serve: Serve) -> None:
        port = urlsplit(serve(MRTRServer("healthy", keys=[bytes(32)])).url).port or 0
        assert self.check(port) == 0
        assert self.check(port, "/elsewhere") != 0
        moved = urlsplit(serve(MRTRServer("moved", keys=[bytes(32)], path="/tools/mcp")).url).port or 0
        assert self.check(moved, "/tools/health") == 0

    def test_fails_where_something_takes_connections_and_is_not_well(self) -> None:
        class Unwell(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        unwell = ThreadingHTTPServer(("127.0.0.1", 0), Unwell)
        serving = Thread(target=unwell.serve_forever)
        serving.start()
        try:
            assert self.check(unwell.server_port) != 0
        finally:
            unwell.shutdown()
            serving.join()
            unwell.server_close()
        assert self.check(unwell.server_port) != 0  # and where nothing does


class TestTheDataDirectory:
    def test_is_the_users_own(self) -> None:
        (user,) = of("USER")
        (folder,) = of("VOLUME")
        (made,) = (each for each in of("RUN") if "useradd" in each)
        assert f"--uid {user} " in made
        assert shlex.split(made.rpartition("&&")[2]) == [
            "install",
            "--directory",
            f"--owner={user}",
            f"--group={user}",
            "--mode=0700",
            folder,
        ]
        assert [word for word, _ in instructions()].index("VOLUME") > [word for word, _ in instructions()].index("RUN")
        assert f"sqlite:///{folder}/" in (ROOT / "Dockerfile").read_text()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
    def test_takes_files_of_that_user_and_of_no_other(self, tmp_path: Path) -> None:
        (user,) = of("USER")
        (made,) = (each for each in of("RUN") if "useradd" in each)
        data = tmp_path / "data"
        subprocess.run([*shlex.split(made.rpartition("&&")[2])[:-1], str(data)], check=True)

        def write(uid: int) -> int:  # by a relative name, since other folders above are only root's here
            code = f"import os; os.setgid({uid}); os.setuid({uid}); open('store.db', 'w').close()"
            return subprocess.run([sys.executable, "-c", code], cwd=data, capture_output=True).returncode

        assert write(int(user)) == 0
        assert write(int(user) + 1) != 0
