"""examples/purchases.py: a purchase waits for the manager, over three replicas, whatever the buyer's client is."""

import time
from typing import Any

import pytest

from examples import purchases
from mrtr_server import MRTRServer
from mrtr_server.testing import Client, SharedStore, replicas, yes

from ..support.serving import TIMEOUT


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
