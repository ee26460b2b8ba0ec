"""What clients ask about their tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..errors import InvalidParams, InvalidRequestState, MissingCapability, RequestError, StoreUnavailable
from ..protocol.messages import NEEDS_TASKS, Acknowledged, Call, Outcome, Outlet, TaskStatusResult
from ..tasks.questions import Questions
from ..tasks.service import AnswerMapper, Tasks
from .failures import ErrorReporter


class TaskMethods:
    """Answers the methods about tasks. Each raises `RequestError` for what can't be answered.

    Args:
        tasks: the tasks.
        errors: notes what goes wrong on our side.
    """

    def __init__(self, tasks: Tasks, errors: ErrorReporter) -> None:
        self._tasks = tasks
        self._errors = errors

    async def get(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/get`: how a task is doing; with answers, what has come of them."""
        with self._about(call):
            await self._take_answers(call)
            see = self._tasks.see if call.answers is None else self._tasks.see_what_comes_of_it
            return TaskStatusResult(await see(call))

    async def result(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/result`: what a task asks, or what it came to."""
        with self._about(call):
            await self._take_answers(call)
            return await self._tasks.redeem(call)

    async def cancel(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/cancel`."""
        with self._about(call):
            await self._take_answers(call)
            return Acknowledged(call.target, await self._tasks.cancel(call))

    async def update(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/update`, whose answers come by the keys of the task."""
        return await self._acknowledge(call)

    async def answer(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/answer`, whose answers come by the keys of the handler."""
        return await self._acknowledge(call, Questions.by_name)

    async def respond(self, call: Call, outlet: Outlet) -> Outcome:
        """Answer `tasks/respond`, whose one answer is that to the only question."""
        return await self._acknowledge(call, Questions.to_the_only_one)

    async def _acknowledge(self, call: Call, map_answers: AnswerMapper | None = None) -> Outcome:
        with self._about(call):
            if call.answers is None:
                raise InvalidParams(f"{call.method} needs inputResponses")
            await self._take_answers(call, map_answers)
            return Acknowledged(call.target)

    async def _take_answers(self, call: Call, map_answers: AnswerMapper | None = None) -> None:
        if call.answers is not None:
            await self._tasks.answer(call, call.answers, map_answers)

    @contextmanager
    def _about(self, call: Call) -> Iterator[None]:
        """Check that a call may be about a task, and note why a task can't be looked at."""
        if call.task is None:
            raise MissingCapability(NEEDS_TASKS)
        if call.state is not None:
            self._tasks.check_wait(call)
        self._tasks.wake_worker()  # it may have begun in a process that is no more
        try:
            yield
        except (StoreUnavailable, InvalidRequestState) as error:
            raise self.fault(call, error) from None

    def fault(self, call: Call, error: StoreUnavailable | InvalidRequestState) -> RequestError:
        """Note why a task can't be looked at; its id may be all that protects it, so the log does not have it."""
        if isinstance(error, InvalidRequestState):
            error = StoreUnavailable(f"A task does not open: {error.reason}")
        return self._errors.report(replace(call, target=""), error)
