"""Decorators for methods, whose objects are added to a server later: `@tool` and `app.add(instance)`."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from ..errors import SetupError
from ..fields import takes_fields, takes_function_or
from ..hints import PROMPT_OPTIONS, RESOURCE_OPTIONS, TOOL_OPTIONS
from .options import PromptOptions, ResourceOptions, ToolOptions

F = TypeVar("F", bound=Callable[..., Any])

Options = ToolOptions | PromptOptions | ResourceOptions

_MARK = "__mrtr_server__"


class _Marks:
    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    @takes_fields(ToolOptions)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(ToolOptions, "@tool", TOOL_OPTIONS)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]:
        """Make a method a tool of the objects that `app.add(instance)` adds.

        It takes the options of `MRTRServer.tool`.
        """
        return _marking(options)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    @takes_fields(PromptOptions)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(PromptOptions, "@prompt", PROMPT_OPTIONS)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]:
        """Make a method a prompt of the objects that `app.add(instance)` adds.

        It takes the options of `MRTRServer.prompt`.
        """
        return _marking(options)

    @takes_fields(ResourceOptions, "@resource", RESOURCE_OPTIONS)
    def resource(self, options: ResourceOptions) -> Callable[[F], F]:
        """Make a method a resource of the objects that `app.add(instance)` adds.

        It takes the options of `MRTRServer.resource`.
        """
        return _marking(options)


_marks = _Marks()

tool = _marks.tool
"""Make a method a tool of the objects that `app.add(instance)` adds. It takes the options of `MRTRServer.tool`."""

prompt = _marks.prompt
"""Make a method a prompt of the objects that `app.add(instance)` adds. It takes the options of `MRTRServer.prompt`."""

resource = _marks.resource
"""Make a method a resource of the objects that `app.add(instance)` adds. It takes the options of
`MRTRServer.resource`."""


def _marking(options: Options) -> Callable[[F], F]:
    def mark(function: F) -> F:
        target = _function_of(function)
        setattr(target, _MARK, (*getattr(target, _MARK, ()), options))
        return function

    return mark


def _function_of(method: Any) -> Any:
    return method.__func__ if isinstance(method, staticmethod | classmethod) else method


def marked_methods(instance: object) -> Iterator[tuple[Callable[..., Any], Options]]:
    """Yield the marked methods of an object with their options, as they were defined. Raises `SetupError`."""
    kind = type(instance)
    if inspect.isclass(instance):
        raise SetupError(
            f"app.add takes an object, and {instance.__name__} is a class: app.add({instance.__name__}(...))"
        )
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))
    found = [
        (getattr(instance, name), options)
        for name in names
        for options in getattr(_function_of(inspect.getattr_static(kind, name)), _MARK, ())
    ]
    if not found:
        raise SetupError(
            f"app.add({kind.__name__}(...)): no method is decorated with @tool, @prompt or @resource of mrtr_server"
        )
    yield from found
