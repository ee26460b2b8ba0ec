"""Hosts of people that start or call servers: where each has its configuration, and how a server stands in it."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..protocol.messages import JSON


class System(NamedTuple):
    """The machine on which a host runs."""

    platform: str  # as `sys.platform`
    home: Path
    environ: Mapping[str, str]

    @classmethod
    def here(cls) -> "System":
        return cls(sys.platform, Path.home(), os.environ)

    def folder(self, variable: str, *otherwise: str) -> Path:
        """Return the folder that a variable names, or one of the home."""
        named = Path(self.environ.get(variable, ""))
        return named if named.is_absolute() else self.home.joinpath(*otherwise)

    @property
    def config(self) -> Path:
        """The folder of settings in which desktop applications have theirs."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return self.folder("APPDATA", "AppData", "Roaming")
        return self.folder("XDG_CONFIG_HOME", ".config")


class Start(NamedTuple):
    """How a host starts a server."""

    command: str
    args: list[str]
    env: dict[str, str]


class Place(NamedTuple):
    file: Path
    sign: Path  # what is there once the host has been started


class Host(NamedTuple):
    title: str
    places: Callable[[System], list[Place]]  # the first one whose sign is there counts
    top: str  # where its servers are, in its file
    local: Callable[[str, Start], JSON]  # the entry of a server that it starts
    remote: Callable[[str, str], JSON] | None  # of one that it calls at a URL
    is_yaml: bool = False


def _local(_name: str, start: Start) -> JSON:
    return {"command": start.command, "args": start.args, **({"env": start.env} if start.env else {})}


def _typed(name: str, start: Start) -> JSON:
    return {"type": "stdio", **_local(name, start)}


def _http(_name: str, url: str) -> JSON:
    return {"type": "http", "url": url}


_GOOSE_SECONDS = 300  # what its own documentation gives a call


def _goose(name: str, start: Start) -> JSON:
    begun: JSON = {"type": "stdio", "name": name, "enabled": True, "cmd": start.command, "args": start.args}
    return {**begun, "envs": start.env, "timeout": _GOOSE_SECONDS}


def _goose_http(name: str, url: str) -> JSON:
    return {"type": "streamable_http", "name": name, "enabled": True, "uri": url, "timeout": _GOOSE_SECONDS}


def _file(path: Path) -> list[Place]:
    return [Place(path, path.parent)]


def _claude_desktop(system: System) -> list[Place]:
    file = "claude_desktop_config.json"
    usual = _file(system.config / "Claude" / file)
    if system.platform != "win32":
        return usual
    # As a package of Windows (MSIX), it sees another folder in place of its own.
    packages = system.folder("LOCALAPPDATA", "AppData", "Local") / "Packages"
    return [*_file(packages / "Claude_pzs8sxrjxfjjc" / "LocalCache" / "Roaming" / "Claude" / file), *usual]


def _claude_code(system: System) -> list[Place]:
    """The user's own file: a project's `.mcp.json` is for all who work on it, and no place for paths and secrets."""
    return [Place(system.folder("CLAUDE_CONFIG_DIR") / ".claude.json", system.folder("CLAUDE_CONFIG_DIR", ".claude"))]


def _goose_file(system: System) -> list[Place]:
    if system.platform == "win32":
        return _file(system.config / "Block" / "goose" / "config" / "config.yaml")
    return _file(system.folder("XDG_CONFIG_HOME", ".config") / "goose" / "config.yaml")


HOSTS: Mapping[str, Host] = {
    "claude-desktop": Host("Claude Desktop", _claude_desktop, "mcpServers", _local, None),
    "claude-code": Host("Claude Code", _claude_code, "mcpServers", _typed, _http),
    "cursor": Host(
        "Cursor",
        lambda system: _file(system.home / ".cursor" / "mcp.json"),
        "mcpServers",
        _typed,
        lambda _name, url: {"url": url},
    ),
    "vscode": Host(
        "VS Code", lambda system: _file(system.config / "Code" / "User" / "mcp.json"), "servers", _typed, _http
    ),
    "gemini": Host(
        "Gemini CLI",
        lambda system: _file(system.home / ".gemini" / "settings.json"),
        "mcpServers",
        _local,
        lambda _name, url: {"httpUrl": url},
    ),
    "goose": Host("Goose", _goose_file, "extensions", _goose, _goose_http, is_yaml=True),
}
