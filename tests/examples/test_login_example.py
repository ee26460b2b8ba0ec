"""examples/login.py: the whole way of a login elsewhere, with a browser, over real HTTP."""

import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from examples import login

from ..support.serving import TIMEOUT
from ..support.wire import Reply, Wire, modern
from .conftest import Start
from .pasting import SHELL, commands, needs_curl

OPENED = {"calendar": {"action": "accept"}}
DONE = "Your next meeting: {} and the tax adviser, tomorrow at nine"


@pytest.fixture(name="wire")
def _wire(start: Start) -> Wire:
    return start("login")


@pytest.fixture(name="browser")
def _browser() -> Iterator[httpx.Client]:
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT) as browser:
        yield browser


def call(wire: Wire, user: str = "alice", **more: Any) -> Reply:
    params = {"name": "next_meeting", "arguments": {}, **more}
    return wire.post(modern("tools/call", params), {"Authorization": f"Bearer {user}-token"})


def page_of(asked: Reply) -> str:
    return str(asked.result["inputRequests"]["calendar"]["params"]["url"])


def log_in(browser: httpx.Client, url: str, *, at_provider: str, here: str, button: str = "Allow") -> httpx.Response:
    """Open the page of an ask, agree there, log in here on the way back, and give the last page."""
    asked = browser.get(url)
    assert "May the tools read your calendar?" in asked.text
    page = browser.post(str(asked.url), data={"who": at_provider, "button": button})
    if page.url.path == "/login":
        page = browser.post(str(page.url), data={"who": here})
    return page


def test_the_person_logs_in_and_the_tool_goes_on(wire: Wire, browser: httpx.Client) -> None:
    asked = call(wire)
    page = log_in(browser, page_of(asked), at_provider="alice", here="alice")
    assert "You can close this page" in page.text
    done = call(wire, inputResponses=OPENED, requestState=asked.state)
    assert done.text == DONE.format("alice")


def test_the_account_may_have_another_name_there(wire: Wire, browser: httpx.Client) -> None:
    asked = call(wire)
    log_in(browser, page_of(asked), at_provider="bob", here="alice")
    assert call(wire, inputResponses=OPENED, requestState=asked.state).text == DONE.format("bob")


def test_a_link_that_alice_sends_to_bob_does_not_give_her_his_calendar(wire: Wire, browser: httpx.Client) -> None:
    asked = call(wire)
    page = log_in(browser, page_of(asked), at_provider="bob", here="bob")
    assert page.status_code == 403
    assert "This link is for somebody else" in page.text


def test_who_denies_at_the_provider_has_said_no(wire: Wire, browser: httpx.Client) -> None:
    asked = call(wire)
    page = log_in(browser, page_of(asked), at_provider="alice", here="alice", button="Deny")
    assert "Nothing was done" in page.text
    refused = call(wire, inputResponses=OPENED, requestState=asked.state)
    assert "declined" in refused.failure


def test_the_provider_takes_a_code_once_and_from_this_server_alone(wire: Wire, browser: httpx.Client) -> None:
    browser.follow_redirects = False
    back = browser.post(page_of(call(wire)), data={"who": "alice", "button": "Allow"}).headers["location"]
    (code,) = parse_qs(urlsplit(back).query)["code"]
    stolen = {"code": code, "redirect_uri": back.partition("?")[0], "client_secret": login.CLIENT_SECRET}
    for _ in range(2):
        reply = browser.post(wire.url.replace("/mcp", "/provider/token"), data={**stolen, "code_verifier": "guessed"})
        assert (reply.status_code, reply.json()) == (400, {"error": "invalid_grant"})
    page = log_in_with(browser, back)
    assert page.status_code == 400
    assert "did not let you in" in page.text


def log_in_with(browser: httpx.Client, back: str) -> httpx.Response:
    browser.follow_redirects = True
    return browser.post(str(browser.get(back).url), data={"who": "alice"})


def test_the_provider_sends_nobody_to_a_page_that_it_does_not_know(wire: Wire, browser: httpx.Client) -> None:
    url = page_of(call(wire))
    for changed in (
        url.replace("%2Fcallbacks%2Fcalendar", "%2Felsewhere"),
        url.replace("127.0.0.1%3A", "evil.example%3A"),
    ):
        assert changed != url
        assert browser.get(changed).status_code == 400
        assert browser.post(changed, data={"who": "alice", "button": "Allow"}).status_code == 400


@needs_curl
def test_the_lines_of_the_docstring_work(wire: Wire, browser: httpx.Client) -> None:
    """As they are meant to be typed: the second one is held while a person is at it in a browser."""
    started, rounds = commands(login)
    assert started == ["uvicorn examples.login:app"]
    shell = subprocess.Popen([SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shell.stdin is not None
    assert shell.stderr is not None
    shell.stdin.write(rounds.replace("http://127.0.0.1:8000/mcp", wire.url))
    shell.stdin.close()
    shown = ""
    while (found := re.search(r'"url":"([^"]*)"', shown)) is None:
        shown += (character := shell.stderr.read(1))
        assert character, shown
    time.sleep(0.3)  # her client is back by now
    assert log_in(browser, found[1], at_provider="alice", here="alice").status_code == 200
    assert shell.stdout is not None
    assert DONE.format("alice") in shell.stdout.read()
    assert shell.wait(TIMEOUT) == 0
    shell.stderr.close()
    shell.stdout.close()
