"""Rule 11 of a flow: a client that closes the stream cancels its request."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress

import pytest

from mrtr_server import (
    Context,
    MRTRServer,
)
from mrtr_server.testing import Answer, AsyncClient, accept, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.effects import EFFECTS, effect, happened
from ..support.flows import AsyncFlow
from ..support.models import Login
from ..support.wire import modern

pytestmark = pytest.mark.anyio


class TestRule11AClientThatClosesTheStreamCancels:
    """Rule 11. Its request is cancelled at the next boundary: a running step finishes, nothing comes after it. A round
    whose state is redeemed once runs to its end and is recorded. With real sockets: `transport/test_endpoint.py`.
    """

    gate: asyncio.Event

    def begin(
        self, app: MRTRServer, streamed: bool, state: str | None = None, answers: Mapping[str, Answer] | None = None
    ) -> Exchange:
        """Send a round, the second if there is a state; with streaming, the reply is a stream from the first note."""
        given = {"requestState": state, "inputResponses": {key: answer.raw for key, answer in (answers or {}).items()}}
        params = {} if state is None else given
        extra = {"progressToken": "p"} if streamed else {}
        message = modern("tools/call", {"name": "pay", **params}, **extra)
        return Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()

    async def charge(self) -> str:
        effect("begun")
        await self.gate.wait()
        return effect("charged")

    def add_pay(self, app: MRTRServer, *, single_use: bool = False, confirms: bool = False) -> None:
        self.gate = asyncio.Event()

        @app.tool(single_use=single_use)
        async def pay(ctx: Context) -> str:
            ctx.progress(1)
            if confirms:
                await ctx.confirm("Pay?")
            else:
                await ctx.elicit("Who pays?", Login)
            try:
                await ctx.step(self.charge)
            except asyncio.CancelledError:
                effect("cancelled")
                raise
            return await ctx.step(effect, "mailed")

    async def asked(self, app: MRTRServer) -> AsyncFlow:
        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).needs_input
        return flow

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    async def test_the_request_ends_at_the_next_boundary_so_a_running_step_finishes(
        self, app: MRTRServer, streamed: bool
    ) -> None:
        self.add_pay(app)
        flow = await self.asked(app)
        answers = {"login": accept(name="ann")}
        under_way = self.begin(app, streamed, flow.state, answers)
        await happened("begun")
        under_way.disconnect()
        await happened("cancelled")
        await asyncio.sleep(0.02)
        assert not under_way.has_ended, "it waits for its step, so that a server that drains does, too"
        self.gate.set()
        await under_way.end()
        assert EFFECTS == ["begun", "cancelled", "charged"]
        await asyncio.sleep(0.02)
        assert EFFECTS == ["begun", "cancelled", "charged"], "nothing comes after it"

    async def test_what_a_handler_returns_that_swallowed_it_is_dropped_and_logged(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        async def pay(ctx: Context) -> str:
            effect("begun")
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            return "paid"

        under_way = self.begin(app, streamed=False)
        await happened("begun")
        under_way.disconnect()
        assert b"paid" not in (await under_way.end()).body
        assert "'pay' caught the cancellation that ended its round, and returned a value" in caplog.text

    @pytest.mark.parametrize("streamed", [False, True], ids=["of JSON", "of a stream"])
    @pytest.mark.parametrize("why", [{"single_use": True}, {"confirms": True}], ids=str)
    async def test_a_single_use_round_runs_to_its_end_and_is_recorded(
        self, app: MRTRServer, streamed: bool, why: dict[str, bool]
    ) -> None:
        self.add_pay(app, **why)
        flow = await self.asked(app)
        answers = {"confirm": yes} if "confirms" in why else {"login": accept(name="ann")}
        under_way = self.begin(app, streamed, flow.state, answers)
        await happened("begun")
        under_way.disconnect()
        await under_way.end()
        self.gate.set()
        await happened("mailed")
        assert (await flow.send(answers)).text == "mailed"
        assert EFFECTS == ["begun", "charged", "mailed"]
