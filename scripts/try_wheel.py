"""Try a wheel as a new user would, on any system: install it, make a project, call its tool, and run what its CI runs.

    python scripts/try_wheel.py dist     the folder with the wheel, and no other one

It prints how many seconds each step took, and its exit code is 0 only if all of them did what they should. It needs the
network, and nothing but Python: each environment is a new one, in a folder that is removed afterwards.
"""

import argparse
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SECONDS = 300.0
"""How long one command may take."""

START = 60.0
"""How long the server may take to start, in seconds."""

ANSWERS = ("--answer", "amount=2", "--answer", "confirm=yes")


class Environment:
    """A new virtual environment.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")

    def command(self, line: str) -> list[str]:
        """Return what runs a line that its user types."""
        program, *arguments = shlex.split(line)
        if program == "pip":  # which can't replace its own program on Windows
            return [str(self.programs / "python"), "-m", "pip", *arguments]
        return [str(self.programs / program), *arguments]

    def run(self, line: str, cwd: Path, **more: str) -> str:
        """Run a line in a folder; return what it printed.

        Raises:
            SystemExit: it failed.
        """
        began = time.monotonic()
        done = subprocess.run(  # noqa: S603
            self.command(line),
            cwd=cwd,
            env=self.variables(**more),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
        )
        if done.returncode:
            sys.exit(f"{line}\n{done.stdout}{done.stderr}\nexit code {done.returncode}")
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)
        return done.stdout

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment variables of its programs: no settings of ours, and UTF-8 on every system."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MRTR_")}
        path = f"{self.programs}{os.pathsep}{kept['PATH']}"
        return {**kept, "PATH": path, "PYTHONUTF8": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}

    @contextmanager
    def serving(self, line: str, cwd: Path, **more: str) -> Iterator[str]:
        """Run a server until the block is left; yield the URL of its endpoint, once it listens."""
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        command = self.command(f"{line} --port {port}")
        with subprocess.Popen(command, cwd=cwd, env=self.variables(**more)) as server:  # noqa: S603
            try:
                until = time.monotonic() + START
                while not _listens(port):
                    if server.poll() is not None or time.monotonic() > until:
                        sys.exit(f"{line}: nothing listens on port {port}")
                    time.sleep(0.05)
                yield f"http://127.0.0.1:{port}/mcp"
            finally:
                server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def order(environment: Environment, url: str, folder: Path) -> None:
    """Call the tool of the project, and answer its questions.

    Raises:
        SystemExit: its result is another one.
    """
    said = environment.run(shlex.join(["mrtr-server", "call", url, "order", "title=Dune", *ANSWERS]), folder)
    if said.strip() != "2 × Dune ordered":
        sys.exit(f"the tool's result is {said!r}")


def try_first_tool(wheel: Path, folder: Path) -> tuple[Environment, Path]:
    """Install a wheel, make a project and call its tool.

    Returns:
        The environment, and the folder of the project, with the wheel in it.
    """
    new = Environment(folder / "new")
    began = time.monotonic()
    new.run(shlex.join(["pip", "install", "--quiet", f"{wheel.as_posix()}[fast,cli]"]), folder)
    printed = new.run("mrtr-server new book-shop", folder)
    project = folder / "book-shop"
    with new.serving("mrtr-server dev --no-reload book_shop.server:app", project) as url:  # one process can be ended
        order(new, url, project)
        print(f"From the installation to the first result: {time.monotonic() - began:.1f} s", flush=True)
    (wheels,) = re.findall(r"^  (pip wheel .*)$", printed, re.MULTILINE)
    new.run(wheels, project)
    return new, project


def run_its_ci(project: Path, folder: Path) -> None:
    """Run each command of the project's workflow in a new environment, but not what needs Docker."""
    ci = Environment(folder / "ci")
    workflow = (project / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    for line in re.findall(r"- run: (?!docker)(.*)$", workflow, re.MULTILINE):
        ci.run(line, project)


def serve_as_its_image(project: Path, folder: Path, client: Environment) -> None:
    """Install in a new environment what the project's image has, serve it by the image's command, and call its tool."""
    image = Environment(folder / "image")
    dockerfile = (project / "Dockerfile").read_text("utf-8")
    (install,) = re.findall(r"^RUN /venv/bin/(pip install .*)$", dockerfile, re.MULTILINE)
    image.run(install, project)
    settings = {"MRTR_APP": "book_shop.server:app", "MRTR_KEYS": image.run("mrtr-server keygen", folder).strip()}
    with image.serving("mrtr-server run", folder, **settings) as url:
        order(client, url, folder)


def main() -> None:
    """Try the wheel of a folder."""
    options = argparse.ArgumentParser(prog="scripts/try_wheel.py", description="Try a wheel as a new user would.")
    options.add_argument("dist", type=Path, help="the folder with the wheel")
    (wheel,) = options.parse_args().dist.resolve().glob("*.whl")
    print(f"{wheel.name}, Python {sys.version.split()[0]}, {sys.platform}", flush=True)
    with TemporaryDirectory(ignore_cleanup_errors=True) as made:  # Windows keeps files of programs that have just ended
        folder = Path(made).resolve()
        new, project = try_first_tool(wheel, folder)
        run_its_ci(project, folder)
        serve_as_its_image(project, folder, new)


if __name__ == "__main__":
    main()
