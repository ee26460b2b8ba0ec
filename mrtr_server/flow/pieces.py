"""Handlers that yield their result in pieces: async generators, run from the top in each round as any other handler.

What is yielded before an ask is yielded again in the round after it. The journal counts the pieces that the client has
been sent, so none is sent twice. The result is made of all pieces of its round.
"""

from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ..errors import FlowError, OverBudget
from ..limits import Limits
from ..logs.tracebacks import calls_author
from ..protocol.messages import JSON, NOTHING, Outlet, Piece, Progress
from ..schema.results import piece_blocks
from ..well_formed import write_json
from .handler import Handler
from .waiting_round import WaitingRound

LONGEST_MESSAGE = 1000
"""Characters of a text that are shown as progress."""


def in_pieces(handler: Handler, round_: WaitingRound, outlet: Outlet, limits: Limits) -> Handler:
    """Return a handler that returns what another one yields, and sends it on as it comes.

    Args:
        handler: an async generator.
        round_: the round that it runs in.
        outlet: takes the pieces.
        limits: how large the result may be.
    """
    return replace(handler, function=_Pieces(handler, round_, outlet, limits.streamed_bytes).collect)


class _Pieces:
    """The pieces of the result of one round."""

    def __init__(self, handler: Handler, round_: WaitingRound, outlet: Outlet, most_bytes: int) -> None:
        self._handler = handler
        self._round = round_
        self._outlet = outlet
        self._most_bytes = most_bytes
        self._size = 0
        self._count = 0
        self._content: list[JSON] = []
        self._texts: list[str] = []
        """The texts that make up the block which comes next; joined when another block comes."""
        call = round_.call
        self._shows_pieces = not call.trace.is_whole
        self._takes_pieces = self._shows_pieces and (round_.task is not None or call.takes_pieces)
        # Who looks at a task may not take pieces, so it has both: its own call has no `stream`.
        self._token = None if call.takes_pieces or handler.reports_progress else call.progress_token

    @calls_author
    async def collect(self, **keywords: Any) -> list[JSON]:
        """Call the handler, and return the content of its result.

        Raises:
            FlowError: something was yielded that is no content, or nothing can be yielded.
            OverBudget: the result is too large.
        """
        made = self._handler.function(**keywords)
        if not (hasattr(made, "__aiter__") and hasattr(made, "aclose")):
            raise FlowError(f"{self._handler.name!r} is an async generator that is wrapped to return something else")
        # Closed as soon as it is left, as when its client leaves: otherwise that would wait for the garbage collector.
        async with aclosing(made) as pieces:
            async for value in pieces:
                if self._round.stopped is not None:  # it has caught the cancellation that ended its round
                    break
                for block, is_text in piece_blocks(value):
                    await self._take(self._handler.addresses.block(block), is_text=is_text)
        self._end_text()
        return self._content

    async def _take(self, block: JSON, *, is_text: bool) -> None:
        self._size += len(write_json(block, inf_nan_mode="null"))
        if self._size > self._most_bytes:
            message = f"The result is over {self._most_bytes} bytes"
            raise OverBudget(message, "streamed_bytes", self._most_bytes)
        if is_text:
            place = len(self._content)
            self._texts.append(block["text"])
        else:
            self._end_text()
            place = len(self._content)
            self._content.append(block)
        index, self._count = self._count, self._count + 1
        if not self._round.ending:  # or nothing of this round counts
            await self._send(index, place, block)

    def _end_text(self) -> None:
        if self._texts:
            self._content.append({"type": "text", "text": "".join(self._texts)})
            self._texts = []

    async def _send(self, index: int, place: int, block: JSON) -> None:
        call, journal = self._round.call, self._round.journal
        if self._takes_pieces and index >= journal.pieces:
            sent: Awaitable[None] = self._outlet.send(Piece(call.request_id, index, place, block))
            if sent is not NOTHING:
                journal.pieces = index + 1
                await sent
        if self._token is not None and self._round.advance(index + 1):
            is_shown = self._shows_pieces and block["type"] == "text"
            text = block["text"][:LONGEST_MESSAGE] if is_shown else None
            await self._outlet.send(Progress(self._token, index + 1, None, text))
