"""What hooks of an application receive of calls: `app.around` and `app.on_error`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isclass, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import SetupError
from ..protocol.callers import Caller, ClientInfo

if TYPE_CHECKING:
    from starlette.requests import Request

Word = Literal["completed", "asked", "handed_over", "task", "declined", "failed"]


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
    """

    outcome: Word
    reference: str = ""
    flow: str = ""
    round: int = 1
    result: Mapping[str, Any] | None = field(default=None, repr=False)


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


@dataclass(frozen=True, slots=True)
class CallHook:
    """A function that was registered with `app.around` or `app.on_error`.

    Args:
        function: the function.
        sees_arguments: whether it is shown arguments.
        sees_answers: whether it is shown answers.
        sees_results: whether it is shown results, and may return others.
    """

    function: Callable[..., Any]
    sees_arguments: bool
    sees_answers: bool
    sees_results: bool = False

    @property
    def name(self) -> str:
        """Its name in errors."""
        return str(getattr(self.function, "__qualname__", type(self.function).__name__))

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise in a thread."""
        return is_async(self.function)


def is_async(function: Any) -> bool:
    """Return whether a function, or an object that can be called, is an `async def`."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def check_around(function: Any) -> None:
    """Check a function for `app.around`. Raises `SetupError`."""
    shown = "async def hook(call: CallInfo, call_next: CallNext) -> None: ... await call_next(call)"
    if isclass(function) or not callable(function) or not is_async(function):
        raise SetupError(f"app.around takes an `async def` of (call, call_next): {shown}")
    _check_takes(function, 2, f"app.around takes a function of (call, call_next): {shown}")


def check_on_error(function: Any) -> None:
    """Check a function for `app.on_error`. Raises `SetupError`."""
    what = "app.on_error takes a function of (failure): def report(failure: Failure) -> None: ..."
    if isclass(function) or not callable(function):
        raise SetupError(what)
    _check_takes(function, 1, what)


def _check_takes(function: Callable[..., Any], count: int, what: str) -> None:
    try:
        signature(function).bind(*(None,) * count)
    except TypeError:
        raise SetupError(f"{what}; it got one that takes {signature(function)}") from None
    except ValueError:  # some that are written in C
        return
