"""The hosts of `clients/hosts.toml`: what they are, and a home for each in which they know our model and server."""

import os
import platform
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from clients_install import LISTED, NODE, ROOT, Client

HOSTS = LISTED.with_name("hosts.toml")
NOWHERE = "http://127.0.0.1:9"
"""The proxy of a host: nobody is there, so that whatever it asks of the network fails at once."""
BROWSERS = ("xdg-open", "open", "sensible-browser", "x-www-browser")
"""What hosts run to open a page."""


@dataclass(frozen=True)
class Host:
    """A host, and how to run it; `clients/hosts.toml` says what each field is."""

    client: Client
    run: tuple[str, ...]
    alone: tuple[str, ...]
    ready: str
    drawn: str
    can: frozenset[str]
    fails: frozenset[str]
    environment: Mapping[str, str]
    files: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its row."""
        return self.client.name


def read_hosts(file: Path = HOSTS) -> list[Host]:
    """Return the hosts that a file lists, in its order."""
    listed = tomllib.loads(file.read_text("utf-8"))
    return [
        Host(
            client=Client(
                name=entry["name"],
                pip=tuple(entry.get("pip", ())),
                npm=tuple(entry.get("npm", ())),
                as_of=listed["as_of"],
                run=(),
                quick=False,
                note=entry["note"],
                programs=file.parent,
            ),
            run=tuple(entry["run"]),
            alone=tuple(entry["alone"]),
            ready=entry["ready"],
            drawn=entry.get("drawn", ""),
            can=frozenset(entry["can"]),
            fails=frozenset(entry.get("fails", ())),
            environment=entry.get("environment", {}),
            files=entry["files"],
        )
        for entry in listed["host"]
    ]


@dataclass(frozen=True)
class Home:
    """The folders of a host, with its settings.

    Args:
        host: the host.
        folder: where they are.
        values: what the placeholders of its settings stand for.
    """

    host: Host
    folder: Path
    values: Mapping[str, str]

    @property
    def work(self) -> Path:
        """Where it runs."""
        return Path(self.values["work"])

    @property
    def opened(self) -> list[str]:
        """The pages that it has opened."""
        pages = self.folder / "opened"
        return pages.read_text().splitlines() if pages.exists() else []

    def command(self, prompt: str | None = None) -> list[str]:
        """Return what runs the host: in a terminal, or with one prompt and nobody to ask."""
        given = self.host.run if prompt is None else (*self.host.run, *self.host.alone)
        program, *arguments = (self._filled(part, prompt=prompt or "") for part in given)
        return [*([str(NODE / "bin" / "node")] if program.endswith(".js") else []), program, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """All of its variables: nothing of ours, and no way to the network."""
        mine = {name: self._filled(value) for name, value in self.host.environment.items()}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
        local = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        return {
            "PATH": os.pathsep.join([self.values["programs"], str(NODE / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": self.values["home"],
            "TMPDIR": self.values["temporary"],
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "BROWSER": f"{self.values['programs']}/{BROWSERS[0]}",
            "DO_NOT_TRACK": "1",
            "DISABLE_TELEMETRY": "1",
            **proxies,
            **local,
            **mine,
        }

    def _filled(self, text: str, **more: str) -> str:
        for name, value in {**self.values, **more}.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def furnish(self) -> None:
        """Make the folders, the settings, and browsers that note what they are to open."""
        for name in ("home", "work", "temporary", "programs"):
            Path(self.values[name]).mkdir()
        for name, content in self.host.files.items():
            file = Path(self.values["home"], name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._filled(content), "utf-8")
        for name in BROWSERS:
            browser = Path(self.values["programs"], name)
            browser.write_text(f"#!/bin/sh\necho \"$1\" >>'{self.folder}/opened'\n")
            browser.chmod(0o700)


@contextmanager
def home(host: Host, model: str, url: str) -> Iterator[Home]:
    """Make a home for a host; it is gone after the context.

    Args:
        host: the host.
        model: the address of the model, without the path of an API.
        url: the endpoint of the server.
    """
    with TemporaryDirectory(prefix="host-", ignore_cleanup_errors=True) as folder:
        folders = {name: f"{folder}/{name}" for name in ("home", "work", "temporary", "programs")}
        values = {
            **folders,
            "npm": str(host.client.folder / "node_modules"),
            "platform": _platform(),
            "model": model,
            "url": url,
            "python": sys.executable,
            "scripts": str(ROOT / "scripts"),
        }
        made = Home(host, Path(folder), values)
        made.furnish()
        yield made


def _platform() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}
    return f"{sys.platform}-{machine.get(platform.machine(), platform.machine())}"
