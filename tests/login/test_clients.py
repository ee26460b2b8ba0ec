"""Clients with an OAuth code of their own log in."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from mrtr_server.client import Client, FileTokens, OAuth

from ..support import npm
from ..support.serving import ROOT, TIMEOUT
from .conftest import Stage


@pytest.mark.anyio
async def test_our_own_client_logs_in_and_asks_for_more_scopes(stage: Stage, tmp_path: Path) -> None:
    browser = stage.browser()
    asked: list[str] = []

    def log_in(page: str) -> None:
        asked.append(page)
        httpx.get(browser.log_in(page).headers["location"], trust_env=False)

    async def open_page(page: str) -> None:
        await asyncio.to_thread(log_in, page)

    auth = OAuth(open_page, store=FileTokens(tmp_path / "tokens"))
    async with Client(f"{stage.usual}/mcp", auth=auth) as client:
        assert (await client.call("who")).structured_content[0] == "583231"
        assert len(asked) == 1
        assert (await client.call("write")).text == "written"
        assert len(asked) == 2
        assert "scope=notes%3Awrite" in asked[1]


def test_a_library_that_checks_each_response_finds_nothing(stage: Stage) -> None:
    packages = npm.packages("oauth4webapi", "oauth4webapi@3.8.3")
    packages.install()
    program = packages.folder / "oauth_library.mjs"
    program.write_text((ROOT / "tests" / "support" / "oauth_library.mjs").read_text())
    command = [str(npm.NODE / "bin" / "node"), str(program), stage.usual, f"{stage.usual}/mcp"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=npm.environment(), **pipes) as process:
        said = ""
        for line in process.stdout or ():
            said = line.strip()
            if said.startswith("http"):
                process.stdin.write(f"{stage.browser().log_in(said).headers['location']}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
        _, wrong = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, wrong
    found = json.loads(said)
    # A body that is no request of the protocol gets a 400; without the token, and its proof, it would be a 401.
    assert (found["type"], found["status"]) == ("dpop", 400)
    assert found["refused"] == {
        "a token with another key": "invalid_dpop_proof",
        "a login that was revoked": "invalid_grant",
        "another verifier": "invalid_grant",
        "another redirect": "invalid_grant",
        "a code of another client": "invalid_grant",
        "another secret": "invalid_client",
        "another resource": "invalid_target",
        "a refresh by another client": "invalid_grant",
        "a scope that was not allowed": "invalid_scope",
        "an access token in place of a refresh token": "invalid_grant",
        "a password": "unsupported_grant_type",
        "a refresh token that was used": "invalid_grant",
        "the login that it was of": "invalid_grant",
        "a code that was used": "invalid_grant",
        "the login that it began": "invalid_grant",
    }
