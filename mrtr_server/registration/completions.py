"""From a function that `@app.completion` decorates to a completion."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any

from ..concurrency.threads import Called, Threads, call_function
from ..errors import SetupError
from ..flow.handler import Handler
from ..flow.home import Home
from .handlers import compile_handler
from .signatures import names_around_decorator


@dataclass(frozen=True, slots=True)
class Completer:
    """Suggests values for one argument of a prompt or template: a function of (value) or of (value, arguments)."""

    handler: Handler

    async def suggest(self, value: str, known: dict[str, str], threads: Threads) -> Any:
        """Return what the function returns.

        Args:
            value: what has been typed so far.
            known: the other arguments that are known already, by name.
            threads: runs a plain function.
        """
        function = partial(self.handler.function, *(value, known)[: len(self.handler.parameters)])
        return await call_function(Called(function, self.handler.name, self.handler.is_async), {}, threads)


def build_completer(function: Callable[..., Any], home: Home) -> Completer:
    """Compile a completion.

    Args:
        function: what was decorated.
        home: the application that registers it.

    Raises:
        SetupError: it can't take what it is given; the message says why.
    """
    handler = compile_handler(
        function, getattr(function, "__name__", "completion"), names_around_decorator(), home=home
    )
    if handler.own_parameters or len(handler.parameters) not in (1, 2):
        raise SetupError(
            f"{handler.name}: a completion takes (value), or (value, arguments) with the arguments that are known "
            "already"
        )
    if any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in handler.parameters.values()):
        raise SetupError(f"{handler.name}: a completion is called by position; remove the * from its parameters")
    return Completer(handler)
