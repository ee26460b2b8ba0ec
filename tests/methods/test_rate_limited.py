"""Which requests of which methods count for which rate, and that what is refused is not served."""

from typing import Any

import pytest

from mrtr_server.errors import RateLimited
from mrtr_server.methods.rate_limited import rated
from mrtr_server.protocol.messages import ASKING_METHODS, Call, Complete, Outcome, Outlet

from ..support.methods import Notes, Rates

pytestmark = pytest.mark.anyio

DONE = Complete({})


async def serve(call: Call, outlet: Outlet) -> Outcome:
    return DONE


async def counted(method: str, rates: Rates, state: str | None = None) -> list[str]:
    """Send one request; return what it counts as."""
    limiter: Any = rates
    assert await rated(method, serve, limiter)(Call(method, {}, state=state), Notes()) is DONE
    return rates.counted


@pytest.mark.parametrize("method", sorted(ASKING_METHODS))
class TestAMethodThatMayAsk:
    async def test_counts_as_a_call_where_it_begins_and_as_another_request_where_it_continues(
        self, method: str
    ) -> None:
        assert await counted(method, Rates(calls=True, others=True)) == ["call"]
        assert await counted(method, Rates(calls=True, others=True), "a state") == ["other"]

    async def test_counts_once_a_flow_where_calls_alone_have_a_rate(self, method: str) -> None:
        assert await counted(method, Rates(calls=True)) == ["call"]
        assert await counted(method, Rates(calls=True), "a state") == []

    async def test_counts_for_its_later_rounds_where_other_requests_alone_have_a_rate(self, method: str) -> None:
        assert await counted(method, Rates(others=True)) == []
        assert await counted(method, Rates(others=True), "a state") == ["other"]


class TestAnyOther:
    @pytest.mark.parametrize("method", ["tools/list", "completion/complete", "server/discover", "tasks/get"])
    async def test_counts_as_another_request(self, method: str) -> None:
        assert await counted(method, Rates(calls=True, others=True)) == ["other"]
        assert await counted(method, Rates(calls=True)) == []

    @pytest.mark.parametrize("method", ["ping", "tasks/cancel"])
    async def test_is_free_where_it_costs_nothing_or_ends_what_does(self, method: str) -> None:
        assert await counted(method, Rates(calls=True, others=True)) == []


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
async def test_a_request_that_is_refused_is_not_served(method: str) -> None:
    served: list[Call] = []

    async def note(call: Call, outlet: Outlet) -> Outcome:
        served.append(call)
        return DONE

    limiter: Any = Rates(calls=True, others=True, full=RateLimited("per_principal", "1/minute", 1.0))
    with pytest.raises(RateLimited):
        await rated(method, note, limiter)(Call(method, {}), Notes())
    assert served == []


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "ping"])
def test_a_method_that_does_not_count_is_the_same(method: str) -> None:
    limiter: Any = Rates()
    assert rated(method, serve, limiter) is serve
