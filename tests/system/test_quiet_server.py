"""Where all is well the log has no warning, also with limits that are nearly reached."""

import logging
from typing import Any

import pytest

from mrtr_server import InProcessStore, Limits
from mrtr_server.testing import AsyncClient, Clock, accept, yes

from ..support.golden_app import DONE, NOW, golden

pytestmark = pytest.mark.anyio

NARROW = Limits(
    body_bytes=2000, json_depth=8, values=40, answers=1, rounds=2, state_bytes=2000, max_concurrency=1, tasks=1
)
"""As much as the flows below need, and little more."""


class Shared(InProcessStore):
    shared = True


@pytest.mark.parametrize("limits", [Limits(), NARROW], ids=["default limits", "limits with little room left"])
async def test_flows_of_every_kind_end_without_a_warning(caplog: pytest.LogCaptureFixture, limits: Limits) -> None:
    DONE.clear()
    with caplog.at_level(logging.WARNING):
        app = golden(store=Shared(Clock(NOW)), limits=limits)
        client = AsyncClient(app, token="ann-token", headers={"Host": "shop.example"})
        answers: dict[str, Any] = {"login": {"name": "Ann"}, "confirm": yes}
        async with client:
            done = await client.call("order", item="tea", answers=answers)
            assert (done.text, done.rounds) == ("tea reserved, tea paid", 3)
            assert (await client.call("survey", answers={"login": {"name": "Ann"}})).text == "Ann: 7"
            assert (await client.call("buy", item="tea", answers={"confirm": yes})).text == "tea paid"
            assert (await client.flow("log_in").start()).asks["bank"].kind == "url"
            assert len((await client.request("tools/list")).result["tools"]) == 2
            tasks = AsyncClient(app, token="ann-token", tasks=True)
            shipped = await tasks.call("ship", item="tea", answers={"login": accept(name="Ann")})
            assert shipped.text == "tea reserved, tea paid, for Ann"
    assert [record.getMessage() for record in caplog.records] == []
    assert DONE == ["reserve tea", "pay 3 for tea", "pay 1 for tea", "reserve tea", "pay 1 for tea"]
