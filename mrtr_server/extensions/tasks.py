"""Tasks: flows that go on in the background, for clients that ask for them by their ids."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pydantic_core import from_json, to_json

from ..crypto.place_codec import Cursors
from ..errors import InvalidParams, InvalidRequestState, MissingCapability, ProtocolError, StoreUnavailable
from ..live.answers import read_answer
from ..methods.failures import ErrorReporter
from ..protocol.messages import (
    JSON,
    NEEDS_TASKS,
    TASKS,
    Acknowledged,
    Call,
    Outcome,
    Outlet,
    TaskPage,
    TaskStatusResult,
)
from ..protocol.sessions import owner_of_call
from ..tasks.sealing import Questions
from ..tasks.task_service import TaskCursor, Tasks
from .extension import Extension


class TaskExtension(Extension):
    """The extension Tasks: serves what clients ask about their tasks.

    `has_tasks`: returns whether calls of any tool become tasks.
    """

    id = TASKS
    needs_client = True

    def __init__(
        self, has_tasks: Callable[[], bool], tasks: Tasks, errors: ErrorReporter, cursors: Cursors, page_size: int
    ) -> None:
        self.methods = {"tasks/get": self.get, "tasks/update": self.update, "tasks/cancel": self.cancel}
        self.others = {
            "tasks/list": self.list,
            "tasks/result": self.result,
            "tasks/answer": self.answer,
            "tasks/respond": self.respond,
        }
        self._has_tasks = has_tasks
        self._tasks = tasks
        self._errors = errors
        self._cursors = cursors
        self._page_size = page_size

    def settings(self) -> JSON | None:
        """Return what the server declares (Tasks, Extension Identifier)."""
        return {} if self._has_tasks() else None

    async def get(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/get` (Tasks, Task Polling): with an answer, as it is a moment later. Raises `RequestError`."""
        with self._checked(call):
            if call.answers is None:
                return TaskStatusResult(await self._tasks.see(call))
            await self._tasks.answer(call, call.answers)
            return TaskStatusResult(await self._tasks.see_what_comes_of_it(call))

    async def list(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/list` (Tasks, Listing Tasks): the caller's own. Raises `RequestError`."""
        with self._checked(call):
            owner = owner_of_call(call)
            listing = f"tasks of {owner}"
            tasks, end = await self._tasks.page(owner, self._cursor(call, listing), self._page_size)
            return TaskPage(tasks, "" if end is None else self._cursors.seal_place(listing, to_json(end).decode()))

    def _cursor(self, call: Call, listing: str) -> TaskCursor | None:
        cursor = call.params.get("cursor")
        if not cursor and isinstance(cursor, str | None):
            return None
        place = self._cursors.unseal_place(listing, cursor)
        if place is None:
            raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
        created, id = from_json(place)
        return created, id

    async def result(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/result` (Multi Round-Trip Requests, Persistent Workflow): wait for a question or the end."""
        with self._checked(call):
            return await self._tasks.wait_for_result(call, outlet)

    async def update(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/update` (Tasks, Task Update Requests): answers by the questions' keys. Raises `RequestError`."""
        with self._checked(call):
            await self._tasks.answer(call, _answers(call))
            return Acknowledged(call.target)

    async def answer(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/answer` (Multi Round-Trip Requests, Persistent Workflow): answers by the questions' names."""
        with self._checked(call):
            await self._tasks.answer(call, _answers(call), Questions.by_name)
            return Acknowledged(call.target)

    async def respond(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/respond` (Multi Round-Trip Requests, Persistent Workflow): a response to one question."""
        with self._checked(call):
            try:
                await self._tasks.answer(call, _answers(call), _read_response)
            except (MissingCapability, ProtocolError) as error:  # the client can't, and nobody can be asked instead
                await self._tasks.fail(call, error)
            return Acknowledged(call.target)

    async def cancel(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `tasks/cancel` (Tasks, Task Cancellation). Raises `RequestError`."""
        with self._checked(call):
            return Acknowledged(call.target, *await self._tasks.cancel(call))

    @contextmanager
    def _checked(self, call: Call) -> Iterator[None]:
        """Check that a client may ask about tasks, and report what fails without the id of its task."""
        if call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        if call.state is not None:
            self._tasks.check_wait(call)
        self._tasks.wake_worker()  # one may have begun in a process that has ended
        try:
            yield
        except (StoreUnavailable, InvalidRequestState) as error:
            raise self._errors.report_task(call, error) from None


def _answers(call: Call) -> Mapping[str, JSON]:
    if call.answers is None:
        raise InvalidParams(f"{call.method} needs inputResponses")
    return call.answers


def _read_response(questions: Questions, answers: Mapping[str, JSON]) -> Mapping[str, JSON]:
    ((name, response),) = answers.items()
    key = questions.answered_by(name, response)
    if key is None:
        return {}
    return questions.by_name({questions.names[key]: read_answer(questions.open[key], response)})
