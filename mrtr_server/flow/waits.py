"""Waits for somebody else: what `app.wait` makes, the ask of a flow that waits, tickets, and who may answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from pydantic_core import to_json
from typing_extensions import override

from ..crypto.digests import digest
from ..errors import FlowError, SetupError, check_scopes
from ..protocol.ask_kinds import WAIT
from ..protocol.callers import Caller, Principal
from ..protocol.messages import JSON, Question
from ..schema.stored import Stored
from .asks import Ask
from .steps import current_step

A = TypeVar("A")
D = TypeVar("D")

LONGEST_TICKET = 512
"""Characters."""

LONGEST_KEY = 64
"""Bytes of the key of a wait, since a ticket names it."""

LONGEST_WRITTEN = 100  # bytes of a key as JSON: a ticket holds it

SHORTEST_REMINDER = 60.0
"""Seconds between two reminders of one wait."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Person:
    """One person, who alone may answer: `who=Person(principal)`.

    Args:
        principal: who it is. The application that acts for the person does not count.
    """

    principal: Principal


Who = Sequence[str] | Person
"""Who may answer: whoever has all of these scopes, or one person."""


def dump_who(where: str, who: Any) -> list[str]:
    """Return who may answer as texts: scopes, or an empty one before issuer and subject. Raises `SetupError`."""
    if isinstance(who, Person):
        return ["", *who.principal.person]
    scopes = check_scopes(f"{where}: who", who)
    if not scopes:
        raise SetupError(f'{where}: who= takes scopes, such as ["orders:approve"], or a Person(principal)')
    return sorted(scopes)


def person_in(who: list[str]) -> tuple[str, str] | None:
    """Return the one person who may answer; None where scopes decide."""
    return (who[1], who[2]) if who and not who[0] else None


def admits(who: list[str], by: Caller) -> bool:
    """Return whether somebody is one of those who may answer."""
    if by.principal is None:
        return False
    person = person_in(who)
    return by.scopes.issuperset(who) if person is None else by.principal.person == person


class Wait(Generic[A, D]):
    """What flows wait for that somebody else answers; `app.wait` makes it.

    Args:
        name: names it, and is the key of `ctx.wait_for` that has none of its own.
        about: the type of what is to be decided.
        answer: the type of the decision.
        who: who may answer.
        four_eyes: whether the person whose flow waits may never answer.
        confirmed: whether the flow that answers must have asked its person for a confirmation.

    Raises:
        SetupError: the name does not fit, nobody could answer, or a type can't be kept.
    """

    def __init__(
        self, name: str, about: type[A], answer: type[D], who: Who, *, four_eyes: bool, confirmed: bool
    ) -> None:
        where = f"app.wait({name!r})"
        if not _NAME.fullmatch(str(name)):
            raise SetupError(f"{where}: a name is 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
        self.name = name
        self.who = dump_who(where, who)
        self.four_eyes = four_eyes
        self.confirmed = confirmed
        try:
            self.stored_about, self.stored_answer = Stored(about), Stored(answer)
        except SetupError as error:
            raise SetupError(f"{where}: what it is about, or its answer, can't be kept as its type: {error}") from None

    def __repr__(self) -> str:
        return f"Wait({self.name!r})"


def dump_value(wait: Wait[Any, Any], stored: Stored, value: Any, what: str) -> list[Any]:
    """Return what a wait is about, or its answer, as it is kept. Raises `FlowError` if it is of another type."""
    try:
        return list(stored.keep(value, what)[0])
    except Exception:  # of the type's own code, too; its text may hold the value
        raise FlowError(f"{what} is of another type than app.wait({wait.name!r}, ...) says") from None


def load_about(wait: Wait[A, Any], about: list[Any]) -> A:
    """Return what a wait is about. Raises `FlowError` if another version of the server has written it."""
    try:
        return cast(A, wait.stored_about.load(*about))
    except Exception:  # of the type's own code, too; its text may hold the value
        raise FlowError(
            f"What app.wait({wait.name!r}) is about does not fit its type any more. Let the type accept what flows "
            "in progress have recorded"
        ) from None


class Ticket(str, Generic[A, D]):
    """The sealed name of a wait, as the parameter of a tool: `ticket: Annotated[Ticket[Order, Decision], approval]`.

    It is text that may be shown to anybody: it lets nobody answer whom `who=` does not admit.
    """

    about: A
    """What is to be decided, as the flow that waits has said."""
    until: float
    """When the time for an answer ends, in seconds since the epoch."""

    @classmethod
    def of(cls, sealed: str, about: A, until: float) -> "Ticket[A, D]":
        """Return a ticket that was opened.

        Args:
            sealed: its text.
            about: what is to be decided.
            until: when the time for an answer ends, in seconds since the epoch.

        Returns:
            The ticket.
        """
        made: Ticket[A, D] = cls(sealed)
        made.about, made.until = about, until
        return made


@dataclass(frozen=True, slots=True)
class Tickets(Generic[A, D]):
    """A page of tickets.

    Args:
        tickets: those that the caller may answer, the newest first. There may be few of them, or none, before the end.
        cursor: where the next page begins; empty at the end.
    """

    tickets: list[Ticket[A, D]]
    cursor: str = ""


class WaitFor(Ask[D]):
    """The ask of a flow that waits."""

    needs_state = True
    texts = ()

    def __init__(
        self,
        wait: Wait[Any, D],
        about: Any,
        asker: Principal | None,
        *,
        answer_within: float | None,
        who: Who | None,
        key: str | None,
        remind_every: float | None = None,
    ) -> None:
        if remind_every is not None and not remind_every >= SHORTEST_REMINDER:
            raise FlowError(f"ctx.wait_for: remind_every={remind_every!r} must be at least {SHORTEST_REMINDER:g} s")
        if not isinstance(wait, Wait):
            raise FlowError(f"ctx.wait_for takes what app.wait(...) made, and not a {type(wait).__name__}")
        if answer_within is not None and not answer_within > 0:
            raise FlowError(f"ctx.wait_for: answer_within={answer_within!r} must be a positive number of seconds")
        if key is not None and len(key.encode(errors="replace")) > LONGEST_KEY:
            raise FlowError(f"ctx.wait_for: key={key[:20]!r}... is longer than {LONGEST_KEY} bytes")
        if key is not None and len(to_json(key.encode(errors="replace").decode())) > LONGEST_WRITTEN:
            raise FlowError(f"ctx.wait_for: key={key[:20]!r} has too many quotes or control characters for a ticket")
        self.default_key = wait.name
        super().__init__(key or wait.name)  # a default key would be another one when `about` has changed
        self._wait = wait
        self._about = about
        self._asker = asker
        self._within = answer_within
        self._who = who
        self._remind = remind_every

    @override
    def question(self) -> Question:
        wait, asker = self._wait, self._asker
        if wait.four_eyes and asker is None:
            raise FlowError(
                f"Nobody is known to have begun this flow, so app.wait({wait.name!r}) can't see to it that somebody "
                "else answers. Authenticate callers, or pass four_eyes=False"
            )
        about = dump_value(wait, wait.stored_about, self._about, "What ctx.wait_for is about")
        who = [] if self._who is None else dump_who("ctx.wait_for", self._who)
        params: JSON = {
            "message": f"Waiting for {wait.name}",
            "wait": wait.name,
            "about": about,
            "who": who,
            "within": self._within,
            "asker": None if asker is None else list(asker.person),
        }
        if self._remind is not None:
            params["remind"] = self._remind
        return WAIT.question(params, shape=digest([wait.name, about, who]))

    @override
    def parse(self, raw: JSON) -> D:
        return cast(D, self._wait.stored_answer.load(*raw["answer"]))


class Desk(Protocol):
    """Where tickets are opened and answered."""

    async def open(self, ticket: str, by: Caller, name: str = "") -> tuple[list[Any], float]:
        """Return what a wait is about, as it is kept, and until when it can be answered. Raises `ToolError`."""
        ...

    async def answer(self, ticket: str, value: Any, by: Caller, *, origin: str = "", is_confirmed: bool) -> None:
        """Answer a wait; again for the same `origin` is no second answer. Raises `ToolError`, `FlowError`."""
        ...

    async def pass_on(self, ticket: str, to: Any, by: Caller, *, origin: str = "") -> None:
        """Hand a wait over to another person, once. Raises `ToolError`, `FlowError`."""
        ...

    async def page(self, wait: Wait[A, D], by: Caller, cursor: str, most: int) -> Tickets[A, D]:
        """Return waits that somebody may answer. Raises `InvalidParams` for a cursor of another list."""
        ...


class Answering:
    """What a flow does with tickets. Each method is called as a step."""

    __slots__ = ("_by", "_desk", "_flow", "_is_confirmed")

    def __init__(self, desk: Desk, by: Caller, flow: str, *, is_confirmed: bool) -> None:
        self._desk = desk
        self._by = by
        self._flow = flow
        self._is_confirmed = is_confirmed

    async def open_ticket(self, ticket: str, name: str) -> tuple[list[Any], float]:
        return await self._desk.open(ticket, self._by, name)

    async def answer_wait(self, ticket: str, value: Any) -> None:
        await self._desk.answer(ticket, value, self._by, origin=self._origin(), is_confirmed=self._is_confirmed)

    async def pass_on_wait(self, ticket: str, to: Any) -> None:
        await self._desk.pass_on(ticket, to, self._by, origin=self._origin())

    def _origin(self) -> str:
        return digest([self._flow, current_step.get()])
