"""The official conformance suite for authorization servers."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..support.npm import NODE, environment
from ..support.serving import TIMEOUT, free_ports, wait_until
from ..system.test_conformance import install
from .conftest import Stage

SCENARIOS = {"authorization-server-metadata-endpoint", "authorization-code-grant"}


@pytest.mark.processes
def test_the_official_suite_passes(stage: Stage, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    client, browser = stage.client(stage.usual, redirect=f"http://127.0.0.1:{port}/callback"), stage.browser()
    about = ["--url", client.base, "--client-id", client.id, "--resource", f"{client.base}/mcp", "--port", str(port)]
    command = [str(NODE / "bin" / "node"), str(install()), "authorization", *about]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--output-dir", str(tmp_path / "results")],
            stdout=output,
            stderr=output,
            env=environment(),
        )
    try:
        page = re.compile(re.escape(client.base) + r"/authorize\?[^\s\"']+")
        wait_until(lambda: page.search(log.read_text()) or process.poll() is not None, "the suite to ask a person")
        found = page.search(log.read_text())
        assert found, log.read_text()
        location = browser.log_in(found[0]).headers["location"]
        assert httpx.get(location, trust_env=False).status_code == 200
        assert process.wait(TIMEOUT) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    files = list(tmp_path.glob("results/*/checks.json"))
    assert all(any(name in file.parent.name for file in files) for name in SCENARIOS)
    checks = [each for file in files for each in read(file)]
    assert {each["status"] for each in checks} <= {"SUCCESS", "INFO"}, checks


def read(file: Path) -> list[dict[str, Any]]:
    """Return the checks in a file."""
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found
