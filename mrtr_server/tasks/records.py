"""What the store has of tasks, sealed, with notices: their rows, and pieces of their results.

A worker keeps pieces as they come, and any replica sends them on. They are kept in batches, each under the index of
its first piece, so that a reader of so many pieces finds the next.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from ..crypto.digests import digest_parts
from ..crypto.keys import TASK_PIECES, KeyRing
from ..crypto.place_codec import row_codec
from ..errors import Full, InternalFault, InvalidRequestState, OverBudget, ProtocolError, RequestError, StoreUnavailable
from ..flow.journal import Journal
from ..flow.waits import person_in
from ..limits import Limits
from ..logs import logger
from ..logs.failures import report_failure
from ..protocol import messages
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Call
from ..storage.base import Store
from ..storage.pubsub import Fanout, InProcessFanout
from ..storage.quotas import Quota, Quotas
from ..storage.rows import ENDED, TaskRow, WaitRow
from ..tally import ABANDONED_TASKS, Tally
from ..well_formed import write_json
from .sealing import Questions, SealedTasks

KEEP_INTERVAL = 0.5  # seconds between batches of pieces of a task, at least
MOST_WAITING = 256 * 1024  # bytes of pieces that wait to be kept, beyond which their tool waits as well

_SHORTEST_KEEP = 60.0

RETENTION = 300.0
"""Seconds after its time to live that a task can still be asked for, so that its client learns what became of it."""

WAIT_KEPT = 3600.0  # seconds that a task is kept after the time for the answer of somebody else, at least


NOTHING_LEFT: Mapping[str, Any] = {"call": b"", "journal": b"", "questions": b""}
"""What a task that was completed or cancelled keeps of its flow."""

CANCELLED: Mapping[str, Any] = {"status": "cancelled", "message": "", **NOTHING_LEFT}
"""Cancels a task. Its lease stays: its worker gives it back when nothing of it runs any more."""


class TaskPieces:
    """Keeps pieces of the results of tasks, and finds them."""

    def __init__(self, store: Store, ring: KeyRing, fanout: Fanout, clock: Callable[[], float]) -> None:
        self._store = store
        self._codec = row_codec(ring, TASK_PIECES, in_memory=store.in_memory)
        self._fanout = fanout
        self._now = clock

    async def keep(self, row: TaskRow, pieces: list[messages.Piece], quota: Quota) -> int:
        """Keep pieces, unless a former worker has; return how many there are now. Raises `StoreUnavailable`, `Full`."""
        # Counted from the first of these pieces on.
        first = pieces[0].index
        written = write_json([[piece.block, piece.content] for piece in pieces], inf_nan_mode="null")
        sealed = self._codec.seal(_place(row.id, row.owner, first), written).encode()
        seconds = max(row.created + row.ttl - self._now(), _SHORTEST_KEEP)
        is_new = await self._store.put(_key(row.id, first), sealed, keep=seconds, quota=quota)
        if is_new:
            self._fanout.publish(messages.Change("piece", row.id))
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

    def __init__(self, pieces: TaskPieces, row: TaskRow, quota: Quota, is_over: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._row = row
        self._quota = quota
        self._is_over = is_over
        self._waiting: list[messages.Piece] = []
        self._size = 0
        self._kept = 0  # the index after the last piece
        self._guard = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._has_given_up = False

    def add(self, piece: messages.Piece) -> Awaitable[None]:
        """Keep a piece soon; see `Outlet.send`."""
        if self._has_given_up or self._is_over():
            return messages.NOTHING
        self._waiting.append(piece)
        self._size += len(write_json(piece.content))
        if self._size > MOST_WAITING:
            return self.flush()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._keep_on())
        return messages.TURN

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
                    self._kept = waiting[0].index + await self._pieces.keep(self._row, waiting, self._quota)
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

    def __init__(self, pieces: TaskPieces, call: Call, owner: str, outlet: messages.Outlet, position: int = 0) -> None:
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
                await self._outlet.send(messages.Piece(self._call.request_id, self.position, block, content, task))
                self.position += 1


def _key(id: str, first: int) -> str:
    return digest_parts("pieces of a task", id, first)


def _place(id: str, owner: str, first: int) -> bytes:
    return to_json([id, owner, first]) + b"\n"


class TaskListener(Protocol):
    """Hears what becomes of tasks and waits, after that is stored. It raises nothing."""

    async def changed(self, row: TaskRow) -> None:
        """Hear of a task that asks something else, or has ended."""
        ...

    async def answered(self, row: TaskRow, key: str, wait: str) -> None:
        """Hear that what a task waits for was answered."""
        ...


class TaskRecords:
    """Reads and writes the rows of tasks, for whoever runs them and for whoever answers their clients."""

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        fanout: Fanout,
        limits: Limits,
        *,
        audience: str = "",
        clock: Callable[[], float] = time.time,
        tally: Tally | None = None,
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self.store = store
        self.limits = limits
        self.now = clock
        self.sealed = SealedTasks(ring, limits, audience)
        self.quotas = Quotas(ring, limits)
        self.pieces = TaskPieces(store, ring, fanout, clock)
        self._fanout = fanout
        self.listener: TaskListener | None = None

    async def expire(self, row: TaskRow) -> TaskRow:
        """Fail a task whose time has expired, unless something else just happened to it; return it as it is now."""
        message = "The task did not end in time"
        # A question has a time of its own, also while the task works since another one was answered.
        awaited_input = row.status == "input_required" or row.deadline < row.created + row.ttl
        if awaited_input:
            message = "The input that the task was waiting for did not come in time"
        elif not row.version and not row.attempts:  # one that was stored as taken has begun, at its first version
            logger.warning(
                "No worker began a task of %r before it expired; check that a worker with this tool is running",
                row.name,
            )
        failed = self.failed(row, ProtocolError(message))
        expired = await self.change(row, **failed, lease="", leased_until=0.0)
        if expired is not None and awaited_input:
            self.tally.add(ABANDONED_TASKS, row.name)
        return expired or await self.store.find_task(row.id) or row

    def completed(self, row: TaskRow, outcome: messages.Complete) -> dict[str, Any]:
        """Return the changes that end a task with a result."""
        try:
            sealed = self.sealed.seal_outcome(row, outcome)
        except ValueError as error:
            return self.failed(row, self._fault(row, error))
        return {"status": "completed", "outcome": sealed, "message": "", **NOTHING_LEFT}

    def failed(self, row: TaskRow, error: RequestError) -> dict[str, Any]:
        """Return the changes that end a task with an error."""
        try:
            sealed = self.sealed.seal_outcome(row, error)
        except ValueError as mistake:  # in the data that the author gave it
            error = self._fault(row, mistake)
            sealed = self.sealed.seal_outcome(row, error)
        # The request and the flow stay, so that an operator can retry it.
        return {"status": "failed", "outcome": sealed, "message": error.message, "questions": b""}

    def asked(self, row: TaskRow, journal: Journal, questions: Questions) -> dict[str, Any]:
        """Return the changes that let the client see what is asked. Raises `OverBudget`."""
        ttl = max([row.ttl, *(questions.until[key] - row.created + WAIT_KEPT for key in questions.waits)])
        changes: dict[str, Any] = {
            "journal": self.seal_journal(row, journal),
            "questions": self.sealed.seal_questions(row, questions.dump()),
            "deadline": questions.ends(row.created + ttl),
            "attempts": 0,
        }
        if ttl > row.ttl:
            changes |= {"ttl": ttl, "expires": row.created + ttl + RETENTION}
        return changes

    def answered(self, row: TaskRow, questions: Questions) -> dict[str, Any]:
        """Return the changes that keep answers to what a task asks. Raises `OverBudget`."""
        # If nothing of it runs, it is to run now, unless it waits for further answers.
        written = questions.dump()
        if len(written) > self.limits.state_bytes:
            message = f"The answers are over {self.limits.state_bytes} bytes"
            raise OverBudget(message, "state_bytes", self.limits.state_bytes)
        end = row.created + row.ttl
        changes: dict[str, Any] = {
            "questions": self.sealed.seal_questions(row, written),
            "deadline": questions.ends(row.deadline if questions.open and not questions.until else end),
        }
        if row.status == "input_required" and questions.answers and not (questions.open and questions.together):
            changes["status"] = "working"
        return changes

    def status(self, row: TaskRow) -> messages.TaskStatus:
        """Return a task's status for its client; see `visible_status`."""
        if not row.questions:
            return row.status
        return visible_status(row, self.sealed.unseal_questions(row))

    def listed(self, row: TaskRow, questions: Questions) -> list[WaitRow]:
        """Return how what a task waits for is listed, for those who may answer."""
        rows = []
        for key, question in questions.waits.items():
            one = person_in(question.params.get("to") or question.params["who"])
            who = "" if one is None else self.quotas.of(Principal(one[1], one[0])).caller
            name, until = question.params["wait"], questions.until[key]
            rows.append(WaitRow(wait_id(row.id, key), row.id, name, who, self.now(), until, row.caller))
        return rows

    def kept(self, row: TaskRow, journal: Journal) -> dict[str, Any]:
        """Return the changes that keep what a task has done, while its worker continues. Raises `OverBudget`."""
        return {"journal": self.seal_journal(row, journal), "attempts": 1}

    def seal_journal(self, row: TaskRow, journal: Journal) -> bytes:
        """Seal what a task's flow remembers. Raises `OverBudget`."""
        return self.sealed.seal_journal(row, journal, self.now())

    def _fault(self, row: TaskRow, error: Exception) -> InternalFault:
        return InternalFault(report_failure("A task of %r returned a result that is not JSON", row.name, error=error))

    async def change(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        """Change a task, and notify listeners; return it as it is then, or None if it was changed before."""
        changed = await self.store.change_task(row, **changes, updated=self.now())
        if changed is not None:
            self.notify(row.id)
            await self.tell(changed, changes)
        return changed

    async def tell(self, row: TaskRow, changes: Collection[str]) -> None:
        """Notify the listener, if any, of a task that asks something or has ended; `changes` are its new fields."""
        if self.listener is not None and ("questions" in changes or row.status in ENDED):
            await self.listener.changed(row)

    def notify(self, id: str) -> None:
        """Notify listeners of a change of a task."""
        self._fanout.publish(messages.Change("task", id))

    def notify_worker(self, id: str) -> None:
        """Notify the worker that runs a task, wherever that is, of what a client did to it."""
        self._fanout.publish(messages.Change("run", id))

    def notify_session(self, session: str) -> None:
        """Notify the stream of a session of a new task."""
        self._fanout.publish(messages.Change("session", session))

    def notify_progress(self, row: TaskRow, progress: messages.Progress) -> None:
        """Report how far a task has come to those who wait for its result."""
        self._fanout.publish(messages.Change("progress", row.id, note=self.sealed.seal_progress(row, progress)))

    def listen_for_workers(self, ids: Collection[str]) -> messages.Subscription:
        """Start to listen to what clients do to tasks, by their ids."""
        fanout = self._fanout if ids else InProcessFanout()  # where there are none, there is nothing to be heard
        return fanout.subscribe(frozenset(messages.Change("run", id) for id in ids))


def visible_status(row: TaskRow, questions: Questions) -> messages.TaskStatus:
    """Return a task's status for its client: it needs input as soon as something is asked, whatever runs beside."""
    # In the row it needs input only when nothing of it runs, nor is to. For its client it works while it waits for
    # somebody else.
    if questions.of_client.open:
        return "input_required"
    return "working" if row.status == "input_required" else row.status


def wait_id(task: str, key: str) -> str:
    """Return the id under which a wait is listed."""
    return digest_parts("wait", task, key)
