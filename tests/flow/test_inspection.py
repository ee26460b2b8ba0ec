"""What an operator reads of a state: whom it belongs to and how far it is, and values only where they are asked for."""

from typing import Any

import pytest

from mrtr_server import Context, KeyRing, MRTRServer, SealedCodec
from mrtr_server.errors import InvalidRequestState
from mrtr_server.flow.states import inspect_state, utc_time
from mrtr_server.testing import AsyncClient, Clock, replica

from ..support.models import Login

RING = KeyRing([bytes(32)])


def count(number: int) -> int:
    return number + 1


async def state() -> str:
    """Return the state of a flow that has asked twice and done something."""
    app = replica(MRTRServer("bank", keys=RING), clock=Clock(1_000_000.0))

    @app.tool
    async def greet(ctx: Context) -> str:
        login = await ctx.elicit("Who?", Login)
        await ctx.step(count, 6, key="counted")
        await ctx.confirm(f"{login.name}?")
        return "Hello"

    flow = AsyncClient(app).flow("greet")
    await flow.start()
    await flow.answer(login={"name": "secret"})
    assert isinstance(flow.state, str)
    return flow.state


SHOWN: dict[str, Any] = {
    "audience": "bank",
    "principal": "",
    "method": "tools/call",
    "target": "greet",
    "started": "1970-01-12T13:46:40+00:00",
    "rounds": 2,
    "handed over without a question": 0,
    "redeemed once": True,
    "asked": {"confirm": "confirm"},
    "has state of the handler": False,
}


@pytest.mark.anyio
@pytest.mark.parametrize("values", [False, True])
async def test_it_has_values_only_where_they_are_asked_for(values: bool) -> None:
    token = await state()
    shown = inspect_state(token, RING, values=True) if values else inspect_state(token, RING)
    assert ("secret" in str(shown), "results of steps" in shown) == (values, values)
    assert {name: shown[name] for name in SHOWN} == SHOWN
    assert list(shown["steps"]) == ["counted"]
    assert list(shown["answered"]) == ["login"]
    if values:
        assert shown["results of steps"] == {"counted": 7}
        assert shown["state of the handler"] is None


def test_a_moment_is_written_to_the_second() -> None:
    assert utc_time(1_700_000_000.75) == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize("payload", [b"[]", b"{}", b"not JSON", b'{"b":1,"t":"x"}'])
def test_what_is_sealed_and_no_journal_is_said_to_be_none(payload: bytes) -> None:
    with pytest.raises(InvalidRequestState) as refusal:
        inspect_state(SealedCodec(RING).seal(payload), RING)
    assert refusal.value.reason == "not a journal"
