"""Where waits for somebody else are found, opened and answered: each is a question in the row of a task."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from ..crypto.digests import digest
from ..crypto.keys import KeyRing
from ..crypto.place_codec import Cursors, PlaceCodec
from ..errors import (
    AlreadyAnswered,
    Busy,
    FlowError,
    InvalidParams,
    InvalidRequestState,
    StoreUnavailable,
    ToolError,
    Withdrawn,
)
from ..flow.waits import (
    LONGEST_TICKET,
    Person,
    Ticket,
    Tickets,
    Wait,
    admits,
    dump_value,
    dump_who,
    load_about,
    person_in,
)
from ..logs import logger
from ..logs.refusals import RefusalLog
from ..protocol.callers import Caller, Principal
from ..protocol.messages import JSON, Question
from ..storage.quotas import Callers
from ..storage.rows import ENDED, TaskRow, WaitRow
from .records import TaskRecords, wait_id
from .sealing import Questions
from .task_service import Tasks

A = TypeVar("A")
D = TypeVar("D")

STRAY_SECONDS = 60.0
"""A listed wait that its task does not have is removed when it is so old: a younger one may be about to be asked."""

RECEIPT_SECONDS = 86_400.0
"""How long it is known which step has answered: it runs again where its replica died before it was recorded."""

_PURPOSE = "ticket of a wait"

MOST_LOOKS = 5  # looks at the list for one page, where most of what is there is not for its caller
_MOST_BYTES = 1024 * 1024  # of tasks that are looked up at once, about

_NO_TICKET = "This is no ticket of something that you may answer. Copy the ticket as it was given, all of it."
_OWN = "You began this yourself, so somebody else has to answer it."
_BEGAN_IT = "That person began this, so they can't answer it. Hand it over to somebody else."
_PASSED_ON = "This was handed over once already, so it can't be handed over again."


class _Named(NamedTuple):
    """What a ticket names."""

    task: str
    key: str
    question: str  # digest of its digest
    wait: str


class _Opened(NamedTuple):
    row: TaskRow
    question: Question
    until: float


class WaitDesk:
    """Lets people open and answer what flows wait for, at any replica.

    `waits`: those of the server, by name.
    """

    def __init__(
        self, waits: Mapping[str, Wait[Any, Any]], tasks: Tasks, records: TaskRecords, ring: KeyRing, audience: str
    ) -> None:
        self.waits = waits
        self._tasks = tasks
        self._records = records
        self._store = records.store
        self._codec = PlaceCodec(ring, _PURPOSE)
        self._place = digest(audience).encode()
        self._cursors = Cursors(ring)
        self._callers = Callers(ring)
        self._refusals = RefusalLog()

    # Tickets

    def seal(self, row: TaskRow, key: str, question: Question) -> str:
        """Return the ticket of a wait of a task."""
        named = _Named(row.id, key, digest(question.digest), question.params["wait"])
        return self._codec.seal(self._place, to_json(named))

    def _unseal(self, ticket: str) -> _Named:
        if len(ticket) > LONGEST_TICKET:
            raise ToolError(_NO_TICKET)
        try:
            return _Named(*from_json(self._codec.unseal(self._place, ticket, "it is of another server")))
        except InvalidRequestState as refused:
            self._refusals.note("A ticket is refused: %s", refused.reason)
            raise ToolError(_NO_TICKET) from None

    def may_answer(self, wait: str, by: Caller) -> bool:
        """Return whether somebody may answer such waits, as far as that can be said without looking one up."""
        declared = self.waits.get(wait)
        return declared is not None and by.principal is not None and _may_admit(declared, by)

    # What is done with them

    async def open(self, ticket: str, by: Caller, name: str = "") -> tuple[list[Any], float]:
        """Return what a wait is about, and until when it can be answered; see `Desk.open`."""
        named = self._unseal(ticket)
        if name not in ("", named.wait):
            raise ToolError(_NO_TICKET)
        row = await self._find(named)
        opened = self._opened(named, row, self._questions(row), by)
        return opened.question.params["about"], opened.until

    async def answer(self, ticket: str, value: Any, by: Caller, *, origin: str = "", is_confirmed: bool) -> None:
        """Answer a wait; see `Desk.answer`."""
        named = self._unseal(ticket)
        wait = self._wait_of(named)
        if wait.confirmed and not is_confirmed:
            raise FlowError(
                f"What app.wait({wait.name!r}) waits for is answered after a confirmation of whoever answers. Await "
                "ctx.confirm(...) before, or pass confirmed=False to app.wait"
            )
        answer = {"answer": dump_value(wait, wait.stored_answer, value, "The answer to a wait"), "origin": origin}

        def answered(row: TaskRow, questions: Questions) -> bool:
            if origin and self._origin_of(named, row, questions) == origin:  # and nobody has recorded that it was
                return False
            self._opened(named, row, questions, by)
            return questions.take({named.key: answer})

        receipt = digest(["answered", named.task, named.key, origin])
        try:
            row, _ = await self._change(named, answered)
        except AlreadyAnswered:
            if origin and await self._store.get(receipt) is not None:  # by this very step, which runs again
                return
            raise
        self._tell({"event": "wait_answered"}, named, row, by)
        with suppress(Busy):
            quota = self._records.quotas.of(by.principal)
            await self._store.put(receipt, b"", keep=RECEIPT_SECONDS, quota=quota)
        await self._store.remove_wait(wait_id(named.task, named.key))
        if self._records.listener is not None:
            await self._records.listener.answered(row, named.key, named.wait)

    async def pass_on(self, ticket: str, to: Any, by: Caller, *, origin: str = "") -> None:
        """Hand a wait over to another person; see `Desk.pass_on`."""
        if not isinstance(to, Person):
            raise FlowError(f"ctx.pass_on takes a Person(principal), and not a {type(to).__name__}")
        named = self._unseal(ticket)

        def passed_on(row: TaskRow, questions: Questions) -> bool:
            asked = questions.open.get(named.key)
            if asked is not None and origin and asked.params.get("passed_by") == origin:
                return False
            question = self._opened(named, row, questions, by).question
            if "to" in question.params:
                raise ToolError(_PASSED_ON)
            if _is_of_asker(self._wait_of(named), question, to.principal):
                raise ToolError(_BEGAN_IT)
            questions.open[named.key] = question.having(to=dump_who("ctx.pass_on", to), passed_by=origin)
            return True

        row, questions = await self._change(named, passed_on)
        for listed in self._records.listed(row, questions):
            if listed.id == wait_id(named.task, named.key):
                await self._store.put_wait(listed)
        self._tell({"event": "wait_passed_on"}, named, row, by, to)

    async def page(self, wait: Wait[A, D], by: Caller, cursor: str, most: int) -> Tickets[A, D]:
        """Return waits that somebody may answer, the newest first; see `Desk.page`."""
        person = by.principal.person if by.principal is not None else ("", "")
        listing = to_json(["waits", wait.name, *person]).decode()
        before = (math.inf, "")
        if cursor:
            if (place := self._cursors.unseal_place(listing, cursor)) is None:
                raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
            before = tuple(from_json(place))
        found: list[Ticket[A, D]] = []
        if by.principal is None:
            return Tickets(found)
        for _ in range(MOST_LOOKS):
            listed, is_all = await self._listed(wait.name, ["", *self._callers.all_of(person)], before, most)
            rows = await self._rows_of(listed)
            for each in listed:
                if len(found) == most:
                    is_all = False
                    break
                before = each.created, each.id
                if (ticket := await self._ticket(wait, each, rows.get(each.task), by)) is not None:
                    found.append(ticket)
            if is_all or len(found) == most:
                break
        return Tickets(found, "" if is_all else self._cursors.seal_place(listing, to_json(before).decode()))

    # Looking them up

    def _wait_of(self, named: _Named) -> Wait[Any, Any]:
        wait = self.waits.get(named.wait)
        if wait is None:
            self._refusals.note("A ticket is of the wait %r, which this server does not have", named.wait)
            raise ToolError(_NO_TICKET)
        return wait

    async def _find(self, named: _Named) -> TaskRow:
        row = await self._store.find_task(named.task)
        if row is None:
            raise Withdrawn
        return row if row.status in ENDED or row.deadline > self._records.now() else await self._records.expire(row)

    def _questions(self, row: TaskRow) -> Questions:
        try:
            return Questions() if row.status in ENDED else self._records.sealed.unseal_questions(row)
        except InvalidRequestState as refused:
            raise StoreUnavailable(f"A task does not open: {refused.reason}") from None

    def _opened(self, named: _Named, row: TaskRow, questions: Questions, by: Caller) -> _Opened:
        """Return an open wait that somebody may answer. Raises `ToolError`."""
        wait, question = self._wait_of(named), questions.open.get(named.key)
        if not _may_admit(wait, by):
            raise ToolError(_NO_TICKET)
        if question is None or digest(question.digest) != named.question:
            raise AlreadyAnswered if self._was_answered(named, row, questions) else Withdrawn
        until = questions.until.get(named.key, row.deadline)
        if until <= self._records.now():
            raise Withdrawn
        if why := self._refused(wait, question, by):
            raise ToolError(why)
        return _Opened(row, question, until)

    def _refused(self, wait: Wait[Any, Any], question: Question, by: Caller) -> str:
        """Return why somebody may not answer; empty for nothing."""
        # Whoever it was handed over to stands for the one person who was named before. Scopes count still.
        to = question.params.get("to")
        given = [each for each in (wait.who, question.params["who"]) if each]
        asked = given if to is None else [to, *(each for each in given if person_in(each) is None)]
        if by.principal is None or not all(admits(each, by) for each in asked):
            return _NO_TICKET
        if _is_of_asker(wait, question, by.principal):
            return _OWN
        return ""

    def _was_answered(self, named: _Named, row: TaskRow, questions: Questions) -> bool:
        return row.status == "completed" or self._raw_answer(named, row, questions) is not None

    def _origin_of(self, named: _Named, row: TaskRow, questions: Questions) -> str | None:
        answer = self._raw_answer(named, row, questions)
        return None if answer is None else answer.get("origin")

    def _raw_answer(self, named: _Named, row: TaskRow, questions: Questions) -> dict[str, Any] | None:
        """Return the answer that was recorded; None if there is none, or the task has ended."""
        if row.status in ENDED or named.key in questions.open:
            return None
        journal = self._records.sealed.unseal_journal(row, self._records.now())
        given = [(journal.asked.get(name, ""), raw) for name, raw in questions.answers.items()]  # not taken yet
        given += [each for answers in journal.answers.values() for each in answers.items()]
        return next((raw for asked, raw in given if digest(asked) == named.question), None)

    async def _change(self, named: _Named, change: Callable[[TaskRow, Questions], bool]) -> tuple[TaskRow, Questions]:
        """Change what a task asks; return it as it was, and what it asks now. Raises `ToolError`."""
        last: tuple[TaskRow, Questions]

        def changed(row: TaskRow, questions: Questions) -> bool:
            nonlocal last
            last = row, questions
            return change(row, questions)

        async def find() -> TaskRow:
            row = await self._find(named)
            if row.status in ENDED:  # which says why nothing can be changed
                changed(row, Questions())
            return row

        await self._tasks.change_questions(find, changed)
        return last

    async def _listed(
        self, name: str, whos: list[str], before: tuple[float, str], most: int
    ) -> tuple[list[WaitRow], bool]:
        """Return the next listed waits, and whether these are all."""
        pages = [await self._store.list_waits(name, who, before=before, most=most) for who in whos]
        rows = sorted((row for page in pages for row in page), key=lambda row: (row.created, row.id), reverse=True)
        return rows[:most], len(rows) <= most and all(len(page) < most for page in pages)

    async def _rows_of(self, listed: list[WaitRow]) -> dict[str, TaskRow]:
        left, found = sorted({each.task for each in listed}), dict[str, TaskRow]()
        while left:
            rows = await self._store.find_tasks(left, most_bytes=_MOST_BYTES)
            found |= {row.id: row for row in rows}
            left = [id for id in left if rows and id > rows[-1].id]
        return found

    async def _ticket(self, wait: Wait[A, D], listed: WaitRow, row: TaskRow | None, by: Caller) -> Ticket[A, D] | None:
        """Return the ticket of a listed wait; None if it does not wait any more, or not for whoever asks."""
        now = self._records.now()
        try:
            questions = Questions() if row is None or row.deadline <= now else self._questions(row)
        except StoreUnavailable as error:
            self._refusals.note("A wait is left out of a list: %s", str(error))
            return None
        keys = [key for key in questions.waits if wait_id(listed.task, key) == listed.id]
        if row is None or not keys:
            if listed.created < now - STRAY_SECONDS:
                await self._store.remove_wait(listed.id)
            return None
        question = questions.open[keys[0]]
        if self._refused(wait, question, by):
            return None
        try:
            about = load_about(wait, question.params["about"])
        except FlowError as error:  # the type has changed since
            self._refusals.note("A wait is left out of a list: %s", str(error))
            return None
        return Ticket.of(self.seal(row, keys[0], question), about, questions.until[keys[0]])

    def _tell(self, fields: JSON, named: _Named, row: TaskRow, by: Caller, to: Person | None = None) -> None:
        """Log who has done what to a wait of whom, by keyed digests."""
        fields |= {"wait": named.wait, "tool": row.name, "task": row.reference, "asker": row.caller}
        fields["by"] = "" if by.principal is None else self._callers.of(by.principal.person)
        if to is not None:
            fields["to"] = self._callers.of(to.principal.person)
        logger.info(
            "A wait %r of a task of %r (%s) was %s",
            named.wait,
            row.name,
            row.reference,
            "answered" if to is None else "handed over",
            extra={"fields": fields},
        )


def _may_admit(wait: Wait[Any, Any], by: Caller) -> bool:
    """Return whether a wait may be for somebody: one for a person may have been handed over to them."""
    return person_in(wait.who) is not None or admits(wait.who, by)


def _is_of_asker(wait: Wait[Any, Any], question: Question, by: Principal) -> bool:
    """Return whether somebody else has to answer, since this person may be the one who began the flow."""
    if not wait.four_eyes:
        return False
    if (asker := question.params["asker"]) is None:
        return True
    (issuer, subject), (own_issuer, own_subject) = asker, by.person
    # Of a name without an issuer, nobody knows whose it is.
    return subject == own_subject and (issuer == own_issuer or not issuer or not own_issuer)
