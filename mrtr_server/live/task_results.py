"""Requests for the result of a task that stay open until it has ended, and ask meanwhile what the task asks.

All of it is in the row of the task: its questions, its answers and its outcome. So a stream only shows that,
and an answer changes the row, whichever replica takes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..errors import AnswerNotShared, Busy, InvalidRequest, MissingCapability, RequestError, UnknownTarget
from ..protocol.callers import Principal, lacking, nested
from ..protocol.messages import (
    JSON,
    NOTHING,
    Call,
    Change,
    Note,
    Outcome,
    Outlet,
    PageReported,
    Question,
    Task,
    TaskOffer,
    TaskResult,
    TaskStatusResult,
)
from ..storage.base import ENDED
from ..tasks.pieces import PieceReader
from ..tasks.task_service import Tasks
from .answers import Answers
from .channel import Channel
from .events import Event
from .hold import RETRY
from .parts import LiveParts
from .questions import TASK_CANCELLED, read_answer
from .task_asks import AskedByTask

LOOK = 5.0
"""How long to wait for word of a change before looking at the task, in seconds: a process that dies may send none."""

RETRY_AFTER = 1.0
"""When a client that takes no stream is to come again to a server that drains, in seconds."""

Dispatch = Callable[[Call, Outlet], Awaitable[Outcome]]
IsCancelled = Callable[[], Awaitable[bool]]


class TaskResults:
    """Serves the requests for results of tasks.

    Args:
        dispatch: answers calls.
        tasks: knows the tasks.
        parts: what open calls share.
    """

    def __init__(self, dispatch: Dispatch, tasks: Tasks, parts: LiveParts) -> None:
        self._dispatch = dispatch
        self._tasks = tasks
        self._parts = parts

    async def serve(
        self, call: Call, channel: Channel, event: Event, cancelled: Change | None, is_cancelled: IsCancelled
    ) -> Outcome | None:
        """Wait for the end of a task, and send what it asks meanwhile.

        Args:
            call: the request.
            channel: the response to its client.
            event: where the stream stands.
            cancelled: tells that the request may have been cancelled; None if it can't be.
            is_cancelled: returns whether it has been.

        Returns:
            The result; None if the client has left, has cancelled the request, or continues elsewhere.

        Raises:
            RequestError: there is no such task, or no room for one more stream.
        """
        wanted: tuple[Change, ...] = (Change("task", call.target), Change("progress", call.target))
        reader = self._tasks.pieces_for(call, channel) if channel.can_stream else None
        if reader is not None:
            wanted = (*wanted, Change("piece", call.target))
        changes = _Changes(self._parts.answers, (*wanted, *([] if cancelled is None else [cancelled])))
        try:
            task = await self._look(call)
            if task.status in ENDED:
                return TaskResult(task)
            with self._parts.holds.hold(call.principal):
                stream = _Stream(replace(event, expires=task.created + task.ttl), call, channel, self._parts, reader)
                await stream.mark()
                channel.on_gone(changes.close)
                channel.waits(True)
                try:
                    with self._parts.admission.on_drain(changes.close):
                        while heard := await self._show(task, stream, changes):
                            if cancelled in heard and await is_cancelled():
                                return None
                            task = await self._look(call)
                            await stream.send_pieces()
                            if task.status in ENDED:
                                if task.outcome is None:  # it was cancelled, so what it asked was not answered
                                    stream.withdraw()
                                return TaskResult(task)
                finally:
                    channel.waits(False)
                    channel.on_gone(None)
                await stream.move()
                return None
        finally:
            changes.close()

    async def _show(self, task: Task, stream: "_Stream", changes: "_Changes") -> list[Change] | None:
        """Send what a task asks, and its progress and the pages that are done until something else happens.

        Returns:
            What has happened; None if the stream is to end.
        """
        await stream.ask(task)
        for page in changes.turn_to(stream.pages):
            if await self._parts.store.get(page) is not None:  # it was done before
                stream.report_page(page)
        await stream.channel.flush()
        await stream.send_pieces()
        while True:
            try:
                async with asyncio.timeout(LOOK):
                    heard = await changes.next()
            except TimeoutError:
                return [Change("task", task.id)]  # as far as is known
            for change in heard:
                if change.kind == "page":
                    stream.report_page(change.uri)
                elif change.kind == "piece":
                    await stream.send_pieces()
                elif change.kind == "progress" and (found := self._tasks.progress_in(stream.call, change)):
                    stream.channel.send(found)
            if not all(change.kind in ("page", "progress", "piece") for change in heard) or not heard:
                return heard or None

    async def take(self, id: str, read: Callable[[], JSON], principal: Principal | None) -> bool:
        """Keep the answer to a question of a task.

        Args:
            id: what the client sent; it may be anything.
            read: returns the answer, in one of the forms that `read_answer` takes.
            principal: on whose behalf it came.

        Returns:
            Whether the id is that of a question. An answer to one that the task does not ask any more is ignored.

        Raises:
            RequestError: it could not be kept.
            StoreUnavailable: likewise.
        """
        asked = self._parts.task_asks.unseal(id, principal)
        if asked is None:
            return False
        call = Call("tasks/get", {}, asked.task, principal=principal, session=asked.session, task=TaskOffer())
        try:
            question = (await self._look(call)).questions.get(asked.key)
            if question is not None:
                await self._answer(call, asked.key, question, read())
        except UnknownTarget:  # it has expired; or it is in another process, which can't be reached
            if not self._parts.store.shared:
                raise AnswerNotShared from None
        return True

    async def _answer(self, call: Call, key: str, question: Question, answer: JSON) -> None:
        try:
            given = read_answer(question, answer)
        except RequestError as error:  # nobody can be asked instead
            await self._tasks.fail(call, error)
            return
        await self._dispatch(replace(call, method="tasks/update", answers={key: given}), NOWHERE)

    async def _look(self, call: Call) -> Task:
        """Return the task as it is now. Raises `RequestError`."""
        outcome = await self._dispatch(replace(call, method="tasks/get"), NOWHERE)
        assert isinstance(outcome, TaskStatusResult)  # noqa: S101  the method has no other outcome
        return outcome.task


class _Stream:
    """What the stream of one request has shown of a task."""

    def __init__(
        self, event: Event, call: Call, channel: Channel, parts: LiveParts, reader: PieceReader | None
    ) -> None:
        self.call = call
        self.channel = channel
        self._reader = reader
        self._event = event
        self._parts = parts
        self._requests: dict[str, str] = {}
        """The ids of the requests by which it asks what is open, by key."""

    async def mark(self, retry: int | None = None) -> None:
        """Send an event to come back to, if the client takes a stream."""
        if self.channel.can_stream:
            self.channel.prime(await self._id(), retry)

    async def ask(self, task: Task) -> None:
        """Send the questions that are open, without those that were sent before.

        Raises:
            MissingCapability: this client can't be asked that, though the one that began the task could.
            InvalidRequest: it takes no stream.
        """
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
        """Notify the client that what was asked counts no more."""
        for request in self._requests.values():
            self.channel.withdraw(request, TASK_CANCELLED, self.call.target)

    async def send_pieces(self) -> None:
        """Send the pieces of the result that have come since, if the client wants them."""
        if self._reader is not None:
            await self._reader.send_new()

    @property
    def pages(self) -> frozenset[str]:
        """The pages that were asked for and have not reported yet."""
        return frozenset(filter(None, self._event.seen.values()))

    def report_page(self, page: str) -> None:
        """Notify the client of a page that has reported."""
        self._event = replace(
            self._event, seen={key: "" if page == each else each for key, each in self._event.seen.items()}
        )
        self.channel.send(PageReported(page, self._event.origin.params["taskId"]))

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


class _Changes:
    """What a stream waits for: always the same, and the pages that it has asked for.

    Args:
        answers: carry the changes.
        always: what is always waited for.
    """

    def __init__(self, answers: Answers, always: tuple[Change, ...]) -> None:
        self._answers = answers
        self._always = always
        self._pages: frozenset[str] = frozenset()
        self._changes = answers.listen((), always)
        self._is_turned = self._is_closed = False

    def turn_to(self, pages: frozenset[str]) -> frozenset[str]:
        """Wait for these pages from now on; return those that are new, which may have reported before."""
        new = pages - self._pages
        if new:
            before, self._is_turned = self._changes, True
            self._changes = self._answers.listen((), (*self._always, *(Change("page", page) for page in pages)))
            self._pages = pages
            before.close()
            if self._is_closed:  # on another thread, meanwhile
                self._changes.close()
        return new

    async def next(self) -> list[Change]:
        """Wait for changes. Return an empty list when the stream is to end."""
        if self._is_turned and not self._is_closed:  # what had changed before may not have been heard
            self._is_turned = False
            return list(self._always)
        return await self._changes.next()

    def close(self) -> None:
        """End the waiting."""
        self._is_closed = True
        self._changes.close()


class _Nowhere:
    """An outlet of what has nothing to send."""

    def send(self, note: Note) -> Awaitable[None]:
        return NOTHING


NOWHERE = _Nowhere()
