"""The steps of `docs/login.md`, as they are written there, lead to a login on `http://localhost` in a minute."""

import re
import time
from pathlib import Path

import pytest

from ..dev.test_dev_command import developing
from ..support import github
from ..support.serving import ROOT
from .conftest import Stage
from .test_logins import said

PAGE = (ROOT / "docs" / "login.md").read_text()

SETTINGS = 'client_id="your app", client_secret="from your secret store"'


@pytest.mark.processes
def test_the_steps_lead_to_a_login_by_dev_on_localhost(stage: Stage, tmp_path: Path) -> None:
    began = time.process_time(), time.monotonic()
    steps = PAGE.partition("## From nothing to a login in a minute")[2].partition("\n## ")[0]
    code = re.search(r"```python\n(.+?)```", steps, re.DOTALL)
    assert code is not None
    assert SETTINGS in code[1]
    provider = stage.provider.url
    own = f'client_id="{github.CLIENT}", client_secret="{github.SECRET}", url="{provider}", api="{provider}/api"'
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.py").write_text(code[1].replace(SETTINGS, own))
    command = re.search(r"`mrtr-server dev ([\w:]+)`", steps)
    assert command is not None
    with developing(folder, command[1]) as terminal:
        base = terminal.url.removesuffix("/mcp").replace("127.0.0.1", "localhost")
        client, browser = stage.client(base), stage.browser()
        page = browser.open(client.page())
        yes = browser.answer(page)
        for each in (page, yes):
            for cookie in each.headers.get_list("set-cookie"):
                assert cookie.startswith("mrtr-"), "without https, browsers take no cookie with the prefix __Host-"
                assert "httponly" in cookie.lower()
                assert "secure" not in cookie.lower()
        assert said(client.call(client.tokens(browser))) == f"octocat of {provider}"
        assert "keep cookies without the protection that https gives them" in terminal.text
    seconds = time.monotonic() - began[1]
    print(f"{seconds:.1f} s from the steps to the call")
    assert time.process_time() - began[0] < 60
