"""What redeems a sealed state once, without a server around it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mrtr_server import InProcessStore, KeyRing, Limits, Principal, Redemption, StoreUnavailable
from mrtr_server.concurrency.shutdown import ShutdownDeadline
from mrtr_server.crypto.place_codec import PlainCodec
from mrtr_server.errors import Busy, InternalFault, InvalidRequestState, RequestError, overloaded
from mrtr_server.flow import single_use
from mrtr_server.flow.single_use import Redeemer
from mrtr_server.protocol.messages import Call, Complete
from mrtr_server.storage.quotas import Quotas
from mrtr_server.storage.rows import Lease

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio

PAID = Complete({"paid": True})
CALL = Call("tools/call", {}, "pay", state="sealed")


class Faulty(InProcessStore):
    """A store in which something is down, or another replica has the state, when the test says so."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.down: set[str] = set()
        self.held_by_another = False
        self.asked: list[float] = []
        """When a state was to be redeemed, by the monotonic clock."""
        self.keep: list[float] = []
        """For how long it was to be remembered then."""
        self.renewed: list[float] = []
        """When a lease was renewed, by the monotonic clock."""
        self.offered: list[float] = []
        """When an outcome was to be recorded, by the monotonic clock."""

    async def redeem(self, *args: Any, **more: Any) -> Redemption:
        self.asked.append(time.monotonic())
        self.keep.append(more["keep"])
        self._check("redeem")
        return Redemption("running") if self.held_by_another else await super().redeem(*args, **more)

    async def renew(self, *args: Any, **more: Any) -> bool:
        self.renewed.append(time.monotonic())
        self._check("renew")
        return not self.held_by_another and await super().renew(*args, **more)

    async def record(self, *args: Any) -> bool:
        self.offered.append(time.monotonic())
        self._check("record")
        return not self.held_by_another and await super().record(*args)

    def _check(self, what: str) -> None:
        if what in self.down:
            raise StoreUnavailable(f"no {what} today")


class Desk:
    """The redeemer of one replica, and how often something was paid there."""

    def __init__(self, clock: VirtualTime, **limits: Any) -> None:
        self.clock = clock
        self.store = Faulty(clock.time)
        self.quotas = Quotas(KeyRing.generate(), Limits(**limits))
        self.redeemer = self.replica()
        self.expires = clock.time() + 300
        self.paid = 0

    def replica(self, **more: Any) -> Redeemer:
        return Redeemer(self.store, PlainCodec(), self.quotas, lease=60, clock=self.clock.time, **more)

    async def pay(self, _: Lease) -> Complete:
        self.paid += 1
        return PAID

    def once(self, run: Callable[[Lease], Awaitable[Any]] | None = None, call: Call = CALL) -> "asyncio.Task[Any]":
        """Begin a delivery."""
        return asyncio.ensure_future(self.redeemer.once(call, self.expires, run or self.pay))

    async def until(self, after: float) -> None:
        """Wait until so many seconds after the state has expired."""
        await asyncio.sleep(self.expires + after - self.clock.time())


@pytest.fixture
def desk(virtual_time: VirtualTime) -> Desk:
    return Desk(virtual_time)


def taking(seconds: float, error: Exception | None = None) -> Callable[[Lease], Awaitable[Complete]]:
    """Return a round that takes so long."""

    async def run(_: Lease) -> Complete:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return PAID

    return run


async def left(delivery: "asyncio.Task[Any]", after: float = 1.0) -> None:
    """Let the client of a delivery leave."""
    await asyncio.sleep(after)
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery


class TestAClientThatHasLeft:
    async def test_is_told_of_in_the_log_if_the_round_fails(self, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
        broken = RuntimeError("broken")
        await left(desk.once(taking(2, broken)))
        await asyncio.sleep(5)
        (record,) = caplog.records
        assert record.getMessage() == "tools/call 'pay': its outcome is lost"
        assert (record.levelname, record.exc_info and record.exc_info[1]) == ("ERROR", broken)

    async def test_leaves_no_line_in_the_log_if_the_round_ends(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        await left(desk.once(taking(2)))
        await asyncio.sleep(5)
        assert await desk.once() == PAID
        assert (desk.paid, caplog.messages) == (0, [])

    async def test_before_the_round_is_what_fails_gets_the_failure_itself(self, desk: Desk) -> None:
        with pytest.raises(RuntimeError, match="broken"):
            await desk.once(taking(2, RuntimeError("broken")))

    async def test_with_an_outcome_that_could_not_be_recorded_is_told_of_in_the_log_too(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.store.down = {"record"}
        assert await desk.once() == PAID  # which the store has not taken yet
        caplog.clear()
        desk.store.down = set()
        broken = RuntimeError("broken")

        async def record(*_: Any) -> bool:
            raise broken

        desk.store.record = record  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert [(each.getMessage(), each.exc_info and each.exc_info[1]) for each in caplog.records] == [
            ("tools/call 'pay': its outcome is lost", broken)
        ]


class TestBusy:
    async def test_is_no_outcome_since_the_client_is_told_to_send_the_same_again(self, desk: Desk) -> None:
        ran = 0

        async def run(_: Lease) -> Complete:
            nonlocal ran
            ran += 1
            raise overloaded(1.0)

        for _ in range(2):
            with pytest.raises(Busy):
                await desk.once(run)
        assert ran == 2

    async def test_is_what_the_client_gets_and_nothing_to_record_when_the_store_is_away_by_then(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run(_: Lease) -> Complete:
            await asyncio.sleep(61)  # so the lease is in doubt
            desk.store.down = {"redeem"}
            raise overloaded(1.0)

        desk.store.down = {"renew"}
        with pytest.raises(Busy):
            await desk.once(run)
        assert (desk.redeemer._unrecorded, caplog.messages) == ({}, [])


class TestAnOutcomeThatIsNotRecorded:
    async def test_is_told_of_when_it_is_with_how_long_that_took(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.store.down = {"record"}
        asyncio.get_running_loop().call_later(10, desk.store.down.clear)
        assert await desk.once() == PAID
        await asyncio.sleep(20)
        kept, recorded = caplog.records
        assert "no record today" in kept.getMessage()
        assert recorded.getMessage() == ("tools/call 'pay': its outcome has been recorded, 10 s after the store failed")
        assert [getattr(each, "fields", None) for each in (kept, recorded)] == [
            {"event": event, "work": "round", "method": "tools/call"} for event in ("unrecorded", "recorded_late")
        ]

    async def test_is_offered_again_soon_at_first_and_then_twice_a_second_and_its_client_waits_for_two_seconds(
        self, desk: Desk
    ) -> None:
        desk.store.down = {"record"}
        began = time.monotonic()
        assert await desk.once() == PAID
        assert time.monotonic() - began == pytest.approx(2.0)
        await asyncio.sleep(1.1)
        assert [when - began for when in desk.store.offered] == pytest.approx([0, 0.1, 0.5, 2.0, 2.5, 3.0])

    async def test_is_not_offered_any_more_when_its_state_has_expired_and_the_store_answers_nothing(
        self, desk: Desk
    ) -> None:
        desk.store.down = {"record"}
        assert await desk.once() == PAID
        desk.store.held_by_another, desk.store.down = True, {"redeem"}
        await desk.until(59)
        assert len(desk.redeemer._under_way) == 1
        await desk.until(61)
        assert len(desk.redeemer._under_way) == 0

    async def test_is_what_its_client_gets_at_once_when_its_state_has_expired_by_then(
        self, desk: Desk, virtual_time: VirtualTime, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.store.down = {"record"}
        desk.expires = virtual_time.time() + 10
        began = time.monotonic()
        assert await desk.once(taking(75)) == PAID
        assert time.monotonic() - began == pytest.approx(75)
        assert caplog.messages == ["tools/call 'pay': its outcome was never recorded, and its state has expired"]

    async def test_is_what_its_own_request_gets_when_its_state_has_expired(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.redeemer = desk.replica(outlives=False)
        desk.store.down = {"record"}
        delivery = desk.once()
        await desk.until(-100)
        desk.store.held_by_another, desk.store.down = True, set()
        await desk.until(59)
        assert not delivery.done()
        assert await delivery == PAID
        assert "refused" not in caplog.text
        assert desk.redeemer._unrecorded == {}

    async def test_lets_others_begin_only_as_long_as_there_is_room_for_a_byte(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.store.down = {"record"}
        assert await desk.once() == PAID
        (kept,) = desk.redeemer._unrecorded.values()
        other = Call("tools/call", {}, "pay", state="other")
        monkeypatch.setattr(single_use, "MOST_UNRECORDED_BYTES", len(kept.sealed))
        with pytest.raises(RequestError, match="Nothing was done"):
            await desk.once(call=other)
        assert desk.paid == 1
        monkeypatch.setattr(single_use, "MOST_UNRECORDED_BYTES", len(kept.sealed) + 1)
        assert await desk.once(call=other) == PAID
        assert desk.paid == 2
        desk.store.down = set()
        await asyncio.sleep(5)
        assert desk.redeemer._unrecorded == {}

    def test_has_room_with_the_others_in_64_mib(self) -> None:
        assert single_use.MOST_UNRECORDED_BYTES == 67_108_864


class TestADelivery:
    async def test_that_waits_for_another_one_asks_after_a_hundredth_of_a_second_and_later_twice_a_second(
        self, desk: Desk
    ) -> None:
        desk.store.held_by_another = True
        await left(desk.once(), after=30)
        asked = desk.store.asked
        assert asked[1] - asked[0] == pytest.approx(0.01)
        assert asked[-1] - asked[-2] == pytest.approx(0.5)

    async def test_begins_nothing_from_the_moment_at_which_its_state_expires(
        self, desk: Desk, virtual_time: VirtualTime
    ) -> None:
        desk.expires = virtual_time.time()
        with pytest.raises(InvalidRequestState):
            await desk.once()
        assert desk.paid == 0

    async def test_that_is_cut_off_ends_its_request(self, desk: Desk) -> None:
        delivery = desk.once(taking(10))
        await asyncio.sleep(1)
        (task,) = desk.redeemer._under_way
        task.cancel()
        done, _ = await asyncio.wait([delivery], timeout=60)
        assert done
        assert delivery.cancelled()
        assert task.cancelled()

    @pytest.mark.parametrize(("takes", "renewed"), [(70.0, [20, 40, 60]), (10.0, [])])
    async def test_renews_its_lease_after_each_third_of_it_for_as_long_as_it_runs(
        self, desk: Desk, takes: float, renewed: list[float]
    ) -> None:
        began = time.monotonic()
        assert await desk.once(taking(takes)) == PAID
        await asyncio.sleep(100)
        assert [when - began for when in desk.store.renewed] == pytest.approx(renewed)

    async def test_has_its_lease_from_when_it_was_last_renewed(self, desk: Desk) -> None:
        in_doubt: list[bool] = []

        async def run(lease: Lease) -> Complete:
            await asyncio.sleep(70)
            desk.store.down = {"renew"}
            for _ in range(2):
                await asyncio.sleep(49.5)  # the last renewal was after 60 s
                in_doubt.append(lease.in_doubt)
            return PAID

        assert await desk.once(run) == PAID
        assert in_doubt == [False, True]

    async def test_is_remembered_until_a_minute_after_its_state_has_expired_and_for_a_minute_if_it_comes_later(
        self, desk: Desk
    ) -> None:
        assert await desk.once() == PAID
        await desk.until(50)
        assert await desk.once() == PAID
        assert desk.store.keep == pytest.approx([360, 60])

    async def test_that_comes_late_waits_for_one_that_came_in_time(self, desk: Desk) -> None:
        await desk.until(-10)
        first = desk.once(taking(20))
        await desk.until(1)
        assert await desk.once() == PAID
        assert await first == PAID
        assert desk.paid == 0

    async def test_that_comes_late_runs_again_what_a_lost_replica_had_begun_in_time(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        await desk.until(-30)
        desk.store.down = {"renew"}
        lost = desk.once(taking(10_000))
        await desk.until(1)
        assert await desk.once() == PAID
        assert desk.paid == 1
        (record,) = caplog.records
        assert record.getMessage().endswith("the round runs again")
        assert getattr(record, "fields", None) == {"event": "takeover", "work": "round", "method": "tools/call"}
        desk.redeemer._under_way.clear()
        lost.cancel()

    async def test_that_another_replica_took_over_waits_for_that_one_though_the_state_has_expired_by_its_clock(
        self, desk: Desk, virtual_time: VirtualTime
    ) -> None:
        desk.expires = virtual_time.time() + 10
        first = desk.once(taking(80))
        await asyncio.sleep(1)
        desk.store.held_by_another = True
        await desk.until(100)
        assert not first.done()
        desk.store.held_by_another = False  # that one was killed, and its lease has ended
        assert await first == PAID
        assert len(desk.store.offered) == 1

    async def test_whose_lease_another_replica_has_for_certain_offers_no_outcome(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        delivery = desk.once(taking(30))
        await asyncio.sleep(1)
        desk.store.held_by_another = True
        await asyncio.sleep(30)
        assert desk.store.offered == []
        (record,) = caplog.records
        assert record.getMessage().startswith(
            "tools/call 'pay': this replica was silent for longer than its lease of 60 s, so another replica may have"
        )
        assert getattr(record, "fields", None) == {"event": "result_dropped", "work": "round", "method": "tools/call"}
        await left(delivery)

    async def test_whose_result_is_no_json_gets_a_fault_of_which_the_log_has_the_cause(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run(_: Lease) -> Complete:
            return Complete({"paid": object()})

        for _ in range(2):
            with pytest.raises(InternalFault):
                await desk.once(run)
        (record,) = caplog.records
        assert record.getMessage().startswith("'pay' returned a result that is not JSON")
        assert record.exc_info
        assert isinstance(record.exc_info[1], ValueError)

    async def test_waits_for_another_one_until_no_replica_takes_the_state_any_more(
        self, desk: Desk, virtual_time: VirtualTime
    ) -> None:
        desk.store.held_by_another = True
        with pytest.raises(InvalidRequestState):
            await desk.once()
        assert desk.expires + 60 <= virtual_time.time() < desk.expires + 61
        assert desk.paid == 0

    async def test_is_refused_when_its_caller_has_used_up_its_share(self, virtual_time: VirtualTime) -> None:
        desk = Desk(virtual_time, stored_states=4, caller_share=0.5)
        for name, most in (("ann", 2), ("bob", 2)):
            for number in range(most):
                call = Call("tools/call", {}, "pay", state=f"{name} {number}", principal=Principal(name, "", ""))
                assert await desk.once(call=call) == PAID
        more = Call("tools/call", {}, "pay", state="ann 2", principal=Principal("ann", "", ""))
        with pytest.raises(RequestError):
            await desk.once(call=more)
        assert desk.paid == 4


class TestTheEnd:
    """The shutdown is of 40 s, so what runs is cut off after 35, and all is to be over after 39."""

    @pytest.mark.parametrize(("takes", "waited"), [(30.0, 29.0), (50.0, 35.0)])
    async def test_waits_for_what_runs_until_the_cut_off(
        self, desk: Desk, caplog: pytest.LogCaptureFixture, takes: float, waited: float
    ) -> None:
        await left(desk.once(taking(takes)))
        shutdown = ShutdownDeadline(40)
        shutdown.begin()
        began = time.monotonic()
        await desk.redeemer.finish(shutdown)
        assert time.monotonic() - began == pytest.approx(waited)
        assert len(caplog.records) == (0 if waited < 35 else 1)
        await asyncio.sleep(60)

    async def test_waits_after_that_for_a_third_of_what_is_left(self, desk: Desk) -> None:
        await left(desk.once(taking(60)))
        shutdown = ShutdownDeadline(40)
        shutdown.begin()
        await asyncio.sleep(36)
        began = time.monotonic()
        await desk.redeemer.finish(shutdown)
        assert time.monotonic() - began == pytest.approx(1)
        await asyncio.sleep(60)

    def test_waits_for_and_tells_of_what_runs_on_its_own_event_loop(
        self, virtual_time: VirtualTime, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk = Desk(virtual_time)
        shutdown = ShutdownDeadline(40)

        async def unrecorded() -> None:
            desk.store.down = {"record"}
            assert await desk.once() == PAID

        async def ending() -> float:
            shutdown.begin()
            began = time.monotonic()
            await desk.redeemer.finish(shutdown)
            return time.monotonic() - began

        async def ending_while_one_runs() -> float:
            await left(desk.once(taking(60), Call("tools/call", {}, "pay", state="other")))
            return await ending()

        with (
            asyncio.Runner(loop_factory=virtual_time.new_loop) as other,
            asyncio.Runner(loop_factory=virtual_time.new_loop) as own,
        ):
            other.run(unrecorded())
            caplog.clear()
            assert own.run(ending()) == 0
            assert caplog.messages == []
            assert own.run(ending_while_one_runs()) == pytest.approx(34)
            (message,) = caplog.messages
            assert "(1 of them, of which 0 have run)" in message
