"""Packages of npm that tests use, each set in a folder of its own."""

import sys

from .serving import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import LISTED, NODE, Client, environment, read_clients

__all__ = ["NODE", "Client", "environment", "listed", "packages"]


def packages(name: str, *npm: str) -> Client:
    """Return packages by their names and versions; `install` of them makes the folder."""
    return Client(name=name, pip=(), npm=npm, as_of="2026-11-22", run=(), quick=True, note="", programs=LISTED.parent)


def listed(name: str) -> Client:
    """Return a client of `clients/clients.toml`."""
    return next(client for client in read_clients() if client.name == name)
