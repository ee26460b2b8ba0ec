"""What a page of ours needs to answer a question: the call and its state, sealed in a token and kept in the store."""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import KeyRing
from ..crypto.place_codec import PlaceCodec, RowNames, SealedRows, row_codec
from ..errors import Busy, InvalidRequestState, StoreUnavailable
from ..flow.journal import REDEEMED_FOR
from ..protocol.ask_kinds import ask_kind
from ..protocol.messages import JSON, Call, NeedsInput, Question, Task
from ..protocol.sessions import owner_of
from ..schema.results import said
from ..storage.base import Store
from ..storage.quotas import Quotas
from ..storage.rows import Redemption

PURPOSE = "question in an app"

_MOST_TOKEN = 32 * 1024
"""Characters of a token that a page gets; of one that is longer, the page has the id alone."""

_MOST_ROW = 1024 * 1024
"""Bytes of what is kept of an ask: a longer outcome is returned and not kept."""

_ID_BYTES = 16

_NOTED_SECONDS = 3600.0
"""How long it is noted that a client of somebody draws apps."""

_WAIT_SECONDS = 30 * 86_400.0
"""How long it is noted at least which task a call has begun that waits for somebody else."""

_TURN_SECONDS = 5.0
"""How long the same call of a caller waits at most for the one that came before it."""

_PAUSE = 0.1

AskedBy = Literal["page", "model"]
"""Who asks the person in the place of a client."""


@dataclass(frozen=True)
class KeptAsk:
    """A call that has asked, as far as it has come."""

    id: str
    tool: str
    arguments: JSON
    state: str = field(repr=False)  # what its next round begins with
    questions: list[JSON]  # as the page draws them
    expires: float  # until when they can be answered, in seconds since the epoch
    by: AskedBy
    outcome: JSON | None = None  # the result of the call; None as long as it has none

    @property
    def is_open_to_models(self) -> bool:
        """Whether a model may ask the person all that is asked."""
        return self.by == "model" or (bool(self.questions) and all("model" in each for each in self.questions))

    def asking(self, asked: NeedsInput) -> "KeptAsk":
        """Return the same call in its next round."""
        questions = [_drawn(key, question) for key, question in asked.questions.items()]
        return replace(self, state=asked.state, questions=questions, expires=asked.expires)


def _drawn(key: str, question: Question) -> JSON:
    """Return a question as the page draws it."""
    params = question.params
    drawn = {"key": key, "kind": ask_kind(question).drawn, "message": params.get("message", "")}
    if question.through_model:
        drawn["model"] = True
    return {**drawn, **({"url": params["url"]} if "url" in params else {"schema": params.get("requestedSchema", {})})}


class KeptAsks:
    """Seals asks into tokens, and keeps them in the store, for whoever they were asked.

    Where the store can't keep one, its token alone carries it.
    """

    def __init__(self, ring: KeyRing, audience: str, store: Store, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._tokens = PlaceCodec(ring, f"{PURPOSE}, for its page")
        self._rows = SealedRows(
            row_codec(ring, PURPOSE, in_memory=store.in_memory), "A question in an app", "of another"
        )
        self._names = RowNames(ring, PURPOSE)
        # Whoever reads the page has this key: it shows that an answer comes from there, as far as a host keeps the
        # page from its model.
        self._page_keys = [key.hex()[:32] for _, key in ring.derive(f"{PURPOSE}, its page")]
        self._audience = audience
        self._store = store
        self._quotas = quotas
        self._clock = clock

    @property
    def page_key(self) -> str:
        """What the page shows with each answer."""
        return self._page_keys[0]

    def is_of_page(self, shown: Any) -> bool:
        """Return whether somebody shows what the page has, or had before keys were rotated."""
        given = shown.encode(errors="replace") if isinstance(shown, str) else b""
        return any(hmac.compare_digest(given, key.encode()) for key in self._page_keys)

    def begin(self, call: Call, asked: NeedsInput) -> KeptAsk:
        """Return a new ask of a call."""
        id = secrets.token_urlsafe(_ID_BYTES)
        by: AskedBy = "model" if call.asked_by == "model" else "page"
        return KeptAsk(id, call.target, dict(call.arguments), "", [], 0.0, by).asking(asked)

    # Tokens, which carry an ask where the store does not

    def token(self, call: Call, ask: KeptAsk) -> str | None:
        """Return what the page sends with its answers; None if that would be too long."""
        payload = to_json([ask.id, ask.tool, ask.arguments, ask.state, ask.questions, ask.expires, ask.by])
        if len(payload) * 4 // 3 > _MOST_TOKEN:
            return None
        token = self._tokens.seal(self._owner(call), payload)
        return token if len(token) <= _MOST_TOKEN else None

    def unseal(self, call: Call, token: Any) -> KeptAsk | None:
        """Return the ask in a token; None if it is no token for whoever calls."""
        if not isinstance(token, str) or len(token) > _MOST_TOKEN:
            return None
        try:
            return KeptAsk(*from_json(self._tokens.unseal(self._owner(call), token, "was asked of somebody else")))
        except InvalidRequestState:
            return None

    def _owner(self, call: Call) -> bytes:
        return to_json([self._audience, owner_of(call.principal)])

    # Rows

    async def keep(self, call: Call, ask: KeptAsk) -> None:
        """Keep an ask as it is now."""
        parts = [ask.tool, ask.arguments, ask.state, ask.questions, ask.expires, ask.by, ask.outcome]
        payload = to_json(parts, inf_nan_mode="constants")
        if len(payload) > _MOST_ROW and ask.outcome is not None:
            payload = to_json([*parts[:-1], _too_long(ask.outcome)], inf_nan_mode="constants")
        if len(payload) <= _MOST_ROW:
            await self._put(call, self._keys("ask", call, ask.id)[0], payload, ask.expires)

    async def find(self, call: Call, id: Any) -> KeptAsk | None:
        """Return an ask of whoever calls; None if there is none. Raises `StoreUnavailable`."""
        if not isinstance(id, str) or len(id) > 2 * _ID_BYTES:
            return None
        payload = await self._get("ask", call, id)
        return None if payload is None else KeptAsk(id, *from_json(payload))

    async def find_open(self, call: Call) -> KeptAsk | None:
        """Return the ask that the same call has left open; None if there is none, or callers can't be told apart."""
        if not self._tells_callers(call):
            return None
        try:
            id = await self._get("call", call, call.target, call.arguments)
            ask = None if id is None else await self.find(call, id.decode())
        except StoreUnavailable:  # of which the log has a line
            return None
        return ask if ask is not None and ask.outcome is None and ask.expires > self._clock() else None

    async def note_open(self, call: Call, ask: KeptAsk) -> None:
        """Note which ask a call has left open."""
        if self._tells_callers(call):
            key = self._keys("call", call, call.target, call.arguments)[0]
            await self._put(call, key, ask.id.encode(), ask.expires)

    # Calls that wait for somebody else

    async def find_wait(self, call: Call) -> str | None:
        """Return the id of the task that the same call has begun; None if there is none, or it can't be known."""
        if not self._tells_callers(call):
            return None
        with suppress(StoreUnavailable):  # of which the log has a line
            found = await self._get("wait", call, call.target, call.arguments)
            return None if found is None else found.decode()
        return None

    async def note_wait(self, call: Call, task: Task) -> None:
        """Note which task a call has begun: for long, since the time of a task grows with what it waits for."""
        if self._tells_callers(call):
            until = max(task.created + task.ttl, self._clock() + _WAIT_SECONDS)
            await self._put(call, self._wait_key(call), task.id.encode(), until)

    def _wait_key(self, call: Call) -> str:
        return self._keys("wait", call, call.target, call.arguments)[0]

    @asynccontextmanager
    async def in_turn(self, call: Call) -> AsyncIterator[None]:
        """Hold up the same calls of a caller, for a few seconds at most: each would begin to wait."""
        name = digest_parts("call in turn", self._wait_key(call))
        turn = await self._turn(call, name) if self._tells_callers(call) else None
        try:
            yield
        finally:
            if turn is not None:
                with suppress(StoreUnavailable):
                    await self._store.release(name, turn.token)

    async def _turn(self, call: Call, name: str) -> Redemption | None:
        quota, deadline = self._quotas.of(call.principal), self._clock() + _TURN_SECONDS
        with suppress(StoreUnavailable, Busy):
            while self._clock() < deadline:
                turn = await self._store.redeem(name, "", lease=_TURN_SECONDS, keep=_TURN_SECONDS, quota=quota)
                if turn.verdict == "granted":
                    return turn
                await asyncio.sleep(_PAUSE)
        return None

    # What is known of a caller whose client says nothing of itself

    async def note_drawing(self, call: Call) -> None:
        """Note that a client of a principal draws apps and can't elicit: some say so in `initialize` alone."""
        until = self._clock() + _NOTED_SECONDS
        await self._put(call, self._keys("draws", call)[0], to_json(until), until)

    async def has_drawn(self, call: Call) -> bool:
        """Return whether a client of the principal has said so of late."""
        try:
            until = await self._get("draws", call)
            return until is not None and bool(from_json(until) > self._clock())
        except StoreUnavailable:  # of which the log has a line
            return False

    @staticmethod
    def _tells_callers(call: Call) -> bool:
        return call.principal is not None or bool(call.session)

    def has_expired(self, ask: KeptAsk) -> bool:
        """Return whether an ask can't be answered any more."""
        return ask.expires <= self._clock()

    async def _put(self, call: Call, key: str, payload: bytes, expires: float) -> None:
        now = self._clock()
        keep, quota = max(expires - now, 0.0) + REDEEMED_FOR, self._quotas.of(call.principal, now)
        with suppress(StoreUnavailable, Busy):  # the token carries it
            sealed = self._rows.seal(key, payload).encode()
            await self._store.replace(key, sealed, keep=keep, quota=quota)

    async def _get(self, what: str, call: Call, *parts: Any) -> bytes | None:
        for key in self._keys(what, call, *parts):  # the first but while keys are rotated
            if (found := await self._store.get(key)) is not None:
                return self._rows.unseal(key, found)
        return None

    def _keys(self, what: str, call: Call, *parts: Any) -> list[str]:
        who = owner_of(call.principal) or (call.session if what in ("call", "wait") else "")
        return self._names.of([PURPOSE, self._audience, what, who, *parts])


def _too_long(outcome: Mapping[str, Any]) -> JSON:
    text = "The call has ended. Its result is too long to be shown again."
    return said(text, is_error=bool(outcome.get("isError")))
