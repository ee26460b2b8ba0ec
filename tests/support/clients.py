"""Clients of other frameworks, each in an environment of its own."""

import json
import subprocess
import sys
from typing import Any

from .serving import ROOT, TIMEOUT

sys.path.insert(0, str(ROOT / "scripts"))

from clients_install import Client, environment


def results_of(client: Client, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a client saw of each call; its program reads calls, and prints what it saw."""
    done = subprocess.run(
        client.command("")[:-1],
        input=json.dumps(calls),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
