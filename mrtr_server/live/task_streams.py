"""Requests for the result of a task that stay open until it has ended, and ask meanwhile what the task asks.

All of it is in the row of the task: its questions, its answers and its outcome. So a stream only shows that,
and an answer changes the row, whichever replica takes it.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Literal

from ..concurrency.waiting import Turning, wait_until
from ..errors import AnswerNotShared, Busy, InvalidRequest, MissingCapability, RequestError, UnknownTarget
from ..protocol import messages
from ..protocol.callers import Principal, lacking, nested, person_of
from ..protocol.messages import JSON, Call, Change, Outcome, Task, TaskResult
from ..storage.rows import ENDED
from ..tasks.records import PieceReader
from ..tasks.task_service import Tasks
from .answers import TASK_CANCELLED, AskedByTask, read_answer
from .events import StreamEvent
from .open_questions import RETRY, Channel, held_open
from .parts import LiveParts

LOOK = 5.0
"""How long to wait for word of a change before looking at the task, in seconds: a process that dies may send none."""

RETRY_AFTER = 1.0  # for a client that takes no stream, at a server that drains, in seconds

IsCancelled = Callable[[], Awaitable[bool]]


class TaskStreams:
    def __init__(self, dispatch: messages.Dispatch, tasks: Tasks, parts: LiveParts) -> None:
        self._dispatch = dispatch
        self._tasks = tasks
        self._parts = parts

    async def serve(
        self, call: Call, channel: Channel, event: StreamEvent, cancelled: Change | None, is_cancelled: IsCancelled
    ) -> Outcome | None:
        """Wait for the end of a task, and send what it asks meanwhile; None if the request ends without a reply."""
        wanted: tuple[Change, ...] = (Change("task", call.target), Change("progress", call.target))
        reader = self._tasks.pieces_for(call, channel) if channel.can_stream else None
        if reader is not None:
            wanted = (*wanted, Change("piece", call.target))
        wanted = (*wanted, *([] if cancelled is None else [cancelled]))
        with closing(Turning(self._parts.answers.listen((), wanted))) as changes:
            task = await self._look(call)
            if task.status in ENDED:
                return TaskResult(task)
            with self._parts.held_streams.take(person_of(call.principal)):
                event = replace(event, expires=task.created + task.ttl)
                stream = _Stream(event, call, channel, self._parts, reader, changes, wanted)

                async def look(heard: Sequence[Change] | None) -> TaskResult | Literal[False] | None:
                    """Return the result of the task; False if the request was cancelled."""
                    if heard is not None and not await self._heard(stream, heard):
                        return None
                    if heard and cancelled in heard and await is_cancelled():
                        return False
                    task = await self._look(call)
                    await stream.send_pieces()
                    if task.status not in ENDED:
                        await stream.show(task)
                        return None
                    if task.outcome is None:  # it was cancelled, so what it asked was not answered
                        stream.withdraw()
                    return TaskResult(task)

                await stream.mark()
                await stream.show(task)
                endings = partial(held_open, channel), self._parts.admission.on_drain
                found: TaskResult | Literal[False] | None = await wait_until(
                    look, changes, pauses=repeat(LOOK), endings=endings, at_once=False
                )
                if found is None:
                    await stream.move()
                return found or None

    async def _heard(self, stream: "_Stream", heard: Sequence[Change]) -> bool:
        for change in heard:
            if change.kind == "page":
                stream.report_page(change.uri)
            elif change.kind == "piece":
                await stream.send_pieces()
            elif change.kind == "progress" and (found := self._tasks.progress_in(stream.call, change)):
                stream.channel.send(found)
        return not all(change.kind in ("page", "progress", "piece") for change in heard)

    async def take(self, id: str, read: Callable[[], JSON], principal: Principal | None) -> bool:
        """Keep the answer to a question of a task that it still asks; return whether the id is that of a question."""
        asked = self._parts.task_asks.unseal(id, principal)
        if asked is None:
            return False
        call = Call("tasks/get", {}, asked.task, principal=principal, session=asked.session, task=messages.TaskOffer())
        try:
            question = (await self._look(call)).questions.get(asked.key)
            if question is not None:
                await self._answer(call, asked.key, question, read())
        except UnknownTarget:  # it has expired; or it is in another process, which can't be reached
            if not self._parts.store.shared:
                raise AnswerNotShared from None
        return True

    async def _answer(self, call: Call, key: str, question: messages.Question, answer: JSON) -> None:
        try:
            given = read_answer(question, answer)
        except RequestError as error:  # nobody can be asked instead
            await self._tasks.fail(call, error)
            return
        await self._dispatch(replace(call, method="tasks/update", answers={key: given}), NOWHERE)

    async def _look(self, call: Call) -> Task:
        outcome = await self._dispatch(replace(call, method="tasks/get"), NOWHERE)
        assert isinstance(outcome, messages.TaskStatusResult)  # noqa: S101  the method has no other outcome
        return outcome.task


class _Stream:
    def __init__(
        self,
        event: StreamEvent,
        call: Call,
        channel: Channel,
        parts: LiveParts,
        reader: PieceReader | None,
        changes: Turning[Change],
        wanted: tuple[Change, ...],
    ) -> None:
        self.call = call
        self.channel = channel
        self._reader = reader
        self._event = event
        self._parts = parts
        self._requests: dict[str, str] = {}  # the ids of the requests by which it asks what is open, by key
        self._changes = changes
        self._wanted = wanted  # what is listened to besides the pages that are asked for
        self._pages = frozenset[str]()  # those of the pages that are listened to

    async def mark(self, retry: int | None = None) -> None:
        """Send an event to come back to, if the client takes a stream."""
        if self.channel.can_stream:
            self.channel.prime(await self._id(), retry)

    async def show(self, task: Task) -> None:
        await self._ask(task)
        await self._listen_to_pages()
        await self.channel.flush()
        await self.send_pieces()

    async def _listen_to_pages(self) -> None:
        pages = frozenset(filter(None, self._event.seen.values()))
        if not (new := pages - self._pages):
            return
        self._pages = pages
        self._changes.turn_to(
            self._parts.answers.listen((), (*self._wanted, *(Change("page", page) for page in pages)))
        )
        for page in new:
            if await self._parts.store.get(page) is not None:  # it was done before
                self.report_page(page)

    async def _ask(self, task: Task) -> None:
        """Send the questions that are open, without those that were sent before."""
        seen = {key: page for key, page in self._event.seen.items() if page or key in task.questions}
        self._event = replace(self._event, seen=seen)
        self._requests = {key: id for key, id in self._requests.items() if key in task.questions}
        parts, principal = self._parts, self.call.principal
        for key, question in task.questions.items():
            if key in seen:
                continue
            if missing := lacking(self.call.client, question.needs):
                raise MissingCapability(nested(missing))
            if not self.channel.can_stream:
                raise InvalidRequest("This task asks a question, which needs Accept: text/event-stream")
            self._event = replace(self._event, seen={**self._event.seen, key: question.page})
            request = parts.task_asks.seal(AskedByTask(task.id, key, self.call.session), principal)
            self._requests[key] = request
            self.channel.ask(request, replace(question, task=task.id), await self._id())

    def withdraw(self) -> None:
        for request in self._requests.values():
            self.channel.withdraw(request, TASK_CANCELLED, self.call.target)

    async def send_pieces(self) -> None:
        if self._reader is not None:
            await self._reader.send_new()

    def report_page(self, page: str) -> None:
        self._event = replace(
            self._event, seen={key: "" if page == each else each for key, each in self._event.seen.items()}
        )
        self.channel.send(messages.PageReported(page, self._event.origin.params["taskId"]))

    async def move(self) -> None:
        """Send a client that is there to another replica. Raises `Busy` where it takes no stream."""
        if self.channel.gone:
            return
        if not self.channel.can_stream:
            raise Busy(RETRY_AFTER)
        await self.mark(RETRY)

    async def _id(self) -> str:
        stands = replace(self._event, progress=self.channel.progress)
        id = self._parts.events.seal(stands, self.call.principal)
        await self._parts.events.keep(id)
        return id.after(0)


class _Nowhere:
    def send(self, note: messages.Note) -> Awaitable[None]:
        return messages.NOTHING


NOWHERE = _Nowhere()
