"""Steps: functions that run once in a flow, however many rounds it takes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Container, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Self, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from ..concurrency.running import retrieve
from ..concurrency.threads import Threads
from ..crypto.digests import digest
from ..errors import FlowError, NotBegun, SetupError
from ..logs.failures import calls_author
from ..protocol.messages import JSON
from ..protocol.trace import Event
from ..schema.misfits import describe
from ..schema.stored import Stored, stored_as
from ..well_formed import escape_halves
from .journal import Journal, Step
from .step_arguments import argument_digests, full_name, idempotency_key, key_parameter, plain
from .undone import Undone

current_step: ContextVar[str] = ContextVar("mrtr_server_step", default="")

current_dependency: ContextVar[str] = ContextVar("mrtr_server_dependency", default="")

MARK = "#"
"""Separator in generated keys: `build`, `build#2`, in a side branch `worker:1f0c…#build`. No key= may have it."""

ALIKE = "~"
"""Separator for branches with equal names: `worker:1f0c…`, `worker:1f0c…~2`."""


@dataclass(slots=True)
class Planned:
    function: partial[Any]
    named: str
    digests: dict[str, str]
    rerun: bool
    key: str = ""
    release: Callable[[], None] = lambda: None
    error: FlowError | None = None


_RUN_AGAIN: Any = object()


class Branch:
    """The steps of one asyncio task, or of one dependency, counted by name, so that each replays the same."""

    __slots__ = ("_taken", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._taken: dict[str, set[int]] = {}

    def take(self, name: str) -> tuple[str, Callable[[], None]]:
        taken = self._taken.setdefault(name, set())
        number = next(n for n in count(1) if n not in taken)
        taken.add(number)
        numbered = name if number == 1 else f"{name}{MARK}{number}"
        return (f"{self.name}{MARK}{numbered}" if self.name else numbered), lambda: taken.discard(number)


@dataclass(eq=False, repr=False)
class Steps:
    """The steps of one round.

    `undone`: what no step may take.
    `keep`: keeps the journal when a step has run, before its result is used; None if that waits for the round's end.
    `may_begin`: asked before a step begins, unless nothing was awaited since the last one was kept; None where every
        step may.
    """

    _has_just_kept = False
    """Whether nothing was awaited since a step was kept, so that the check need not be repeated for the next one."""

    journal: Journal
    threads: Threads
    main: asyncio.Task[Any] | None
    asked: Container[str]
    wake: Callable[[], None]
    undone: Undone
    note: Callable[[Event, str], None]
    keep: Callable[[], Awaitable[None]] | None = None
    may_begin: Callable[[], Awaitable[bool]] | None = None
    running: set[asyncio.Task[Any]] = field(default_factory=set, init=False)
    started: dict[str, tuple[Planned, asyncio.Task[Any] | None]] = field(default_factory=dict, init=False)
    _failed: dict[str, list[dict[str, str]]] = field(default_factory=dict, init=False)
    _branches: dict[tuple[asyncio.Task[Any] | None, str], Branch] = field(default_factory=dict, init=False)

    def plan(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Planned:
        """Name a step when it is called: then steps that are gathered have their keys in the order of the calls."""
        if not callable(function):
            raise TypeError(f"ctx.step takes a function and its arguments, as in ctx.step(f, 1), not {function!r:.80}")
        planned = Planned(partial(function, *args, **kwargs), full_name(function), {}, rerun)
        try:
            planned.digests = argument_digests(function, args, kwargs)
            if key is None:
                planned.key, planned.release = self._generate(function)
            elif MARK in key:
                raise FlowError(f"key={key!r}: {MARK!r} is reserved for generated keys; choose another key")
            else:
                planned.key = escape_halves(key)
            self._hand_key(planned)
        except FlowError as error:
            planned.error = error
        return planned

    def _hand_key(self, planned: Planned) -> None:
        name = key_parameter(planned.function.func)
        if name is not None and name not in planned.function.keywords:
            planned.digests.pop(name, None)  # its default
            key = idempotency_key(self.journal.flow, planned.key, planned.named, planned.digests)
            planned.function = partial(planned.function, **{name: key})

    def is_new(self, planned: Planned) -> bool:
        return planned.key not in self.journal.steps and planned.key not in self.started

    async def run(self, planned: Planned) -> Any:
        """Run a planned step once in the flow, or return what it returned when it ran.

        Raises `FlowError`, `NotBegun` if the round ends first, and whatever the function raised; such a step is not
        recorded.
        """
        if planned.error is not None:
            raise planned.error
        key = planned.key
        if key in self.asked or key in self.journal.answers:
            raise FlowError(f"An ask and a step both have the key {key!r}; give one of them another key=")
        other, task = self.started.get(key, (planned, None))
        if other.named != planned.named or other.digests != planned.digests:
            raise FlowError(
                f"The key {key!r} is used for two different steps, {other.named} and {planned.named}; give one of "
                "them another key="
            )
        stored = _stored(planned)
        record = self.journal.steps.get(key)
        if record is not None and task is None:
            result = _replay(planned, record, stored)
            if result is not _RUN_AGAIN:
                if key not in self.started:
                    self.started[key] = (planned, None)
                    self.note("replayed", _shown(planned))
                return result
        if task is None:
            self._refuse_undone(planned)
            task = self._start(planned, stored)
        return await self._result(planned, task)

    def _refuse_undone(self, planned: Planned) -> None:
        """Refuse a step whose record would say that it ran, although what it did may be rolled back."""
        if dependency := self.undone.reached_by(planned.function):
            raise FlowError(
                f"The step {planned.key!r} was given a value of {dependency}. A round that asks rolls back what is "
                "done with it, but the record of the step would say that it was done. Let the step open what it needs "
                f"itself, and pass it plain data; or, if {dependency} has nothing to roll back, declare it with "
                'on_ask="commit"'
            )

    async def _result(self, planned: Planned, task: asyncio.Task[Any]) -> Any:
        has_ended = task.done()
        try:
            # Shielded: whatever ends the handler, a step that has begun runs to its end.
            result = await asyncio.shield(task)
        except NotBegun:
            raise
        except Exception:
            if self.started.pop(planned.key, None) is not None:
                self._failed.setdefault(planned.key, []).append(planned.digests)
                planned.release()
            raise
        if self.may_begin is not None and not has_ended:
            self._has_just_kept = True
            asyncio.get_running_loop().call_soon(self._note_await)
        return result

    def _start(self, planned: Planned, stored: Stored) -> asyncio.Task[Any]:
        self.note("ran", _shown(planned))
        may_begin = None if self._has_just_kept else self.may_begin
        task = asyncio.create_task(self._execute(planned, stored, may_begin))
        self.started[planned.key] = (planned, task)
        self.running.add(task)
        task.add_done_callback(self._done)
        self.wake()
        return task

    def _note_await(self) -> None:
        self._has_just_kept = False

    @calls_author
    async def _execute(self, planned: Planned, stored: Stored, may_begin: Callable[[], Awaitable[bool]] | None) -> Any:
        if may_begin is not None and not await may_begin():
            raise NotBegun
        key = planned.key
        current_step.set(key)
        try:
            if inspect.iscoroutinefunction(planned.function):
                value = await planned.function()
            else:
                value = await self.threads(planned.function)
                if inspect.isawaitable(value):
                    value = await value
        except SystemExit as error:  # would end the whole server
            raise RuntimeError(f"The step {key!r} called sys.exit()") from error
        try:
            (result, exact), value = stored.keep(value, f"The result of the step {key!r}")
        except Exception as error:  # of the type's own code, too; the step is no failed one, to be tried again
            declared, kind = _declared_by(planned.function.func), type(value).__qualname__
            raise FlowError(
                f"The step {key!r} returned a value of type {kind} that can't be stored as its declared type, "
                f"{declared}: {_why(error)}"
            ) from None
        failed = self._failed.pop(key, [])
        self.journal.steps[key] = Step(planned.named, planned.digests, result, failed, exact)
        if self.keep is not None:
            await self.keep()
        return value

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        retrieve(task)
        self.wake()

    def _generate(self, function: Callable[..., Any]) -> tuple[str, Callable[[], None]]:
        name = getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise FlowError(
                "A step whose function is a lambda, or has no name, needs a key=, because its name would be its key"
            )
        branch = task, dependency = asyncio.current_task(), current_dependency.get()
        if branch not in self._branches:
            if task is None or task is self.main:
                self._branches[branch] = Branch(dependency)
            else:
                self._branches[branch] = Branch(self._side_branch(task, dependency))
        return self._branches[branch].take(name)

    def _side_branch(self, task: asyncio.Task[Any], dependency: str) -> str:
        """Name a task beside the handler's own: as its author did, or by its coroutine's name and arguments.

        So the order in which branches come to their first step, which the outside decides, does not matter. Those
        that are alike in all that is numbered as they come.
        """
        name = escape_halves(task.get_name()).replace(MARK, "_").replace(ALIKE, "_")
        if name.startswith("Task-") or name == "None":  # which Python 3.12 calls the tasks of a task factory
            coroutine: Any = task.get_coro()
            name, frame = getattr(coroutine, "__name__", "task"), getattr(coroutine, "cr_frame", None)
            if frame is not None:
                code, values = frame.f_code, frame.f_locals
                given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                name += f":{digest([plain(values.get(each)) for each in given])[:12]}"
        if dependency:
            name = f"{dependency}/{name}"
        alike = sum(branch.name.partition(ALIKE)[0] == name for branch in self._branches.values())
        return f"{name}{ALIKE}{alike + 1}" if alike else name


def _replay(planned: Planned, record: Step, stored: Stored) -> Any:
    """Return what a step returned when it ran; `_RUN_AGAIN`, if it has to run again and may."""
    if record.function != planned.named:
        raise FlowError(
            f"The step {planned.key!r} was {record.function} when it ran, and is {planned.named} now; give "
            "one of them another key="
        )
    if record.arguments == planned.digests:
        try:
            return stored.load(record.result, record.exact)
        except Exception as error:  # another version of the handler recorded it
            if not planned.rerun:
                raise _misfit(planned.key, error) from None
    elif not planned.rerun and planned.digests not in record.failed:
        raise _moved(planned.key, record, planned.digests)
    return _RUN_AGAIN


def _shown(planned: Planned) -> str:
    """Return the name of a step for those who watch: its key, or its function where the key is generated."""
    return str(planned.function.func.__name__) if MARK in planned.key else planned.key


def _stored(planned: Planned) -> Stored:
    """Return how the result of a step is stored. Raises `FlowError` for a type whose values can't be read back."""
    annotation = _declared_by(planned.function.func)
    try:
        stored = stored_as(annotation)
        stored.compile()
    except SetupError as error:
        raise FlowError(
            f"The step {planned.key!r} was not run, since its result could not be read again as its declared type, "
            f"{annotation}: {error}. Return a model, a dataclass or plain JSON, and make what can't be stored where it "
            "is used, such as in a dependency"
        ) from None
    return stored


def _declared_by(function: Callable[..., Any]) -> Any:
    """Return the declared type of a step's result. A class is its own type; what declares nothing gives plain JSON."""
    if inspect.isclass(function):
        return function
    target = getattr(function, "__func__", function)
    annotation = getattr(target, "__annotations__", {}).get("return", Any)
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(target).get("return", Any)
        except (NameError, TypeError):
            annotation = Any
    if get_origin(annotation) in (Awaitable, Coroutine):  # of a plain function, whose result is awaited
        annotation = get_args(annotation)[-1]
    if annotation is Self:
        owner = getattr(function, "__self__", None)
        annotation = owner if inspect.isclass(owner) else type(owner)
    return annotation


def _why(error: Exception) -> str:
    return describe(error) if isinstance(error, ValidationError) else type(error).__name__


def _misfit(key: str, error: Exception) -> FlowError:
    return FlowError(
        f"The recorded result of the step {key!r} no longer fits its declared type: {_why(error)}. Running it "
        "again would repeat its effect. Let the type accept what flows in progress have recorded, or pass "
        "rerun=True if the step may run again"
    )


def _moved(key: str, record: Step, digests: dict[str, str]) -> FlowError:
    moved = sorted(n for n in record.arguments.keys() | digests.keys() if record.arguments.get(n) != digests.get(n))
    return FlowError(
        f"The step {key!r} has run in an earlier round with another value of {', '.join(map(repr, moved))}. Running it "
        "again would repeat its effect, and its result no longer fits: compute the argument in a step, or pass "
        "rerun=True if the step may run again"
    )
