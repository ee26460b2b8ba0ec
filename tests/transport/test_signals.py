"""SIGTERM: who goes before whom, and what is left behind. The tests send it to themselves."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from mrtr_server import Limits
from mrtr_server.flow.admission import Admission
from mrtr_server.transport.web_server import drain_on_sigterm, forget_sigterm

from ..support.serving import TIMEOUT


class WebServer:
    """What handles the signal in uvicorn."""

    def __init__(self, *, reload: bool = False) -> None:
        self.config = SimpleNamespace(reload=reload)
        self.signals: list[tuple[int, bool]] = []

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self.signals.append((number, frame is not None))


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Leave the handler of the tests as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def web() -> WebServer:
    web = WebServer()
    signal.signal(signal.SIGTERM, web.handle_exit)
    return web


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def admission() -> Admission:
    return Admission(Limits())


async def until(happened: list[Any]) -> float:
    """Wait until something has happened; return how long it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(TIMEOUT):
        while not happened:  # noqa: ASYNC110  a signal is no event
            await asyncio.sleep(0.001)
    return clock() - began


class TestTheChain:
    async def scene(self, web: WebServer, lame_duck: float = 0.1) -> float:
        served = admission()
        drain_on_sigterm(served, lame_duck)
        terminate()
        assert served.draining
        assert web.signals == []
        return await until(web.signals)

    def test_drains_at_once_and_calls_the_handler_that_was_there_later(
        self, web: WebServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "mrtr_server"):
            assert asyncio.run(self.scene(web)) >= 0.09
        assert web.signals == [(signal.SIGTERM, True)]
        assert "Draining" in caplog.text

    def test_it_is_called_in_the_context_of_nobody_whatever_the_signal_interrupts(self) -> None:
        """Connections that wait are accepted then, and their requests would begin in a step of another call."""
        step: ContextVar[str] = ContextVar("step", default="")
        found: list[str] = []

        def following(number: int, frame: FrameType | None) -> None:
            found.append(step.get())

        async def interrupted(served: Admission) -> None:
            step.set("charge")
            terminate()

        async def scene() -> None:
            served = admission()
            drain_on_sigterm(served, 0.01)
            served.on_drain(lambda: found.append(step.get()))
            await asyncio.create_task(interrupted(served))
            while len(found) < 2:  # noqa: ASYNC110  a signal is no event
                await asyncio.sleep(0.001)

        signal.signal(signal.SIGTERM, following)
        asyncio.run(asyncio.wait_for(scene(), TIMEOUT))
        assert found == ["", ""]

    def test_a_second_signal_calls_it_at_once_and_it_is_called_once(self, web: WebServer) -> None:
        async def scene() -> None:
            drain_on_sigterm(admission(), 0.05)
            kept.append(admission())
            drain_on_sigterm(kept[0], 0.05)
            terminate()
            await asyncio.sleep(0)
            terminate()
            assert len(web.signals) == 1
            await asyncio.sleep(0.1)
            assert len(web.signals) == 1

        kept: list[Admission] = []
        asyncio.run(scene())

    def test_it_is_called_once_though_both_came_before_the_loop_turned(self, web: WebServer) -> None:
        async def scene() -> None:
            served = admission()
            drain_on_sigterm(served, 0.05)
            terminate()
            terminate()
            assert len(web.signals) == 1
            await asyncio.sleep(0.1)
            assert len(web.signals) == 1

        asyncio.run(scene())

    def test_without_a_lame_duck_it_is_called_at_once(self, web: WebServer) -> None:
        async def scene() -> None:
            served = admission()
            drain_on_sigterm(served, 0)
            terminate()
            assert served.draining
            assert len(web.signals) == 1

        asyncio.run(scene())

    def test_several_servers_are_one_link_and_the_longest_counts(self, web: WebServer) -> None:
        async def scene() -> float:
            served = [admission(), admission(), admission()]
            for each, lame_duck in zip(served, (0.01, 0.1, 0.01), strict=True):
                drain_on_sigterm(each, lame_duck)
                drain_on_sigterm(each, lame_duck)
            terminate()
            assert all(each.draining for each in served)
            took = await until(web.signals)
            await asyncio.sleep(0.05)
            return took

        assert asyncio.run(scene()) >= 0.09
        assert len(web.signals) == 1

    def test_nobody_waits_where_uvicorn_reloads(self) -> None:
        web = WebServer(reload=True)
        signal.signal(signal.SIGTERM, web.handle_exit)

        async def scene() -> None:
            served = admission()
            drain_on_sigterm(served, 60)
            terminate()
            assert served.draining
            assert len(web.signals) == 1

        asyncio.run(scene())

    def test_a_signal_after_the_loop_has_ended_is_for_the_handler_that_was_there(self, web: WebServer) -> None:
        served = admission()

        async def scene() -> None:
            drain_on_sigterm(served, 60)

        asyncio.run(scene())
        terminate()
        assert len(web.signals) == 1


class TestWhatIsLeft:
    def test_nothing_of_servers_that_have_ended(self, web: WebServer) -> None:
        async def scene() -> None:
            served = [admission(), admission()]
            for each in served:
                drain_on_sigterm(each, 1)
            forget_sigterm(served[0])
            assert signal.getsignal(signal.SIGTERM) != web.handle_exit
            forget_sigterm(served[0])
            forget_sigterm(served[1])
            assert signal.getsignal(signal.SIGTERM) == web.handle_exit
            forget_sigterm(served[1])

        asyncio.run(scene())

    def test_nothing_waits_for_a_server_that_nobody_holds_any_more(self, web: WebServer) -> None:
        async def scene() -> None:
            drain_on_sigterm(admission(), 60)
            gc.collect()
            terminate()
            assert len(web.signals) == 1

        asyncio.run(scene())

    def test_what_somebody_put_before_us_stays(self, web: WebServer) -> None:
        async def scene() -> None:
            served, later = admission(), WebServer()
            drain_on_sigterm(served, 1)
            signal.signal(signal.SIGTERM, later.handle_exit)
            forget_sigterm(served)
            assert signal.getsignal(signal.SIGTERM) == later.handle_exit

        asyncio.run(scene())


class TestWhereNothingIsInstalled:
    @pytest.mark.parametrize("present", [signal.SIG_DFL, signal.SIG_IGN])
    def test_without_a_web_server(self, present: signal.Handlers) -> None:
        signal.signal(signal.SIGTERM, present)

        async def scene() -> None:
            drain_on_sigterm(admission(), 1)

        asyncio.run(scene())
        assert signal.getsignal(signal.SIGTERM) == present

    def test_before_a_handler_of_the_loop_which_is_called_anyway(self) -> None:
        async def scene() -> None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: None)
            present = signal.getsignal(signal.SIGTERM)
            drain_on_sigterm(admission(), 1)
            assert signal.getsignal(signal.SIGTERM) == present
            loop.remove_signal_handler(signal.SIGTERM)

        asyncio.run(scene())

    def test_outside_of_the_main_thread(self, web: WebServer) -> None:
        async def scene() -> None:
            drain_on_sigterm(admission(), 1)

        thread = threading.Thread(target=lambda: asyncio.run(scene()))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) == web.handle_exit
