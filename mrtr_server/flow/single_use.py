"""Single use: one delivery of a sealed state runs, and the others get its outcome."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain, repeat

from ..concurrency.running import running_loop
from ..concurrency.shutdown import ShutdownDeadline
from ..concurrency.waiting import wait_until
from ..crypto.digests import canonical, digest_twice
from ..crypto.place_codec import RowCodec
from ..errors import FORGOTTEN, Busy, InternalFault, InvalidRequestState, RequestError, StateFault, StoreUnavailable
from ..logs.failures import report_failure
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call, Outcome
from ..storage.base import Store
from ..storage.health import end_request, not_executed, seconds_left
from ..storage.quotas import Quotas
from ..storage.rows import GRACE_SECONDS, RECONNECT_SECONDS, Lease, Redemption
from .journal import REDEEMED_FOR
from .outcome_codec import dump_outcome, load_outcome

logger = logging.getLogger("mrtr_server")

SHORTEST_WAIT = 0.01
LONGEST_WAIT = 0.5
"""How many seconds a delivery waits at most before it asks the store again for the outcome of another one."""

RECORD_AGAIN = (0.1, 0.4, 1.5)
"""After how many seconds an outcome that the store did not take is offered again. Its client waits for so long in all,
and a little for the attempt that is under way then.
"""

LAST_ATTEMPT = 0.5
"""How many seconds its client waits for that attempt."""

RECORD_INTERVAL = 0.5
"""How often it is offered from then on, in seconds, until the state has expired."""

MOST_UNRECORDED_BYTES = 64 * 1024 * 1024
"""How large the outcomes may be together that wait to be recorded. Beyond that nothing begins that would add one."""

OTHER_EPOCH = (
    "it names another epoch of the store. So it is of another region's store, or of before `mrtr-server db new-epoch`, "
    "and nobody here knows whether it was redeemed"
)
"""Why a state is refused that was sealed for another store, or in another life of this one."""

RoundResult = Outcome | RequestError


Run = Callable[[Lease], Awaitable[Outcome]]


@dataclass(slots=True)
class _Delivery:
    call: Call
    state: str
    answers: str
    expires: float
    is_late: bool
    """Whether the state had expired when this delivery came."""
    run: Run
    epoch: str = ""
    """The epoch of the store that the state names; empty where it names none."""
    begun: float = math.inf
    """When its flow began, in seconds since the epoch; infinity where that is not known."""
    client_left: bool = False
    result: RoundResult | None = None
    sealed: bytes = b""
    unrecorded_since: float | None = None
    renewal: "asyncio.Task[None] | None" = None
    waiter: "asyncio.Future[RoundResult] | None" = None
    """What the client's request waits for, where it does not run the delivery itself."""
    is_told: bool = False
    """Whether there is a reply for the client, which may have left."""
    error: StoreUnavailable | None = None
    waited: float = 0.0
    """For how many seconds it has waited for another delivery of its state."""

    def pauses(self) -> Iterator[float]:
        while True:
            pause = min(max(self.waited / 4, SHORTEST_WAIT), LONGEST_WAIT)
            self.waited += pause
            yield pause

    def runs_by(self, redemption: Redemption) -> bool:
        """Return whether a redemption lets it run without a further look, as nearly always."""
        return redemption.verdict == "granted" and not (self.is_late or self.client_left)

    def reply(self, result: RoundResult) -> None:
        if not self.is_told:
            self.is_told = True
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(result)


@dataclass(eq=False, repr=False)
class Redeemer:
    """Sees that each sealed state is redeemed once, on all replicas that share a store.

    An outcome that the store can't take is kept here, and offered to it until the state has expired. Meanwhile
    deliveries of that state are answered from here.

    `lease`: how many seconds a replica may be silent before another may run what it was running.
    `outlives`: whether what has begun outlives its request, where that is cancelled.
    """

    store: Store
    codec: RowCodec
    quotas: Quotas
    _: KW_ONLY
    lease: float
    clock: Callable[[], float]
    outlives: bool = True
    _refusals: RefusalLog = field(default_factory=RefusalLog, init=False)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _unrecorded: dict[str, _Delivery] = field(default_factory=dict, init=False)
    """Those that ran here and whose outcomes the store has not taken, by the digests of their states."""

    @property
    def unrecorded(self) -> int:
        return len(self._unrecorded)

    async def epoch(self) -> str:
        with suppress(StoreUnavailable):
            if self.store.has_epochs:
                return await self.store.epoch()
        return ""

    async def once(
        self,
        call: Call,
        expires: float,
        run: Run,
        purpose: bytes = b"",
        answers: bytes | None = None,
        *,
        epoch: str = "",
        begun: float = math.inf,
    ) -> Outcome:
        """Run a delivery, or return the outcome of an earlier one.

        A client that leaves does not end what has begun: it runs to its end, and is recorded, if it `outlives` its
        request. A delivery that comes when the state has expired begins nothing. But what began before has its outcome,
        if need be by running again, for `REDEEMED_FOR`.

        Raises `RequestError`: what `run` raised, now or earlier; or the state was redeemed with other answers, or names
        another epoch, or its caller was forgotten since its flow had `begun`, or the store can't say whether it was
        redeemed, or remembers as many as it may.

        `call`: its state has been opened.
        `run`: is called at most once.
        `purpose`: what is redeemed of the state: one state may be redeemed once for each.
        `answers`: the answers of the call, in one form for all deliveries; None where a client sent them in any.
        """
        state = purpose + str(call.state).encode()
        # The state salts the digest of the answers: a reader of the store can't try out a yes and a no.
        given = canonical(dict(call.answers or {})) if answers is None else answers
        is_late = expires <= self.clock()
        delivery = _Delivery(call, *digest_twice(state, b" " + given), expires, is_late, run, epoch, begun)
        if self.outlives:
            result = await self._wait_for(delivery)
        else:  # as part of its request
            try:
                result = await self._find_result(delivery)
            finally:
                self._forget(delivery)
        if isinstance(result, RequestError):
            raise result
        return result

    async def _wait_for(self, delivery: _Delivery) -> RoundResult:
        waiter: asyncio.Future[RoundResult] = asyncio.get_running_loop().create_future()
        delivery.waiter = waiter
        task = asyncio.create_task(self._deliver(delivery, waiter))
        self._under_way.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._under_way.discard)
        try:
            result: RoundResult = await waiter
            return result
        except asyncio.CancelledError:
            delivery.client_left = True
            raise

    def _kept_here(self, delivery: _Delivery) -> RoundResult | None:
        """Return what a delivery gets while outcomes wait to be recorded; None if it is to ask the store."""
        earlier = self._unrecorded.get(delivery.state)
        if earlier is not None:
            same = earlier.answers == delivery.answers
            return earlier.result if same else self._refused(delivery, "redeemed already, with other answers")
        if sum(len(each.sealed) for each in self._unrecorded.values()) < MOST_UNRECORDED_BYTES:
            return None
        error = StoreUnavailable(f"{len(self._unrecorded)} outcomes of other rounds wait to be recorded")
        return not_executed(error, f"{delivery.call.target!r} was not run, since its outcome could not be recorded")

    async def finish(self, shutdown: ShutdownDeadline) -> None:
        """Wait for the rounds whose clients have gone, and for outcomes that have yet to be recorded."""
        loop = asyncio.get_running_loop()
        if under_way := [task for task in self._under_way if task.get_loop() is loop]:
            _, left = await asyncio.wait(under_way, timeout=shutdown.until_cut_off() or shutdown.left() / 3)
            if left:
                logger.error(
                    "The server ends while single-use rounds still run, or their outcomes could not be recorded (%d of "
                    "them, of which %d have run); if their requests are repeated, these rounds run again",
                    len(left),
                    sum(
                        each.waiter is not None and each.waiter.get_loop() is loop for each in self._unrecorded.values()
                    ),
                )

    async def _deliver(self, delivery: _Delivery, waiter: "asyncio.Future[RoundResult]") -> None:
        """Redeem until the outcome of the state is known, and recorded if it was run here."""
        try:
            delivery.reply(await self._find_result(delivery))
        except asyncio.CancelledError:
            waiter.cancel()
            raise
        except Exception as error:
            if waiter.done():
                logger.error("%s %r: its outcome is lost", delivery.call.method, delivery.call.target, exc_info=error)
            else:
                waiter.set_exception(error)
        finally:
            self._forget(delivery)

    def _forget(self, delivery: _Delivery) -> None:
        if self._unrecorded.get(delivery.state) is delivery:
            del self._unrecorded[delivery.state]

    async def _find_result(self, delivery: _Delivery) -> RoundResult:
        result: RoundResult | None = await wait_until(partial(self._try, delivery), pauses=delivery.pauses())
        assert result is not None  # noqa: S101  nothing else ends the wait
        return result

    async def _try(self, delivery: _Delivery, heard: object) -> RoundResult | None:
        """Return the result of a delivery; None while another delivery of its state runs."""
        while True:
            if delivery.result is None and self._unrecorded and (kept := self._kept_here(delivery)) is not None:
                return kept
            asked = time.monotonic()
            try:
                # One whose lease has ended may live, and be about to record: it goes first.
                redemption = await self._redeem(delivery, lapsed=delivery.waited >= GRACE_SECONDS)
            except StoreUnavailable as error:
                result = await self._without_store(delivery, error)
                if result is None:
                    continue
                return result
            if not delivery.runs_by(redemption):
                result = await self._known_by(delivery, redemption)
                if result is not None:
                    return result
            if redemption.verdict == "granted":
                result = await self._run(delivery, redemption, Lease(self.lease, asked))
                if result is not None:
                    return result
            # Another delivery of it is running.
            if self._has_expired(delivery) and (delivery.result is None or delivery.is_told):
                return delivery.result or self._refused(delivery, "expired")
            return None

    async def _without_store(self, delivery: _Delivery, error: StoreUnavailable) -> RoundResult | None:
        """Return what a delivery gets that the store does not answer; None if it is to ask again."""
        if delivery.result is None:
            return not_executed(error, f"{delivery.call.target!r} was not run without its store")
        if isinstance(delivery.result, Busy) or self._has_expired(delivery):
            return delivery.result
        self._keep(delivery)
        self._reply_unrecorded(delivery, error)
        end_request()  # which is the client's, and nobody waits any more
        await asyncio.sleep(RECORD_INTERVAL)
        return None

    async def _known_by(self, delivery: _Delivery, redemption: Redemption) -> RoundResult | None:
        """Return the result that a redemption gives without running anything; None if it gives none."""
        if redemption.verdict == "recorded":
            return self._unseal(delivery, redemption.outcome)
        if redemption.verdict == "spent":
            return self._refused(delivery, "redeemed already, with other answers")
        if redemption.verdict == "other_epoch":
            return delivery.result or self._refused(delivery, OTHER_EPOCH, StateFault.OTHER_EPOCH)
        if redemption.verdict == "forgotten":
            return delivery.result or self._refused(delivery, FORGOTTEN, StateFault.FORGOTTEN)
        if delivery.client_left and delivery.result is None:  # nothing has begun
            await self._release(delivery, redemption)
            return InvalidRequestState("its client left")
        if redemption.verdict == "granted" and redemption.attempt == 1 and delivery.is_late and delivery.result is None:
            await self._release(delivery, redemption)
            return self._refused(delivery, "expired")
        return None

    async def _redeem(self, delivery: _Delivery, *, lapsed: bool) -> Redemption:
        if delivery.epoch and not self.store.has_epochs:
            return Redemption("other_epoch")
        # Kept for as long as any replica may take the state for good.
        keep = max(delivery.expires - self.clock(), 0.0) + REDEEMED_FOR
        return await self.store.redeem(
            delivery.state,
            delivery.answers,
            lease=self.lease,
            keep=keep,
            lapsed=lapsed,
            quota=self.quotas.of(delivery.call.principal, delivery.begun),
            epoch=delivery.epoch,
        )

    def _has_expired(self, delivery: _Delivery) -> bool:
        return self.clock() >= delivery.expires + REDEEMED_FOR

    async def _release(self, delivery: _Delivery, redemption: Redemption) -> None:
        if redemption.verdict == "granted":
            with suppress(StoreUnavailable):  # then it runs out
                await self.store.release(delivery.state, redemption.token)

    # A delivery that runs here

    async def _run(self, delivery: _Delivery, granted: Redemption, lease: Lease) -> RoundResult | None:
        """Run the handler if it has not run yet, and record its outcome.

        Return the result; None if another replica has taken over, or may have, and may have a better one.
        """
        # Nearly always it ends before that.
        timer = running_loop().call_later(lease.seconds / 3, self._begin_to_renew, delivery, granted.token, lease)
        try:
            if delivery.result is None:
                if granted.attempt > 1:
                    _warn(
                        delivery,
                        "takeover",
                        "the lease of this round ended without an outcome, so its replica has ended, was silent for "
                        "longer, or could not reach the store; the round runs again",
                    )
                delivery.result, delivery.sealed = await self._outcome(delivery, lease)
            if isinstance(delivery.result, Busy):  # which tells the client to send the same again, so that must help
                may_be_known = lease.in_doubt
                await self._release(delivery, granted)
                return None if may_be_known else delivery.result
            return delivery.result if await self._record(delivery, granted.token, lease) else None
        finally:
            timer.cancel()
            if delivery.renewal is not None:
                delivery.renewal.cancel()

    async def _outcome(self, delivery: _Delivery, lease: Lease) -> tuple[RoundResult, bytes]:
        result: RoundResult
        try:
            result = await delivery.run(lease)
        except RequestError as error:
            result = error
        try:
            return result, self._seal(delivery, result)
        except ValueError as error:
            result = InternalFault(
                report_failure("%r returned a result that is not JSON", delivery.call.target, error=error)
            )
            return result, self._seal(delivery, result)

    def _begin_to_renew(self, delivery: _Delivery, token: str, lease: Lease) -> None:
        delivery.renewal = asyncio.create_task(self._renew(delivery, token, lease))

    async def _renew(self, delivery: _Delivery, token: str, lease: Lease) -> None:
        while not lease.lost:
            asked = time.monotonic()
            pause = lease.seconds / 3
            try:
                lease.lost = not await self.store.renew(delivery.state, token, lease=lease.seconds)
                lease.hold(asked)
            except StoreUnavailable:  # of which the log has a line
                pause = min(RECONNECT_SECONDS, lease.seconds / 12)
            await asyncio.sleep(pause)

    async def _record(self, delivery: _Delivery, token: str, lease: Lease) -> bool:
        """Offer the outcome to the store until it has it; False if another replica has taken over.

        Its client waits for that no longer than `RECORD_AGAIN`, however long an attempt takes.
        """
        patience = seconds_left(sum(RECORD_AGAIN))
        end_of_patience = time.monotonic() + patience
        timer = running_loop().call_later(patience + LAST_ATTEMPT, self._lose_patience, delivery)
        try:
            for pause in chain(RECORD_AGAIN, repeat(RECORD_INTERVAL)):
                try:
                    if lease.lost or not await self.store.record(delivery.state, token, delivery.sealed):
                        break
                except StoreUnavailable as error:
                    delivery.error = error
                    self._keep(delivery)
                    if time.monotonic() >= end_of_patience:
                        self._reply_unrecorded(delivery, error)
                    if self._has_expired(delivery):
                        _warn(delivery, "unrecorded", "its outcome was never recorded, and its state has expired")
                        return True
                    await asyncio.sleep(pause)
                else:
                    if delivery.is_told and delivery.unrecorded_since is not None:
                        seconds = time.monotonic() - delivery.unrecorded_since
                        _warn(
                            delivery,
                            "recorded_late",
                            f"its outcome has been recorded, {seconds:.0f} s after the store failed",
                        )
                    return True
        finally:
            timer.cancel()
        if delivery.unrecorded_since is None:
            why = f"this replica was silent for longer than its lease of {lease.seconds:g} s"
        else:
            why = "its lease ended while the outcome could not be recorded"
        _warn(
            delivery,
            "result_dropped",
            f"{why}, so another replica may have run the same round; deliveries get what is recorded first",
        )
        return False

    def _keep(self, delivery: _Delivery) -> None:
        if delivery.unrecorded_since is None:
            delivery.unrecorded_since = time.monotonic()
            self._unrecorded[delivery.state] = delivery

    def _lose_patience(self, delivery: _Delivery) -> None:
        self._keep(delivery)
        self._reply_unrecorded(delivery, delivery.error or StoreUnavailable("the store has not answered yet"))

    def _reply_unrecorded(self, delivery: _Delivery, error: StoreUnavailable) -> None:
        """Reply, and log that the store did not take the outcome. Its effects have happened: the client should know."""
        if not delivery.is_told:
            assert delivery.result is not None  # noqa: S101  for the type checker
            delivery.reply(delivery.result)
            _warn(
                delivery,
                "unrecorded",
                "its outcome could not be recorded. This replica keeps it, answers repetitions with it, and tries on "
                "until the state expires. Until then, at another replica a repetition may run the round again",
                error,
            )

    # What is kept in the store

    def _seal(self, delivery: _Delivery, result: RoundResult) -> bytes:
        # With the digests, so that nobody who can write to the store gives a state another one's outcome.
        return self.codec.seal(_place(delivery), dump_outcome(result)).encode()

    def _unseal(self, delivery: _Delivery, sealed: bytes) -> RoundResult:
        try:
            return load_outcome(self.codec.unseal(_place(delivery), sealed, "recorded for another delivery"))
        except (InvalidRequestState, ValueError) as error:
            why = error.reason if isinstance(error, InvalidRequestState) else str(error)
            return InternalFault(
                report_failure("%r: a recorded outcome can't be unsealed", delivery.call.target, why=why)
            )

    def _refused(
        self, delivery: _Delivery, reason: str, fault: StateFault = StateFault.REDEEMED
    ) -> InvalidRequestState:
        call = delivery.call
        self._refusals.note("%s %r: refused a requestState: %s", call.method, call.target, reason)
        return InvalidRequestState(reason, fault)


def _place(delivery: _Delivery) -> bytes:
    return f"{delivery.state} {delivery.answers} ".encode()


def _warn(delivery: _Delivery, event: str, what: str, error: Exception | None = None) -> None:
    call = delivery.call
    fields = {"event": event, "work": "round", "method": call.method}
    logger.warning(
        "%s %r: %s%s", call.method, call.target, what, f": {error}" if error else "", extra={"fields": fields}
    )
