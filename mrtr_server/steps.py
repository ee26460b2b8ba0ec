"""Steps: functions that run once in a flow, however many rounds it takes."""

import asyncio
import inspect
from collections.abc import Callable, Container
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, cast, get_type_hints

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .digests import digest
from .errors import FlowError, KeyConflict, StepChanged
from .forms import describe
from .journal import Journal, Step
from .messages import JSON
from .schema import Stored
from .threads import Threads

current_step: ContextVar[str] = ContextVar("mrtr_server_step", default="")
"""The key of the step that the code runs in; empty outside of steps."""


class Branch:
    """The steps of one asyncio task, counted by name, so that branches side by side replay the same."""

    __slots__ = ("counts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: dict[str, int] = {}

    def next_key(self, name: str) -> str:
        """Name the next step of that function: `build`, `build_2`; in a side branch `1/build`, `1/build_2`."""
        count = self.counts[name] = self.counts.get(name, 0) + 1
        numbered = name if count == 1 else f"{name}_{count}"
        return f"{self.name}/{numbered}" if self.name else numbered


class Steps:
    """The steps of one round.

    Parameters:
        journal: holds the steps of earlier rounds, and takes those of this one.
        threads: runs plain functions.
        main: the handler's own task.
        asked: the keys of the asks made in this round.
        fail: notes a mistake of the handler's code, and gives it back to be raised.
        wake: tells the runner that a step has begun or ended.
    """

    def __init__(
        self,
        journal: Journal,
        threads: Threads,
        main: asyncio.Task[Any] | None,
        asked: Container[str],
        fail: Callable[[FlowError], FlowError],
        wake: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._threads = threads
        self._main = main
        self._asked = asked
        self._fail = fail
        self._wake = wake
        self.running: set[asyncio.Task[Any]] = set()
        self.started: dict[str, tuple[dict[str, str], asyncio.Task[Any]]] = {}
        self._branches: dict[asyncio.Task[Any], Branch] = {}

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON, key: str | None, rerun: bool
    ) -> Any:
        """Run a function once in the flow, or give what it returned when it ran.

        Parameters:
            function, args, kwargs: what to run.
            key: names the step; the function's name and its number in this branch if None.
            rerun: run it again where its arguments have changed.

        Raises:
            FlowError: the step can't be told apart from another entry, or its arguments have changed.
            Exception: whatever the function raised.
        """
        stored = _stored(function)
        digests = _argument_digests(function, args, kwargs)
        key = key or self._step_key(function, digests)
        if key in self._asked or key in self._journal.answers:
            raise self._fail(KeyConflict(f"The step {key!r} has the key of the ask {key!r}; give one of them a key="))
        if (record := self._journal.steps.get(key)) is not None:
            if record.arguments == digests:
                return self._recorded(key, stored, record)
            if not rerun:
                raise self._fail(_moved(key, record, digests))
        if key in self.started:
            started_with, task = self.started[key]
            if started_with != digests:
                raise self._fail(KeyConflict(f"The key {key!r} is used for two different steps in one run"))
        else:
            task = asyncio.create_task(self._run_step(key, stored, digests, partial(function, *args, **kwargs)))
            self.started[key] = (digests, task)
            self.running.add(task)
            task.add_done_callback(self._step_done)
            self._wake()
        # Shielded: whatever ends the handler, a step that has begun runs to its end.
        return await asyncio.shield(task)

    def _recorded(self, key: str, stored: Stored, record: Step) -> Any:
        try:
            return stored.read(record.result)
        except ValidationError as error:
            message = f"The recorded result of the step {key!r} is not of its declared type any more: {describe(error)}"
            raise self._fail(StepChanged(message)) from None

    async def _run_step(self, key: str, stored: Stored, digests: dict[str, str], function: partial[Any]) -> Any:
        current_step.set(key)
        try:
            if inspect.iscoroutinefunction(function.func):
                value = await function()
            else:
                value = await self._threads(function)
                if inspect.isawaitable(value):
                    value = await value
        except SystemExit as error:  # would end the whole server
            raise RuntimeError(f"The step {key!r} called sys.exit()") from error
        try:
            written = stored.write(value)
            value = stored.read(written)
        except (PydanticSerializationError, ValidationError) as error:
            why = describe(error) if isinstance(error, ValidationError) else str(error)
            raise self._fail(
                FlowError(f"The step {key!r} returned what can't be kept as its declared type: {why}")
            ) from None
        self._journal.steps[key] = Step(digests, written)
        return value

    def _step_done(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled():
            task.exception()  # taken here, so that a step nobody waits for any more is not reported as lost
        self._wake()

    def _step_key(self, function: Callable[..., Any], digests: dict[str, str]) -> str:
        name = getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise self._fail(
                FlowError("A step that is a lambda or has no name needs a key=; the name is its key otherwise")
            )
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  steps run on the loop
        if task not in self._branches:
            self._branches[task] = Branch(self._branch_name(name, digests, task))
        return self._branches[task].next_key(name)

    def _branch_name(self, name: str, digests: dict[str, str], task: asyncio.Task[Any]) -> str:
        """Name a task: the handler's own is empty, those beside it are numbered as they come.

        Where the order in which branches reach their first step depends on the outside, the recorded arguments of
        that step tell which branch this one was.
        """
        if task is self._main:
            return ""
        taken = {branch.name for branch in self._branches.values()}
        recorded = {key.partition("/")[0] for key in self._journal.steps if "/" in key}
        for candidate in sorted(recorded - taken, key=int):
            record = self._journal.steps.get(f"{candidate}/{name}")
            if record is not None and record.arguments == digests:
                return candidate
        number = 1
        while str(number) in taken:
            number += 1
        return str(number)


def _stored(function: Callable[..., Any]) -> Stored:
    """Find the declared type of a step's result. A class is its own type; what declares nothing gives plain JSON."""
    if inspect.isclass(function):
        return _stored_as(cast(Any, function))
    target = getattr(function, "__func__", function)
    annotation = getattr(target, "__annotations__", {}).get("return", Any)
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(target).get("return", Any)
        except (NameError, TypeError):
            annotation = Any
    return _stored_as(annotation)


@lru_cache(maxsize=256)
def _stored_as(annotation: Any) -> Stored:
    return Stored(annotation)


def _argument_digests(function: Callable[..., Any], args: tuple[Any, ...], kwargs: JSON) -> dict[str, str]:
    """Digest each argument, by its parameter's name where the function tells it, otherwise by its position."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount] if code is not None else ()
    names = names[1:] if inspect.ismethod(function) else names
    positions = (str(position) for position in range(len(names) + 1, len(args) + 1))
    named = {**dict(zip((*names, *positions), args, strict=False)), **kwargs}
    return {name: _digest_argument(value) for name, value in named.items()}


def _digest_argument(value: Any) -> str:
    # What is no JSON, such as a connection, counts by its type only.
    plain = to_jsonable_python(value, fallback=lambda item: f"<{type(item).__qualname__}>", inf_nan_mode="strings")
    return digest(plain)[:11]


def _moved(key: str, record: Step, digests: dict[str, str]) -> StepChanged:
    moved = sorted(n for n in record.arguments.keys() | digests.keys() if record.arguments.get(n) != digests.get(n))
    return StepChanged(
        f"The step {key!r} has run in an earlier round with another value of {', '.join(map(repr, moved))}. Running it "
        "again would repeat its effect, and its result no longer fits: compute the argument in a step, or pass "
        "rerun=True if the step may run again"
    )
