"""Records whose dependencies have other functions in their places."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..flow.handler import Dependency, Handler
from ..flow.home import identity
from .inclusion import Record
from .tools import Tool, write_in_time


def compiled(record: Record) -> Record:
    """Return a record with what takes the place of its dependencies now; what the outermost application says counts."""
    handler = record.handler
    if handler.declared is None or not any(home.overrides for home in handler.homes):
        return record
    overrides = {key: function for home in reversed(handler.homes) for key, function in home.overrides.items()}
    again = replace(handler, declared=handler.declared.compile_again(overrides))
    if isinstance(record, Tool):
        # What a teardown leaves must have been written before; see `build_tool`.
        again, write = write_in_time(again, record.write if handler.write is None else handler.write)
        return replace(record, handler=again, write=write)
    return replace(record, handler=again)


def depends_on(handler: Handler, function: Callable[..., Any]) -> bool:
    """Return whether a handler needs a function, or its application has it as `lifespan=`.

    Args:
        handler: as it is now; what was put into the place of others does not count.
        function: the function.
    """
    if any(home.lifespan is not None and home.lifespan == function for home in handler.homes):
        return True
    declared = None if handler.declared is None else handler.declared.compile_again({})
    nodes = () if declared is None else declared.nodes
    return any(isinstance(node, Dependency) and identity(node.function) == identity(function) for node in nodes)
