"""The era in which a client speaks with one server: the newest first, then a handshake (Versioning, Compatibility)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from ..errors import BadReply, ClientError, NoReply, RequestRefused, SetupError
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON
from ..wire import (
    ACCEPTED,
    HANDSHAKES,
    MODERN,
    MODERN_CODES,
    UNKNOWN_METHOD,
    UNSUPPORTED_VERSION,
    About,
    handshake_params,
    session_headers,
    write_message,
    write_modern,
    write_of_session,
    write_request,
)
from .exchange import Allowance, Bounds, Connection, Exchange

Noted = Callable[[JSON], Awaitable[None]]
Answers = Callable[[Mapping[str, object]], Awaitable[JSON]]

ERAS = (MODERN, *HANDSHAKES)

_PROBE_SECONDS = 10.0  # that a server has to say whether it speaks the newest version, where it may not answer at all
_LAST_SECONDS = 5.0  # that the last word about a request, or of a session, may take

_ASKS = frozenset({"tools/call", "prompts/get", "resources/read"})
_NO_SIGN = frozenset({401, 403, 429, 503})  # statuses that say nothing about an era
_LONGEST_SESSION = 8192  # characters of its id


class Session:
    """Speaks with a server in one era: the given one, or the one that the first request finds out.

    `answers` answers questions that come while a request is open, by their keys.
    """

    def __init__(
        self, connection: Connection, about: About, bounds: Bounds, answers: Answers, era: str | None = None
    ) -> None:
        if era is not None and era not in ERAS:
            raise SetupError(f"era={era!r}: choose from {', '.join(ERAS)}, or leave it out")
        self._connection = connection
        self._about = about
        self._bounds = bounds
        self._answers = answers
        self._wanted = era
        self._numbers = count(1)
        self._headers: Mapping[str, str] = {}  # of the session
        self._one_at_a_time = asyncio.Lock()
        self.era = MODERN if era == MODERN else None

    async def open(self) -> None:
        await self._connection.open()
        try:
            if self.era is None and (self._wanted is not None or self._connection.is_stream):
                await self._agree()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        with suppress(Exception):  # of the network, or a refusal: nobody waits for this
            if "Mcp-Session-Id" in self._headers:
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._connection.end_session(self._headers)
        await self._connection.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing comes of the server any more."""
        return self._connection.is_over

    async def stream(self, method: str, params: JSON, hear: Noted) -> None:
        """Send a request of the newest version whose reply is a stream of messages, and have each heard, to its end.

        Raises `ClientError`, and what `hear` raised.
        """
        number = next(self._numbers)
        exchange = self._message(*write_modern(self._about, number, method, params), number)
        exchange.hear, exchange.repeatable, exchange.silence = hear, False, self._bounds.silent_seconds
        await self._send(exchange)

    async def request(
        self,
        method: str,
        params: JSON,
        noted: Noted,
        *,
        mirrored: Iterable[HeaderParameter] = (),
        repeatable: bool,
        allowance: Allowance | None = None,
    ) -> JSON:
        """Send a request; return its result. Raises `ClientError`, and what a callback raised."""
        allowance = allowance or Allowance(self._bounds.response_bytes)
        mirrored = tuple(mirrored)

        async def send() -> JSON:  # in the era that is known by then
            exchange = self._exchange(method, params, mirrored, noted)
            exchange.repeatable, exchange.allowance = repeatable, allowance
            return await self._send(exchange)

        before, session = self.era, self._headers
        try:
            result = await send()
        except RequestRefused as refusal:
            if before is None:
                if not await self._falls_back(refusal):
                    raise
            elif refusal.status == 404 and "Mcp-Session-Id" in session:  # it has ended; nothing was done
                await self._begin_again(session)
            else:
                raise
            return await send()
        self.era = self.era or MODERN
        return result

    def _exchange(self, method: str, params: JSON, mirrored: Iterable[HeaderParameter], noted: Noted) -> Exchange:
        number = next(self._numbers)
        is_modern = self.era in (None, MODERN)
        if is_modern:
            exchange = self._message(*write_modern(self._about, number, method, params, mirrored), number)
        else:
            exchange = self._message(self._posted(), write_of_session(number, method, params), number)
        exchange.resumes, exchange.takes_questions = not is_modern, not is_modern and method in _ASKS
        asked = count(1)

        async def hear(message: JSON) -> None:
            if "id" not in message:
                await noted(message["params"])
            elif next(asked) > self._bounds.rounds * self._bounds.questions:
                raise BadReply("The server asks without an end")
            elif not is_modern:
                await self._answer(message)

        exchange.hear = hear
        return exchange

    async def _send(self, exchange: Exchange) -> JSON:
        """Send a request. One that is left is cancelled: in the newest era, a connection that closes says that."""
        try:
            return await self._connection.exchange(exchange)
        except RequestRefused:
            raise
        except BaseException:
            if exchange.resumes or self._connection.is_stream:
                with suppress(ClientError, TimeoutError):
                    async with asyncio.timeout(_LAST_SECONDS):
                        params = {"requestId": exchange.number}
                        await self._tell(write_message(method="notifications/cancelled", params=params))
            raise

    def _message(self, headers: Mapping[str, str], body: bytes, number: int | None = None) -> Exchange:
        allowance = Allowance(self._bounds.response_bytes)
        return Exchange(body=body, number=number, headers=headers, allowance=allowance)

    def _posted(self) -> Mapping[str, str]:
        return {**ACCEPTED, **self._headers}

    async def _tell(self, body: bytes) -> None:
        """Send a message that gets no result, once."""
        exchange = self._message(self._posted(), body)
        exchange.repeatable = False
        await self._connection.exchange(exchange)

    async def _answer(self, question: JSON) -> None:
        """Answer what the server asks while a request is open. Raises what a callback raised."""
        id, method = question["id"], question["method"]
        if type(id) not in (str, int):
            return
        if method == "ping":
            await self._tell(write_message(id=id, result={}))
            return
        key = id.rpartition(".")[0] or id if isinstance(id, str) else str(id)  # servers of this package name it there
        try:
            answers = await self._answers({key: {"method": method, "params": question.get("params", {})}})
        except BadReply as error:
            reply = write_message(id=id, error={"code": UNKNOWN_METHOD, "message": str(error)})
        else:
            reply = write_message(id=id, result=answers[key])
        await self._tell(reply)

    # Which era

    async def _falls_back(self, refusal: RequestRefused) -> bool:
        """Return whether a refusal of the first request is one of a server with a handshake, after the handshake."""
        supported = refusal.data.get("supported") if isinstance(refusal.data, dict) else None
        has_older = isinstance(supported, list) and any(each in HANDSHAKES for each in supported)
        is_modern = refusal.code in MODERN_CODES and not (refusal.code == UNSUPPORTED_VERSION and has_older)
        if is_modern or refusal.status in _NO_SIGN:
            return False
        with suppress(RequestRefused, BadReply, NoReply):  # it is the first refusal that says what is wrong
            await self._agree()
            return self.era != MODERN
        return False

    async def _agree(self) -> None:
        async with self._one_at_a_time:
            if self.era is not None:
                return
            if self._wanted is None and await self._discovers():
                self.era = MODERN
            else:
                await self._begin()

    async def _discovers(self) -> bool:
        """Return whether the server says that it speaks the newest version."""
        number = next(self._numbers)
        exchange = self._message(*write_modern(self._about, number, "server/discover", {}), number)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                result = await self._connection.exchange(exchange)
        except TimeoutError:
            return False  # some servers leave unknown without an answer what comes before a handshake
        except RequestRefused as refusal:
            if refusal.status in _NO_SIGN:
                raise
            return refusal.code in MODERN_CODES - {UNSUPPORTED_VERSION}
        versions = result.get("supportedVersions")
        return isinstance(versions, list) and MODERN in versions

    async def _begin(self) -> None:
        """Begin a session (Lifecycle, Initialization)."""
        number, wanted = next(self._numbers), self._wanted or HANDSHAKES[0]
        known = {name: each for name, each in self._about.capabilities.items() if name != "extensions"}
        params = handshake_params(wanted, self._about._replace(capabilities=known))
        exchange = self._message(ACCEPTED, write_request(number, "initialize", params), number)
        result = await self._connection.exchange(exchange)
        agreed = result.get("protocolVersion")
        if agreed not in HANDSHAKES or (self._wanted is not None and agreed != wanted):
            raise BadReply(f"The server does not speak {wanted}: it agrees to {str(agreed)[:100]!r}")
        session = exchange.received.get("mcp-session-id", "")
        if not (session.isascii() and session.isprintable() and len(session) <= _LONGEST_SESSION):
            raise BadReply("The id of the session is none")
        self._headers = session_headers(agreed, session)
        await self._tell(write_message(method="notifications/initialized"))
        self.era = agreed

    async def _begin_again(self, ended: Mapping[str, Any]) -> None:
        async with self._one_at_a_time:
            if self._headers is ended:  # another request may have begun one
                await self._begin()
