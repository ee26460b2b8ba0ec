"""Faults of a handler: what its client sees of them, what the log has, and that the server lives on."""

import logging

import pytest

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    KeyRing,
    MRTRServer,
    State,
    ToolError,
)
from mrtr_server.testing import AsyncClient

from ..support.models import Login

pytestmark = pytest.mark.anyio


class TestHandlersFaults:
    async def test_the_client_sees_a_reference_and_the_log_has_the_traceback(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        def broken() -> str:
            raise RuntimeError("the database password is hunter2")

        text = (await AsyncClient(app).flow("broken").start()).failure
        assert "hunter2" not in text
        reference = text.rpartition(" ")[2].rstrip(")")
        assert reference in caplog.text
        assert "hunter2" in caplog.text

    async def test_debug_shows_it(self) -> None:
        app = MRTRServer("rules", keys=KeyRing.generate(), debug=True)

        @app.tool
        def broken() -> str:
            raise RuntimeError("hunter2")

        assert (await AsyncClient(app).flow("broken").start()).failure == "RuntimeError: hunter2"

    async def test_tool_errors_are_for_the_model(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        def broken() -> str:
            raise ToolError("no such city")

        with caplog.at_level(logging.WARNING):
            assert (await AsyncClient(app).flow("broken").start()).failure == "no such city"
        assert not caplog.records

    async def test_a_function_that_asks_nothing_and_keeps_nothing_would_run_for_ever_so_it_fails(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        def nothing() -> str | InputRequired:
            return InputRequired()

        assert "reference" in (await AsyncClient(app).flow("nothing").start()).failure
        assert "InputRequired() has neither an ask nor a state" in caplog.text

    async def test_a_state_that_is_not_of_its_declared_type_fails_and_asks_nothing(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.tool
        def counting(state: State[int]) -> str | InputRequired:
            return InputRequired(login=Elicit("who?", Login), state=object())

        assert "reference" in (await AsyncClient(app).flow("counting").start()).failure
        assert "InputRequired(state=...) can't be kept as its declared type" in caplog.text


class TestNothingEndsTheServer:
    async def test_not_even_sys_exit(self, app: MRTRServer) -> None:
        @app.tool
        def plain() -> str:
            raise SystemExit(1)

        @app.tool
        async def inline(ctx: Context) -> str:
            raise SystemExit(1)

        @app.tool
        async def step(ctx: Context) -> str:
            def leave() -> None:
                raise SystemExit(1)

            await ctx.step(leave)
            return "done"

        for target in ("plain", "inline", "step"):
            assert "reference" in (await AsyncClient(app).flow(target).start()).failure
