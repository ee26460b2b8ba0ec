"""From a function that `@app.callback` decorates to a callback."""

import re
from collections.abc import Callable, Coroutine
from inspect import Parameter
from typing import Any, Protocol, TypeVar, Union, overload

from starlette.responses import Response

from ..callbacks.base_url import origins_of
from ..callbacks.callback_service import Callback
from ..errors import SetupError
from ..schema.stored import Stored
from ..schema.type_parts import union_members
from .handlers import compile_handler
from .options import CallbackOptions
from .signatures import names_around_decorator

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Registering(Protocol):
    """What `@app.callback(...)` is: makes a `Callback` of a function, whose answer is of the type that it returns."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, T | Response]], /) -> Callback[T]: ...
    @overload
    def __call__(self, function: Callable[..., T | Response], /) -> Callback[T]: ...


def build_callback(function: Callable[..., Any], options: CallbackOptions) -> Callback[Any]:
    """Compile a callback.

    Args:
        function: what was decorated.
        options: of its decorator.

    Raises:
        SetupError: it can't be one; the message says why.
    """
    name = options.name
    handler = compile_handler(function, name, names_around_decorator())
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name!r} is not a valid name for a callback: use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
    if handler.context or handler.inputs or handler.state or len(handler.parameters) not in (1, 2):
        raise SetupError(f"{name}: a callback takes the request, and optionally the CallbackLink over which it came")
    taken = frozenset({options.methods} if isinstance(options.methods, str) else options.methods)
    if not taken or taken - {"GET", "POST"}:
        raise SetupError(f'{name}: methods= takes "GET", "POST", or both')
    others = origins_of(f"{name}: origins", options.origins)
    if others and "POST" not in taken:
        raise SetupError(f'{name}: origins= apply to POST only; give methods=["POST"], too')
    members = [each for each in union_members(handler.returns) if not _is_response(each)]
    if not members:
        raise SetupError(
            f"{name} only returns responses, so it never reports anything; return the value that the flow waits for, "
            "too"
        )
    returns = Any if handler.returns is Parameter.empty else Union[tuple(members)]  # noqa: UP007
    try:
        stored = Stored(returns)
    except SetupError as error:
        raise SetupError(f"{name}: what it returns can't be kept as {returns!r}: {error}") from error
    two = len(handler.parameters) == 2
    return Callback(
        name,
        handler.function,
        takes_link=two,
        returns=returns,
        stored=stored,
        methods=taken,
        origins=others,
        page=options.page,
    )


def _is_response(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Response)
