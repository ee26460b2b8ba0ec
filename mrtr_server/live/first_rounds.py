"""First rounds of open calls. They have no state yet, so a client that loses one gets its outcome instead."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from secrets import token_hex
from typing import Any

from ..concurrency.running import running_loop
from ..concurrency.waiting import wait_until
from ..errors import Full, NotExecuted, ProtocolError, RequestError, StoreUnavailable
from ..protocol.messages import Call, Outcome, Outlet, Unfinished
from ..storage.base import Lease
from .events import Event, SealedEvent
from .open_questions import Channel, leaving
from .parts import LiveParts

KEPT = 3600.0
"""How long the outcome of a first round is kept for a client that has left, in seconds."""

LOOK = 0.5
"""How often a client that came back looks for it, in seconds."""

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

    async def run(
        self, call: Call, channel: Channel, dispatch: Callable[[Call, Outlet], Awaitable[Outcome]]
    ) -> Outcome:
        """Run a first round."""
        came: asyncio.Future[Outcome | RequestError] | None = None

        def begin() -> str:
            nonlocal came
            came = asyncio.get_running_loop().create_future()
            name = token_hex(16)
            event = Event(channel.origin(), run=name, expires=self._clock() + KEPT, progress=channel.progress)
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

    async def wait_for(self, event: Event, call: Call, channel: Channel) -> Outcome:
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
