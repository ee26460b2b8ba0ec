"""Middleware nests, watches and counts: which requests count for which rate, and how each end is named."""

import asyncio
from typing import Any, get_args

import pytest

from mrtr_server.errors import Declined, InternalFault, RateLimited, RequestError
from mrtr_server.flow.endings import Asking, Backgrounded, Yielded
from mrtr_server.flow.journal import Journal
from mrtr_server.methods.middleware import Came, Serve, compose, count, note_end, watch
from mrtr_server.protocol.messages import (
    ASKING_METHODS,
    Acknowledged,
    Call,
    Complete,
    HandedOver,
    NeedsInput,
    Outcome,
    Outlet,
    TaskPage,
    YieldReason,
)
from mrtr_server.tasks.round_executor import TaskEnd

from ..support.methods import Notes, Rates

pytestmark = pytest.mark.anyio

DONE = Complete({})


async def serve(call: Call, outlet: Outlet) -> Outcome:
    return DONE


async def counted(method: str, rates: Rates, state: str | None = None) -> list[str]:
    """Send one request; return what it counts as."""
    limiter: Any = rates
    assert await count(limiter)(serve)(Call(method, {}, state=state), Notes()) is DONE
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
        await count(limiter)(note)(Call(method, {}), Notes())
    assert served == []


async def test_the_first_is_the_outermost_and_without_any_nothing_is_between() -> None:
    happened: list[str] = []

    def named(name: str) -> Any:
        def around(inner: Serve) -> Serve:
            async def outer(call: Call, outlet: Outlet) -> Any:
                happened.append(name)
                return await inner(call, outlet)

            return outer

        return around

    assert compose(serve, []) is serve
    assert await compose(serve, [named("first"), named("second")])(Call("ping", {}), Notes()) is DONE
    assert happened == ["first", "second"]


async def test_who_watches_gets_what_it_came_to_once_and_how_it_ended_and_how_long_it_took() -> None:
    seen: list[tuple[str, Came]] = []

    async def fail(call: Call, outlet: Outlet) -> Outcome:
        await asyncio.sleep(0.01)
        raise error

    def end(call: Call, outlet: Outlet, begun: str, came: Came) -> None:
        assert call.trace.seconds > 0
        seen.append((f"{begun} {call.trace.end}", came))

    watched, error = watch(lambda call, outlet: call.target, end), InternalFault("12345678")
    await watched(serve)(Call("tools/call", {}, "one"), Notes())
    with pytest.raises(InternalFault):
        await watched(fail)(Call("tools/call", {}, "two"), Notes())
    assert seen == [("one completed", DONE), ("two error", error)]


ENDS: list[tuple[Came, str]] = [
    (Complete({}), "completed"),
    (Complete({"isError": True}), "tool_error"),
    (NeedsInput({}, "state"), "asked"),
    (Asking({}), "asked"),
    (HandedOver("state"), "handed_over"),
    (Yielded(YieldReason.DRAINING), "handed_over"),
    (Backgrounded(Journal(0.0)), "handed_over"),
    (TaskPage([]), "completed"),
    (Acknowledged("task"), "completed"),
    (Declined("no"), "declined"),
    (InternalFault("12345678"), "error"),
    (ValueError(), "error"),
    (asyncio.CancelledError(), "cancelled"),
]


@pytest.mark.parametrize(("came", "end"), ENDS, ids=lambda each: each if isinstance(each, str) else type(each).__name__)
def test_each_end_has_a_word(came: Came, end: str) -> None:
    assert note_end(Call("tools/call", {}), came) == end


def test_a_no_is_told_from_a_failure() -> None:
    call = Call("tools/call", {})
    call.trace.declined = True
    assert note_end(call, Complete({"isError": True})) == "declined"


def test_no_outcome_is_taken_for_an_error() -> None:
    for kind in {*get_args(Outcome), *get_args(TaskEnd)} - {Complete, RequestError}:
        assert note_end(Call("tools/call", {}), kind.__new__(kind)) != "error", kind
