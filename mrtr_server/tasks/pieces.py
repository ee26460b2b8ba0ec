"""Pieces of the results of tasks: a worker keeps them in the store as they come, and any replica sends them on.

They are kept in batches, each under the index of its first piece, so that a reader of so many pieces finds the next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import TASK_PIECES, KeyRing
from ..crypto.place_codec import row_codec
from ..errors import Full, InvalidRequestState, StoreUnavailable
from ..protocol.messages import JSON, NOTHING, TURN, Call, Change, Outlet, Piece
from ..storage.base import Store, TaskRow
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from ..well_formed import write_json

logger = logging.getLogger("mrtr_server")

KEEP_INTERVAL = 0.5
"""How often the pieces of a task are kept at most, in seconds."""

MOST_WAITING = 256 * 1024
"""Bytes of pieces that wait to be kept, beyond which their tool waits as well."""

_SHORTEST_KEEP = 60.0


class TaskPieces:
    """Keeps pieces of the results of tasks, and finds them."""

    def __init__(self, store: Store, ring: KeyRing, fanout: Fanout, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._store = store
        self._codec = row_codec(ring, TASK_PIECES, in_memory=store.in_memory)
        self._fanout = fanout
        self._quotas = quotas
        self._now = clock

    async def keep(self, row: TaskRow, pieces: list[Piece]) -> int:
        """Keep pieces, unless a worker that had the task before has kept some in their place.

        Return how many pieces are there now, from the first of these on. Raises `StoreUnavailable`, `Full`.
        """
        first = pieces[0].index
        written = write_json([[piece.block, piece.content] for piece in pieces], inf_nan_mode="null")
        sealed = self._codec.seal(_place(row.id, row.owner, first), written).encode()
        seconds = max(row.created + row.ttl - self._now(), _SHORTEST_KEEP)
        quota = self._quotas.of_caller(row.caller)
        is_new = await self._store.put(_key(row.id, first), sealed, keep=seconds, quota=quota)
        if is_new:
            self._fanout.publish(Change("piece", row.id))
            return len(pieces)
        return len(await self.find(row.id, row.owner, first)) or len(pieces)

    async def find(self, id: str, owner: str, first: int) -> list[tuple[int, JSON]]:
        """Return pieces that were kept together. Raises `StoreUnavailable`."""
        sealed = await self._store.get(_key(id, first))
        if sealed is None:
            return []
        try:
            written = self._codec.unseal(_place(id, owner, first), sealed, "the pieces belong to another task")
        except InvalidRequestState:  # its client gets them with the result
            return []
        return [(block, content) for block, content in from_json(written)]


class PieceWriter:
    """Keeps the pieces that a round of a task yields, a few times a second."""

    def __init__(self, pieces: TaskPieces, row: TaskRow, is_over: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._row = row
        self._is_over = is_over
        self._waiting: list[Piece] = []
        self._size = 0
        self._kept = 0
        """The index after the last piece that was kept."""
        self._guard = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._has_given_up = False

    def add(self, piece: Piece) -> Awaitable[None]:
        """Keep a piece soon; see `Outlet.send`."""
        if self._has_given_up or self._is_over():
            return NOTHING
        self._waiting.append(piece)
        self._size += len(write_json(piece.content))
        if self._size > MOST_WAITING:
            return self.flush()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._keep_on())
        return TURN

    async def _keep_on(self) -> None:
        while self._waiting:
            await self.flush()
            await asyncio.sleep(KEEP_INTERVAL)

    async def flush(self) -> None:
        """Keep what waits. Where that fails, no more is kept: the client gets all with the result."""
        async with self._guard:
            waiting, self._waiting, self._size = self._waiting, [], 0
            if self._is_over():
                return
            try:
                while waiting := [piece for piece in waiting if piece.index >= self._kept]:
                    self._kept = waiting[0].index + await self._pieces.keep(self._row, waiting)
            except (StoreUnavailable, Full) as error:
                self._has_given_up = True
                logger.warning(
                    "Pieces of the result of a task of %r (%s) are not kept, since %s; its client gets them with the "
                    "result",
                    self._row.name,
                    self._row.reference,
                    error,
                )

    async def end(self) -> None:
        """Keep what waits, and no more by itself."""
        async with self._guard:  # so that what is just being kept is
            if self._keeping is not None:
                self._keeping.cancel()
        await self.flush()


class PieceReader:
    """Sends the pieces of a task on, to a client that waits for its result."""

    def __init__(self, pieces: TaskPieces, call: Call, owner: str, outlet: Outlet, position: int = 0) -> None:
        self.position = position
        self._pieces = pieces
        self._call = call
        self._owner = owner
        self._outlet = outlet

    async def send_new(self) -> None:
        """Send what was kept since. Raises `StoreUnavailable`."""
        task = self._call.target
        while found := await self._pieces.find(task, self._owner, self.position):
            for block, content in found:
                await self._outlet.send(Piece(self._call.request_id, self.position, block, content, task))
                self.position += 1


def _key(id: str, first: int) -> str:
    return digest_parts("pieces of a task", id, first)


def _place(id: str, owner: str, first: int) -> bytes:
    return to_json([id, owner, first]) + b"\n"
