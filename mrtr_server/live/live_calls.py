"""Calls whose questions are asked while they are open.

A round that ends with questions sends them on the stream of the call, waits for their answers, and is followed by the
next round. The handler knows nothing of that: it runs from the top, against its journal, as it does for any client.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Self, TypeVar

from pydantic_core import to_json

from ..concurrency.places import Portion
from ..concurrency.running import running_task
from ..concurrency.waiting import wait_until
from ..crypto.digests import digest_parts
from ..errors import InvalidRequest, ProtocolError, RequestError, StoreUnavailable, Unavailable
from ..flow.single_use import OTHER_EPOCH
from ..logs.failures import report_outage
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal, person_of
from ..protocol.messages import JSON, TASK_RESULT, Call, Change, Dispatch, Outcome, Unfinished
from ..storage.health import begin_request
from ..storage.rows import Lease
from ..tasks.task_service import Tasks
from .answers import read_answers
from .events import KEPT_AFTER, TOO_LATE_TO_CONTINUE, SealedEvent, StreamEvent
from .open_questions import RETRY, Channel, FirstRounds, OpenQuestions, leaving
from .parts import UNCOUNTED, LiveParts
from .task_streams import TaskStreams

T = TypeVar("T")

CANCEL_KEPT = 3600.0  # of a cancellation, in seconds

ANSWER_TIMEOUT = 10.0  # for which the store is asked to keep an answer, in seconds: no client sends one again

MOST_ANSWERED = 4_096  # of the last answered requests are known, with about 100 bytes each

LOOK_FOR_ROOM = 0.05  # between two looks for room to run again, in seconds

LONGEST_PAUSE = 1.0  # before the store is asked again to keep an answer, in seconds


class LiveCalls:
    def __init__(self, dispatch: Dispatch, parts: LiveParts, tasks: Tasks) -> None:
        self._dispatch = dispatch
        self._parts = parts
        self._task_streams = TaskStreams(dispatch, tasks, parts)
        self._admission = parts.admission
        self._first_rounds = FirstRounds(parts)
        self._refusals = RefusalLog()
        # Open calls, by session and request; several where a client has come back to one.
        self._open: _Open = {}
        self._answered: dict[int, None] = {}  # the requests that were answered here last, by a hash, the newest last

    async def serve(self, call: Call, channel: Channel) -> Outcome | None:
        """Serve a new call; None if nothing is to be sent: its client left, cancelled it, or continues elsewhere."""
        with _Running(call, channel.portion, self._open) as running:
            if call.method == TASK_RESULT:
                token = {} if call.progress_token is None else {"_meta": {"progressToken": call.progress_token}}
                needed = {"taskId": call.target, **token, **({"stream": {}} if call.takes_pieces else {})}
                origin = channel.origin()
                running.call.let_go()
                running.end()
                origin.params = needed
                return await self._wait_for_task(replace(call, params=needed), channel, StreamEvent(origin))
            outcome = await self._begin(running, channel)
            if not isinstance(outcome, Unfinished):
                return outcome
            running.call.let_go()
            event = StreamEvent(channel.origin())
            event.move_on(outcome, channel.progress)
            del outcome  # which the event lets go of, too
            return await self._follow(event, running, channel, is_new=True)
        return None  # its client has cancelled it

    async def _begin(self, running: "_Running", channel: Channel) -> Outcome:
        """Run the first round of a call; or, of one that the client repeats since its pages are done, the next."""
        call, pages = running.call, self._parts.pages
        with store_needed:
            event = None if channel.can_stream else await pages.find(call, self._parts.clock())
            if event is None:
                return await self._first_rounds.run(call, channel, self._dispatch)
            answers = await pages.answers(event)
        again = replace(call, state=event.state, answers=answers, grace=KEPT_AFTER)
        outcome = await self._redeem(again, event, running, channel)
        if not isinstance(outcome, Unfinished):
            await pages.forget(call, event, self._parts.clock())
        return outcome

    async def resume(self, event: StreamEvent, call: Call, channel: Channel) -> Outcome | None:
        """Continue a call from an event of its stream, wherever it began; see `serve`."""
        with _Running(call, channel.portion, self._open) as running:
            return await self._resume(running, channel, event)
        return None  # its client has cancelled it

    async def _resume(self, running: "_Running", channel: Channel, event: StreamEvent) -> Outcome | None:
        call = running.call
        with store_needed:
            if await self._is_cancelled(call):
                return None
            if call.method == TASK_RESULT:
                return await self._wait_for_task(call, channel, event)
            if event.run:
                with self._parts.held_streams.take(person_of(call.principal)):
                    running.call.let_go()
                    running.end()
                    outcome = await self._first_rounds.wait_for(event, call, channel)
                if not isinstance(outcome, Unfinished):
                    return outcome
                event.move_on(outcome, channel.progress)
                del outcome
                return await self._follow(event, running, channel, is_new=True)
            if event.epoch and event.epoch != await self._parts.store.epoch():  # nobody is to answer in vain
                self._refusals.note("%s %r: an open call was not continued: %s", call.method, call.target, OTHER_EPOCH)
                raise ProtocolError("This call can't be continued here; call again")
        if event.ends <= self._parts.clock():
            raise ProtocolError(TOO_LATE_TO_CONTINUE)
        return await self._follow(event, running, channel, is_new=False)

    async def _wait_for_task(self, call: Call, channel: Channel, event: StreamEvent) -> Outcome | None:
        cancelled = self._cancellation_of(call)
        with store_needed:
            return await self._task_streams.serve(call, channel, event, cancelled, lambda: self._is_cancelled(call))

    async def take(self, id: str, read: Callable[[], JSON], principal: Principal | None) -> bool:
        """Keep an answer, with retries: no client sends it again. Return whether the id is that of a question."""
        began, pause = time.monotonic(), LONGEST_PAUSE / 16
        with store_needed:
            while True:
                try:
                    return await self._take(id, read, principal)
                except (StoreUnavailable, Unavailable):
                    if time.monotonic() + pause > began + ANSWER_TIMEOUT or self._admission.draining:
                        raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                begin_request(began)  # the pauses count, too

    async def _take(self, id: str, read: Callable[[], JSON], principal: Principal | None) -> bool:
        answers = self._parts.answers
        if (asked := answers.unseal(id, principal)) is not None:
            if asked.expires > self._parts.clock():  # who answers later is as good as the second who answers
                await answers.keep(asked, answers.to(id, read()), principal)
            return True
        return await self._task_streams.take(id, read, principal)

    async def _follow(
        self, event: StreamEvent, running: "_Running", channel: Channel, *, is_new: bool
    ) -> Outcome | None:
        """Ask what a round needs, and run the next one, until there is a result.

        While a person is asked, nobody holds the call: it is read again from where the event is kept.
        """
        while True:
            if self._is_to_move(event, channel, is_new=is_new):
                await self._move(event, running, channel)
                return None
            answers: JSON | None = {}
            if event.questions:
                if not (channel.can_stream and self._parts.is_shared):
                    await self._end_with_pages(event, channel)
                answers = await self._ask(event, running, channel, is_new=is_new)
                if answers is None:
                    return None
            elif not await self._have_room(running, channel, event.size):
                return None
            call = channel.load(event.origin, event.state, answers, KEPT_AFTER)
            del answers
            outcome = await self._redeem(call, event, running, channel)
            del call  # before the next wait
            if not isinstance(outcome, Unfinished):
                return outcome
            running.call.let_go()
            event.move_on(outcome, channel.progress)
            is_new = True
            del outcome

    def _is_to_move(self, event: StreamEvent, channel: Channel, *, is_new: bool) -> bool:
        draining = self._admission.draining
        if event.questions:
            return draining
        # One that has come from another replica goes no further for want of room, or it would go round for ever.
        return channel.can_move and (draining or (is_new and self._admission.has_no_room))

    async def _redeem(self, call: Call, event: StreamEvent, running: "_Running", channel: Channel) -> Outcome:
        """Run the round after an answer, once in the fleet. An answer in time counts, even if its round is late."""

        def run(lease: Lease) -> Awaitable[Outcome]:
            return running.within(running_task(), self._dispatch(call, channel))

        # Under a key of its own: where the tool is single-use, the state itself is redeemed within.
        # All of its deliveries have the answers as they are stored, in one order.
        answers = to_json(call.answers)
        return await self._parts.redeemer.once(call, event.ends, run, b"live ", answers, epoch=event.epoch)

    async def _end_with_pages(self, event: StreamEvent, channel: Channel) -> None:
        """End a call that can't stay open with the pages that it asks for, if that is all. Raises `PagesRequired`."""
        parts, call = self._parts, channel.load(event.origin)
        if parts.pages.may_end_with(event.questions, call, is_shared=parts.is_shared):
            with store_needed:
                raise await parts.pages.end_with(event, call, parts.clock())

    async def _ask(
        self, event: StreamEvent, running: "_Running", channel: Channel, *, is_new: bool
    ) -> dict[str, JSON] | None:
        """Send questions, and wait for all answers, as a round takes them; None if the round is not to run here."""
        parts, call, principal = self._parts, running.call, running.call.principal
        if channel.gone:
            return None
        if not parts.is_shared:
            raise RequestError(
                "This call asks a question, and this server can't take the answer: its workers share no database. Its "
                "operator can set MRTR_DATABASE_URL"
            )
        if not channel.can_stream:
            raise InvalidRequest("This call asks a question, which needs Accept: text/event-stream")
        id = parts.events.seal(event, principal)
        with parts.held_streams.take(person_of(principal)), store_needed:
            await parts.events.keep(id)
            cancelled, is_cancelled = self._cancellation_of(call), partial(self._is_cancelled, call)
            rest = partial(_rest, event, id, running)
            questions = OpenQuestions(parts, channel, event, id, principal, cancelled, is_cancelled, rest)
            try:
                if not is_new:
                    await questions.look()
                found = await questions.wait_for_answers()
                if found is None or not await self._have_room(running, channel, event.size):
                    return None
                if not event.questions:  # it has let go
                    await parts.events.take_back(event, id, principal)
                return read_answers(event.questions, found)
            except asyncio.CancelledError:
                if running.is_cancelled:
                    await questions.withdraw()
                raise
            finally:
                questions.close()

    async def _have_room(self, running: "_Running", channel: Channel, size: int) -> bool:
        """Wait for room for a call that runs on, since its person has answered; False if it continues elsewhere."""
        if size > UNCOUNTED:
            person = person_of(running.call.principal)
            portion = running.portion = running.portion or self._parts.held_bytes.portion(person)

            async def look(heard: object) -> bool | None:
                return portion.has_room() or None

            endings = partial(leaving, channel), self._admission.on_drain
            if not await wait_until(look, pauses=repeat(LOOK_FOR_ROOM), endings=endings):
                if not channel.gone:
                    channel.prime("", RETRY)
                return False
            portion.set(size)
        return True

    async def _move(self, event: StreamEvent, running: "_Running", channel: Channel) -> None:
        """Close the stream, so that its client continues at another replica."""
        if not channel.gone:
            id = self._parts.events.seal(event, running.call.principal)
            with store_needed:
                await self._parts.events.keep(id)
            channel.prime(id.after(event.sent), RETRY)

    # Cancellation

    async def cancel(self, session: str, request_id: str | int, principal: Principal | None) -> None:
        """Cancel a call of a session, wherever it runs. Raises `StoreUnavailable`, `Busy`."""
        key = session, request_id
        if key not in self._open and hash(key) in self._answered:  # some clients cancel whatever has ended
            return
        change = _cancellation(session, request_id)
        for running in tuple(self._open.get(key, ())):
            running.cancel()
        self._parts.cancellations.take(principal, change.uri)
        await self._parts.store.put(change.uri, b"", keep=CANCEL_KEPT, quota=self._parts.quotas.of(principal))
        self._parts.answers.publish(change)

    def note_answered(self, session: str, request_id: str | int) -> None:
        """Note that a request has its reply, so that nothing of it is left to be cancelled."""
        self._answered[hash((session, request_id))] = None
        if len(self._answered) > MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]

    async def cancel_elsewhere(self, call: Call) -> None:
        """Wait until a call that takes long is cancelled through another replica, and cancel it."""
        cancelled = self._cancellation_of(call)
        running = next((each for each in self._open.get(_key(call), ()) if each.call is call), None)
        if running is None or cancelled is None:
            return

        async def look(heard: object) -> bool | None:
            with suppress(StoreUnavailable):
                return await self._is_cancelled(call) or None  # also before this began to listen
            return None

        with closing(self._parts.answers.listen((), (cancelled,))) as changes:
            if await wait_until(look, changes):
                running.cancel()

    async def _is_cancelled(self, call: Call) -> bool:
        id = _cancellation(call.session, call.request_id).uri
        return bool(call.session) and await self._parts.store.get(id) is not None

    def _cancellation_of(self, call: Call) -> Change | None:
        """Return the notice that a call may have been cancelled elsewhere; None if nobody could send one."""
        is_told = bool(call.session) and self._parts.store.shared  # here, `cancel` finds the call itself
        return _cancellation(call.session, call.request_id) if is_told else None


def _rest(event: StreamEvent, id: SealedEvent, running: "_Running") -> None:
    """Free a call that waits, and where it stands, of what is read again when it goes on."""
    if id.is_smaller:
        event.let_go()
    running.call.let_go()
    running.end()


class _Running:
    """A call that is open for as long as the block lasts, and what a cancellation by its client cancels: the block."""

    __slots__ = ("_open", "_own", "_task", "call", "is_cancelled", "portion")

    def __init__(self, call: Call, portion: Portion | None, open_: "_Open") -> None:
        self.call = call  # lets go of the request while nothing of it runs: `Channel.load` reads it again
        self.portion = portion
        self._open = open_
        self.is_cancelled = False
        self._own = running_task()
        self._task: asyncio.Task[Any] | None = self._own

    def end(self) -> None:
        if self.portion is not None:
            self.portion.end()

    def __enter__(self) -> Self:
        if self.call.session:
            self._open.setdefault(_key(self.call), []).append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        is_over = isinstance(error, asyncio.CancelledError) and self._has_cancelled()
        self.end()
        self._task = None  # a cancellation that comes too late must not end the writing of the response
        if (others := self._open.get(_key(self.call))) is not None:
            others.remove(self)
            if not others:
                del self._open[_key(self.call)]
        return is_over

    def cancel(self) -> None:
        """Cancel what runs. Safe to call twice, and on any thread."""
        if not self.is_cancelled and self._task is not None:
            self.is_cancelled = True
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _has_cancelled(self) -> bool:
        """Return whether its client has cancelled it, and undo that for its own task, which has to end in peace."""
        if self.is_cancelled and self._own.cancelling():
            self._own.uncancel()
        return self.is_cancelled

    def within(self, task: "asyncio.Task[Any] | None", work: Awaitable[T]) -> Awaitable[T]:
        """Do some work in a task, and cancel that meanwhile, if it is another one than the call's own."""
        return work if task is self._own else self._within(task, work)

    async def _within(self, task: "asyncio.Task[Any] | None", work: Awaitable[T]) -> T:
        own, self._task = self._task, task
        try:
            return await work
        finally:
            self._task = own


_Open = dict[tuple[str, str | int], list[_Running]]


class _StoreNeeded:
    """Turns an outage of the store in a block into an error for the client."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreUnavailable):
            raise Unavailable(report_outage(error, "A question of an open call needs the store")) from None


store_needed = _StoreNeeded()


def _key(call: Call) -> tuple[str, str | int]:
    return call.session, call.request_id


def _cancellation(session: str, request_id: str | int) -> Change:
    return Change("cancelled", digest_parts("live cancellation", session, request_id))
