"""The `authorize=` hooks: who may call what."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any

from ..concurrency.threads import Threads, call_function
from ..errors import SetupError, StoreUnavailable, UnknownTarget
from ..logs.failures import report_failure
from ..protocol.callers import Caller

logger = logging.getLogger("mrtr_server")

Authorize = Callable[[Caller, str], bool | Awaitable[bool]]
"""Returns whether a caller may use a name or URI."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that decides who may use something.

    Args:
        function: takes the caller, and the name or URI.
        name: what it is for, in errors.
        is_async: whether it runs on the loop; otherwise in a thread.
    """

    function: Callable[..., Any]
    name: str
    is_async: bool


Asked = tuple[Hook | None, str]
"""Something that is to be used: its own hook, and its name or URI."""

Verdict = bool | BaseException
"""What a hook returned, or the error that it raised."""


def compile_hook(where: str, authorize: Authorize | None) -> Hook | None:
    """Compile what was given as `authorize=`.

    Args:
        where: what it was given to, for errors.
        authorize: the function; None for no hook.

    Raises:
        SetupError: it is not a function of (caller, name).
    """
    if authorize is None:
        return None
    where = f"{where}: authorize="
    given: Any = authorize
    if not callable(given) or inspect.isclass(given):
        raise SetupError(f"{where} takes a function of (caller, name) that returns True or False, not {given!r}")
    called = given if inspect.isroutine(given) or isinstance(given, partial) else given.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise SetupError(f"{where} is a generator; return True or False instead of yielding")
    try:
        signature = inspect.signature(authorize)
    except ValueError:  # some that are written in C
        pass
    else:
        try:
            signature.bind(None, "")
        except TypeError:
            raise SetupError(f"{where} is called with two values, (caller, name), but takes {signature}") from None
    return Hook(authorize, where, inspect.iscoroutinefunction(called))


class Authorizer:
    """Asks the hooks: the server's own, and that of the tool, prompt or resource. Both must return True.

    Whatever goes wrong in a hook is a no, and in the log; and so is whatever else than True or False it returns, such
    as a coroutine that nobody has awaited.

    Args:
        authorize: the server's own hook.
        threads: runs hooks that are plain functions.

    Raises:
        SetupError: it is not a function of (caller, name).
    """

    def __init__(self, authorize: Authorize | None, threads: Threads) -> None:
        self._of_server = compile_hook("MRTRServer", authorize)
        self._threads = threads

    def guards(self, hook: Hook | None) -> bool:
        """Check whether anybody need be asked for what has this hook."""
        return hook is not None or self._of_server is not None

    async def require(self, caller: Caller, method: str, kind: str, asked: Asked) -> None:
        """Check that a caller may use something.

        Args:
            caller: who calls.
            method: what for, for the log.
            kind: what it is, as for `UnknownTarget`.
            asked: its hook and its name.

        Raises:
            UnknownTarget: no, as if it were not there.
        """
        (may,) = await self.allowed(caller, method, [asked])
        if not may:
            logger.warning("%s %.200r: refused by authorize=", method, asked[1])
            raise UnknownTarget(kind, asked[1])

    async def allowed(self, caller: Caller, method: str, asked: Sequence[Asked]) -> list[bool]:
        """Return for each of several things whether a caller may use it; see `require`."""
        verdicts = await self._verdicts(caller, asked)
        failed = [
            (name, error) for (_, name), error in zip(asked, verdicts, strict=True) if isinstance(error, BaseException)
        ]
        if failed:
            (name, error), more = failed[0], f", and for {len(failed) - 1} more" if len(failed) > 1 else ""
            what = "%s: authorize= failed for %.200r%s, which counts as a no"
            report_failure(what, method, name, more, error=error)
        return [verdict is True for verdict in verdicts]

    async def still_allowed(self, caller: Caller, asked: Asked) -> bool:
        """Check whether what a caller has begun in the background may continue.

        Raises:
            StoreUnavailable: it can't be known now.
        """
        (verdict,) = await self._verdicts(caller, [asked])
        if isinstance(verdict, BaseException):  # not a no that would end for good what was allowed once
            raise StoreUnavailable(f"authorize= failed with {type(verdict).__name__}")
        return verdict

    async def _verdicts(self, caller: Caller, asked: Sequence[Asked]) -> list[Verdict]:
        verdicts: list[Verdict] = [True] * len(asked)
        of_server = [(self._of_server, name) for _, name in asked]
        for each in (of_server, asked):
            pairs = [
                (index, hook, name)
                for index, (hook, name) in enumerate(each)
                if hook is not None and verdicts[index] is True
            ]
            if pairs:
                answers = await self._ask(caller, [(hook, name) for _, hook, name in pairs])
                for (index, _, _), answer in zip(pairs, answers, strict=True):
                    verdicts[index] = answer
        return verdicts

    async def _ask(self, caller: Caller, pairs: Sequence[tuple[Hook, str]]) -> list[Verdict]:
        plain = [partial(hook.function, caller, name) for hook, name in pairs if not hook.is_async]
        returned = iter(await self._threads(partial(_call_all, plain)) if plain else ())  # in one thread, for a list
        answers: list[Verdict] = []
        for hook, name in pairs:
            answer = partial(hook.function, caller, name) if hook.is_async else next(returned)
            if hook.is_async or isawaitable(answer):
                answer = await self._awaited(hook, answer)
            if not isinstance(answer, bool | BaseException):
                answer = TypeError(f"{hook.name} returned a {type(answer).__name__}, and neither True nor False")
            answers.append(answer)
        return answers

    async def _awaited(self, hook: Hook, work: Any) -> Any:
        call = work if hook.is_async else lambda: work
        try:
            return await call_function(Hook(call, hook.name, is_async=True), {}, self._threads)
        except Exception as error:
            return error


def _call_all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    return [_attempt(call) for call in calls]


def _attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return error
