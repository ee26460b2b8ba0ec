"""A login from the terminal: the page is opened after a yes, and the tokens are there for the next command."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from ..client.test_oauth import protected
from ..support.authorization_server import Tenant
from ..support.serving import TIMEOUT
from .test_calling import Terminal, run

pytestmark = pytest.mark.processes

BROWSER = """#!/bin/sh
exec curl --silent --show-error --location --max-time 60 --noproxy '*' --output /dev/null "$1&user=ann"
"""


def test_a_person_logs_in_once_and_out_again(issuer: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with protected(issuer) as url:
        refused = run("call", url, "who", code=1).output
        assert "HTTP 401" in refused
        assert "at a terminal" in refused
        with closing(Terminal("call", url, "who", BROWSER=str(browser), XDG_STATE_HOME=str(tmp_path))) as terminal:
            terminal.read("Log in to call this server")
            terminal.read(f"{issuer.url}/authorize")
            terminal.type("Open this page of", "y")
            terminal.read("ann")
            assert terminal.process.wait(TIMEOUT) == 0
        printed = run("call", url, "who", "--trace")
        assert printed.stdout == "ann\n"
        (kept,) = (tmp_path / "mrtr-server" / "tokens").iterdir()
        assert "access_token" in kept.read_text()
        assert "eyJ" not in printed.stderr  # how each signed token begins
        run("logout", url)
        assert "HTTP 401" in run("call", url, "who", code=1).output
        with closing(Terminal("call", url, "who", XDG_STATE_HOME=str(tmp_path))) as terminal:
            terminal.type("Open this page of", "n")
            terminal.read("its page was not opened")
            assert terminal.process.wait(TIMEOUT) == 1
    assert os.listdir(tmp_path / "mrtr-server" / "tokens") == []
