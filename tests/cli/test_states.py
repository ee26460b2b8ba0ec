"""`mrtr-server open`: what an operator sees of a sealed state."""

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mrtr_server import Context, KeyRing, MRTRServer
from mrtr_server.cli import main
from mrtr_server.testing import Client, yes

RING = "ab" * 32
server = MRTRServer("states", keys=KeyRing.parse(RING))


def look() -> str:
    """Find out something that stays between the server and its store."""
    return "found-in-a-step"


@server.tool
async def pay(amount: int, ctx: Context) -> str:
    """Pay, after two questions."""
    await ctx.step(look)
    await ctx.confirm(f"Pay {amount}?")
    await ctx.confirm("Really?", key="again")
    return "paid"


def run(*arguments: str, keys: str = RING, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["open", *arguments], env={"MRTR_KEYS": keys}, input=given)


def opened(*arguments: str, given: str | None = None) -> Any:
    result = run(*arguments, given=given)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def state() -> str:
    """The state of a flow that was asked twice, and answered once."""
    flow = Client(server).flow("pay", {"amount": 5})
    flow.start()
    return flow.answer({"confirm": yes}).state


def test_it_says_what_the_state_belongs_to_and_what_has_happened(state: str) -> None:
    held = opened(state)
    assert (held["audience"], held["method"], held["target"]) == ("states", "tools/call", "pay")
    assert (held["rounds"], held["redeemed once"]) == (2, True)
    assert held["asked"] == {"again": "confirm"}
    assert list(held["answered"].values()) == [["confirm"]]
    assert [name.rpartition(".")[2] for name in held["steps"].values()] == ["look"]
    assert held["started"] < held["expires"]


def test_answers_and_results_stay_out_unless_they_are_asked_for(state: str) -> None:
    assert "found-in-a-step" not in run(state).stdout
    assert "accept" not in run(state).stdout
    held = opened(state, "--values")
    assert "found-in-a-step" in held["results of steps"].values()
    assert [answer["action"] for answers in held["answers"].values() for answer in answers] == ["accept"]


def test_a_dash_reads_the_state_from_standard_input(state: str) -> None:
    assert opened("-", given=f"{state}\n") == opened(state)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state[:-4] + "AAAA", "forged or damaged"),
        (lambda state: "", "too short"),
        (lambda state: "not a state!", "not Base64"),
    ],
)
def test_what_does_not_open_is_refused_with_the_reason(state: str, change: Any, why: str) -> None:
    result = run("-", given=change(state))
    assert result.exit_code == 1
    assert why in result.output


def test_it_needs_the_keys_of_the_servers(state: str) -> None:
    assert "MRTR_KEYS is not set" in run(state, keys="").output
    assert "not in the ring" in run(state, keys="cd" * 32).output


def test_it_sends_nothing_to_the_terminal_but_text() -> None:
    nasty = "a\x1b[2J\x9b31m\x7f\u202eb\u2066"
    hostile = MRTRServer("hostile", keys=KeyRing.parse(RING), audience=nasty)
    hostile.tool(pay)
    flow = Client(hostile).flow("pay", {"amount": 5})
    flow.start()
    result = run("--values", str(flow.state))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["audience"] == nasty
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", result.stdout)
