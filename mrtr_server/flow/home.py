"""The application that registered a handler, wherever the handler is served: its hooks, its addresses, its lifespan."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from inspect import Signature, isclass, iscoroutinefunction, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..concurrency.running import PerLoop, retrieve, running_loop, running_task
from ..errors import SetupError
from ..logs.formats import plain
from ..protocol.callers import Caller, ClientInfo

if TYPE_CHECKING:
    from starlette.requests import Request

logger = logging.getLogger("mrtr_server")


Word = Literal["completed", "asked", "handed_over", "task", "declined", "failed"]


Enter = Callable[[], AbstractAsyncContextManager[Any]]

_ABSENT = object()

_HELD: "set[asyncio.Task[None]]" = set()
"""What holds them until their event loops end, also where nobody has the server any more: loops do not."""


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One round of a call, as hooks see it: of a tool, a prompt or a resource.

    Args:
        method: the protocol's: `"tools/call"`, `"prompts/get"` or `"resources/read"`.
        name: of the tool or the prompt; of a resource its URI, or the template that has it. Empty for what the server
            does not have.
        caller: who calls.
        client: the client, as it describes itself.
        is_task: whether it is a round in the background.
        is_retry: whether it continues a flow.
        request: the HTTP request of the round; None over stdio, and in a task. Headers that mirror arguments are in it
            only with `sees_arguments=True`.
        template: the template of the resource that is read; empty for none.
        uri: of the resource that is read. Of one that a template has only with `sees_arguments=True`; else empty.
        variables: what the URI has for the template's variables, decoded; None unless `sees_arguments=True`.
        arguments: those of the call, as sent; None unless the hook was registered with `sees_arguments=True`.
        answers: what people answered with this request, by key; None unless it was with `sees_answers=True`.
    """

    method: str
    name: str
    caller: Caller
    client: ClientInfo
    is_task: bool = False
    is_retry: bool = False
    request: "Request | None" = None
    template: str = ""
    uri: str = field(default="", repr=False)
    variables: Mapping[str, str] | None = field(default=None, repr=False)
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    answers: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a round ended.

    Args:
        outcome: `"completed"`, `"asked"` (its client has questions to answer), `"handed_over"` (it continues in another
            replica), `"task"` (it continues in the background), `"declined"` (a person said no), or `"failed"` (its
            result says that it failed).
        reference: what the log calls the failure; empty for none.
        flow: the id of the flow; empty where it needed none.
        round: which round of the flow it was, from 1.
        result: the result, if there is one, as the protocol has it: `content` and what belongs to it of a tool,
            `messages` of a prompt, `contents` of a resource; None unless the hook was registered with
            `sees_results=True`. Such a hook may return `dataclasses.replace(ended, result=...)` to change it.
        answered: the texts of the questions whose answers the round has read, by key, as the person saw them; those of
            earlier rounds, too. None unless the hook was registered with `sees_answers=True`.
    """

    outcome: Word
    reference: str = ""
    flow: str = ""
    round: int = 1
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    answered: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a call, on the side of the server.

    Args:
        error: the exception. Its tracebacks have files, lines and functions, and no local variables, unless the hook
            was registered with `sees_arguments=True` and `sees_answers=True`. Its message is as it was raised.
        reference: names it in the log, and for the client.
        call: the call that failed.
        flow: the id of its flow; empty where it needed none.
    """

    error: BaseException
    reference: str
    call: CallInfo
    flow: str = ""


class CallNext(Protocol):
    """What a hook of `app.around` awaits once: the hooks within it, and then the call."""

    def __call__(self, call: CallInfo, /) -> Awaitable[Ended]:
        """Run what the hook is around.

        Args:
            call: the call, as the hook got it.

        Returns:
            How it ended.
        """
        ...


class CallHook(NamedTuple):
    """A function that was registered with `app.around` or `app.on_error`, and what it is shown."""

    function: Callable[..., Any]
    sees_arguments: bool
    sees_answers: bool
    sees_results: bool = False

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__name__))

    @property
    def is_async(self) -> bool:
        return is_async(self.function)


def is_async(function: Any) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def check_around(function: Any) -> None:
    shown = "async def hook(call: CallInfo, call_next: CallNext) -> None: ... await call_next(call)"
    if isclass(function) or not callable(function) or not is_async(function):
        raise SetupError(f"app.around takes an `async def` of (call, call_next): {shown}")
    _check_takes(function, 2, f"app.around takes a function of (call, call_next): {shown}")


def check_on_error(function: Any) -> None:
    what = "app.on_error takes a function of (failure): def report(failure: Failure) -> None: ..."
    if isclass(function) or not callable(function):
        raise SetupError(what)
    _check_takes(function, 1, what)


def _check_takes(function: Callable[..., Any], count: int, what: str) -> None:
    if taken := misfit_of(function, count):
        raise SetupError(f"{what}; it got one that takes {taken}")


def misfit_of(function: Callable[..., Any], count: int) -> Signature | None:
    """Return the signature of a function that can't be called with so many values; None if that shows no fault."""
    try:
        taken = signature(function)
        taken.bind(*(None,) * count)
    except TypeError:
        return taken
    except ValueError:  # some that are written in C
        return None
    return None


class Home:
    __slots__ = ("around", "lifespan", "name", "on_error", "overrides")

    def __init__(self, name: str, lifespan: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.lifespan = lifespan
        self.around: list[CallHook] = []
        """The outermost first."""
        self.on_error: list[CallHook] = []
        self.overrides: dict[Any, Callable[..., Any]] = {}
        """What takes the place of a dependency, by the identity of its function."""

    @property
    def has_hooks(self) -> bool:
        return bool(self.around or self.on_error)


class Way(Protocol):
    """How URIs change on the way into an application that includes another."""

    def name(self, name: str) -> str: ...

    def uri(self, uri: str) -> str: ...

    def link(self, uri: str) -> str:
        """Return the same where the included application serves it, and the URI as it is where it does not."""
        ...


class Addresses(NamedTuple):
    """Where clients find the resources of a part: of an application that others include, or of an object."""

    ways: tuple[Way, ...] = ()

    def through(self, way: Way) -> "Addresses":
        return Addresses((*self.ways, way))

    def uri(self, uri: str) -> str:
        for way in self.ways:
            uri = way.uri(uri)
        return uri

    @property
    def prefix(self) -> str:
        """What names of the part begin with as clients have them; empty for nothing."""
        name = ""
        for way in self.ways:
            name = way.name(name)
        return name

    def link(self, uri: Any) -> Any:
        """Return a URI that a result names as clients have it; one that the part does not serve stays."""
        if isinstance(uri, str):
            for way in self.ways:
                uri = way.link(uri)
        return uri

    def block(self, block: Any) -> Any:
        if not isinstance(block, Mapping) or not self.ways:
            return block
        match block.get("type"):
            case "resource_link":
                return self._linked(block)
            case "resource":
                return {**block, "resource": self._linked(block.get("resource"))}
            case _:
                return block

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        body = self.entry(body)
        if isinstance(content := body.get("content"), list):
            body["content"] = [self.block(each) for each in content]
        if isinstance(contents := body.get("contents"), list):
            body["contents"] = [self._linked(each) for each in contents]
        if isinstance(messages := body.get("messages"), list):
            body["messages"] = [{**each, "content": self.block(each.get("content"))} for each in messages]
        return body

    def entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of a list, or a body, with the page of its `_meta` as clients have it (MCP Apps)."""
        meta = entry.get("_meta")
        page = meta.get("ui") if isinstance(meta, Mapping) else None
        if not isinstance(page, Mapping) or "resourceUri" not in page:
            return dict(entry)
        page = {**page, "resourceUri": self.link(page["resourceUri"])}
        meta = {**entry["_meta"], "ui": page}
        if "ui/resourceUri" in meta:  # which hosts of the first releases read
            meta["ui/resourceUri"] = page["resourceUri"]
        return {**entry, "_meta": meta}

    def _linked(self, block: Any) -> Any:
        return {**block, "uri": self.link(block["uri"])} if isinstance(block, Mapping) and "uri" in block else block


OWN = Addresses()


def identity(function: Callable[..., Any]) -> Any:
    """Return what tells a function from others, also where it has no hash."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


_NOTHING: Mapping[Home, Any] = MappingProxyType({})


class Lifespans:
    """Enters and leaves what was given as `lifespan=`: the server's own, and those of applications that it includes.

    A server that nobody starts, as one that is mounted, starts them at its first call, until the event loop ends.
    """

    def __init__(self) -> None:
        self.known: dict[Home, Enter] = {}
        """By the home of the handlers that may use it."""
        self._values = PerLoop[dict[Home, Any]]()
        self._late = PerLoop[set[_Late]]()

    def add(self, home: Home, enter: Enter) -> None:
        """Add that of an application. If the server runs already, it is entered before the next call."""
        self.known.setdefault(home, enter)

    @property
    def here(self) -> Mapping[Home, Any]:
        return self._values.get() or _NOTHING

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Enter all for as long as the block lasts: the server's own first, and left last."""
        async with self._entered(tuple(self.known)):
            yield

    @asynccontextmanager
    async def _entered(self, homes: Sequence[Home]) -> AsyncIterator[None]:
        """Enter those of some applications; what was there before is there again afterwards."""
        values = self._values.here(dict)
        async with AsyncExitStack() as stack:
            for home in homes:
                value = await stack.enter_async_context(self.known[home]())
                stack.callback(_put_back, values, home, values.get(home, _ABSENT), value)
                values[home] = value
            yield

    def forget(self, home: Home) -> None:
        """Restart that of an application, since a test has put another function into its place."""
        for values in self._values.values():
            values.pop(home, None)
        for late in [each for these in self._late.values() for each in tuple(these) if home in each.homes]:
            late.leave()

    async def start_here(self) -> None:
        """Enter what nobody has entered on this event loop. Where `lifespan=` fails, the next call tries again."""
        values = self.here
        if len(values) == len(self.known):
            return
        late = self._late.here(set)
        starting = next((each for each in late if not each.started.done()), None)
        if starting is None:
            starting = _Late([home for home in self.known if home not in values], self._entered)
            late.add(starting)
            starting.task.add_done_callback(lambda _: late.discard(starting))
        await asyncio.shield(starting.started)


def _put_back(values: dict[Home, Any], home: Home, before: Any, value: Any) -> None:
    if values.get(home, _ABSENT) is not value:  # a test has put another one there
        return
    if before is _ABSENT:
        del values[home]
    else:
        values[home] = before


class _Late:
    """Enters what was not entered at a start, in a task that the end of the event loop cancels."""

    def __init__(
        self, homes: Sequence[Home], entered: Callable[[Sequence[Home]], AbstractAsyncContextManager[None]]
    ) -> None:
        loop = running_loop()
        self.homes = homes
        self.started: asyncio.Future[None] = loop.create_future()
        self.started.add_done_callback(retrieve)  # the calls that waited for it may have gone
        self.task = loop.create_task(self._hold(entered))
        _HELD.add(self.task)
        self.task.add_done_callback(_HELD.discard)

    def leave(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    async def _hold(self, entered: Callable[[Sequence[Home]], AbstractAsyncContextManager[None]]) -> None:
        try:
            async with entered(self.homes):
                self.started.set_result(None)
                try:
                    await running_loop().create_future()
                except asyncio.CancelledError:
                    running_task().uncancel()
        except Exception as error:
            if self.started.done():
                logger.error("%s", plain(f"lifespan= failed at shutdown: {error}"), exc_info=error)
            else:
                self.started.set_exception(error)
        finally:
            if not self.started.done():
                self.started.cancel()
