"""examples/purchases.py: a purchase waits for the manager, over three replicas, whatever the buyer's client is.

And `purchases_agent.py`: a webhook tells the manager's agent of it, from three processes.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples import purchases
from mrtr_server import MRTRServer
from mrtr_server.testing import Client, SharedStore, replicas, yes

from ..support.serving import KEYS, ROOT, TIMEOUT, free_ports, in_process, wait_until
from .pasting import needs_curl, paste, shown_replies


@pytest.fixture
def fleet() -> list[MRTRServer]:
    return replicas(purchases.app, 3, store=SharedStore(), keys=[bytes(32)])


def waiting(manager: Client) -> dict[str, Any]:
    """Return what waits for the manager, when something does."""
    ends = time.monotonic() + TIMEOUT
    while not (listed := manager.call("approvals").structured):
        assert time.monotonic() < ends
    (purchase,) = listed
    return dict(purchase)


def test_it_is_ordered_once_when_the_manager_has_approved_it(fleet: list[MRTRServer]) -> None:
    flow = Client(*fleet, token="bea-token", tasks=True).flow("buy", item="a desk", price=900)
    flow.start()
    manager = Client(*fleet, token="max-token")
    purchase = waiting(manager)
    assert (purchase["item"], purchase["price"]) == ("a desk", 900)
    asked = manager.flow("approve", ticket=purchase["ticket"])
    assert asked.start().questions == {"confirm": "Approve a desk for 900 €?"}
    assert asked.answer(confirm=yes).text == "a desk is approved"
    assert flow.wait().text == "a desk was ordered for 900 €"


@pytest.mark.parametrize("era", ["2026-07-28", "2025-06-18"])
def test_a_buyer_without_tasks_learns_later_that_it_was_refused(fleet: list[MRTRServer], era: str) -> None:
    buyer = Client(*fleet, token="bea-token", era=era)
    told = buyer.call("buy", item="a boat", price=90_000)
    assert "Waiting for approval" in told.text
    manager = Client(*fleet, token="max-token")
    ticket = waiting(manager)["ticket"]
    manager.call("refuse", ticket=ticket, reason="no lake", answers={"confirm": yes})
    ends, ask = time.monotonic() + TIMEOUT, told.text.split()[1]
    while (text := buyer.call("mrtr_result", ask=ask).text).startswith("mrtr-ask"):
        assert time.monotonic() < ends
    assert text == "a boat was not ordered: no lake"


def test_what_is_cheap_waits_for_nobody_and_the_buyer_approves_nothing(fleet: list[MRTRServer]) -> None:
    buyer = Client(*fleet, token="bea-token")
    assert buyer.call("buy", item="a lamp", price=60).text == "a lamp was ordered for 60 €"
    assert buyer.flow("approvals").start().status == 403


TARGET = "examples.purchases:app"

BLOCKS = [
    [line.strip() for line in block.splitlines()]
    for block in re.findall(r"(?:^    .+\n)+", purchases.__doc__ or "", re.MULTILINE)
]
"""The lines of the docstring: they start the server, start the agent, buy, ask how it stands, and list what waits."""


class Agent:
    """The manager's agent, and what it has printed."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.log.read_text() or self.process.poll() is not None, words)
        assert self.process.poll() is None, self.log.read_text()

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)


Served = tuple[list[str], Agent]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Run three processes, as the docstring starts them but each at a port of its own, and the agent."""
    hook = free_ports(1)[0]
    environment = {
        "MRTR_KEYS": KEYS,
        "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/purchases.db",
        "MRTR_WEBHOOKS_ALLOW": f"http://127.0.0.1:{hook}",
    }
    *exported, command = BLOCKS[0]
    assert [name for line in exported for name in re.findall(r"(\w+)=", line)] == [*environment]
    assert (command, BLOCKS[1]) == (f"uvicorn {TARGET} --workers 3", ["python -m examples.purchases_agent"])
    with ExitStack() as stack:
        urls = list[str]()
        for name in ("first", "second", "third"):
            server = stack.enter_context(in_process(TARGET, log=tmp_path / name, environment=environment))
            assert server.port, server.text
            urls.append(f"http://127.0.0.1:{server.port}/mcp")
        line = [sys.executable, "-m", "examples.purchases_agent", urls[0], "--port", str(hook)]
        how: Any = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
        with (tmp_path / "agent").open("w") as output:
            process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=output, stderr=output, **how)
        try:
            agent = Agent(process, tmp_path / "agent")
            agent.wait_for("Told of what waits")
            yield urls, agent
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT)


@needs_curl
def test_the_manager_is_told_and_approves_over_three_processes(served: Served) -> None:
    urls, agent = served
    pairs = zip(BLOCKS[2:], urls, strict=True)
    buy, look, waits = ("\n".join(block).replace("http://127.0.0.1:8000/mcp", url) for block, url in pairs)
    output, shown = paste(f"{buy}\necho $told")
    (told,) = shown_replies("", shown)
    assert "Waiting for approval" in told["result"]["content"][0]["text"]
    agent.wait_for("Approve a desk for 900 €? [yes/no]")
    (listed,) = shown_replies(*paste(waits))
    assert [each["item"] for each in listed["result"]["structuredContent"]] == ["a desk"]
    agent.type("yes")
    agent.wait_for("a desk is approved")
    buyer, ask = Client(*urls, token="bea-token"), output.strip()
    wait_until(lambda: not buyer.call("mrtr_result", ask=ask).text.startswith("mrtr-ask"), "the purchase")
    (done,) = shown_replies(*paste(f"told={ask}\n{look}"))
    assert done["result"]["content"][0]["text"] == "a desk was ordered for 900 €"


def test_what_the_manager_does_not_want_goes_on_waiting(served: Served) -> None:
    urls, agent = served
    Client(*urls, token="bea-token").call("buy", item="a boat", price=90_000)
    agent.wait_for("Approve a boat for 90000 €? [yes/no]")
    agent.type("no")
    agent.wait_for("declined")
    assert waiting(Client(*urls, token="max-token"))["item"] == "a boat"
