"""Calls that can't stay open and ask for pages alone: they end with the pages, and continue when they are repeated."""

from contextlib import suppress

from pydantic_core import from_json

from ..crypto.keys import LIVE_PAGES, KeyRing
from ..crypto.place_codec import PlaceCodec, RowNames, SealedRows
from ..errors import Busy, PagesRequired, StoreUnavailable
from ..protocol.messages import JSON, PAGE, Call, Question
from ..protocol.sessions import owner_of
from ..storage.base import Store
from ..storage.quotas import Quotas
from .events import StreamEvent, dump_event, load_event
from .session_states import SessionStates

OPENED: JSON = {"action": "accept"}
"""The answer to a question whose page has reported: nobody reports what nobody opened."""


class RequiredPages:
    """Keeps the flows of calls that ended with pages to open, and finds them when their callers repeat the call.

    A client repeats such a call without a state, so a flow is found by its caller and the call. Without authentication,
    callers can't be told apart: there a call starts again.
    """

    def __init__(self, ring: KeyRing, audience: str, store: Store, states: SessionStates, quotas: Quotas) -> None:
        self._sealed = SealedRows(PlaceCodec(ring, LIVE_PAGES), "The flow of a call", "of another call")
        self._names = RowNames(ring, LIVE_PAGES)
        self._audience = audience
        self._store = store
        self._states = states
        self._quotas = quotas

    @staticmethod
    def may_end_with(questions: dict[str, Question], call: Call, *, is_shared: bool) -> bool:
        if not all(question.needs == PAGE for question in questions.values()):
            return False
        return not any(question.page for question in questions.values()) or (is_shared and call.principal is not None)

    async def end_with(self, event: StreamEvent, call: Call, now: float) -> PagesRequired:
        pages = tuple(question.page for question in event.questions.values() if question.page)
        if call.principal is not None:
            await self._keep(call, dump_event(event), event.ends - now)
        if pages and call.session:
            with suppress(StoreUnavailable, Busy):  # then the client repeats the call without being told when
                await self._states.listen_to_pages(call.session, call.principal, pages)
        return self._required(event)

    async def find(self, call: Call, now: float) -> StreamEvent | None:
        """Return the flow that an earlier call like this one left, and whose time is not over.

        Pages that have reported are an answer that came in time: their flow may be found for a while longer.
        """
        if call.principal is None or not call.client.supports("elicitation.url"):
            return None  # it has left none, which spares a look in the store
        for key in self._keys(call):  # the first but while keys are rotated
            if (found := await self._store.get(key)) is not None:
                break
        else:
            return None
        parts = from_json(self._sealed.unseal(key, found))
        event = load_event(parts[1:]) if parts else None
        if event is None or event.ends <= now or (event.expires <= now and not await self._have_reported(event)):
            return None
        if event.epoch and event.epoch != await self._store.epoch():  # it would be refused, and the call starts again
            return None
        return event

    async def _have_reported(self, event: StreamEvent) -> bool:
        for question in event.questions.values():
            if not question.page or await self._store.get(question.page) is None:
                return False
        return True

    async def answers(self, event: StreamEvent) -> dict[str, JSON]:
        """Return the answers to questions whose pages report, by key. Raises `PagesRequired` where one has not."""
        pages = {key: question.page for key, question in event.questions.items() if question.page}
        for page in pages.values():
            if await self._store.get(page) is None:
                raise self._required(event)
        return dict.fromkeys(pages, OPENED)

    async def forget(self, call: Call, event: StreamEvent, now: float) -> None:
        """Note that a flow has ended, so that the next call like it starts again."""
        with suppress(StoreUnavailable, Busy):  # then the next one gets the same outcome, until this one expires
            await self._keep(call, b"null", event.ends - now)

    def _required(self, event: StreamEvent) -> PagesRequired:
        return PagesRequired(event.questions)

    async def _keep(self, call: Call, payload: bytes, seconds: float) -> None:
        key = self._keys(call)[0]
        sealed = self._sealed.seal(key, payload).encode()
        await self._store.replace(key, sealed, keep=max(seconds, 1.0), quota=self._quotas.of(call.principal))

    def _keys(self, call: Call) -> list[str]:
        """Return where the flow of a call may be kept."""
        who = owner_of(call.principal)
        return self._names.of(["live pages", self._audience, who, call.method, call.target, call.arguments])
