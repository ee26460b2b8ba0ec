"""Events of the server's own: a task asks something or has ended, a wait needs somebody, and was answered."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NotRequired

from typing_extensions import TypedDict

from ..crypto.digests import digest
from ..errors import FlowError, InvalidRequestState, SetupError, StoreUnavailable, ToolError
from ..flow.events import MODES, EventType
from ..logs.failures import report_failure
from ..protocol.callers import Caller
from ..protocol.messages import Change, Question, timestamp
from ..registration.registry import Registry
from ..storage.rows import ENDED, SubscriptionRow, TaskRow
from ..tasks.records import TaskRecords, wait_id
from ..tasks.sealing import Questions
from ..tasks.waits import WaitDesk
from .log import EventLog
from .options import Events
from .subscriptions import Reminding, Subscriptions, ended, reminder_id

ASKS, ENDS, REQUESTED, ANSWERED = "task.input_required", "task.ended", "wait.requested", "wait.answered"
_OWN = (ASKS, ENDS, REQUESTED, ANSWERED)


def check_event_name(name: str) -> None:
    """Check that a type of an author's has no name of ours. Raises `SetupError`."""
    if name in _OWN:
        raise SetupError(f"app.event({name!r}): the server has events of this name itself; choose another name")


# Their fields have the names of the protocol. They are no models, which pydantic would build for each server.
class OfTask(TypedDict):
    taskId: NotRequired[str]


class TaskEvent(TypedDict):
    taskId: str
    tool: str
    status: str
    message: str


class OfWait(TypedDict):
    wait: NotRequired[str]


class WaitRequested(TypedDict):
    wait: str
    ticket: str
    about: Any
    until: str


class WaitAnswered(TypedDict):
    wait: str
    taskId: str
    tool: str


class OfferedTypes(Mapping[str, EventType[Any, Any]]):
    """The types of events that a server offers: those that were declared, and its own where there can be some."""

    def __init__(self, registry: Registry, options: Events) -> None:
        self._registry = registry
        self._options = options
        self.desk: WaitDesk | None = None

    @cached_property
    def _own(self) -> Mapping[str, EventType[Any, Any]]:
        return {each.name: each for each in (*_of_tasks(), *_of_waits(self._may_answer))}

    def _offers(self, name: str) -> bool:
        registry = self._registry
        if name in (REQUESTED, ANSWERED):
            return bool(registry.waits)
        wanted = self._options.tasks
        return registry.has_tasks and (bool(registry.events or registry.waits) if wanted is None else wanted)

    def __getitem__(self, name: str) -> EventType[Any, Any]:
        if (declared := self._registry.events.get(name)) is not None:
            return declared
        if name not in _OWN or not self._offers(name):
            raise KeyError(name)
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._registry.events
        yield from filter(self._offers, _OWN)

    def __len__(self) -> int:
        return len(list(iter(self)))

    async def _may_answer(self, event: WaitRequested, wants: OfWait, caller: Caller) -> bool:
        """Return whether a subscriber may answer what waits; who may not does not hear of it."""
        assert self.desk is not None  # noqa: S101  it is set when the server is made
        if wants.get("wait", event["wait"]) != event["wait"] or not self.desk.may_answer(event["wait"], caller):
            return False
        try:
            await self.desk.open(event["ticket"], caller)
        except ToolError:  # the subscriber may not, or it was answered
            return False
        return True


def _type(name: str, arguments: type[Any], payload: type[Any], description: str, matches: Callable[..., Any]) -> Any:
    return EventType[Any, Any](
        name,
        arguments=arguments,
        payload=payload,
        description=description,
        matches=matches,
        shape=None,
        admits=None,
        on_subscribe=None,
        on_unsubscribe=None,
        modes=MODES,
        hook=None,
        meta=None,
    )


def _of_tasks() -> Iterator[EventType[Any, Any]]:
    def is_of_task(event: TaskEvent, wants: OfTask, caller: Caller) -> bool:
        return wants.get("taskId", event["taskId"]) == event["taskId"]

    yield _type(ASKS, OfTask, TaskEvent, "A task of yours needs input; tasks/get has what it asks", is_of_task)
    yield _type(ENDS, OfTask, TaskEvent, "A task of yours has ended; tasks/get has what came of it", is_of_task)


def _of_waits(may_answer: Callable[..., Any]) -> Iterator[EventType[Any, Any]]:
    def is_of_wait(event: WaitAnswered, wants: OfWait, caller: Caller) -> bool:
        return wants.get("wait", event["wait"]) == event["wait"]

    yield _type(REQUESTED, OfWait, WaitRequested, "Something waits for a decision that you may take", may_answer)
    yield _type(ANSWERED, OfWait, WaitAnswered, "What a task of yours waited for was decided", is_of_wait)


class OwnEvents:
    """Emits what happens to tasks and waits, where there are such types. What fails is logged, and ends nothing."""

    def __init__(
        self, types: OfferedTypes, log: EventLog, records: TaskRecords, desk: WaitDesk, subscriptions: Subscriptions
    ) -> None:
        self._types = types
        self._log = log
        self._records = records
        self._desk = desk
        self._subscriptions = subscriptions
        types.desk = desk

    async def changed(self, row: TaskRow) -> None:
        """Emit what a task has come to, for the person whose it is and for those who may answer."""
        try:
            if row.status in ENDED:
                await self._of_task(ENDS, row, row.status)
            elif row.questions and (REQUESTED in self._types or ASKS in self._types):
                await self._asked(row, self._records.sealed.unseal_questions(row))
        except InvalidRequestState:  # of somebody who was forgotten meanwhile
            pass
        except (StoreUnavailable, FlowError) as error:
            report_failure("What became of a task of %r (%s) is no event", row.name, row.reference, error=error)

    async def _asked(self, row: TaskRow, questions: Questions) -> None:
        open_ = questions.of_client.open
        if open_:
            asked = digest(sorted([key, each.digest] for key, each in open_.items()))
            await self._of_task(ASKS, row, "input_required", asked)
        for key, question in questions.waits.items():
            await self._requested(row, key, question, questions.until[key])

    async def _of_task(self, name: str, row: TaskRow, status: str, what: str = "") -> None:
        type = self._types.get(name)
        if type is None or not row.caller:
            return
        payload = TaskEvent(taskId=row.id, tool=row.name, status=status, message=row.message)
        await self._log.add(type, payload, id=digest([row.id, status, what]), audience=row.caller)

    async def _requested(self, row: TaskRow, key: str, question: Question, until: float) -> None:
        type, declared = self._types.get(REQUESTED), self._desk.waits.get(question.params["wait"])
        if type is None or declared is None:
            return
        ticket, to = self._desk.seal(row, key, question), question.params.get("to")
        about, *_ = question.params["about"]
        payload = WaitRequested(wait=declared.name, ticket=ticket, about=about, until=timestamp(until))
        id = digest([wait_id(row.id, key), question.digest, to])
        await self._log.add(type, payload, id=id)
        if (every := question.params.get("remind")) is not None:  # also where a former attempt ended in between
            await self._remind(wait_id(row.id, key), Reminding(dict(payload), id, every), row.caller, until)

    async def _remind(self, wait: str, reminding: Reminding, caller: str, until: float) -> None:
        id, now = reminder_id(wait), self._log.now()
        body = self._subscriptions.seal(id, Caller(), reminding._asdict(), None)
        row = SubscriptionRow(id, "reminder", REQUESTED, caller, body, "", now, now, until)
        await self._subscriptions.store.put_subscription(row)
        self._log.fanout.publish(Change("subscription"))

    async def answered(self, row: TaskRow, key: str, wait: str) -> None:
        """Emit that what a task waited for was decided, for the person whose it is."""
        try:
            type = self._types.get(ANSWERED)
            if type is not None and row.caller:
                payload = WaitAnswered(wait=wait, taskId=row.id, tool=row.name)
                id = digest(["answered", wait_id(row.id, key)])
                await self._log.add(type, payload, id=id, audience=row.caller)
            reminder = await self._subscriptions.store.find_subscription(reminder_id(wait_id(row.id, key)))
            if reminder is not None:
                await self._subscriptions.store.put_subscription(ended(reminder, self._log.now()))
        except InvalidRequestState:  # as above
            pass
        except (StoreUnavailable, FlowError) as error:
            report_failure("That a wait was answered is no event", error=error)
