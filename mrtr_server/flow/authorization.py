"""The `authorize=` hooks: who may call what. `scopes=` and `visible=` are parts of the same hook."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

from ..concurrency.threads import Threads, call_function, ending_in
from ..errors import InsufficientScope, SetupError, StoreUnavailable, UnknownTarget, check_scopes
from ..logs.failures import calls_author, report_failure
from ..logs.refusals import RefusalLog
from ..protocol.callers import Caller
from .home import misfit_of

logger = logging.getLogger("mrtr_server")

Authorize = Callable[[Caller, str], bool | Awaitable[bool]]


class Hook(NamedTuple):
    function: Callable[..., Any] | None
    """Takes the caller, and the name or URI; None where scopes decide alone."""
    name: str
    is_async: bool = False
    scopes: tuple[str, ...] = ()
    visible: frozenset[str] = frozenset()
    """What a caller needs to see it. For one who lacks some it does not exist."""
    local: Callable[[str], str] | None = None
    """Returns the name or URI by which its application knows it; None where that is the same."""
    outer: "tuple[Hook, ...]" = ()
    """The hooks of the servers that were included on the way, which are asked before; the outermost first."""

    @property
    def decides(self) -> bool:
        """Whether a function of an author is asked, and not scopes alone."""
        return any(each.function is not None for each in (self, *self.outer))

    @property
    def hides(self) -> bool:
        """Whether what it guards may not exist for a caller. Missing `scopes` hide nothing."""
        return self.function is not None or bool(self.visible) or any(each.hides for each in self.outer)


Guarded = tuple[Hook | None, str]

Verdict = bool | BaseException


def compile_hook(
    where: str, authorize: Authorize | None, scopes: Iterable[str] = (), visible: Iterable[str] = ()
) -> Hook | None:
    """Return the hook of `authorize=`, `scopes=` and `visible=`; None where nothing was given. Raises `SetupError`."""
    if callable(visible):
        raise SetupError(f"{where}: visible= takes scopes; a function that decides who sees it is authorize=")
    needed = check_scopes(f"{where}: scopes", scopes)
    shown = frozenset(check_scopes(f"{where}: visible", visible))
    where = f"{where}: authorize="
    if authorize is None:
        return Hook(None, where, scopes=needed, visible=shown) if needed or shown else None
    given: Any = authorize
    if not callable(given) or inspect.isclass(given):
        raise SetupError(f"{where} takes a function of (caller, name) that returns True or False, not {given!r}")
    called = given if inspect.isroutine(given) or isinstance(given, partial) else given.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise SetupError(f"{where} is a generator; return True or False instead of yielding")
    if taken := misfit_of(authorize, 2):
        raise SetupError(f"{where} is called with two values, (caller, name), but takes {taken}")
    return Hook(authorize, where, inspect.iscoroutinefunction(called), needed, shown)


def hook_within(
    hook: Hook | None, name: str, server: Hook | None, scopes: tuple[str, ...], within: Callable[[str], str]
) -> Hook | None:
    """Return the hook of something whose `server`, with its own hook, is included in another."""
    if hook is None and server is None and not scopes:
        return None
    hook = hook or Hook(None, f"{name}: authorize=")
    outer = [] if server is None else [server]
    return hook._replace(
        scopes=tuple(dict.fromkeys((*scopes, *hook.scopes))),
        local=_after(within, hook.local),
        outer=tuple(each._replace(local=_after(within, each.local)) for each in (*outer, *hook.outer)),
    )


def _after(first: Callable[[str], str], second: Callable[[str], str] | None) -> Callable[[str], str]:
    return first if second is None else lambda name: second(first(name))


class Authorizer:
    """Asks the hooks: the server's own, and that of the tool, prompt or resource. Both must return True.

    Whatever goes wrong in a hook is a no, and in the log; and so is whatever else than True or False it returns, such
    as a coroutine that nobody has awaited.
    """

    def __init__(self, authorize: Authorize | None, threads: Threads) -> None:
        self._of_server = compile_hook("MRTRServer", authorize)
        self.guards_all = self._of_server is not None
        self._threads = threads
        self._refusals = RefusalLog()

    def guards(self, hook: Hook | None) -> bool:
        return hook is not None or self.guards_all

    async def require(self, caller: Caller, method: str, kind: str, asked: Guarded, *, has_begun: bool = False) -> None:
        """Check that a caller may use something, of a `kind` as for `UnknownTarget`.

        Raises `UnknownTarget` if not, as if it were not there: nobody may tell from it whether it is. Raises
        `InsufficientScope` where only scopes are missing.
        """
        (verdict,) = await self._reported(caller, method, [asked])
        if isinstance(verdict, InsufficientScope):
            raise verdict
        if verdict is not True:
            hook = asked[0]
            lacks = set() if hook is None else hook.visible - caller.scopes
            by = f"visible=, which needs {', '.join(sorted(lacks))}" if lacks else "authorize="
            self._refusals.note("%s %.200r: refused by %s", method, asked[1], by)
            raise UnknownTarget(kind, asked[1], has_begun=has_begun)

    async def allowed(
        self, caller: Caller, method: str, asked: Sequence[Guarded], *, challenges: bool = False
    ) -> list[bool]:
        """Return for each of several things whether a caller may use it now.

        With `challenges`, raises an `InsufficientScope` that names all missing scopes.
        """
        verdicts = await self._reported(caller, method, asked)
        lacking = [each for each in verdicts if isinstance(each, InsufficientScope)]
        if lacking and challenges:
            raise InsufficientScope(*(scope for each in lacking for scope in each.scopes))
        return [verdict is True for verdict in verdicts]

    async def shown(self, caller: Caller, method: str, asked: Sequence[Guarded]) -> list[bool]:
        """Return for each of several things whether it exists for a caller: missing scopes hide nothing."""
        verdicts = await self._reported(caller, method, asked)
        return [verdict is True or isinstance(verdict, InsufficientScope) for verdict in verdicts]

    async def _reported(self, caller: Caller, method: str, asked: Sequence[Guarded]) -> list[Verdict]:
        verdicts = await self._verdicts(caller, asked)
        failed = [
            (name, error)
            for (_, name), error in zip(asked, verdicts, strict=True)
            if isinstance(error, BaseException) and not isinstance(error, InsufficientScope)
        ]
        if failed:
            (name, error), more = failed[0], f", and for {len(failed) - 1} more" if len(failed) > 1 else ""
            what = "%s: authorize= failed for %.200r%s, which counts as a no"
            report_failure(what, method, name, more, error=error)
        return verdicts

    async def still_allowed(self, caller: Caller, asked: Guarded) -> bool:
        """Check whether what a caller has begun in the background may continue. Raises `StoreUnavailable`."""
        (verdict,) = await self._verdicts(caller, [asked])
        if isinstance(verdict, InsufficientScope):  # the scopes are those of the request, and stay what they were
            return False
        if isinstance(verdict, BaseException):  # not a no that would end for good what was allowed once
            raise StoreUnavailable(f"authorize= failed with {type(verdict).__name__}")
        return verdict

    async def _verdicts(self, caller: Caller, asked: Sequence[Guarded]) -> list[Verdict]:
        verdicts: list[Verdict] = [hook is None or hook.visible <= caller.scopes for hook, _ in asked]
        of_server = [(self._of_server, name) for _, name in asked]
        depth = max((len(hook.outer) for hook, _ in asked if hook is not None), default=0)
        between = [[(_outer(hook, level), name) for hook, name in asked] for level in range(depth)]
        for each in (of_server, *between, asked):
            pairs = [
                (index, hook, name)
                for index, (hook, name) in enumerate(each)
                if hook is not None and hook.function is not None and verdicts[index] is True
            ]
            if pairs:
                answers = await self._ask(caller, [(hook, name) for _, hook, name in pairs])
                for (index, _, _), answer in zip(pairs, answers, strict=True):
                    verdicts[index] = answer
        return [_with_scopes(caller, hook, verdict) for (hook, _), verdict in zip(asked, verdicts, strict=True)]

    async def _ask(self, caller: Caller, pairs: Sequence[tuple[Hook, str]]) -> list[Verdict]:
        calls = [
            partial(hook.function, caller, name if hook.local is None else hook.local(name))
            for hook, name in pairs
            if hook.function is not None
        ]
        plain = [call for call, (hook, _) in zip(calls, pairs, strict=True) if not hook.is_async]
        returned = iter(
            await self._threads(lambda: list(map(_attempt, plain))) if plain else ()
        )  # in one thread, for a list
        answers: list[Verdict] = []
        for call, (hook, _) in zip(calls, pairs, strict=True):
            answer = call if hook.is_async else next(returned)
            if hook.is_async or isawaitable(answer):
                answer = await self._awaited(hook, answer)
            if not isinstance(answer, bool | BaseException):
                answer = TypeError(f"{hook.name} returned a {type(answer).__name__}, and neither True nor False")
            answers.append(answer)
        return answers

    async def _awaited(self, hook: Hook, work: Any) -> Any:
        call = work if hook.is_async else lambda: work
        try:
            return await call_function(call, hook.name, self._threads, is_async=True)
        except Exception as error:
            return error


def _outer(hook: Hook | None, level: int) -> Hook | None:
    return hook.outer[level] if hook is not None and level < len(hook.outer) else None


def _with_scopes(caller: Caller, hook: Hook | None, verdict: Verdict) -> Verdict:
    """Return the verdict, and where scopes are missing, one that names all that are needed."""
    if hook is None or not hook.scopes:
        return verdict
    if isinstance(verdict, InsufficientScope):
        return InsufficientScope(*verdict.scopes, *hook.scopes)
    if verdict is True and not caller.scopes.issuperset(hook.scopes):
        return InsufficientScope(*hook.scopes)
    return verdict


@calls_author
def _attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return ending_in(error, "authorize=")
