"""An official TypeScript client that logs in by its own OAuth code, in a process of its own: see `oauth.mjs`."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import npm
from .serving import ROOT

LogIn = Callable[[str], str]
"""Logs a person in at the address of a page; returns the address that the browser ends at."""


class TypeScriptClient:
    """A running client.

    Args:
        process: the program.
        log_in: the person.
    """

    def __init__(self, process: "subprocess.Popen[str]", log_in: LogIn) -> None:
        self._process = process
        self._log_in = log_in

    def call(self, tool: str) -> str:
        """Call a tool, whatever logins that takes; return the text of its result."""
        self._say(tool)
        while "page" in (found := self._read()):
            self._say(self._log_in(found["page"]))
        return str(found["text"])

    def spoil(self) -> None:
        """Make the client's access token invalid."""
        self._say("spoil")

    def refresh_token(self) -> str:
        """Return the refresh token that the client keeps."""
        self._say("keeps")
        return str(self._read()["refresh_token"])

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it has said of its end is read next
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        return json.loads(line)


@contextmanager
def typescript_client(url: str, name: str, log_in: LogIn, document: str = "") -> Iterator[TypeScriptClient]:
    """Run a client.

    Args:
        url: the endpoint of the server.
        name: its row in `clients/clients.toml`.
        log_in: the person.
        document: the address of its metadata; without one, it registers.
    """
    client = npm.listed(name)
    client.install()
    program = client.folder / "oauth.mjs"
    program.write_text((ROOT / "tests" / "support" / "oauth.mjs").read_text())
    command = [str(npm.NODE / "bin" / "node"), str(program), url, name, *([document] if document else [])]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=npm.environment(), **pipes) as process:
        try:
            yield TypeScriptClient(process, log_in)
        finally:
            process.kill()
