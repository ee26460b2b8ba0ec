"""A call that waits for answers: its questions, the connection of its client that has them, and its first round."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from secrets import token_hex
from typing import Any, Protocol

from pydantic_core import to_json

from ..concurrency.places import Portion
from ..concurrency.running import running_loop
from ..concurrency.waiting import Cancel, wait_until
from ..errors import Full, NotExecuted, ProtocolError, RequestError, StoreUnavailable
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Call, Change, Dispatch, Outcome, Outlet, PageReported, Question, Unfinished
from ..storage.rows import Lease
from .answers import ANSWERED_ELSEWHERE, CALL_CANCELLED, TOO_LATE, WITHDRAWN, SentQuestion, no_answer
from .events import Origin, SealedEvent, StreamEvent
from .parts import LiveParts

LARGE = 4096  # bytes of an answer that the store alone holds while others are waited for

RETRY = 250  # when the client of a stream that closes is to come back, in milliseconds


class Channel(Outlet, Protocol):
    """The response to the client of an open call: a stream, once something is to be said before the result."""

    @property
    def gone(self) -> bool:
        """Whether nobody reads the response any more."""

    @property
    def can_stream(self) -> bool:
        """Whether the client takes a stream."""

    @property
    def can_move(self) -> bool:
        """Whether the client's version says that it comes back to a stream that the server closes."""

    @property
    def progress(self) -> float:
        """The progress that was sent last."""

    @property
    def portion(self) -> Portion | None:
        """What counts the bytes of the request; None where it is small."""

    def origin(self) -> Origin:
        """Return the request that opened the call, as it was sent."""

    def load(
        self, origin: Origin, state: str | None = None, answers: Mapping[str, JSON] | None = None, grace: float = 0.0
    ) -> Call:
        """Return the call of a request: as it was before its first round, or for the round that has a state.

        Raises `RequestError`.
        """

    def on_start(self, id: Callable[[], str] | None) -> None:
        """Set which id the first event has, if a stream starts by itself; None for none."""

    def on_gone(self, then: Callable[[], object] | None) -> None:
        """Set what is called, on the event loop, when the client leaves; at once if it has left."""

    def prime(self, id: str, retry: int | None = None) -> None:
        """Start the stream, unless it has started, and send an event without data."""

    def check(self, question: Question) -> None:
        """Check that clients of this version can be asked something. Raises `MissingCapability`."""

    def ask(self, id: str, question: Question, event: str) -> None:
        """Send a question; `flush` is to be awaited then. Raises `MissingCapability`."""

    def withdraw(self, id: str, reason: str, task: str = "") -> None:
        """Notify the client that a question counts no more, also where it has cancelled the call."""

    def flush(self) -> Awaitable[None]:
        """Write what has been sent; to be awaited by what serves the request."""

    def waits(self, waiting: bool) -> None:
        """Note whether the call waits for a person, so that there is progress to be shown."""


def leaving(channel: Channel, end: Callable[[], object]) -> Cancel:
    """Call a function when the client leaves; at once if it has left. Return what stops that."""
    channel.on_gone(end)
    return partial(channel.on_gone, None)


def held_open(channel: Channel, end: Callable[[], object]) -> Cancel:
    """Do the same for a call that waits for a person: its client is shown progress meanwhile."""

    def stop() -> None:
        channel.waits(False)
        channel.on_gone(None)

    channel.on_gone(end)
    channel.waits(True)
    return stop


class OpenQuestions:
    """The questions of one round, and their answers. While open, they hold ids alone: a person may take their time."""

    _has_come_back = False

    def __init__(
        self,
        parts: LiveParts,
        channel: Channel,
        event: StreamEvent,
        id: SealedEvent,
        principal: Principal | None,
        cancelled: Change | None,
        is_cancelled: Callable[[], Awaitable[bool]],
        rest: Callable[[], None],
    ) -> None:
        self._event = event
        self._rest = rest
        self._round = event.round
        self._id = id
        self._principal = principal
        self._answers = answers = parts.answers
        self._channel = channel
        self._on_drain = parts.admission.on_drain
        self._is_cancelled = is_cancelled
        self._asked: dict[str, SentQuestion] = {}
        self._rows: dict[str, SentQuestion] = {}
        self._in_vain: dict[str, JSON] = {}  # what counts as the answers if nobody answers in time, by key
        others = [] if cancelled is None else [cancelled]
        for key, question in event.questions.items():
            self._asked[key] = asked = answers.asked(self._round, key, event.expires)
            self._rows[asked.row] = asked
            self._in_vain[key] = no_answer(question)
            if question.page:
                others.append(Change("page", question.page))
        self._changes = answers.listen(self._rows, others)
        self._found: dict[str, JSON] = {}
        self._left_out: set[str] = set()  # the keys of the answers that the store alone holds
        self._is_answered = not self._asked
        self._requests: dict[str, str] = {}  # the ids of the requests that were sent, by key
        self._deadline = running_loop().time() + event.expires - parts.clock()

    async def look(self) -> None:
        """Find what was answered while the client was away, perhaps to a process that shares no store with this one."""
        self._answers.begin_to_await(self._round)
        self._has_come_back = True
        for key, asked in self._asked.items():
            self._take(key, await self._answers.find(asked))

    async def wait_for_answers(self) -> dict[str, JSON] | None:
        """Send the questions that were not sent yet, and wait for all answers; None if the call does not go on here."""
        loop = running_loop()
        if not self._is_answered and loop.time() < self._deadline:
            self._send()
            self._rest()
            endings = partial(held_open, self._channel), self._on_drain
            found = await wait_until(self._hear, self._changes, deadline=self._deadline, endings=endings)
            if found is False:
                return None
            if found is None and loop.time() < self._deadline:
                if not self._channel.gone:  # it drains
                    self._channel.prime("", RETRY)  # the client has the id of the last question
                return None
        if not self._is_answered:
            await self._give_up()
        for key in self._left_out:  # which the store alone holds
            self._found[key] = await self._answers.find(self._asked[key]) or self._in_vain[key]
        return self._found

    async def withdraw(self) -> None:
        """Close the questions, which then take no more answers. Raises `StoreUnavailable`."""
        for key, asked in self._asked.items():
            if key not in self._found:
                self._notify(key, CALL_CANCELLED)
            await self._answers.keep(asked, WITHDRAWN, self._principal)

    def close(self) -> None:
        for id in self._requests.values():
            self._answers.forget(id)
        self._changes.close()
        if self._has_come_back:
            self._answers.end_to_await(self._round)

    def _take(self, key: str, answer: JSON | None) -> None:
        if answer is None:
            return
        self._found[key] = answer
        if not self._answers.is_to(self._requests.get(key, ""), answer):
            self._notify(key, ANSWERED_ELSEWHERE)
        self._is_answered = len(self._found) == len(self._asked)
        if not self._is_answered and len(to_json(answer)) > LARGE:  # others may take their time
            self._found[key] = {}
            self._left_out.add(key)

    def _send(self) -> None:
        event = self._event
        if event.sent >= len(event.questions):  # there will be no event with an id for a while
            self._channel.prime(self._id.after(event.sent))
        if len(event.questions) > 1:
            for question in event.questions.values():  # all of them, before the person sees one
                self._channel.check(question)
        for number, (key, question) in enumerate(event.questions.items(), 1):
            if number > event.sent:
                self._requests[key] = id = self._answers.seal(self._asked[key], self._principal)
                self._channel.ask(id, question, self._id.after(number))

    async def _hear(self, heard: Sequence[Change] | None) -> bool | None:
        """Read the changes; return True when there are all answers, and False if the call was cancelled."""
        if heard is None:  # at first
            await self._channel.flush()
        for change in heard or ():
            if change.kind == "page":
                self._channel.send(PageReported(change.uri))
            elif change.kind == "cancelled":
                if await self._is_cancelled():  # or notices were missed
                    await self.withdraw()
                    return False
            elif (asked := self._rows.get(change.uri)) is not None:
                self._take(asked.key, self._answers.carried(change) or await self._answers.find(asked))
        return True if self._is_answered else None

    async def _give_up(self) -> None:
        """Answer what nobody has answered in time; an answer that came just before that counts."""
        for key, asked in self._asked.items():
            if key not in self._found:
                given = self._in_vain[key]
                await self._answers.keep(asked, given, self._principal)
                found = await self._answers.find(asked) or given
                self._take(key, found)
                if found == given:
                    self._notify(key, TOO_LATE)

    def _notify(self, key: str, reason: str) -> None:
        if (id := self._requests.get(key)) is not None:
            self._channel.withdraw(id, reason)


# First rounds. They have no state yet, so a client that loses one gets its outcome instead.


KEPT = 3600.0  # how long the outcome of a first round is kept for a client that has left, in seconds

LOOK = 0.5  # between two looks of a client that came back, in seconds

LOST_AFTER = 20.0
"""How long such a client waits for a round that nobody seems to run, in seconds: its holder may not know yet."""

_NOBODY = "nobody"
"""The reference of the error that says that nobody runs a round. It is in no log, and no client sees it."""


class FirstRounds:
    """Runs first rounds.

    While its client listens, a round is nowhere but here. When the client of a stream leaves, the round takes the lease
    of its name, and its outcome is recorded under that.
    """

    def __init__(self, parts: LiveParts) -> None:
        self._events = parts.events
        self._redeemer = parts.redeemer
        self._clock = parts.clock
        self._keeping: set[asyncio.Task[None]] = set()

    async def run(self, call: Call, channel: Channel, dispatch: Dispatch) -> Outcome:
        came: asyncio.Future[Outcome | RequestError] | None = None

        def begin() -> str:
            nonlocal came
            came = asyncio.get_running_loop().create_future()
            name = token_hex(16)
            event = StreamEvent(channel.origin(), run=name, expires=self._clock() + KEPT, progress=channel.progress)
            sealed = self._events.seal(event, call.principal)
            if sealed.row:
                self._keep(self._store(sealed))
            record = partial(self._record, _named(call, name), came)
            channel.on_gone(lambda: self._keep(record()))
            return sealed.after(0)

        channel.on_start(begin)
        try:
            outcome = await dispatch(call, channel)
            if came is not None:
                came.set_result(outcome)
        except RequestError as error:
            if came is not None:
                came.set_result(error)
            raise
        finally:
            channel.on_start(None)
            if came is not None:
                channel.on_gone(None)
                came.cancel()  # unless it is done
        return outcome

    async def wait_for(self, event: StreamEvent, call: Call, channel: Channel) -> Outcome:
        """Wait for the outcome of a first round that runs elsewhere, or ran. Raises `RequestError`."""
        sealed = self._events.seal(event, call.principal)
        await self._events.keep(sealed)
        channel.prime(sealed.after(0))
        named = _named(call, event.run)
        event.let_go()
        loop = running_loop()
        seen = loop.time()

        async def look(heard: object) -> Outcome | None:
            nonlocal seen
            began = loop.time()
            try:
                return await self._redeemer.once(named, event.ends, _runs_nowhere)
            except NotExecuted as error:
                if error.data != {"reference": _NOBODY}:
                    raise
            now = loop.time()
            if now - began > LOOK:  # somebody had it meanwhile
                seen = now
            if now - seen > LOST_AFTER:
                raise _lost()
            return None

        endings = (partial(leaving, channel),)
        outcome: Outcome | None = await wait_until(look, pauses=repeat(LOOK), endings=endings)
        if outcome is None:
            raise _lost()
        if isinstance(outcome, Unfinished):
            await self._events.take_back(event, sealed, call.principal)
        return outcome

    async def _record(self, named: Call, came: "asyncio.Future[Outcome | RequestError]") -> None:
        async def outcome(lease: Lease) -> Outcome:
            found = await came
            if isinstance(found, RequestError):
                raise found
            return found

        with suppress(RequestError, asyncio.CancelledError):
            await self._redeemer.once(named, self._clock() + KEPT, outcome)

    async def _store(self, event: SealedEvent) -> None:
        with suppress(StoreUnavailable, Full):  # a client that comes back learns that nobody answered
            await self._events.keep(event)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)


def _lost() -> ProtocolError:
    return ProtocolError("The server that ran this call has stopped; call again")


async def _runs_nowhere(lease: Lease) -> Outcome:
    raise NotExecuted(_NOBODY)


def _named(call: Call, name: str) -> Call:
    return replace(call, state=f"run {name}", answers=None, params={}, arguments={})
